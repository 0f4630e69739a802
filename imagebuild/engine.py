# SPDX-License-Identifier: Apache-2.0
"""What a build engine is: the small interface that the command line works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from imagebuild.plan import Plan

Report = Callable[[str], None]


@dataclass(frozen=True)
class Image:
    """A built image. `digest` is its id, "sha256:…"; `reference` its name and tag; `size` in bytes."""

    reference: str
    digest: str
    size: int


class Engine(Protocol):
    """Turns a Plan and its build contexts into an image."""

    name: str

    def require(self) -> str:
        """Return what was found (name and version). Raises PreconditionError if it cannot build."""

    def find(self, plan: Plan) -> Image | None:
        """Return the image of exactly this Plan if the engine has it."""

    def build(self, plan: Plan, dockerfile: Path, contexts: dict[str, Path], report: Report) -> Image:
        """Build the image. Raises BuildError with the failed step's output."""
