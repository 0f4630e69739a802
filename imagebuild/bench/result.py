# SPDX-License-Identifier: Apache-2.0
"""`BenchResult`: what a benchmark measured, and on what. Versioned JSON: docs/schema/bench.schema.json.

Times are milliseconds where the name says `_ms`, else seconds; rates are tokens per second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from imagebuild.bench.suite import Speculation
from imagebuild.errors import ManifestError
from imagebuild.files import write_text
from imagebuild.manifest import Model


class Spread(Model):
    """Over the requests of one run."""

    median: float
    mean: float
    p90: float
    p99: float


class Run(Model):
    """One repeat of one cell.

    `tokens_per_s` is over all users and the whole run; `user_tokens_per_s` is what one user sees after the
    first token (1000 / median time per output token). `accept_length`: tokens per verify call, from the
    server's counters. `kv_usage`: largest share of the KV pool in use. `gpu_memory_mib`: used, by GPU.
    """

    seconds: float
    requests: int
    failed: int
    error: str = ""
    input_tokens: int
    output_tokens: int
    tokens_per_s: float
    user_tokens_per_s: float
    ttft_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread
    accept_length: float | None = None
    kv_usage: float | None = None
    queue: float | None = None
    gpu_memory_mib: tuple[int, ...] = ()


class Cell(Model):
    """All repeats of one (length, concurrency)."""

    concurrency: int
    input: int
    output: int
    runs: tuple[Run, ...]

    @property
    def good(self) -> tuple[Run, ...]:
        """The runs in which no request failed; only they give figures."""
        return tuple(run for run in self.runs if run.failed == 0)


class Check(Model):
    """One check of the gate."""

    name: str
    passed: bool
    detail: str = ""


class Startup(Model):
    """Seconds since the service was started; None: the log does not say.

    `load` and `graphs` are the time from the first rank's begin to the last one's end. `first_token` is when
    the first answer's first token came.
    """

    load_begin: float | None = None
    load: float | None = None
    graphs_begin: float | None = None
    graphs: float | None = None
    ready: float | None = None
    first_token: float | None = None


class Arm(Model):
    """One server setting as it was measured.

    `flags` are the server's own, effective ones. `memory_gib`: the server's view of one GPU. `answers`: the
    gate's greedy tokens, by prompt.
    """

    name: str
    layout: str
    speculation: Speculation
    url: str
    service: str = ""
    image: str = ""
    image_digest: str = ""
    receipt: str = ""
    version: str = ""
    flags: dict[str, Any] = Field(default_factory=dict)
    memory_gib: dict[str, float] = Field(default_factory=dict)
    startup: Startup = Startup()
    gate: tuple[Check, ...] = ()
    answers: tuple[tuple[int, ...], ...] = ()
    cells: tuple[Cell, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the gate was asked and said yes."""
        return bool(self.gate) and all(check.passed for check in self.gate)


class BenchResult(Model):
    """A whole benchmark. `complete` is false while cells are missing."""

    schema_version: Literal[1] = Field(alias="schema", default=1)
    suite: str
    title: str
    model: str
    created: str
    tool: str
    load_generator: str
    prompts: Literal["random-ids", "text"]
    suite_digest: str
    weights_lock: str = ""
    host: dict[str, Any] = Field(default_factory=dict)
    complete: bool
    arms: Annotated[tuple[Arm, ...], Field(min_length=1)]


def to_text(value: Model) -> str:
    """Return a model as the JSON text that is stored."""
    return value.model_dump_json(by_alias=True, indent=1) + "\n"


def save(path: Path, value: Model) -> None:
    """Write a model in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, to_text(value))


def read_result(path: Path) -> BenchResult:
    """Read a result: a file, or the result.json of a folder.

    Raises ManifestError if it is not one, or of another version of the format.
    """
    file = path / "result.json" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
        version = json.loads(text).get("schema")
        if version != 1:
            raise ManifestError(
                f"{file}: result format {version}, this tool reads 1", hint="use its own tool"
            )
        return BenchResult.model_validate_json(text)
    except OSError as error:
        raise ManifestError(f"{file}: {error.strerror}", hint="scripts/bench run SUITE --out DIR") from error
    except (ValueError, AttributeError, ValidationError) as error:
        raise ManifestError(f"{file}: not a benchmark result: {error}") from error
