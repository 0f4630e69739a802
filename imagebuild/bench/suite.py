# SPDX-License-Identifier: Apache-2.0
"""`Suite`: images/bench/NAME.yaml as written: which arms, cells and repeats a benchmark has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from imagebuild.diagnostics import Refused
from imagebuild.errors import ManifestError
from imagebuild.manifest import Model
from imagebuild.manifest_fields import Line, Reason
from imagebuild.yamlfile import load

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
Speculation = Literal["none", "dflash", "ddtree"]


class ArmSpec(Model):
    """One server setting. `service` is a compose service (default: the arm's name).

    `same_as` names the arm whose greedy answers this one must give: speculation must not change them.
    `max_concurrency` leaves out cells that the arm cannot run.
    """

    name: Name
    title: Line = ""
    service: str = ""
    layout: Line
    speculation: Speculation = "none"
    same_as: str = ""
    max_concurrency: Count = 1 << 20

    @property
    def compose_service(self) -> str:
        """The compose service that is this arm."""
        return self.service or self.name


class Length(Model):
    """Tokens of each request and answer. With prompts of a file their own length counts, `input` is 0."""

    input: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    output: Annotated[int, Field(ge=2, le=1 << 20)]


class Known(Model):
    """A prompt, as text or token ids, and how every right answer to it begins (empty: not known)."""

    text: str = ""
    ids: tuple[int, ...] = ()
    begins: str = ""

    @model_validator(mode="after")
    def _one_of_two(self) -> Known:
        if bool(self.text) == bool(self.ids):
            raise Refused("give one of text and ids", at=("begins",))
        return self


class GateSpec(Model):
    """What must hold before a figure counts.

    Each prompt is answered greedily with `tokens` tokens; of these the first `equal_tokens` must be those of
    the arm named in `same_as`. 0 does not compare: `reason` says why the model does not allow it.
    """

    prompts: Annotated[tuple[Known, ...], Field(min_length=1)]
    tokens: Count = 32
    equal_tokens: Annotated[int, Field(ge=0)] = 32
    reason: str = ""

    @model_validator(mode="after")
    def _reason_if_not_compared(self) -> GateSpec:
        if self.equal_tokens > self.tokens:
            raise Refused("more than the tokens of an answer", at=("equal_tokens",))
        if self.equal_tokens == 0 and not self.reason:
            raise Refused("0 needs a reason", at=("equal_tokens",))
        return self


class Suite(Model):
    """A benchmark. Each arm runs every (length, concurrency) cell `repeats` times.

    `prompts` is a file beside the suite, a prompt a line; without it prompts are random token ids, on which
    a drafter guesses worse than on text. A cell has `requests_per_user` x concurrency requests, and at
    least `min_requests`.
    """

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    title: Line
    model: Name
    reason: Reason
    arms: Annotated[tuple[ArmSpec, ...], Field(min_length=1)]
    concurrency: Annotated[tuple[Count, ...], Field(min_length=1)]
    lengths: Annotated[tuple[Length, ...], Field(min_length=1)]
    prompts: str = ""
    repeats: Count = 3
    requests_per_user: Count = 4
    min_requests: Count = 8
    ready_timeout_s: Count = 3600
    gate: GateSpec

    @model_validator(mode="after")
    def _consistent(self) -> Suite:
        names = [arm.name for arm in self.arms]
        for index, arm in enumerate(self.arms):
            if names.index(arm.name) != index:
                raise Refused(f'"{arm.name}" is there twice', at=("arms", index, "name"))
            if arm.same_as and arm.same_as not in names[:index]:
                raise Refused("must name an arm before this one", at=("arms", index, "same_as"))
        for index, length in enumerate(self.lengths):
            if (length.input == 0) != bool(self.prompts):
                raise Refused(
                    "give input without prompts, and none with them", at=("lengths", index, "output")
                )
        return self

    def arm(self, name: str) -> ArmSpec:
        """Return an arm by its name.

        Raises ManifestError.
        """
        for arm in self.arms:
            if arm.name == name:
                return arm
        names = ", ".join(arm.name for arm in self.arms)
        raise ManifestError(f'the suite {self.name} has no arm "{name}"', hint=f"arms: {names}")

    def requests(self, concurrency: int) -> int:
        """How many requests a run with so many users has."""
        return max(self.min_requests, self.requests_per_user * concurrency)


def suite_path(images: Path, name: str) -> Path:
    """Return where a suite is: a file as given, or images/bench/NAME.yaml."""
    return Path(name) if name.endswith((".yaml", ".yml")) else images / "bench" / f"{name}.yaml"


def read_suite(path: Path) -> tuple[Suite, tuple[str, ...]]:
    """Return a suite and its prompts (none: random token ids).

    Raises Diagnostics for any error in it, ManifestError if a file is missing or holds no prompt.
    """
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml"))) or "none"
        raise ManifestError(f"no such suite: {path}", hint=f"suites there: {there}")
    suite = load(path, Suite)
    if not suite.prompts:
        return suite, ()
    file = path.parent / suite.prompts
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        prompts = tuple(json.loads(line) for line in lines if line.strip())
    except (OSError, ValueError) as error:
        raise ManifestError(f"{file}: {error}", hint="one JSON string a line") from error
    if not prompts or not all(isinstance(prompt, str) and prompt for prompt in prompts):
        raise ManifestError(f"{file}: no prompts, or other things than texts", hint="one JSON string a line")
    return suite, prompts
