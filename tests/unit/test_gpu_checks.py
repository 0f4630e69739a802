# SPDX-License-Identifier: Apache-2.0
"""What judges the runs on a GPU host: comparisons, chi-square, the oracle's steps."""

import random
from collections import Counter

import pytest

from tests import treeoracle
from tests.gpu.spec import checks


def test_differences():
    assert checks.first_difference([1, 2, 3], [1, 2, 3]) is None
    assert checks.first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert checks.first_difference([1, 2], [1, 2, 3]) == 2
    assert checks.differing([[1], [2, 3]], [[1], [2, 4]]) == [(1, 1)]
    assert checks.differing([[1]], []) == [(0, 0)]


@pytest.mark.parametrize(
    ("statistic", "freedom", "p"), [(3.841, 1, 0.05), (18.307, 10, 0.05), (135.807, 100, 0.01), (0.0, 3, 1.0)]
)
def test_upper_tail_is_the_printed_table(statistic, freedom, p):
    assert checks.upper_tail(statistic, freedom) == pytest.approx(p, abs=2e-5)


def sample(weights, count, seed):
    return Counter(map(str, random.Random(seed).choices(range(len(weights)), weights, k=count)))


def test_chi_square_passes_one_distribution_and_fails_two():
    weights = [0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.01, 0.005, 0.005]
    passed = [
        checks.chi_square(sample(weights, 8000, n), sample(weights, 6000, 100 + n))[2] > 1e-3
        for n in range(20)
    ]
    assert sum(passed) >= 19
    warmer = [w**0.85 for w in weights]
    assert checks.chi_square(sample(weights, 8000, 1), sample(warmer, 6000, 2))[2] < 1e-6


def test_cells_that_expect_little_are_taken_together():
    rare = {str(n): 1 for n in range(30)}
    _, freedom, p = checks.chi_square({"a": 500, **rare}, {"a": 530})
    assert freedom == 1 and p < 1e-3


def test_the_oracles_steps_are_counted_by_hand():
    # Root with children 0 and 1; 0 has a child 0.
    shape = treeoracle.tree([[-0.1, -0.5], [-0.1, -9.0]], 3, spine=False)
    assert [(n.depth, n.rank, n.parent) for n in shape[1:]] == [(1, 0, 0), (2, 0, 1), (1, 1, 0)]
    # Positions 5.. hold their token at these ranks; the first token (position 4) is the prefill's.
    ranks = [0] * 5 + [0, 0, 1, 3, 1, 0, 0, 0]
    # Step 1: 5, 6 and the bonus 7. Step 2: 8 is in no tree: the bonus only. Step 3: 9, then 10.
    assert checks.oracle_steps(shape, ranks, 4, 4) == 1
    assert checks.oracle_steps(shape, ranks, 4, 5) == 2
    assert checks.oracle_steps(shape, ranks, 4, 7) == 3
