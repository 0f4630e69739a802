# SPDX-License-Identifier: Apache-2.0
"""One decode step: DFlash's draft, a tree of it, one target pass, the target's own tokens walk it.

Budget 0 with greedy sampling is DFlashWorkerV2's own step. Everything else that is not a decode step
(prefill, idle) is DFlashWorkerV2's, too.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.dflash_utils import apply_dflash_verify_logits_adjustments
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.triton_ops.dflash import _prepare_dflash_draft_block_unchecked

from sglang_ddtree import hook
from sglang_ddtree.algorithm import settings_of
from sglang_ddtree.candidates import CandidateHead, gather_best, vocabulary_part
from sglang_ddtree.controller import Controller
from sglang_ddtree.kernels import Compaction, build_tree, counts_of, walk
from sglang_ddtree.metrics import Metrics
from sglang_ddtree.runners import Runners, Runtime, kv_buffers, verify_input

SYNC_EVERY = 8  # decode steps between two agreements of tensor-parallel ranks on the budget


class DDTreeWorker(DFlashWorkerV2):
    """DFLASH's worker with trees instead of chains where they are faster."""

    def __init__(self, server_args: Any, *args: Any, **kwargs: Any) -> None:
        if not hook.is_applied():
            raise RuntimeError("DDTREE: SGLang did not apply the plugin's hook; see the log above.")
        self.settings = settings_of(server_args)
        # The drafter is plain DFLASH: it runs blocks, whatever the tree's size.
        draft_args = copy.copy(server_args)
        draft_args.speculative_algorithm = "DFLASH"
        draft_args.speculative_num_draft_tokens = self.settings.block
        super().__init__(draft_args, *args, **kwargs)
        self.server_args = server_args
        self.head = self.target_worker.model_runner.model.lm_head
        vocabulary_part(self.head)
        self.group = get_tp_group()
        self.controller = Controller(self.settings.budgets, time.perf_counter, chain_too=self.settings.spine)
        self.metrics: Metrics | None = None
        self.launches = 0
        # Steps whose results are not out yet: batch size, budget, result.
        self.pending: deque[tuple[int, int, GenerationBatchResult]] = deque()

    def init_cuda_graphs(self) -> None:
        super().init_cuda_graphs()
        runner = self.target_worker.model_runner
        self.runners = Runners(runner, self.settings)
        self.compact = Compaction(kv_buffers(runner.token_to_kv_pool))
        for runtime in self.runners.all.values():
            self._compile(runtime)
        if self.server_args.enable_metrics and self.tp_rank == 0:
            self.metrics = Metrics(self.server_args.served_model_name)

    def _compile(self, runtime: Runtime) -> None:
        """Run a runtime's kernels once on a made-up request, so that no request waits for Triton."""
        settings, width = self.settings, runtime.width
        logp = torch.zeros((1, settings.depth, settings.ranks), device=self.device)
        ids = torch.arange(logp.numel(), device=self.device).view(logp.shape)
        prefix = torch.ones((1,), dtype=torch.int64, device=self.device)
        row = torch.zeros_like(prefix)
        mask = torch.empty((width * (width + 1),), dtype=torch.uint8, device=self.device)
        tokens, _, slots, parents = build_tree(
            logp, ids, prefix, prefix, row, self.model_runner.req_to_token_pool.req_to_token, width,
            spine=settings.spine or runtime.budget == 0, mask=mask if runtime.budget else None,
        )  # fmt: skip
        picked = torch.full_like(tokens, -1)  # nothing is accepted, so nothing is moved
        limits = settings.limits(runtime.budget)
        commit, _, _, _, path, _ = walk(picked, tokens, parents, prefix, settings.block, limits)
        self.compact(slots, path, commit)

    def _maybe_build_draft_sampler(self) -> CandidateHead | None:
        """What the drafter's CUDA graphs end with (called by init_cuda_graphs)."""
        if self.group.world_size != 1:
            return None
        max_bs = max(self.server_args.cuda_graph_config.decode.bs)
        return CandidateHead(self.head, self.settings.block, self.settings.ranks, max_bs)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """The scheduler has the oldest pending step's result on the host."""
        if not self.pending or self.pending[0][0] != batch_size:
            self.pending.clear()
            return
        _, budget, result = self.pending.popleft()
        tokens = {budget: sum(num_correct_drafts_per_req) + batch_size}
        smaller = self.settings.smaller(budget)
        if smaller:
            packed = result.next_token_ids.view(batch_size, -1)[:, -1].tolist()
            tokens |= zip(smaller, counts_of(packed, len(smaller)), strict=True)
        self.controller.result(batch_size, tokens)
        if self.metrics is not None:
            self.metrics.update(self.controller, batch_size, budget)

    def forward_batch_generation(self, batch: Any, on_publish: Any = None) -> GenerationBatchResult:
        """Run a batch as the scheduler asks (see DFlashWorkerV2)."""
        extend = batch.forward_mode.is_extend() or batch.is_extend_in_batch
        if extend or batch.spec_info is None or batch.forward_mode.is_idle():
            self.controller.pause()
            self.runners.activate(self.runners.base)
            return super().forward_batch_generation(batch, on_publish)
        bs = len(batch.seq_lens)
        runtime = self.runners.all[self._budget(bs)]
        self.runners.activate(runtime)
        self.speculative_num_draft_tokens = runtime.width
        if runtime.budget == 0 and _greedy(batch.sampling_info):
            result = super().forward_batch_generation(batch, on_publish)
        else:
            result = self._tree_step(batch, runtime, on_publish)
        self.pending.append((bs, runtime.budget, result))
        return result

    def _budget(self, bs: int) -> int:
        """Choose the budget of a step; ranks that work together choose the same."""
        single = self.group.world_size == 1
        if not single and self.launches % SYNC_EVERY == 0:
            if self.tp_rank == 0:
                self.controller.decide(bs)
            self.controller.plan = self.group.broadcast_object(self.controller.plan, src=0)
        self.launches += 1
        return self.controller.launch(bs, decide=single)

    def _tree_step(self, batch: Any, runtime: Runtime, on_publish: Any) -> GenerationBatchResult:
        bs, width, block = len(batch.seq_lens), runtime.width, self.settings.block
        batch.seq_lens.record_stream(torch.get_device_module(self.device).current_stream())
        draft_input, prefix = batch.spec_info, batch.seq_lens

        logp, ids = self.propose(batch, draft_input)
        mask, in_graph = self._mask(batch, runtime)
        tokens, positions, slots, parents = build_tree(
            logp, ids, draft_input.bonus_tokens, prefix, batch.req_pool_indices,
            self.model_runner.req_to_token_pool.req_to_token, width,
            spine=self.settings.spine or runtime.budget == 0, mask=mask,
        )  # fmt: skip
        # The graphs read the mask where it was written; what is handed over then holds nothing to copy.
        given = mask[:0] if in_graph and mask is not None else mask
        logits_output, can_run_graph = self._verify(
            batch, verify_input(width, given, tokens.view(-1), positions.view(-1)), slots
        )
        if can_run_graph != in_graph and mask is not None:
            raise RuntimeError("DDTREE: the verify step ran elsewhere than its mask was written for.")

        logits = logits_output.next_token_logits
        if batch.sampling_info is not None:
            apply_dflash_verify_logits_adjustments(
                next_token_logits=logits, sampling_info=batch.sampling_info, draft_token_num=width
            )
        picked = self._pick(logits, batch.sampling_info, positions, width)
        commit, bonus, emitted, length, path, rows = walk(
            picked.view(bs, width), tokens, parents, prefix, block, self.settings.limits(runtime.budget)
        )
        if on_publish is not None:
            on_publish(length)
        hidden = logits_output.hidden_states
        if runtime.budget:  # a chain's accepted nodes are where they belong
            self.compact(slots, path, commit)
            hidden = hidden.index_select(0, rows.view(-1))

        # The drafter learns the accepted nodes' hidden states, as if they had been a chain.
        chain = self._draft_verify_out_cache_loc_buf[:bs]
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden,
            cache_loc=chain.reshape(-1),
            cache_loc_2d=chain,
            positions=self._draft_block_positions_buf[:bs].reshape(-1),
            commit_lens=commit,
        )
        logits_output.hidden_states = None
        return GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=emitted.view(-1),
            accept_lens=commit,
            can_run_cuda_graph=can_run_graph,
            next_draft_input=self._make_next_draft_input_decode(bonus_tokens=bonus, new_seq_lens=length),
            speculative_num_draft_tokens=block + 1,  # the stride of next_token_ids
            new_seq_lens=length,
        )

    def propose(self, batch: Any, draft_input: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the drafter on a block per request: log-probabilities and ids, [bs, depth, ranks]."""
        bs, block = len(batch.seq_lens), self.settings.block
        self._ensure_draft_block_buffers(bs)
        ids, positions = self._draft_block_ids_buf[:bs], self._draft_block_positions_buf[:bs]
        slots, lengths = self._draft_verify_out_cache_loc_buf[:bs], self._draft_seq_lens_cpu_buf[:bs]
        _prepare_dflash_draft_block_unchecked(
            bonus_tokens=draft_input.bonus_tokens.view(-1),
            prefix_lens=batch.seq_lens.view(-1),
            req_pool_indices=batch.req_pool_indices.view(-1),
            req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            block_ids_out=ids,
            positions_out=positions,
            cache_loc_out=slots,
            mask_token_id=self._mask_token_id,
        )
        embeds = self.target_worker.model_runner.model.get_input_embeddings()(ids)
        bound, total = host_lengths(batch, draft_input, block)
        lengths.copy_(bound)
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=bs,
            input_ids=ids.flatten(),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=slots.reshape(-1),
            seq_lens_sum=total,
            seq_lens_cpu=lengths,
            positions=positions.reshape(-1),
            input_embeds=embeds.view(-1, embeds.shape[-1]),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        with torch.inference_mode():
            out = self.draft_model_runner.forward(forward_batch)
            if self._draft_sampler is not None and out.can_run_graph:
                return self._draft_sampler.read(bs)
            hidden = out.logits_output.hidden_states
            return gather_best(hidden, self.head, block, self.settings.ranks, self.group)

    def _mask(self, batch: Any, runtime: Runtime) -> tuple[torch.Tensor | None, bool]:
        """Where the tree's mask goes (None for a chain), and whether CUDA graphs will read it there."""
        bs, width = len(batch.seq_lens), runtime.width
        in_graph = runtime.graphs is not None and bs <= runtime.graphs.max_bs
        if runtime.budget == 0:
            return None, in_graph
        if in_graph:
            return runtime.backend.cuda_graph_custom_mask, True
        _, total = host_lengths(batch, batch.spec_info, 0)
        return torch.empty((width * (total + bs * width),), dtype=torch.uint8, device=self.device), False

    def _verify(self, batch: Any, spec: Any, slots: torch.Tensor) -> tuple[Any, bool]:
        """One target pass over all nodes; logits and hidden states have a row per node."""
        kept = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.out_cache_loc = slots.view(-1)
        batch.seq_lens_cpu, batch.seq_lens_sum = host_lengths(batch, batch.spec_info, spec.draft_token_num)
        forward_batch, _ = spec.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = kept
        forward_batch.mark_forward_metadata_ready()
        out = self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True
        )
        return out.logits_output, out.can_run_cuda_graph

    def _pick(self, logits: torch.Tensor, info: Any, positions: torch.Tensor, width: int) -> torch.Tensor:
        """The target's own token after each node, as its sampler would choose it: [bs * width]."""
        if _greedy(info):
            return torch.argmax(logits, dim=-1)

        def per_node(value: Any) -> Any:
            return value.repeat_interleave(width, dim=0) if isinstance(value, torch.Tensor) else value

        probabilities = torch.softmax(logits / per_node(info.temperatures), dim=-1)
        if info.need_top_p_sampling or info.need_top_k_sampling or info.need_min_p_sampling:
            nodes = SimpleNamespace(
                **{name: per_node(getattr(info, name)) for name in ("top_ks", "top_ps", "min_ps")},
                need_min_p_sampling=info.need_min_p_sampling,
                sampling_seed=per_node(getattr(info, "sampling_seed", None)),
            )
            picked = self.target_worker.model_runner.sampler._sample_from_probs(
                probabilities, nodes, positions.view(-1), False
            ).to(torch.int64)
        else:
            picked = draw(probabilities)
        if self.group.world_size > 1:
            picked = self.group.broadcast(picked, src=0)
        return picked


def draw(probabilities: torch.Tensor) -> torch.Tensor:
    """One sample per row, without asking the GPU whether they are probabilities, as multinomial does.

    An exponential race: the smallest of Exp(1) / p wins, i with probability p_i; never one with p = 0.
    """
    clock = torch.empty_like(probabilities).exponential_().clamp_min_(torch.finfo(torch.float32).tiny)
    return torch.argmax(probabilities / clock, dim=-1)


def _greedy(info: Any) -> bool:
    return info is None or info.is_all_greedy


def host_lengths(batch: Any, draft_input: Any, extra: int) -> tuple[torch.Tensor, int]:
    """Upper bounds of the sequence lengths that the host knows without asking the GPU, and their sum.

    extra: tokens per request on top of the committed ones; what was reserved includes them.
    """
    if batch.seq_lens_cpu is not None:
        bound = batch.seq_lens_cpu + extra
        return bound, int(bound.sum())
    if draft_input.reserved_seq_lens_cpu is not None:
        return draft_input.reserved_seq_lens_cpu, int(draft_input.reserved_seq_lens_sum)
    bound = batch.seq_lens.cpu() + extra
    return bound, int(bound.sum())
