# SPDX-License-Identifier: Apache-2.0
"""The results folder: one file per finished run, so that an interrupted benchmark goes on per cell.

suite.json          the suite it was begun with
arms/ARM.json       what the arm is, its gate and start-up
runs/ARM/ID.json    one run
result.json         all of it, written anew after every arm
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from imagebuild.bench.load import Job
from imagebuild.bench.result import Arm, Cell, Run, save
from imagebuild.bench.suite import ArmSpec, Suite
from imagebuild.digest import digest
from imagebuild.errors import IntegrityError
from imagebuild.files import write_text

WARM = "warm"
_WARM_TOKENS = 32


def suite_digest(suite: Suite, prompts: Sequence[str]) -> str:
    """Return the digest of what decides the figures: the suite and its prompts."""
    return digest([suite.model_dump(mode="json", by_alias=True), list(prompts)])


def jobs(suite: Suite, arm: ArmSpec) -> Iterator[Job]:
    """Yield an arm's runs. Repeats are the outer loop, so that slow drift meets all cells alike."""
    for repeat in range(suite.repeats):
        for length in suite.lengths:
            for users in suite.concurrency:
                if users <= arm.max_concurrency:
                    name = f"i{length.input}-o{length.output}-c{users}-r{repeat + 1}"
                    seed = 1000 * repeat + users
                    yield Job(name, users, suite.requests(users), length.input, length.output, seed)


def with_warm_up(todo: Sequence[Job]) -> list[Job]:
    """Put a short run, whose figures are dropped, before the first run of every cell."""
    seen: set[tuple[int, int, int]] = set()
    out: list[Job] = []
    for job in todo:
        cell = (job.input, job.output, job.concurrency)
        if cell not in seen:
            seen.add(cell)
            tokens = min(job.output, _WARM_TOKENS)
            name = f"{job.id}-{WARM}"
            out.append(Job(name, job.concurrency, job.concurrency, job.input, tokens, job.seed + 500))
        out.append(job)
    return out


class Folder:
    """A results folder. Raises IntegrityError if it belongs to another suite."""

    def __init__(self, root: Path, suite: Suite, prompts: Sequence[str]) -> None:
        self.root, self.suite = root, suite
        self.digest = suite_digest(suite, prompts)
        mark = root / "suite.json"
        if mark.is_file():
            found = json.loads(mark.read_text(encoding="utf-8"))["digest"]
            if found != self.digest:
                raise IntegrityError(
                    f"{root} holds results of another suite, or of this one before it was changed",
                    hint="give another --out; figures of different suites are never mixed",
                )
        else:
            root.mkdir(parents=True, exist_ok=True)
            value = {"digest": self.digest, "suite": suite.model_dump(mode="json", by_alias=True)}
            write_text(mark, json.dumps(value, indent=1) + "\n")

    def _run_path(self, arm: str, name: str) -> Path:
        return self.root / "runs" / arm / f"{name}.json"

    def todo(self, arm: ArmSpec) -> list[Job]:
        """Return the runs that are not there yet; one in which a request failed is done again."""
        return [job for job in jobs(self.suite, arm) if not self._is_good(arm.name, job)]

    def _is_good(self, arm: str, job: Job) -> bool:
        run = self.run(arm, job)
        return run is not None and run.failed == 0

    def run(self, arm: str, job: Job) -> Run | None:
        """Return a finished run."""
        try:
            return Run.model_validate_json(self._run_path(arm, job.id).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def add_run(self, arm: str, job: Job, run: Run) -> None:
        """Keep a run."""
        save(self._run_path(arm, job.id), run)

    def arm(self, name: str) -> Arm | None:
        """Return what is known of an arm, without its cells."""
        try:
            text = (self.root / "arms" / f"{name}.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return Arm.model_validate_json(text)

    def add_arm(self, arm: Arm) -> None:
        """Keep what an arm is."""
        save(self.root / "arms" / f"{arm.name}.json", arm)

    def arms(self) -> tuple[Arm, ...]:
        """Return all arms that were begun, with the cells that have a run."""
        return tuple(
            arm.model_copy(update={"cells": self._cells(spec)})
            for spec in self.suite.arms
            if (arm := self.arm(spec.name)) is not None
        )

    def _cells(self, spec: ArmSpec) -> tuple[Cell, ...]:
        cells: dict[tuple[int, int, int], list[Run]] = {}
        for job in jobs(self.suite, spec):
            run = self.run(spec.name, job)
            if run is not None:
                cells.setdefault((job.input, job.output, job.concurrency), []).append(run)
        return tuple(
            Cell(concurrency=key[2], input=key[0], output=key[1], runs=tuple(found))
            for key, found in sorted(cells.items())
        )
