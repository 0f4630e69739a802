# SPDX-License-Identifier: Apache-2.0
"""Two results → which figures changed, which differ by noise only, and which cannot be told.

A figure changed if Welch's t-test over the repeats, corrected for all figures compared (Holm), gives p below
`ALPHA`, and the difference is at least `LEAST`, which is how exactly the harness measures.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from imagebuild.bench.result import Arm, BenchResult, Cell, Run
from imagebuild.bench.stats import holm, welch
from imagebuild.errors import ManifestError

ALPHA = 0.05
LEAST = 0.02
LEAST_REPEATS = 3
Verdict = Literal["better", "worse", "noise", "unknown"]


@dataclass(frozen=True)
class Measure:
    """A figure of a run; `up` tells whether more is better."""

    name: str
    unit: str
    up: bool

    def of(self, run: Run) -> float:
        """Return its value."""
        if self.name in ("ttft_ms", "itl_ms"):
            return float(getattr(run, self.name).median)
        return float(getattr(run, self.name))


MEASURES = (
    Measure("tokens_per_s", "tok/s", True),
    Measure("user_tokens_per_s", "tok/s per user", True),
    Measure("ttft_ms", "ms", False),
    Measure("itl_ms", "ms", False),
)


@dataclass(frozen=True)
class Change:
    """One figure of one cell in both results. `change` is (new - old) / old; `p` is corrected."""

    arm: str
    concurrency: int
    input: int
    output: int
    measure: str
    unit: str
    old: float
    new: float
    change: float
    p: float | None
    verdict: Verdict


def _cells(arm: Arm) -> dict[tuple[int, int, int], Cell]:
    return {(cell.input, cell.output, cell.concurrency): cell for cell in arm.cells if cell.good}


def compare(old: BenchResult, new: BenchResult) -> list[Change]:
    """Return all figures that both results have, in the old one's order.

    Raises ManifestError if they have no cell in common or their prompts differ in kind.
    """
    if old.prompts != new.prompts:
        raise ManifestError(
            f"one result has prompts of {old.prompts}, the other of {new.prompts}: no comparison",
            hint="drafters guess text better than random ids; run the same suite",
        )
    theirs = {arm.name: _cells(arm) for arm in new.arms}
    rows: list[tuple[Arm, Cell, Cell, Measure]] = []
    for arm in old.arms:
        for key, cell in _cells(arm).items():
            other = theirs.get(arm.name, {}).get(key)
            if other is not None:
                rows += [(arm, cell, other, measure) for measure in MEASURES]
    if not rows:
        raise ManifestError("the results have no arm and cell in common", hint="run the same suite")
    samples = [([m.of(r) for r in a.good], [m.of(r) for r in b.good]) for _, a, b, m in rows]
    enough = [index for index, (a, b) in enumerate(samples) if min(len(a), len(b)) >= LEAST_REPEATS]
    corrected = dict(zip(enough, holm([welch(*samples[index]) for index in enough]), strict=True))
    return [
        _change(arm, cell, measure, samples[index], corrected.get(index))
        for index, (arm, cell, _, measure) in enumerate(rows)
    ]


def _change(
    arm: Arm, cell: Cell, measure: Measure, pair: tuple[list[float], list[float]], p: float | None
) -> Change:
    old, new = statistics.fmean(pair[0]), statistics.fmean(pair[1])
    change = (new - old) / old if old else 0.0
    verdict: Verdict = "unknown"
    if p is not None:
        verdict = "noise"
        if p < ALPHA and abs(change) >= LEAST:
            verdict = "better" if (change > 0) == measure.up else "worse"
    return Change(
        arm.name, cell.concurrency, cell.input, cell.output, measure.name, measure.unit,
        old, new, change, p, verdict,
    )  # fmt: skip


def compare_text(changes: list[Change], old: BenchResult, new: BenchResult) -> str:
    """Return the comparison for people: what changed first, then how much else there was."""
    lines = []
    if old.suite_digest != new.suite_digest:
        lines.append("note: the suites differ; only cells that both have are compared")
    for verdict in ("worse", "better"):
        for c in changes:
            if c.verdict == verdict:
                where = f"{c.arm} c{c.concurrency} {c.input}/{c.output}"
                lines.append(
                    f"{verdict:<7} {where:<28} {c.measure:<18} {c.old:>10.2f} -> {c.new:>10.2f} {c.unit}"
                    f"  {100 * c.change:+.1f} %  p={c.p:.2g}"
                )
    count = {v: sum(1 for c in changes if c.verdict == v) for v in ("worse", "better", "noise", "unknown")}
    lines.append(
        f"{len(changes)} figures: {count['worse']} worse, {count['better']} better, {count['noise']} noise, "
        f"{count['unknown']} cannot be told (fewer than {LEAST_REPEATS} repeats)"
    )
    return "\n".join(lines)
