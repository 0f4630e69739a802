# SPDX-License-Identifier: Apache-2.0
"""The drafter's hidden states → the target head's best tokens per position, with log-probabilities.

With one GPU this runs inside the drafter's CUDA graph: DecodeCudaGraphRunner calls whatever stands
in `dflash_draft_sampler`. With tensor parallelism each rank owns a part of the vocabulary, and the
ranks' best are gathered outside the graph.
"""

from __future__ import annotations

from typing import Any

import torch


class CandidateHead:
    """Best tokens per draft position, in buffers that a CUDA graph writes.

    `out` is what SGLang's own sampler leaves for a chain: each position's first token.
    Sizes: out [max_bs * depth], ids and logp [max_bs * depth, ranks].
    """

    def __init__(self, head: Any, block: int, ranks: int, max_bs: int) -> None:
        self.weight, self.start = vocabulary_part(head)
        self.block, self.ranks = block, ranks
        rows = max_bs * (block - 1)
        device = self.weight.device
        self.out = torch.empty((rows,), dtype=torch.int64, device=device)
        self.ids = torch.empty((rows, ranks), dtype=torch.int64, device=device)
        self.logp = torch.empty((rows, ranks), dtype=torch.float32, device=device)

    def __call__(self, hidden: torch.Tensor) -> None:
        """hidden: [bs * block, size], as the drafter leaves it."""
        logp, ids = best(draft_rows(hidden, self.block), self.weight, self.ranks)
        rows = ids.shape[0]
        if self.start:
            ids = ids + self.start
        self.ids[:rows].copy_(ids)
        self.logp[:rows].copy_(logp)
        self.out[:rows].copy_(ids[:, 0])

    def read(self, bs: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the last replay left: log-probabilities and ids, [bs, depth, ranks]."""
        rows, shape = bs * (self.block - 1), (bs, self.block - 1, self.ranks)
        return self.logp[:rows].view(shape), self.ids[:rows].view(shape)


def vocabulary_part(head: Any) -> tuple[torch.Tensor, int]:
    """This rank's rows of the target's output matrix and the id of the first.

    Raises ValueError for a head that is quantized or has added tokens.
    """
    weight = getattr(head, "weight", None)
    if weight is None or not torch.is_floating_point(weight) or weight.element_size() < 2:
        raise ValueError("DDTREE: needs a target with an unquantized lm_head.")
    shard = getattr(head, "shard_indices", None)
    if shard is None:
        return weight, 0
    if int(shard.num_added_elements):
        raise ValueError("DDTREE: does not work with added vocabulary (LoRA).")
    return weight[: int(shard.num_org_elements)], int(shard.org_vocab_start_index)


def draft_rows(hidden: torch.Tensor, block: int) -> torch.Tensor:
    """Leave out each block's first position, the known token: [bs * (block - 1), size]."""
    size = hidden.shape[-1]
    return hidden.view(-1, block, size)[:, 1:].reshape(-1, size)


def best(rows: torch.Tensor, weight: torch.Tensor, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `ranks` best tokens of each row and their float32 log-probabilities over this vocabulary."""
    logits = torch.matmul(rows.to(weight.dtype), weight.T)
    values, ids = torch.topk(logits, ranks, dim=-1)
    total = torch.logsumexp(logits.float(), dim=-1, keepdim=True)
    return values.float() - total, ids


def gather_best(
    hidden: torch.Tensor, head: Any, block: int, ranks: int, group: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Like CandidateHead, over all ranks of a tensor-parallel group: [bs, depth, ranks]."""
    weight, start = vocabulary_part(head)
    rows = draft_rows(hidden, block)
    logits = torch.matmul(rows.to(weight.dtype), weight.T)
    values, ids = torch.topk(logits, ranks, dim=-1)
    total = torch.logsumexp(logits.float(), dim=-1, keepdim=True)
    values, ids = values.float(), ids + start
    if group.world_size > 1:
        values, ids = group.all_gather(values, dim=-1), group.all_gather(ids, dim=-1)
        total = torch.logsumexp(group.all_gather(total, dim=-1), dim=-1, keepdim=True)
        values, place = torch.topk(values, ranks, dim=-1)
        ids = ids.gather(1, place)
    shape = (-1, block - 1, ranks)
    return (values - total).view(shape), ids.view(shape)
