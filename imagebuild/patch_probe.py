# SPDX-License-Identifier: Apache-2.0
"""Run probes: does a tree have the fix of a patch?"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from imagebuild import process
from imagebuild.layer.spec import Artifact
from imagebuild.ledger import Patch
from imagebuild.patch_tree import apply_patch, unpack

Answer = Literal["fixed", "fault", "unknown"]
_ANSWERS: dict[int, Answer] = {0: "fixed", 1: "fault"}


@dataclass(frozen=True)
class Probed:
    """A probe's answer and the last line that it printed."""

    answer: Answer
    text: str


def run_probe(patch: Patch, tree: Path) -> Probed:
    """Run a patch's probe on a tree."""
    lines: list[str] = []
    env = {"PYTHONPATH": str(patch.folder.parent.resolve()), "PYTHONDONTWRITEBYTECODE": "1"}
    status = process.stream([sys.executable, str(patch.probe), str(tree)], lines.append, env=env)
    text = next((line for line in reversed(lines) if line.strip()), "")
    return Probed(_ANSWERS.get(status, "unknown"), text)


@dataclass(frozen=True)
class Checked:
    """What the probe says before the patch, with it, and with all patches; `error`: it did not apply."""

    patch: str
    before: Probed | None
    after: Probed | None
    last: Probed | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the fault is there without the patch and gone with it."""
        answers = [probed.answer if probed else None for probed in (self.before, self.after, self.last)]
        return not self.error and answers == ["fault", "fixed", "fixed"]

    def __str__(self) -> str:
        if self.error:
            return f"{self.patch}: FAILED: {self.error}"
        told = (
            f"{when}: {probed.answer}" + ("" if probed.answer != "unknown" else f" ({probed.text})")
            for when, probed in (("without", self.before), ("with", self.after), ("with all", self.last))
            if probed is not None
        )
        return f"{self.patch}: {'ok' if self.ok else 'FAILED'} ({', '.join(told)})"


def check_stack(
    patches: list[Patch], wheels: list[Artifact], root: Path, locate: Callable[[Artifact], Path]
) -> list[Checked]:
    """Apply patches one by one to unpacked wheels, with every probe before, after and at the end.

    Raises IntegrityError where a patch does not meet its files.
    """
    with tempfile.TemporaryDirectory(prefix="imagebuild-patches-") as folder:
        tree = Path(folder)
        for wheel in wheels:
            unpack(locate(wheel), tree)
        halves = []
        for patch in patches:
            before = run_probe(patch, tree)
            apply_patch(tree, patch, root)
            halves.append(Checked(patch.id, before, run_probe(patch, tree)))
        return [
            Checked(half.patch, half.before, half.after, run_probe(patch, tree))
            for half, patch in zip(halves, patches, strict=True)
        ]
