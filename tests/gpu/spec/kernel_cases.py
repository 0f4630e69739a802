# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (each launch is timed before its loop goes on)
"""DDTREE's kernels against tests/treeoracle.py, on a GPU or by Triton's interpreter on a CPU.

    python3 kernel_cases.py [--cases N] [--seed N] [--time]

Needs torch, triton, the plugin and treeoracle on the path. Prints what was compared; exit code 1
with the first difference. With TRITON_INTERPRET=1 the same kernels run without a GPU.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from typing import Any

import torch
import treeoracle
from sglang_ddtree.kernels import Compaction, build_tree, counts_of, walk

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") else "cuda"
VOCAB = 1000
#: (depth, budget) on a GPU, where every shape must be compiled first.
FEW = ((7, 8), (7, 16), (7, 32), (7, 63), (3, 12))


def sizes(rng: random.Random) -> tuple[int, int, int]:
    """Batch size, depth and budget of a case."""
    if DEVICE == "cuda":
        return rng.choice([1, 5, 24]), *rng.choice(FEW)
    depth = rng.randrange(1, 9)
    return rng.choice([1, 2, 5]), depth, rng.randrange(depth + 1, 40)


def table(rng: random.Random, bs: int, depth: int, ranks: int) -> torch.Tensor:
    """Log-probabilities as a drafter may give them: sharp, flat, tied, saturated, or with -inf and NaN."""
    kind = rng.choice(["sharp", "mixed", "flat", "tied", "equal", "saturated", "broken"])
    scale = {"sharp": 8.0, "mixed": 2.0, "flat": 0.1}.get(kind, 2.0)
    logits = torch.randn(
        bs, depth, max(ranks, 64), generator=torch.Generator().manual_seed(rng.randrange(1 << 30))
    )
    logp = torch.log_softmax(logits * scale, -1).topk(ranks).values.contiguous()
    if kind == "tied":
        logp = torch.round(logp)
    if kind == "equal":
        logp = torch.full_like(logp, -1.5)
    if kind == "saturated":
        logp[:, :, 0] = 0.0
        logp[:, :, 1:] = -103.0
    if kind == "broken":
        logp[:, :, ranks // 2 :] = float("-inf")
        logp[:, -1, -1:] = float("nan")
    return logp


def check_tree(rng: random.Random, cases: int) -> int:
    """Tree, tokens, positions, slots, parents and mask of random batches; number of trees."""
    done = 0
    for _ in range(cases):
        bs, depth, budget = sizes(rng)
        spine = rng.random() < 0.6
        ranks = budget - depth + 1 if spine else budget
        if DEVICE == "cpu" and rng.random() < 0.1:
            ranks = min(ranks, 2)
        logp = table(rng, bs, depth, ranks)
        ids = torch.stack([torch.randperm(VOCAB)[: depth * ranks].view(depth, ranks) for _ in range(bs)])
        prefix = torch.tensor([rng.randrange(1, 50) for _ in range(bs)])
        pool = torch.randperm(bs + 4)[:bs]
        slots_of = torch.randperm((bs + 4) * 200).view(bs + 4, 200).to(torch.int32)
        bonus = torch.randint(0, VOCAB, (bs,))
        width = budget + 1
        size = int((width * (prefix + width)).sum())
        mask = torch.full((size + 7,), 9, dtype=torch.uint8)
        given: Any = [t.to(DEVICE) for t in (logp, ids, bonus, prefix, pool, slots_of)]
        mask = mask.to(DEVICE)
        build: Any = build_tree
        out = build(*given, width, spine=spine, mask=mask)
        tokens, positions, slots, parents = (t.cpu() for t in out)
        mask, offset = mask.cpu(), 0
        for b in range(bs):
            nodes = treeoracle.tree(logp[b].tolist(), budget, spine)
            n, length = len(nodes), int(prefix[b])
            assert parents[b, :n].tolist() == [x.parent for x in nodes], ("parents", logp[b], budget, spine)
            assert (parents[b, n:] == -1).all()
            wanted = [int(bonus[b])] + [int(ids[b, x.depth - 1, x.rank]) for x in nodes[1:]]
            assert tokens[b, :n].tolist() == wanted, "tokens"
            assert positions[b, :n].tolist() == [length + x.depth for x in nodes], "positions"
            assert slots[b].tolist() == slots_of[pool[b], length : length + width].tolist(), "slots"
            rows = mask[offset : offset + width * (length + width)].view(width, length + width)
            assert (rows[:, :length] == 9).all(), "the prefix part of the mask was written"
            for q in range(width):
                seen = treeoracle.line(nodes, q) if q < n else [q]
                assert rows[q, length:].nonzero().view(-1).tolist() == seen, "mask"
            offset += width * (length + width)
            done += 1
        assert (mask[offset:] == 9).all(), "written behind the mask"
    return done


def check_walk(rng: random.Random, cases: int) -> int:
    """Walk and compaction after targets that agree with the tree more or less often."""
    done = 0
    for _ in range(cases):
        bs, depth, budget = sizes(rng)
        width, block = budget + 1, depth + 1
        shapes = [
            treeoracle.tree(table(rng, 1, depth, budget)[0].tolist(), budget, rng.random() < 0.5)
            for _ in range(bs)
        ]
        if any(len(shape) != width for shape in shapes):
            continue
        few = rng.choice([3, 10, VOCAB])
        parents = torch.tensor([[x.parent for x in shape] for shape in shapes], dtype=torch.int32)
        tokens = torch.tensor([sibling_tokens(rng, shape, max(few, width)) for shape in shapes])
        picked = torch.randint(0, max(few, width), (bs, width))
        for b in range(bs):
            for node in range(width):
                below = [n for n in range(1, width) if int(parents[b, n]) == node]
                if below and rng.random() < 0.8:
                    picked[b, node] = tokens[b, rng.choice(below)]
        prefix = torch.randint(1, 99, (bs,))
        given: Any = [t.to(DEVICE) for t in (picked, tokens, parents, prefix)]
        limits = tuple(sorted(rng.sample(range(1, width), min(3, width - 1))))
        follow: Any = walk
        out = follow(*given, block, limits)
        packed = out[2][:, -1].tolist()
        commit, bonus, emitted, length, path, rows = (t.cpu() for t in out)
        words = [rng.choice([1, 7, 288, 1500]) for _ in range(3)]
        pools = [torch.randint(-9, 9, (bs * width + 5, w), dtype=torch.int32) for w in words]
        slots = torch.randperm(bs * width + 5)[: bs * width].view(bs, width)
        moved = [pool.clone().to(DEVICE) for pool in pools]
        Compaction(moved)(slots.to(DEVICE), out[4], out[0])
        expected = [pool.clone() for pool in pools]
        for b in range(bs):
            answer = picked[b].tolist()
            wanted = treeoracle.walk(parents[b].tolist(), tokens[b].tolist(), lambda n, a=answer: a[n])
            n = len(wanted)
            assert int(commit[b]) == n and path[b, :n].tolist() == wanted, ("walk", wanted, path[b])
            within = [1 + sum(0 < node <= limit for node in wanted) for limit in limits]
            assert counts_of([packed[b]], len(limits)) == within, ("counts", within)
            assert emitted[b, :n].tolist() == [answer[node] for node in wanted], "emitted"
            assert int(bonus[b]) == answer[wanted[-1]] and int(length[b]) == int(prefix[b]) + n
            assert rows[b, :n].tolist() == [b * width + node for node in wanted], "rows"
            for pool, result in zip(pools, expected, strict=True):
                for place, node in enumerate(wanted):
                    result[slots[b, place]] = pool[slots[b, node]]
            done += 1
        for result, found in zip(expected, moved, strict=True):
            taken = [int(slots[b, t]) for b in range(bs) for t in range(int(commit[b]))]
            there = found.cpu()
            assert (there[taken] == result[taken]).all(), "compaction"
            free = sorted(set(range(there.shape[0])) - set(slots.view(-1).tolist()))
            assert (there[free] == result[free]).all(), "compaction wrote to a foreign slot"
    return done


def sibling_tokens(rng: random.Random, shape: list[treeoracle.Node], few: int) -> list[int]:
    """Tokens of a tree's nodes: siblings differ, cousins may not."""
    tokens = [0]
    for node in shape[1:]:
        used = {tokens[n] for n in range(1, len(tokens)) if shape[n].parent == node.parent}
        tokens.append(rng.choice([token for token in range(few) if token not in used]))
    return tokens


def times() -> None:
    """Microseconds per launch by CUDA events over a captured graph of 50 launches each."""
    for width, bs in ((9, 1), (17, 1), (17, 8), (17, 64), (33, 1), (33, 8), (33, 64), (64, 8)):
        depth, ranks = 7, width - 7
        logp = (
            torch.log_softmax(torch.randn(bs, depth, 64, device="cuda"), -1).topk(ranks).values.contiguous()
        )
        ids = torch.arange(bs * depth * ranks, device="cuda").view(bs, depth, ranks)
        one = torch.full((bs,), 1000, device="cuda")
        pool = torch.arange(bs, device="cuda")
        table_of = torch.arange(bs * 1200, device="cuda", dtype=torch.int32).view(bs, 1200)
        mask = torch.empty((bs * width * (1000 + width),), dtype=torch.uint8, device="cuda")
        # 61 layers of an MLA cache in bfloat16.
        compact = Compaction(
            [torch.zeros(bs * 1200, 576, dtype=torch.bfloat16, device="cuda") for _ in range(61)]
        )

        def tree() -> Any:
            return build_tree(logp, ids, one, one, pool, table_of, width, spine=True, mask=mask)

        tokens, _, slots, parents = tree()
        # The target follows the last child everywhere: the longest walk with the most to move.
        picked = torch.full_like(tokens, -1)
        picked.scatter_(1, parents[:, 1:].long(), tokens[:, 1:])
        commit, _, _, _, path, _ = walk(picked, tokens, parents, one, depth + 1)
        row = [f"width {width:2d} batch {bs:2d}"]
        for name, call in (
            ("tree", tree),
            ("walk", lambda: walk(picked, tokens, parents, one, depth + 1)),
            ("compact", lambda: compact(slots, path, commit)),
        ):
            call()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(50):
                    call()
            graph.replay()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            row.append(f"{name} {start.elapsed_time(end) / 50 * 1000:6.1f} us")
        print("  ".join(row), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time", action="store_true")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    try:
        print(f"{check_tree(rng, args.cases)} trees as the heap makes them", flush=True)
        print(f"{check_walk(rng, args.cases)} walks and compactions as in plain Python", flush=True)
    except AssertionError as error:
        print(f"DIFFERENT: {error}")
        return 1
    if args.time:
        times()
    return 0


if __name__ == "__main__":
    sys.exit(main())
