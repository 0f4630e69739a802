# SPDX-License-Identifier: Apache-2.0
"""A result → which arm to take for how many users, and why."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from imagebuild.bench.compare import LEAST, LEAST_REPEATS
from imagebuild.bench.result import Arm, BenchResult, Cell
from imagebuild.bench.stats import Figure, figure


@dataclass(frozen=True)
class Choice:
    """The fastest arm of one cell. `certain`: the ranges of its repeats and the next arm's do not meet."""

    input: int
    output: int
    concurrency: int
    arm: str
    tokens_per_s: Figure
    second: str
    second_tokens_per_s: Figure | None
    certain: bool

    @property
    def margin(self) -> float:
        """How much faster it is than the next, as a share of the next."""
        other = self.second_tokens_per_s
        return self.tokens_per_s.median / other.median - 1 if other and other.median else 0.0


def _certain(best: Figure, other: Figure) -> bool:
    enough = min(best.count, other.count) >= LEAST_REPEATS
    return enough and best.low > other.high and best.median >= (1 + LEAST) * other.median


def choices(result: BenchResult) -> list[Choice]:
    """Return the fastest arm of every cell that any arm has run, by total tokens per second.

    Only arms whose gate said yes count.
    """
    cells: dict[tuple[int, int, int], list[tuple[Arm, Cell]]] = {}
    for arm in result.arms:
        for cell in arm.cells if arm.passed else ():
            if cell.good:
                cells.setdefault((cell.input, cell.output, cell.concurrency), []).append((arm, cell))
    found = []
    for key, pairs in sorted(cells.items()):
        ranked = sorted(
            ((figure([r.tokens_per_s for r in cell.good]), arm.name) for arm, cell in pairs),
            key=lambda pair: -pair[0].median,
        )
        (best, name), rest = ranked[0], ranked[1:]
        second = rest[0] if rest else None
        found.append(
            Choice(
                *key, name, best, second[1] if second else "", second[0] if second else None,
                second is None or _certain(best, second[0]),
            )
        )  # fmt: skip
    return found


def advice(result: BenchResult) -> list[str]:
    """Return the recommendation as sentences, one for each range of users with the same fastest arm."""
    lines: list[str] = []
    by_length: dict[tuple[int, int], list[Choice]] = {}
    for choice in choices(result):
        by_length.setdefault((choice.input, choice.output), []).append(choice)
    for (tokens_in, tokens_out), row in by_length.items():
        what = f"{tokens_in} tokens in, {tokens_out} out" if tokens_in else f"{tokens_out} tokens out"
        for _, group in itertools.groupby(row, key=lambda choice: choice.arm):
            lines.append(f"{what}: {_sentence(list(group))}")
    return lines


def _sentence(group: list[Choice]) -> str:
    first, last = group[0], group[-1]
    users = f"{first.concurrency}" if first is last else f"{first.concurrency} to {last.concurrency}"
    rates = ", ".join(f"{c.tokens_per_s.median:,.0f} at {c.concurrency}" for c in group)
    text = f"with {users} users take **{first.arm}**: {rates} tok/s"
    if not first.second:
        return f"{text}; no other arm ran these cells."
    margins = ", ".join(f"{100 * c.margin:+.0f} % over {c.second}" for c in group)
    unsure = [str(c.concurrency) for c in group if not c.certain]
    if not unsure:
        return f"{text} ({margins}); its slowest repeat beats the next arm's fastest."
    which = "there" if len(unsure) == len(group) else f"at {', '.join(unsure)}"
    return (
        f"{text} ({margins}); {which} it is not certain: the repeats' ranges meet, differ by less than "
        f"{100 * LEAST:.0f} %, or are fewer than {LEAST_REPEATS}."
    )
