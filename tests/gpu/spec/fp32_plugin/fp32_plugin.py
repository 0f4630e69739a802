# SPDX-License-Identifier: Apache-2.0
"""A test-only plugin that lets SGLang 0.5.15.post1 run in float32, for exactness tests.

In bfloat16, and in float16, the logits of a decode step and of a verify step differ
by rounding, so that speculative and plain decoding part at every near tie: equal
outputs prove little and different outputs prove nothing.  In float32 they part only
when something is wrong.  Stock SGLang does not run in float32, because

* the CUDA kernels behind RMSNorm, SiluAndMul and RotaryEmbedding take 16-bit types;
* the Triton attention tiles are sized for 16-bit types.

This plugin replaces the first by the PyTorch implementations that SGLang itself
carries, and shrinks the tiles.  It changes no scheduling,
mask, position or cache code.  Mixture-of-experts layers stay 16-bit (their Triton
kernel knows no float32 output): use dense targets.

It is loaded when its folder is on PYTHONPATH; ``engine.py`` adds that for float32
targets.
"""

from __future__ import annotations

NATIVE = {"RMSNorm", "SiluAndMul", "RotaryEmbedding"}


def _dispatch(original, op):
    if any(base.__name__ in NATIVE for base in type(op).__mro__):
        return op.forward_native
    return original(op)


def _extend_tiles(result, head_dim, value_dim):
    *dims, block_m, block_n, warps = result
    size = 32 if head_dim <= 256 else 16
    return (*dims, min(block_m, size), min(block_n, size), warps)


class _SmallTiles:
    """Launches a Triton kernel with smaller key blocks and no pipelining."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        launch = self.kernel[grid]
        return lambda *args, **kwargs: launch(*args, **{**kwargs, "BLOCK_N": 16, "num_stages": 1})


def register() -> None:
    from sglang.srt.layers.attention.triton_ops import decode_attention
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.layers.utils.multi_platform.MultiPlatformOp.dispatch_forward",
        _dispatch,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.srt.layers.attention.triton_ops.extend_attention._get_block_sizes_for_extend_attention",
        _extend_tiles,
        HookType.AFTER,
    )
    decode_attention._fwd_grouped_kernel_stage1 = _SmallTiles(decode_attention._fwd_grouped_kernel_stage1)
