# SPDX-License-Identifier: Apache-2.0
"""One target attention backend and one set of CUDA graphs per budget, and switching between them.

SGLang builds the pair for the largest budget by itself. The others are built here the same way.
Their scratch buffers, which are most of the price at long contexts, are those of the largest.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.utils import get_available_gpu_memory

from sglang_ddtree.settings import Settings

#: Buffers that init_cuda_graph_state makes and every replay fills anew.
_SHARED = (
    "cuda_graph_attn_logits", "cuda_graph_swa_attn_logits", "cuda_graph_attn_lse",
    "cuda_graph_num_kv_splits", "cuda_graph_kv_indices", "cuda_graph_custom_mask",
)  # fmt: skip

logger = logging.getLogger(__name__)


class DDTreeVerifyInput(DFlashVerifyInput):
    """A verify step's input. `tree_topk` tells attention backends that a mask is no chain's."""

    tree_topk = -1


def verify_input(
    width: int, mask: torch.Tensor | None, tokens: torch.Tensor | None, positions: torch.Tensor | None
) -> DFlashVerifyInput:
    """The target's input of a tree step, or of a chain step if there is no mask."""
    kind = DFlashVerifyInput if mask is None else DDTreeVerifyInput
    return kind(
        draft_token=tokens,
        positions=positions,
        draft_token_num=width,
        custom_mask=mask,
        capture_hidden_mode=CaptureHiddenMode.FULL,
    )


def kv_buffers(pool: Any) -> list[torch.Tensor]:
    """All layers' KV buffers, each [slots, ...].

    Raises ValueError for pools other than plain MHA and MLA, whose slots may be something else.
    """
    if type(pool) is MLATokenToKVPool:
        return list(pool.kv_buffer)
    if type(pool) is MHATokenToKVPool and pool.kv_cache_layout == "nhd":
        return [*pool.k_buffer, *pool.v_buffer]
    raise ValueError(f"DDTREE: works with plain MHA and MLA KV caches, not with {type(pool).__name__}.")


@dataclass(frozen=True)
class Runtime:
    """What a budget needs: tokens per request, and the target's backend and graphs for so many."""

    budget: int
    width: int
    backend: TritonAttnBackend
    graphs: DecodeCudaGraphRunner | None


class Runners:
    """The runtimes of all budgets, and which one the target uses now."""

    def __init__(self, model_runner: Any, settings: Settings) -> None:
        self.model_runner = model_runner
        base = model_runner.attn_backend
        if type(base) is not TritonAttnBackend or base.use_sliding_window_kv_pool or base.sliding_window_size:
            raise ValueError("DDTREE: works with plain Triton attention without sliding windows only.")
        graphs = model_runner.decode_cuda_graph_runner
        self.base = Runtime(settings.budgets[-1], settings.width, base, graphs)
        self.active = self.base
        self.all = {budget: self._build(budget, settings) for budget in settings.budgets[:-1]}
        self.all[self.base.budget] = self.base
        if graphs is not None:
            # Rows of padding read what is there; a row must not be all zero.
            base.cuda_graph_custom_mask.fill_(1)

    def activate(self, runtime: Runtime) -> None:
        """Let the target's next verify step run with a runtime."""
        if runtime is not self.active:
            self.model_runner.attn_backend = runtime.backend
            self.model_runner.decode_cuda_graph_runner = runtime.graphs
            self.active = runtime

    def _build(self, budget: int, settings: Settings) -> Runtime:
        """Make a budget's backend and capture its graphs."""
        runner, width = self.model_runner, settings.width_of(budget)
        started, free = time.perf_counter(), get_available_gpu_memory(runner.device, runner.gpu_id)
        before = runner.init_new_workspace
        try:
            backend = runner._get_attention_backend(init_new_workspace=True)
        finally:
            runner.init_new_workspace = before
        backend.num_draft_tokens = width
        base = self.base.backend
        graphs = None
        if self.base.graphs is not None and not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):

            def share(max_bs: int, max_num_tokens: int) -> None:
                for name in _SHARED:
                    setattr(backend, name, getattr(base, name))

            backend.init_cuda_graph_state = share
            graphs = DecodeCudaGraphRunner(runner, attn_backend=backend, speculative_num_draft_tokens=width)
        used = free - get_available_gpu_memory(runner.device, runner.gpu_id)
        logger.info(
            "DDTREE budget %d: %d tokens per verify step, %.2f GB, %.1f s",
            budget, width, used, time.perf_counter() - started,
        )  # fmt: skip
        return Runtime(budget, width, backend, graphs)
