# SPDX-License-Identifier: Apache-2.0
"""The one hook into SGLang: the target's CUDA graphs are captured with a tree's mask.

SGLang only logs a hook that it cannot apply, so the worker asks `is_applied` before it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TARGET = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.get_spec_info"


def spec_info(original: Callable[..., Any], runner: Any, num_tokens: int) -> Any:
    """Around DecodeCudaGraphRunner.get_spec_info: what a graph of so many tokens is captured with."""
    model_runner = runner.model_runner
    args = model_runner.server_args
    if args.speculative_algorithm != "DDTREE" or model_runner.is_draft_worker:
        return original(runner, num_tokens)
    # Not at the top: SGLang's main process, which parses arguments, needs none of it.
    from sglang_ddtree.runners import verify_input

    width = runner.speculative_num_draft_tokens
    mask = None if width == args.speculative_dflash_block_size else runner.buffers.custom_mask
    return verify_input(width, mask, None, None)


def is_applied() -> bool:
    """Whether SGLang runs `spec_info`."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    hooks = [hook for _, hook, _ in HookRegistry._hooks.get(TARGET, [])]
    return TARGET in HookRegistry._patched and spec_info in hooks
