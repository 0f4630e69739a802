# SPDX-License-Identifier: Apache-2.0
"""Medians, spreads, and Welch's t-test: did a figure change, or is it noise?

Welch's test compares two means without assuming equal variances (B. L. Welch, Biometrika 34, 1947). Its
p-value needs Student's distribution, which is the regularised incomplete beta function (Abramowitz and
Stegun 26.5.27 and 26.5.8). Several tests at once are corrected by Holm's method (Scand. J. Statist. 6, 1979).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A figure over the repeats of a cell."""

    median: float
    low: float
    high: float
    count: int

    @property
    def spread(self) -> float:
        """Half the range as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def figure(values: Sequence[float]) -> Figure:
    """Return the figure of one or more repeats."""
    return Figure(statistics.median(values), min(values), max(values), len(values))


def welch(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p-value that both samples (two values or more each) have the same mean."""
    difference = statistics.fmean(a) - statistics.fmean(b)
    va, vb = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    if va + vb == 0:
        return 1.0 if difference == 0 else 0.0
    t2 = difference**2 / (va + vb)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return _beta(freedom / (freedom + t2), freedom / 2, 0.5)


def holm(values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number, in the given order."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    out, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        out[index] = largest
    return out


def _beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b) by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges fast
        return 1 - _beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    value = c = 1e-300  # Lentz's method, begun with a tiny value instead of 0
    d = 0.0
    for m in range(200):
        for numerator in _terms(x, a, b, m):
            d = 1 + numerator * d
            c = 1 + numerator / c
            d = 1 / (d if abs(d) > 1e-300 else 1e-300)
            c = c if abs(c) > 1e-300 else 1e-300
            value *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return front * value / a


def _terms(x: float, a: float, b: float, m: int) -> tuple[float, float]:
    """Return the fraction's coefficients of step m: d_2m (for the first 1, that of the whole), d_2m+1."""
    odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
    if m == 0:
        return 1.0, odd
    return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), odd
