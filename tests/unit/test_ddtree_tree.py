# SPDX-License-Identifier: Apache-2.0
"""The oracle that DDTREE's kernels are held to: is it the tree that the paper asks for?"""

import itertools
import math
import random

import pytest

from tests import treeoracle

CASES = 1500


def tables(seed):
    """Random log-probabilities [depth][rank], best first; many with ties. And a random generator."""
    rng = random.Random(seed)
    for _ in range(CASES):
        depths, ranks, kind = rng.randrange(1, 5), rng.randrange(1, 5), rng.randrange(3)
        values = (lambda: rng.uniform(-6, -0.01), lambda: rng.choice([-0.5, -1.0, -2.0]), lambda: -1.0)
        yield (
            [
                sorted((treeoracle.f32(values[kind]()) for _ in range(ranks)), reverse=True)
                for _ in range(depths)
            ],
            rng,
        )


def path(nodes, number):
    return tuple(nodes[n].rank for n in treeoracle.line(nodes, number)[1:])


def prefixes(table):
    """Every prefix by its ranks, with its log-probability."""
    found = {}
    for depth in range(1, len(table) + 1):
        for ranks in itertools.product(range(len(table[0])), repeat=depth):
            found[ranks] = math.fsum(table[d][r] for d, r in enumerate(ranks))
    return found


def test_a_tree_is_closed_numbered_from_the_root_and_without_doubles():
    for table, rng in tables(1):
        nodes = treeoracle.tree(table, rng.randrange(1, 13), rng.random() < 0.5)
        assert all(node.parent < number for number, node in enumerate(nodes))
        assert all(nodes[node.parent].depth == node.depth - 1 for node in nodes[1:])
        paths = [path(nodes, number) for number in range(len(nodes))]
        assert len(set(paths)) == len(paths)
        assert {p[:-1] for p in paths if p} <= set(paths)


def test_no_other_tree_of_that_size_is_more_probable():
    for table, rng in tables(2):
        budget = rng.randrange(1, 13)
        nodes, every = treeoracle.tree(table, budget, spine=False), prefixes(table)
        best = sorted(every.values(), reverse=True)[:budget]
        chosen = sorted((every[path(nodes, n)] for n in range(1, len(nodes))), reverse=True)
        assert len(chosen) == len(best)
        assert math.dist(chosen, best) < 1e-4


def test_with_a_spine_the_rest_is_the_best_that_is_left():
    for table, rng in tables(3):
        nodes, every = treeoracle.tree(table, len(table) + rng.randrange(13), spine=True), prefixes(table)
        chain = {(0,) * depth for depth in range(1, len(table) + 1)}
        paths = {path(nodes, number) for number in range(1, len(nodes))}
        assert chain <= paths
        rest = sorted((value for key, value in every.items() if key not in chain), reverse=True)
        chosen = sorted((every[key] for key in paths - chain), reverse=True)
        assert math.dist(chosen, rest[: len(chosen)]) < 1e-4


def test_a_spine_accepts_no_less_than_the_chain_whatever_the_target_says():
    for table, rng in tables(4):
        nodes = treeoracle.tree(table, len(table) + rng.randrange(1, 9), spine=True)
        # The target's token after a node, as the rank that the drafter gave it; 9 is none of them.
        said = [rng.choice([0, 0, 1, 2, 9]) for _ in nodes]
        parents, ranks = [n.parent for n in nodes], [n.rank for n in nodes]
        accepted = treeoracle.walk(parents, ranks, said.__getitem__)
        chain = 0
        while chain < len(table) and said[chain] == 0:
            chain += 1
        assert len(accepted) - 1 >= chain


def test_without_a_spine_a_tree_may_accept_less():
    # Flat marginals: many first tokens are more probable than the chain's second.
    nodes = treeoracle.tree([[-1.0, -1.1, -1.2], [-1.5, -9.0, -9.0]], 3, spine=False)
    assert [path(nodes, n) for n in range(1, 4)] == [(0,), (1,), (2,)]


@pytest.mark.parametrize("spine", [True, False])
def test_a_smaller_budget_is_the_beginning_of_a_larger_one(spine):
    for table, rng in tables(5):
        budget = (len(table) if spine else 0) + rng.randrange(1, 7)
        small = treeoracle.tree(table, budget, spine)
        assert treeoracle.tree(table, budget + rng.randrange(1, 7), spine)[: len(small)] == small


def test_minus_infinity_and_nan_come_last():
    nodes = treeoracle.tree(
        [[-0.1, float("-inf"), float("nan")], [-0.2, -0.3, float("-inf")]], 4, spine=False
    )
    assert [path(nodes, n) for n in range(1, 4)] == [(0,), (0, 0), (0, 1)]
