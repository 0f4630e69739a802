# SPDX-License-Identifier: Apache-2.0
"""The draft tree by a heap, in plain Python, and what a target does with it: what kernels are held to.

Numbers are rounded to float32 after each addition, as the GPU does; equal scores go to the entry
that came first, as there.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LOWEST = -1.0e30


@dataclass(frozen=True)
class Node:
    """A node: its distance from the root, its place among its depth's tokens, its parent's number."""

    depth: int
    rank: int
    parent: int
    score: float


def f32(value: float) -> float:
    """Round to float32."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def tree(logp: Sequence[Sequence[float]], budget: int, spine: bool) -> list[Node]:
    """The root and the `budget` most probable prefixes of the drafter's table [depth][rank].

    spine: the first choice of every depth is in the tree, whatever its probability.
    """
    table = [[value if value > LOWEST else LOWEST for value in row] for row in logp]
    depths, ranks = len(table), len(table[0])
    nodes = [Node(0, 0, -1, 0.0)]
    heap: list[tuple[float, int, Node, float]] = []

    def push(entry: int, node: Node, base: float) -> None:
        heapq.heappush(heap, (-node.score, entry, node, base))

    if spine:
        total = 0.0
        for depth in range(1, depths + 1):
            if ranks > 1:
                score = f32(total + table[depth - 1][1])
                push(2 * depth + 1, Node(depth, 1, depth - 1, score), total)
            total = f32(total + table[depth - 1][0])
            nodes.append(Node(depth, 0, depth - 1, total))
    else:
        push(0, Node(1, 0, 0, f32(table[0][0])), 0.0)
    while len(nodes) <= budget and heap:
        _, _, node, base = heapq.heappop(heap)
        number = len(nodes)
        nodes.append(node)
        if node.depth < depths:
            score = f32(node.score + table[node.depth][0])
            push(2 * number, Node(node.depth + 1, 0, number, score), node.score)
        if node.rank + 1 < ranks:
            score = f32(base + table[node.depth - 1][node.rank + 1])
            push(2 * number + 1, Node(node.depth, node.rank + 1, node.parent, score), base)
    return nodes


def line(nodes: Sequence[Node], number: int) -> list[int]:
    """A node's ancestors and itself, the root first."""
    found = []
    while number >= 0:
        found.append(number)
        number = nodes[number].parent
    return found[::-1]


def walk(parents: Sequence[int], tokens: Sequence[int], picked: Callable[[int], int]) -> list[int]:
    """Follow the target's own tokens from the root: the nodes that are accepted, the root first."""
    path = [0]
    while True:
        token = picked(path[-1])
        found = [n for n, parent in enumerate(parents) if n and parent == path[-1] and tokens[n] == token]
        if not found:
            return path
        path.append(found[0])
