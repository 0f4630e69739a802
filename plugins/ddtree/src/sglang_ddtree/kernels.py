# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLR0913, PLR0915, PLR0917 (a kernel's arguments are its interface; it cannot be cut up)
"""The GPU's part of a step that SGLang does not have: tree, walk, compaction. One launch each.

All shapes are fixed by batch size and Settings, nothing is read back to the host, and a CUDA graph
can hold every launch. Each program serves one request (compaction: one request and KV buffer).

Terms: `Q` tokens per verify step; node 0 is the root (the last token of the text, whose KV is not
there yet), nodes 1.. are draft tokens in the order in which they were chosen, so a parent's number
is below its child's. `depth` is a node's distance from the root; `rank` its place among the
drafter's tokens for its depth, 0 first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_LOWEST = tl.constexpr(-1.0e30)  # what -inf and NaN log-probabilities count as: sums stay finite


@triton.jit
def _log_probability(row, depth, rank, RANKS: tl.constexpr):
    """Log-probability of a rank at a depth (1-based) of one request's [depth, RANKS] table."""
    value = tl.load(row + (depth - 1) * RANKS + rank)
    return tl.where(value > _LOWEST, value, _LOWEST)


@triton.jit
def _tree_kernel(
    logp,  # [bs, DEPTH, RANKS] float32
    ids,  # [bs, DEPTH, RANKS] int64
    bonus,  # [bs] int64
    prefix,  # [bs] tokens that are in the KV cache
    pool,  # [bs] row of req_to_token
    req_to_token,
    pool_stride,
    tokens,  # out [bs, Q] int64
    positions,  # out [bs, Q] int64
    slots,  # out [bs, Q] int64
    parents,  # out [bs, Q] int32; -1 for the root
    mask,  # out uint8, laid out as the attention backend wants it
    mask_size,
    DEPTH: tl.constexpr,
    RANKS: tl.constexpr,
    Q: tl.constexpr,
    QP: tl.constexpr,  # power of two >= Q
    SPINE: tl.constexpr,
    FIRST: tl.constexpr,  # node that best-first begins with
    MASK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    row = logp + request * DEPTH * RANKS
    node = tl.arange(0, QP)
    slot = tl.arange(0, 2 * QP)  # of the frontier: 2i is node i's first child, 2i+1 its next sibling
    one = tl.full([], 1, tl.int64)
    empty = float("-inf")

    depth = tl.zeros([QP], tl.int32)
    rank = tl.zeros([QP], tl.int32)
    parent = tl.full([QP], -1, tl.int32)
    score = tl.zeros([QP], tl.float32)
    # A node's ancestors and itself, as bits.
    line = tl.where(node == 0, one, 0)
    frontier = tl.full([2 * QP], empty, tl.float32)
    frontier = tl.where(slot == 0, _log_probability(row, 1, 0, RANKS), frontier)

    if SPINE:
        total = tl.full([], 0.0, tl.float32)
        for n in range(1, DEPTH + 1):
            if RANKS > 1:
                sibling = total + _log_probability(row, n, 1, RANKS)
                frontier = tl.where(slot == 2 * n + 1, sibling, frontier)
            total += _log_probability(row, n, 0, RANKS)
            here = node == n
            depth = tl.where(here, n, depth)
            parent = tl.where(here, n - 1, parent)
            score = tl.where(here, total, score)
            line = tl.where(here, (one << (n + 1)) - 1, line)
        frontier = tl.where(slot == 0, empty, frontier)

    for n in range(FIRST, Q):
        best, chosen = tl.max(frontier, 0, return_indices=True, return_indices_tie_break_left=True)
        live = best > empty
        origin = chosen // 2
        child = chosen % 2 == 0
        was = node == origin
        its_depth = tl.sum(tl.where(was, depth, 0), 0)
        its_rank = tl.sum(tl.where(was, rank, 0), 0)
        its_parent = tl.sum(tl.where(was, parent, 0), 0)
        n_depth = tl.where(child, its_depth + 1, its_depth)
        n_rank = tl.where(child, 0, its_rank + 1)
        n_parent = tl.where(child, origin, its_parent)
        above = node == n_parent
        here = node == n
        # A node that nothing was left for (a vocabulary smaller than the budget) stays apart.
        depth = tl.where(here, tl.where(live, n_depth, 1), depth)
        rank = tl.where(here, tl.where(live, n_rank, 0), rank)
        parent = tl.where(here, tl.where(live, n_parent, -1), parent)
        score = tl.where(here, best, score)
        line_above = tl.sum(tl.where(above, line, 0), 0)
        line = tl.where(here, tl.where(live, line_above, 0) | (one << n), line)
        frontier = tl.where(slot == chosen, empty, frontier)
        if live:
            if n_depth < DEPTH:
                value = best + _log_probability(row, n_depth + 1, 0, RANKS)
                frontier = tl.where(slot == 2 * n, value, frontier)
            if n_rank + 1 < RANKS:
                base = tl.sum(tl.where(above, score, 0.0), 0)
                value = base + _log_probability(row, n_depth, n_rank + 1, RANKS)
                frontier = tl.where(slot == 2 * n + 1, value, frontier)

    inside = node < Q
    drafted = inside & (node > 0)
    out = request * Q + node
    place = request * DEPTH * RANKS + (depth - 1) * RANKS + rank
    token = tl.load(ids + place, mask=drafted, other=0)
    token = tl.where(node == 0, tl.load(bonus + request), token)
    length = tl.load(prefix + request).to(tl.int64)
    tl.store(tokens + out, token, mask=inside)
    tl.store(positions + out, length + depth, mask=inside)
    tl.store(parents + out, parent, mask=inside)
    table = req_to_token + tl.load(pool + request).to(tl.int64) * pool_stride
    tl.store(slots + out, tl.load(table + length + node, mask=inside, other=0).to(tl.int64), mask=inside)
    if MASK:
        # Rows of all earlier requests come first; a row is [prefix, Q], and the prefix is not read.
        offset = tl.zeros([], tl.int64)
        for before in range(0, tl.program_id(0)):
            offset += Q * (tl.load(prefix + before).to(tl.int64) + Q)
        at = offset + node[:, None] * (length + Q) + length + node[None, :]
        seen = (line[:, None] >> node[None, :].to(tl.int64)) & 1
        ok = inside[:, None] & inside[None, :] & (at < mask_size)
        tl.store(mask + at, seen.to(tl.uint8), mask=ok)


@triton.jit
def _walk_kernel(
    picked,  # [bs, Q] int64: the target's own token after each node
    tokens,  # [bs, Q] int64
    parents,  # [bs, Q] int32
    prefix,  # [bs]
    commit,  # out [bs] int32: tokens of this step, 1..BLOCK
    bonus,  # out [bs] int64: the last of them
    emitted,  # out [bs, BLOCK + 1] int64; the last: LIMITS' counts
    length,  # out [bs] int64: prefix + commit
    path,  # out [bs, BLOCK] int32: nodes; 0 behind the end
    rows,  # out [bs, BLOCK] int64: the same, counted through the batch
    Q: tl.constexpr,
    QP: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKP: tl.constexpr,
    LIMITS: tl.constexpr,  # highest node of smaller trees, 16 bits each
    TREES: tl.constexpr,  # how many
):
    request = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, QP)
    step = tl.arange(0, BLOCKP)
    inside = node < Q
    token = tl.load(tokens + request * Q + node, mask=inside, other=-1)
    parent = tl.load(parents + request * Q + node, mask=inside, other=-2)

    current = tl.full([], 0, tl.int32)
    count = tl.full([], 1, tl.int32)
    going = tl.full([], 1, tl.int32)
    answer = tl.load(picked + request * Q)
    nodes = tl.zeros([BLOCKP], tl.int32)
    one = tl.full([], 1, tl.int64)
    within = tl.zeros([], tl.int64)
    for tree in tl.static_range(TREES):
        within += one << (16 * tree)
    out = tl.where(step == 0, answer, 0)
    for n in range(1, BLOCK):
        match = (parent == current) & (token == answer) & inside
        found = tl.max(tl.where(match, node, -1), 0)
        going = tl.where(found >= 0, going, 0)
        current = tl.where(going > 0, found, current)
        count += going
        answer = tl.load(picked + request * Q + current)
        now = (step == n) & (going > 0)
        nodes = tl.where(now, current, nodes)
        out = tl.where(now, answer, out)
        for tree in tl.static_range(TREES):
            reached = (going > 0) & (current <= ((LIMITS >> (16 * tree)) & 0xFFFF))
            within += tl.where(reached, one << (16 * tree), 0)

    keep = step < BLOCK
    tl.store(commit + request, count)
    tl.store(bonus + request, answer)
    tl.store(length + request, tl.load(prefix + request).to(tl.int64) + count)
    tl.store(emitted + request * (BLOCK + 1) + step, out, mask=keep)
    tl.store(emitted + request * (BLOCK + 1) + BLOCK, within)
    tl.store(path + request * BLOCK + step, nodes, mask=keep)
    tl.store(rows + request * BLOCK + step, request * Q + nodes, mask=keep)


@triton.jit
def _compact_kernel(
    buffers,  # [n] int64 addresses of KV buffers
    words,  # [n] int32: 4-byte words of a slot
    slots,  # [bs, Q] int64
    path,  # [bs, BLOCK] int32
    commit,  # [bs] int32
    Q: tl.constexpr,
    BLOCK: tl.constexpr,
    WORDS: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    buffer = tl.program_id(1)
    size = tl.load(words + buffer)
    column = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    inside = column < size
    base = tl.load(buffers + buffer).to(tl.pointer_type(tl.int32))
    # Ascending: node path[t] >= t, so no slot is overwritten before it was read.
    for t in range(1, tl.load(commit + request)):
        source = tl.load(path + request * BLOCK + t)
        if source != t:
            here = tl.load(slots + request * Q + source)
            there = tl.load(slots + request * Q + t)
            value = tl.load(base + here * size + column, mask=inside)
            tl.store(base + there * size + column, value, mask=inside)


def build_tree(
    logp: torch.Tensor,
    ids: torch.Tensor,
    bonus: torch.Tensor,
    prefix: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    width: int,
    *,
    spine: bool,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Choose each request's tree from its candidates and lay out the verify step.

    logp, ids: [bs, depth, ranks], best first per position. bonus, prefix, pool: [bs]. mask: uint8,
    written at the rows' places as SGLang's Triton attention reads them; None for a chain.
    Returns tokens, positions and KV slots ([bs, width], int64) and parents ([bs, width], int32).
    """
    bs, depth, ranks = logp.shape
    # Each by itself: a view in the middle of another tensor may be aligned differently from one
    # batch size to the next, and Triton would compile the kernel again in the middle of the service.
    tokens, positions, slots = (_empty(logp, bs, width) for _ in range(3))
    parents = _empty(logp, bs, width, dtype=torch.int32)
    _tree_kernel[(bs,)](
        logp, ids, bonus, prefix, pool, req_to_token, req_to_token.stride(0),
        tokens, positions, slots, parents,
        tokens if mask is None else mask, 0 if mask is None else mask.numel(),
        DEPTH=depth, RANKS=ranks, Q=width, QP=triton.next_power_of_2(width),
        SPINE=spine, FIRST=depth + 1 if spine else 1, MASK=mask is not None,
        num_warps=1 if width <= 32 else 2,
    )  # fmt: skip
    return tokens, positions, slots, parents


def walk(
    picked: torch.Tensor,
    tokens: torch.Tensor,
    parents: torch.Tensor,
    prefix: torch.Tensor,
    block: int,
    limits: tuple[int, ...] = (),
) -> tuple[torch.Tensor, ...]:
    """Follow the target's own tokens from the root as far as the tree has them.

    picked, tokens, parents: [bs, width]. limits: highest nodes of up to four smaller trees that this
    one begins with (see counts_of). Returns commit lengths ([bs] int32), bonus tokens ([bs]), tokens of
    the step with the counts for `limits` behind them ([bs, block + 1]), new sequence lengths ([bs]),
    nodes of the path ([bs, block] int32) and the same as rows of the flat batch ([bs, block]).
    """
    bs, width = tokens.shape
    commit, path = (_empty(tokens, *shape, dtype=torch.int32) for shape in ((bs,), (bs, block)))
    bonus, length = _empty(tokens, bs), _empty(tokens, bs)
    emitted, rows = _empty(tokens, bs, block + 1), _empty(tokens, bs, block)
    _walk_kernel[(bs,)](
        picked, tokens, parents, prefix, commit, bonus, emitted, length, path, rows,
        Q=width, QP=triton.next_power_of_2(width), BLOCK=block, BLOCKP=triton.next_power_of_2(block),
        LIMITS=sum(limit << 16 * i for i, limit in enumerate(limits)), TREES=len(limits), num_warps=1,
    )  # fmt: skip
    return commit, bonus, emitted, length, path, rows


def counts_of(packed: list[int], trees: int) -> list[int]:
    """Sum a batch's packed counts: tokens that each smaller tree would have given, all requests together.

    A tree's first nodes are the whole tree of a smaller budget, so the target's walk tells how far it
    would have come there. Holds up to 32767 tokens per step.
    """
    total = sum(packed)
    return [(total >> 16 * i) & 0xFFFF for i in range(trees)]


def _empty(like: torch.Tensor, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device)


class Compaction:
    """Moves the KV of accepted nodes to the slots that follow the prefix, all layers in one launch."""

    def __init__(self, buffers: list[torch.Tensor]) -> None:
        """Take the pool's buffers, each [slots, ...]; a slot must be whole 4-byte words."""
        sizes = [buffer.stride(0) * buffer.element_size() for buffer in buffers]
        if any(size % 4 for size in sizes) or not all(buffer.is_contiguous() for buffer in buffers):
            raise ValueError(f"DDTREE: KV slots of {sorted(set(sizes))} bytes cannot be moved.")
        self.buffers = buffers  # keeps the addresses valid
        device = buffers[0].device
        self.addresses = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.int64, device=device)
        self.words = torch.tensor([size // 4 for size in sizes], dtype=torch.int32, device=device)
        most = max(sizes) // 4
        self.block = min(1024, triton.next_power_of_2(most))
        self.grid = (len(buffers), triton.cdiv(most, self.block))

    def __call__(self, slots: torch.Tensor, path: torch.Tensor, commit: torch.Tensor) -> None:
        """slots: [bs, width] int64; path: [bs, block] int32; commit: [bs] int32."""
        bs, width = slots.shape
        grid = (bs, *self.grid)
        _compact_kernel[grid](
            self.addresses, self.words, slots, path, commit,
            Q=width, BLOCK=path.shape[1], WORDS=self.block, num_warps=4,
        )  # fmt: skip
