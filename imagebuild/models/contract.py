# SPDX-License-Identifier: Apache-2.0
"""Does a drafter belong to a target? Every rule that SGLang checks late, wrongly or not at all.

Rules are about SGLang 0.5.15.post1 (speculative/dflash_*.py, models/dflash.py): unknown weights are
ignored there and missing ones are not reported, so the exact set of keys is checked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from imagebuild.models.drafter_keys import Tensors, key_problems
from imagebuild.models.shapes import DrafterShape, TargetShape


@dataclass(frozen=True)
class Flags:
    """The server's flags that matter; None means not given."""

    tp: int = 1
    pp: int = 1
    block_size: int | None = None
    window: int | None = None
    draft_tokens: int | None = None
    tree: bool = False
    attention: str | None = None
    page_size: int | None = None


@dataclass(frozen=True)
class Violation:
    """One broken rule: `then` is what would happen at run time. A warning does not stop a server."""

    rule: str
    text: str
    then: str
    level: Literal["error", "warning"] = "error"


def check(
    target: TargetShape, drafter: DrafterShape, flags: Flags, tensors: Tensors | None = None
) -> tuple[Violation, ...]:
    """Return all violations, errors first. `tensors` are the drafter's, from its files' headers."""
    found = [*_widths(target, drafter), *_tokens(target, drafter), *_layers(target, drafter)]
    found += [*_rope(target, drafter), *_windows(drafter, flags), *_parallel(target, drafter, flags)]
    found += [*_block(drafter, flags), *_attention(target, flags)]
    if tensors is not None:
        found += [Violation(*problem) for problem in key_problems(drafter, tensors)]
    return tuple(sorted(found, key=lambda v: v.level))


def _widths(target: TargetShape, drafter: DrafterShape) -> Iterator[Violation]:
    if "dflash" not in drafter.architecture.lower():
        yield Violation(
            "architecture", f"the drafter is a {drafter.architecture}, not a DFlash model",
            "the server has no such draft class, or loads another one: it stops, or drafts nonsense",
        )  # fmt: skip
    if drafter.hidden_size != target.hidden_size:
        yield Violation(
            "hidden_size", f"drafter {drafter.hidden_size}, target {target.hidden_size}",
            "the drafter runs on the target's embeddings and lm_head: a shape error at the first forward",
        )  # fmt: skip
    if drafter.vocab_size != target.vocab_size:
        yield Violation(
            "vocab_size", f"drafter {drafter.vocab_size}, target {target.vocab_size}",
            "it was trained for another tokenizer: drafts are other words, next to none is accepted",
        )  # fmt: skip


def _tokens(target: TargetShape, drafter: DrafterShape) -> Iterator[Violation]:
    mask = drafter.mask_token_id
    if mask is None:
        yield Violation(
            "mask_token_id", "the config has no dflash_config.mask_token_id",
            "SGLang adds a token <|MASK|> to the tokenizer and stops, or drafts with an untrained embedding",
        )  # fmt: skip
    elif not 0 <= mask < target.vocab_size:
        yield Violation(
            "mask_token_id", f"{mask} is outside the target's {target.vocab_size} tokens",
            "its embedding is read out of bounds: an illegal memory access on the GPU, or a wrong row",
        )  # fmt: skip


def _layers(target: TargetShape, drafter: DrafterShape) -> Iterator[Violation]:
    ids = drafter.target_layer_ids
    last = target.layers - 2
    if not ids:
        yield Violation(
            "target_layer_ids", "the config names none",
            "SGLang spreads them evenly: not the layers that it was trained with, so little is accepted",
        )  # fmt: skip
    wrong = [i for i in ids if not 0 <= i <= last]
    if wrong:
        yield Violation(
            "target_layer_ids", f"{wrong} of a target with {target.layers} layers: allowed are 0 to {last}",
            "outputs are caught before the layer after them, so the drafter gets fewer inputs than its fc "
            "takes: a shape error at the first forward",
        )  # fmt: skip
    if list(ids) != sorted(set(ids)):
        yield Violation(
            "target_layer_ids", f"{list(ids)} are not in rising order",
            "SGLang hands the outputs over in the order of the layers: fc gets them in wrong places",
        )  # fmt: skip
    if drafter.target_layers not in (None, target.layers):
        yield Violation(
            "num_target_layers", f"the drafter was made for {drafter.target_layers} layers",
            "it belongs to another target: next to nothing is accepted",
        )  # fmt: skip
    if drafter.layer_types and len(drafter.layer_types) != drafter.layers:
        yield Violation(
            "layer_types", f"{len(drafter.layer_types)} types for {drafter.layers} layers",
            "an index error while the drafter is made, or layers with the wrong kind of attention",
        )  # fmt: skip


def _rope(target: TargetShape, drafter: DrafterShape) -> Iterator[Violation]:
    if drafter.rope != target.rope:
        yield Violation(
            "rope", f"drafter {_rope_text(drafter)}, target {_rope_text(target)}",
            "no error: positions mean something else to the drafter, and acceptance falls with length",
            "warning",
        )  # fmt: skip
    reach = (drafter.rope.original or drafter.context) * drafter.rope.factor
    if drafter.context < target.context or reach < target.context:
        yield Violation(
            "context", f"the drafter reaches {int(min(drafter.context, reach))} tokens, "
            f"the target {target.context}",
            "no error: beyond it the drafter extrapolates and next to nothing is accepted",
            "warning",
        )  # fmt: skip


def _rope_text(shape: TargetShape | DrafterShape) -> str:
    rope = shape.rope
    stretch = f", {rope.kind} x{rope.factor:g} of {rope.original}" if rope.factor != 1 else ""
    return f"theta {rope.theta:g}{stretch}"


def _windows(drafter: DrafterShape, flags: Flags) -> Iterator[Violation]:
    kinds = set(drafter.layer_types) - {"full_attention", "sliding_attention"}
    if kinds:
        yield Violation(
            "layer_types", f"unknown: {', '.join(sorted(kinds))}; allowed: full_attention, sliding_attention",
            "the drafter's layers run with full attention: other results than trained, few accepted",
        )  # fmt: skip
    sliding = "sliding_attention" in drafter.layer_types
    if sliding and drafter.sliding_window is None:
        yield Violation(
            "sliding_window", "the config has sliding layers but no sliding_window",
            "the server stops while it makes the drafter",
        )  # fmt: skip
    trained = drafter.sliding_window
    if flags.window and trained and flags.window < trained:
        yield Violation(
            "window", f"--speculative-draft-window-size {flags.window} is below the trained {trained}",
            "no error: the drafter sees less than it was trained with, and fewer tokens are accepted",
            "warning",
        )  # fmt: skip


def _parallel(target: TargetShape, drafter: DrafterShape, flags: Flags) -> Iterator[Violation]:
    tp = flags.tp
    for name, heads in (("target's", target.heads), ("drafter's", drafter.heads)):
        if heads % tp:
            yield Violation(
                "tp", f"--tp {tp} does not divide the {name} {heads} heads",
                "an assertion while the weights are made, after the target was loaded for minutes",
            )  # fmt: skip
    if drafter.kv_heads % tp and tp % drafter.kv_heads:
        yield Violation(
            "tp", f"--tp {tp}, drafter's key-value heads {drafter.kv_heads}: neither divides the other",
            "an assertion in QKVParallelLinear while the drafter is made",
        )  # fmt: skip
    if drafter.intermediate_size % tp:
        yield Violation(
            "tp", f"--tp {tp} does not divide the drafter's MLP width {drafter.intermediate_size}",
            "an assertion while the drafter is made",
        )  # fmt: skip
    if flags.pp > 1:
        yield Violation(
            "pp", f"--pp {flags.pp}: DFlash needs --pp 1", "the server refuses to start"
        )  # fmt: skip


def _block(drafter: DrafterShape, flags: Flags) -> Iterator[Violation]:
    block = drafter.block_size
    if block < 2:
        yield Violation("block_size", f"{block}: expected 2 or more", "nothing would be drafted")
    if flags.block_size is not None and flags.block_size > block:
        yield Violation(
            "block_size", f"--speculative-dflash-block-size {flags.block_size} is above the trained {block}",
            "no error: positions past the trained block are guesses, and verifying them costs time",
        )  # fmt: skip
    if flags.block_size is not None and flags.block_size < block:
        yield Violation(
            "block_size", f"--speculative-dflash-block-size {flags.block_size} is below the trained {block}",
            "no error: fewer tokens can be accepted in a step than the drafter was trained for",
            "warning",
        )  # fmt: skip
    used, draft = flags.block_size or block, flags.draft_tokens
    if draft is not None and flags.tree and draft < used:
        yield Violation(
            "draft_tokens", f"--speculative-num-draft-tokens {draft} is below the block of {used}",
            "the tree's root and nodes must hold at least the chain: DDTree refuses to start",
        )  # fmt: skip
    if draft is not None and not flags.tree and draft != used:
        yield Violation(
            "draft_tokens", f"--speculative-num-draft-tokens {draft} differs from the block of {used}",
            "SGLang overwrites it with the block size and says so in one line of its log",
            "warning",
        )  # fmt: skip


def _attention(target: TargetShape, flags: Flags) -> Iterator[Violation]:
    if not flags.tree or flags.attention is None or target.mla is None:
        return
    if flags.attention == "fa3" and flags.page_size in (None, 1):
        return
    if flags.attention != "triton":
        page = f" with --page-size {flags.page_size}" if flags.attention == "fa3" else ""
        yield Violation(
            "attention", f"--attention-backend {flags.attention}{page}: a tree on MLA needs triton",
            "no error: the tree's mask is dropped, siblings see one another, and the output is wrong",
        )  # fmt: skip


def describe(violations: tuple[Violation, ...]) -> str:
    """Return violations as lines for people."""
    if not violations:
        return "the drafter fits the target"
    return "\n".join(f"{v.level}: {v.rule}: {v.text}\n  then: {v.then}" for v in violations)
