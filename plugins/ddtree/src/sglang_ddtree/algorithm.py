# SPDX-License-Identifier: Apache-2.0
"""What SGLang asks of a speculative algorithm, and what DDTREE refuses at start."""

from __future__ import annotations

import json
import os
from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from sglang_ddtree import guard
from sglang_ddtree.settings import Settings, make_settings

#: Fields of ServerArgs that must have the value on the right; why.
_REFUSED: dict[str, tuple[Any, str]] = {
    "enable_deterministic_inference": (False, "its attention kernel was not tried with trees"),
    "enable_lora": (False, "the drafter knows nothing of adapters"),
    "enable_two_batch_overlap": (False, "its wrapper of the attention backend is not switched"),
    "enable_pdmux": (False, "its attention backends are not switched"),
    "enable_torch_compile": (False, "not tried"),
    "enable_return_hidden_states": (False, "the accepted nodes' states stay on the GPU"),
    "speculative_adaptive": (False, "DDTREE adapts its budget by itself"),
    "speculative_draft_window_size": (None, "the compact draft cache was not built for trees"),
    "speculative_accept_threshold_single": (1.0, "a relaxed acceptance is not lossless"),
    "speculative_accept_threshold_acc": (1.0, "a relaxed acceptance is not lossless"),
    "dcp_size": (1, "its attention path takes no mask"),
    "disaggregation_mode": ("null", "not tried"),
    "enable_unified_memory": (False, "its KV slots are virtual"),
    "enable_hisparse": (False, "not tried"),
}


class DDTreeAlgorithm(CustomSpecAlgo):
    """DFlash to SGLang's scheduler and memory, a tree to the verify step."""

    def is_dflash(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def has_draft_kv(self) -> bool:
        return False

    # The registry's base class lacks these three; the scheduler calls them.
    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def create_future_map(self, device: Any, req_to_token_pool: Any, needs_cpu_seq_lens: bool = True) -> Any:
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens)

    def handle_server_args(self, server_args: Any) -> None:
        """Check everything that must hold and set what DFlash's own handler sets.

        Raises ValueError, which ends the start, for another SGLang or flags that do not work.
        """
        from sglang.srt.arg_groups.overrides import resolved_view
        from sglang.srt.arg_groups.speculative_hook import _handle_dflash

        guard.check()
        view = resolved_view(server_args)
        refuse(view)
        width = server_args.speculative_num_draft_tokens
        if server_args.speculative_draft_attention_backend is None:
            server_args.speculative_draft_attention_backend = "triton"
        # For DFlash this flag is the block size; without it, it reads the drafter's configuration.
        server_args.speculative_num_draft_tokens = None
        _handle_dflash(server_args)
        block = int(server_args.speculative_num_draft_tokens)
        settings = make_settings(block, width, os.environ)
        server_args.speculative_num_draft_tokens = settings.width
        server_args.speculative_dflash_block_size = block


def settings_of(server_args: Any) -> Settings:
    """The settings behind flags that handle_server_args has been through."""
    return make_settings(
        int(server_args.speculative_dflash_block_size),
        int(server_args.speculative_num_draft_tokens),
        os.environ,
    )


def refuse(view: Any) -> None:
    """Raise ValueError for attention backends and features that DDTREE does not work with."""
    from sglang.srt.arg_groups.overrides import attention_backends_of

    prefill, decode = attention_backends_of(view)
    if (prefill, decode) != ("triton", "triton"):
        raise ValueError(
            f"DDTREE: attention backends {prefill} (prefill) and {decode} (decode); allowed: triton for "
            "both. Use --attention-backend triton: the others drop or were not tried with a tree's mask."
        )
    draft = view.speculative_draft_attention_backend
    if draft not in (None, "triton"):
        raise ValueError(
            f"DDTREE: --speculative-draft-attention-backend {draft}; allowed: triton (the default here)."
        )
    for name, (allowed, why) in _REFUSED.items():
        found = getattr(view, name, allowed)
        if found is not None and found != allowed:
            flag = "--" + name.replace("_", "-")
            raise ValueError(
                f"DDTREE: {flag} {json.dumps(found, default=str)}; allowed: {json.dumps(allowed)}: {why}. "
                "Leave it out, or use --speculative-algorithm DFLASH."
            )
