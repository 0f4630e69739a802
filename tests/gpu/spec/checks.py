# SPDX-License-Identifier: Apache-2.0
"""Compare results of engine.py. Standard library only, so that unit tests hold it to account."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first difference; None if there is none."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def differing(reference: Sequence[Sequence[int]], found: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(row, index) of the first difference of every row that differs."""
    if len(reference) != len(found):
        return [(min(len(reference), len(found)), 0)]
    rows = ((i, first_difference(a, b)) for i, (a, b) in enumerate(zip(reference, found, strict=True)))
    return [(i, at) for i, at in rows if at is not None]


def chi_square(a: Mapping[str, int], b: Mapping[str, int], least: float = 5.0) -> tuple[float, int, float]:
    """Are two samples of one distribution? Returns the statistic, degrees of freedom and p.

    Cells that expect fewer than `least` in either sample are taken together.
    """
    total_a, total_b = sum(a.values()), sum(b.values())
    cells: list[tuple[int, int]] = []
    rest = [0, 0]
    for key in a.keys() | b.keys():
        pair = a.get(key, 0), b.get(key, 0)
        if sum(pair) * min(total_a, total_b) / (total_a + total_b) >= least:
            cells.append(pair)
        else:
            rest[0] += pair[0]
            rest[1] += pair[1]
    if sum(rest):
        cells.append((rest[0], rest[1]))
    statistic = 0.0
    for x, y in cells:
        for seen, total in ((x, total_a), (y, total_b)):
            expected = (x + y) * total / (total_a + total_b)
            statistic += (seen - expected) ** 2 / expected
    freedom = max(len(cells) - 1, 1)
    return statistic, freedom, upper_tail(statistic, freedom)


def upper_tail(statistic: float, freedom: int) -> float:
    """P(chi-square with `freedom` >= statistic): the regularized upper incomplete gamma function.

    Series and continued fraction as in the Digital Library of Mathematical Functions, 8.7.1 and 8.9.2.
    """
    a, x = freedom / 2, statistic / 2
    if x <= 0:
        return 1.0
    scale = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while abs(term) > abs(total) * 1e-12:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - total * scale)
    b, c = x + 1 - a, 1e300
    d = 1 / b
    h = d
    for i in range(1, 10_000):
        an = -i * (i - a)
        b += 2
        d = 1 / (an * d + b or 1e-300)
        c = b + an / c or 1e-300
        step = d * c
        h *= step
        if abs(step - 1) < 1e-12:
            break
    return scale * h


def oracle_steps(shape: Sequence[Any], ranks: Sequence[int], start: int, tokens: int) -> int:
    """How many verify steps an oracle drafter needs for `tokens` tokens, the first from the prefill.

    shape: the tree (tests.treeoracle.Node). ranks: by position, where the oracle hides its token.
    start: position of the first of these tokens.
    """
    children = {(node.parent, node.rank): number for number, node in enumerate(shape) if number}
    at, end, steps = start, start + tokens - 1, 0
    while at < end:
        node, position = 0, at
        while (node, ranks[position + 1]) in children:
            node = children[(node, ranks[position + 1])]
            position += 1
        at = position + 1
        steps += 1
    return steps
