# SPDX-License-Identifier: Apache-2.0
"""What DDTREE's flags and variables mean, and the errors for what does not fit."""

import pytest
from sglang_ddtree.settings import BUDGETS, MAX_BUDGETS, SPINE, make_settings


@pytest.mark.parametrize(
    ("block", "tokens", "env", "budgets"),
    [
        (8, None, {}, (0, 16)),
        (8, 17, {}, (0, 16)),
        (8, 33, {}, (0, 16, 32)),
        (8, 9, {}, (0, 8)),
        (16, None, {}, (0, 32)),
        (40, None, {}, (0, 63)),
        (8, 17, {BUDGETS: "16"}, (16,)),
        (8, 33, {BUDGETS: "32, 0,8,8"}, (0, 8, 32)),
    ],
)
def test_budgets(block, tokens, env, budgets):
    settings = make_settings(block, tokens, env)
    assert settings.budgets == budgets
    assert settings.width == budgets[-1] + 1
    assert len(settings.budgets) <= MAX_BUDGETS


def test_a_chain_is_as_wide_as_the_block_and_a_tree_has_a_root():
    settings = make_settings(8, 33, {})
    assert [settings.width_of(budget) for budget in settings.budgets] == [8, 17, 33]
    assert settings.depth == 7


def test_ranks_suffice_for_the_widest_tree():
    # With a spine of 7 the other 25 nodes may all be children of the root: ranks 0 to 25.
    assert make_settings(8, 33, {}).ranks == 26
    assert make_settings(8, 33, {SPINE: "0"}).ranks == 32


def test_a_walk_tells_of_smaller_budgets():
    settings = make_settings(8, 33, {})
    assert settings.smaller(32) == (0, 16)
    assert settings.limits(32) == (7, 16)
    assert settings.limits(0) == ()
    # Without a spine the first seven nodes are no chain.
    assert make_settings(8, 33, {SPINE: "0"}).smaller(32) == (16,)


@pytest.mark.parametrize(
    ("block", "tokens", "env", "told"),
    [
        (1, 9, {}, "block size 1; allowed: 2 to 63"),
        (8, 8, {}, "allowed: 9 to 64"),
        (8, 65, {}, "allowed: 9 to 64"),
        (8, 17, {SPINE: "yes"}, "allowed: 0, 1"),
        (8, 17, {BUDGETS: "many"}, "no list of numbers"),
        (8, 17, {BUDGETS: "7,16"}, "7 is out of range; allowed: 0 (chain) or 8 to 16"),
        (8, 17, {BUDGETS: "0,17"}, "17 is out of range"),
        (8, 17, {BUDGETS: "-1,16"}, "-1 is out of range"),
        (8, 33, {BUDGETS: "0,16"}, "the largest must be 32"),
        (8, 33, {BUDGETS: "0,8,12,16,32"}, "at most 4"),
    ],
)
def test_refused(block, tokens, env, told):
    with pytest.raises(ValueError, match="DDTREE") as error:
        make_settings(block, tokens, env)
    assert told in str(error.value)
