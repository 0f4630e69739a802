# SPDX-License-Identifier: Apache-2.0
"""What the user may choose: block size, verify width, budgets, spine. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUDGETS = "SGLANG_DDTREE_BUDGETS"
SPINE = "SGLANG_DDTREE_SPINE"
MAX_WIDTH = 64  # a node's ancestors are the bits of one int64
MAX_BUDGETS = 4  # each has its own CUDA graphs: bounds memory and start-up time


@dataclass(frozen=True)
class Settings:
    """Sizes that are fixed at start.

    block: the drafter's block size; it proposes for `depth` = block - 1 positions.
    budgets: draft nodes per tree, ascending; 0 is the plain chain of DFlash.
    spine: whether every tree holds the drafter's first choices, so that no step accepts less than
    the chain would.
    """

    block: int
    budgets: tuple[int, ...]
    spine: bool

    @property
    def depth(self) -> int:
        """Positions that the drafter proposes for."""
        return self.block - 1

    @property
    def width(self) -> int:
        """Tokens of the largest verify step, the root included."""
        return self.width_of(self.budgets[-1])

    def width_of(self, budget: int) -> int:
        """Tokens of a verify step with a budget: the root and its nodes, or the chain's block."""
        return budget + 1 if budget else self.block

    @property
    def ranks(self) -> int:
        """How many of a position's best tokens can be in a tree: K."""
        most = self.budgets[-1]
        return most - self.depth + 1 if self.spine else most

    def smaller(self, budget: int) -> tuple[int, ...]:
        """Budgets whose whole tree is the beginning of this one's, so that a walk tells of them, too.

        The chain is one of them only if every tree begins with the spine.
        """
        return tuple(b for b in self.budgets if b < budget and (b or self.spine))

    def limits(self, budget: int) -> tuple[int, ...]:
        """The highest node of each of `smaller`."""
        return tuple(b or self.depth for b in self.smaller(budget))


def make_settings(block: int, draft_tokens: int | None, env: Mapping[str, str]) -> Settings:
    """Combine the block size, --speculative-num-draft-tokens and the environment.

    Raises ValueError for what does not fit together.
    """
    if not 2 <= block < MAX_WIDTH:
        raise ValueError(f"DDTREE: block size {block}; allowed: 2 to {MAX_WIDTH - 1}.")
    width = draft_tokens if draft_tokens is not None else min(2 * block + 1, MAX_WIDTH)
    if not block < width <= MAX_WIDTH:
        raise ValueError(
            f"DDTREE: --speculative-num-draft-tokens {width}; allowed: {block + 1} to {MAX_WIDTH} "
            f"(the root and more nodes than the {block - 1} of a chain; the drafter's block is {block}). "
            "For chains use --speculative-algorithm DFLASH."
        )
    text = env.get(SPINE, "1")
    if text not in ("0", "1"):
        raise ValueError(f"DDTREE: {SPINE}={text!r}; allowed: 0, 1.")
    return Settings(block, _budgets(env.get(BUDGETS, ""), block, width), text == "1")


def _budgets(text: str, block: int, width: int) -> tuple[int, ...]:
    if not text.strip():
        half = (width - 1) // 2
        return (0, half, width - 1) if half > block else (0, width - 1)
    allowed = f"0 (chain) or {block} to {width - 1} (one less than --speculative-num-draft-tokens)"
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(f"DDTREE: {BUDGETS}={text!r} is no list of numbers; allowed: {allowed}.") from None
    wrong = [value for value in found if value and not block <= value < width]
    if wrong:
        raise ValueError(f"DDTREE: {BUDGETS}={text!r}: {wrong[0]} is out of range; allowed: {allowed}.")
    if len(found) > MAX_BUDGETS:
        raise ValueError(
            f"DDTREE: {BUDGETS}={text!r} has {len(found)} budgets; at most {MAX_BUDGETS}: "
            "each has its own CUDA graphs."
        )
    if found[-1] != width - 1:
        raise ValueError(
            f"DDTREE: {BUDGETS}={text!r}: the largest must be {width - 1}, one less than "
            f"--speculative-num-draft-tokens ({width}), which reserves memory for it."
        )
    return tuple(found)
