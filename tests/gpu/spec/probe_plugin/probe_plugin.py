# SPDX-License-Identifier: Apache-2.0
"""Test-only plugin beside DDTREE: a drafter that is told the answer, planted faults, recordings.

Environment (each alone or together; without them nothing is changed):

DDTREE_ORACLE  JSON file {"rows": [[prompt and answer ids], …], "lengths": [prompt lengths], "ranks":
               R, "seed": n}. The drafter's candidates become: the true token of absolute position p
               of row i at rank ``rank_of(seed, i, p, R)`` (not among them if that is ≥ K), wrong
               tokens elsewhere, with fixed log-probabilities.
DDTREE_FAULT   mask: every node sees every node. depth: siblings get positions of their own.
               compact: accepted nodes' KV stays where it is. warm: samples at another temperature.
DDTREE_RECORD  folder: the first tree steps' tokens, parents, positions and logits.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FALLOFF = 0.7  # log-probability that a rank and a depth cost with the oracle
WRONG = 13  # distance between wrong tokens and the truth
RECORDED_STEPS = 12


def rank_of(seed: int, row: int, position: int, ranks: int) -> int:
    """At which rank the oracle hides a position's token: 0 for every other position."""
    value = (seed * 7919 + row * 104729 + position * 1299709) * 2654435761 % (1 << 32)
    value ^= value >> 15
    return 0 if value & 1 else (value >> 1) % ranks


class Oracle:
    """Replaces what DDTreeWorker.propose returns."""

    def __init__(self, path: str) -> None:
        import torch

        data = json.loads(Path(path).read_text())
        self.prompts: dict[tuple[int, ...], int] = {}
        for i, (row, length) in enumerate(zip(data["rows"], data["lengths"], strict=True)):
            self.prompts.setdefault(tuple(row[:length]), i)
        width = max(map(len, data["rows"])) + 64
        rows = [row + [0] * (width - len(row)) for row in data["rows"]]
        ranks = [[rank_of(data["seed"], i, p, data["ranks"]) for p in range(width)] for i in range(len(rows))]
        self.truth = torch.tensor(rows, device="cuda")
        self.rank = torch.tensor(ranks, device="cuda")

    def __call__(self, original: Any, worker: Any, batch: Any, draft_input: Any) -> Any:
        import torch

        logp, _ = original(worker, batch, draft_input)
        bs, depth, ranks = logp.shape
        index = [self.prompts[tuple(r.origin_input_ids)] for r in batch.reqs]
        row = torch.tensor(index, device="cuda")[:, None]
        steps = torch.arange(1, depth + 1, device="cuda")
        # The token at position `prefix` is known (the root); the drafter's first is the next one.
        at = (batch.seq_lens[:, None] + steps).clamp_max(self.truth.shape[1] - 1)
        truth, rank = self.truth[row, at], self.rank[row, at]
        order = torch.arange(ranks, device="cuda")
        ids = (truth[:, :, None] + WRONG * (1 + order)) % 500
        ids = torch.where(order == rank[:, :, None], truth[:, :, None], ids)
        score = -FALLOFF * (1 + order) - 0.01 * steps[:, None]
        return score.expand(bs, depth, ranks).contiguous().float(), ids.contiguous()


class Recorder:
    """Writes the first tree steps of a run."""

    def __init__(self, folder: str) -> None:
        self.folder, self.steps = Path(folder), 0
        self.parents: Any = None

    def tree(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        self.parents = result[3]
        return result

    def verify(self, original: Any, worker: Any, batch: Any, spec: Any, slots: Any) -> Any:
        import torch

        result = original(worker, batch, spec, slots)
        if self.steps < RECORDED_STEPS:
            self.folder.mkdir(parents=True, exist_ok=True)
            torch.save(
                {
                    "prompts": [list(r.origin_input_ids) for r in batch.reqs],
                    "prefix": batch.seq_lens.cpu(),
                    "tokens": spec.draft_token.cpu(),
                    "positions": spec.positions.cpu(),
                    "parents": self.parents.cpu(),
                    "logits": result[0].next_token_logits.float().cpu(),
                },
                self.folder / f"step{self.steps}.pt",
            )
            self.steps += 1
        return result


def _fault_tree(fault: str) -> Any:
    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        tokens, positions, slots, parents = original(*args, **kwargs)
        if fault == "mask" and kwargs.get("mask") is not None:
            kwargs["mask"].fill_(1)
        if fault == "depth":
            nodes = torch.arange(positions.shape[1], device=positions.device)
            positions = positions[:, :1] + nodes
        return tokens, positions, slots, parents

    return around


def _no_compaction(original: Any, *args: Any, **kwargs: Any) -> None:
    return None


def _warm(original: Any, worker: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
    return original(worker, logits * 0.85, *args, **kwargs)


def register() -> None:
    """Register hooks for what the environment asks for (entry point)."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def around(target: str, hook: Any) -> None:
        HookRegistry.register(target, hook, HookType.AROUND)

    worker = "sglang_ddtree.worker.DDTreeWorker"
    fault = os.environ.get("DDTREE_FAULT")
    if os.environ.get("DDTREE_ORACLE"):
        made: list[Oracle] = []

        def propose(original: Any, *args: Any) -> Any:
            if not made:
                made.append(Oracle(os.environ["DDTREE_ORACLE"]))
            return made[0](original, *args)

        around(f"{worker}.propose", propose)
    if os.environ.get("DDTREE_RECORD"):
        recorder = Recorder(os.environ["DDTREE_RECORD"])
        around("sglang_ddtree.worker.build_tree", recorder.tree)
        around(f"{worker}._verify", recorder.verify)
    if fault in ("mask", "depth"):
        around("sglang_ddtree.worker.build_tree", _fault_tree(fault))
    if fault == "compact":
        around("sglang_ddtree.kernels.Compaction.__call__", _no_compaction)
    if fault == "warm":
        around(f"{worker}._pick", _warm)
