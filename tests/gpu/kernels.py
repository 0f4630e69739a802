# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (each operation runs at once, before its loop goes on)
"""sglang-kernel's own operators on the build for Hopper, with shapes of Kimi K2.6."""

from __future__ import annotations

from typing import Any

import sgl_kernel as k
import torch

from tests.gpu.operations import rand
from tests.gpu.recorder import Recorder

HALF = torch.bfloat16
TOKENS = (1, 17, 256)
HIDDEN, EXPERTS, TOP = 7168, 384, 8


def _filled(shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.zeros(shape, dtype=dtype, device="cuda")


def elementwise(r: Recorder) -> None:
    """Norms, activations, rotary embedding, MLA concatenation."""
    for n in TOKENS:
        x, w = rand(n, HIDDEN, dtype=HALF), rand(HIDDEN, dtype=HALF)
        r.run(f"rmsnorm {n}", lambda: k.rmsnorm(x, w))
        r.run(f"gemma_rmsnorm {n}", lambda: k.gemma_rmsnorm(x, w))

        def fused() -> Any:
            a, b = x.clone(), x.flip(0).clone()
            k.fused_add_rmsnorm(a, b, w)
            return a, b

        r.run(f"fused_add_rmsnorm {n}", fused)
        for name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"):
            r.run(f"{name} {n}", lambda: getattr(k, name)(x))

        def rotary() -> Any:
            q, key = rand(n, 64 * 128, dtype=HALF), rand(n, 8 * 128, dtype=HALF)
            cache = rand(4096, 128).to(HALF)
            k.rotary_embedding(torch.arange(n, device="cuda"), q, key, 128, cache, True)
            return q, key

        r.run(f"rotary_embedding {n}", rotary)

        def concat() -> Any:
            out = _filled((n, 128, 192), HALF)
            k.concat_mla_k(out, rand(n, 128, 128, dtype=HALF), rand(n, 1, 64, dtype=HALF))
            return out

        r.run(f"concat_mla_k {n}", concat)
        r.run(
            f"concat_mla_absorb_q {n}",
            lambda: k.concat_mla_absorb_q(rand(n, 128, 512, dtype=HALF), rand(n, 128, 64, dtype=HALF)),
        )


def routing(r: Recorder) -> None:
    """Expert choice and alignment."""
    for n in TOKENS:
        logits, bias = rand(n, EXPERTS), rand(EXPERTS)
        r.run(f"kimi_k2_moe_fused_gate {n}", lambda: k.kimi_k2_moe_fused_gate(logits, bias, TOP))
        r.run(f"moe_fused_gate {n}", lambda: k.moe_fused_gate(rand(n, 256), rand(256), 8, 4, TOP))
        for name in ("topk_softmax", "topk_sigmoid"):

            def choose() -> Any:
                weights, ids = _filled((n, TOP), torch.float32), _filled((n, TOP), torch.int32)
                getattr(k, name)(weights, ids, logits[:, :256].contiguous(), True)
                return weights, ids

            r.run(f"{name} {n}", choose)

        def align() -> Any:
            ids = torch.randint(0, EXPERTS, (n, TOP), dtype=torch.int32, device="cuda")
            size = n * TOP + (EXPERTS + 1) * 63
            out = [_filled((s,), torch.int32) for s in (size, size // 64 + 1, 1, EXPERTS + 2)]
            k.moe_align_block_size(ids, EXPERTS + 1, 64, *out, True)
            return out[1:3]

        r.run(f"moe_align_block_size {n}", align)

        def summed() -> Any:
            out = _filled((n, HIDDEN), HALF)
            k.moe_sum_reduce(rand(n, TOP, HIDDEN, dtype=HALF), out, 2.5)
            return out

        r.run(f"moe_sum_reduce {n}", summed)


def gemm(r: Recorder) -> None:
    """Quantisation and quantised products."""
    f8 = torch.float8_e4m3fn
    for n in TOKENS:
        x = rand(n, HIDDEN, dtype=HALF)

        def per_token() -> Any:
            out, scale = _filled((n, HIDDEN), f8), _filled((n, 1), torch.float32)
            k.sgl_per_token_quant_fp8(x, out, scale)
            return out.float(), scale

        def per_group() -> Any:
            out, scale = _filled((n, HIDDEN), f8), _filled((n, HIDDEN // 128), torch.float32)
            k.sgl_per_token_group_quant_fp8(x, out, scale, 128, 1e-10, -448.0, 448.0)
            return out.float(), scale

        r.run(f"per_token_quant_fp8 {n}", per_token)
        r.run(f"per_token_group_quant_fp8 {n}", per_group)
        a, b = rand(n, 512).to(f8), rand(1024, 512).to(f8).t()
        sa, sb = torch.rand(n, 1, device="cuda"), torch.rand(1024, 1, device="cuda")
        r.run(f"fp8_scaled_mm {n}", lambda: k.fp8_scaled_mm(a, b, sa, sb, HALF))
        ia = torch.randint(-99, 99, (n, 512), dtype=torch.int8, device="cuda")
        ib = torch.randint(-99, 99, (1024, 512), dtype=torch.int8, device="cuda").t()
        r.run(f"int8_scaled_mm {n}", lambda: k.int8_scaled_mm(ia, ib, sa, sb, HALF))
        one = torch.ones(1, device="cuda")
        bb = rand(4, 256, 128).to(f8).transpose(1, 2)
        r.run(f"bmm_fp8 {n}", lambda: k.bmm_fp8(rand(4, n, 128).to(f8), bb, one, one, HALF))
        block = torch.rand(n, 4, device="cuda").t().contiguous().t(), torch.rand(4, 8, device="cuda")
        r.run(f"fp8_blockwise_scaled_mm {n}", lambda: k.fp8_blockwise_scaled_mm(a, b, *block, HALF))
    r.run(
        "dsv3_fused_a_gemm",
        lambda: k.dsv3_fused_a_gemm(rand(8, HIDDEN, dtype=HALF), rand(2112, HIDDEN, dtype=HALF).t()),
    )
    packed = torch.randint(0, 1 << 30, (512, 64), dtype=torch.int32, device="cuda")
    zeros = torch.randint(0, 1 << 30, (4, 64), dtype=torch.int32, device="cuda")
    r.run("awq_dequantize", lambda: k.awq_dequantize(packed, rand(4, 512, dtype=torch.float16), zeros))


def speculation(r: Recorder) -> None:
    """Trees, sampling, attention merging."""
    probs = torch.softmax(rand(8, 32_000), -1)
    r.run("top_k_renorm", lambda: k.top_k_renorm_prob(probs, 40))
    r.run("top_p_renorm", lambda: k.top_p_renorm_prob(probs, 0.9))
    scores = rand(64, 32), rand(64, 32)
    r.run(
        "merge_state_v2",
        lambda: k.merge_state_v2(
            rand(64, 32, 128, dtype=HALF), scores[0], rand(64, 32, 128, dtype=HALF), scores[1]
        ),
    )
    long = torch.full((4,), 8000, dtype=torch.int32, device="cuda")
    r.run("fast_topk_v2", lambda: k.fast_topk_v2(rand(4, 8192), long, 2048).sort(-1)[0])

    def verify() -> Any:
        batch, draft = 2, 6
        candidates = torch.randint(0, 99, (batch, draft), device="cuda")
        index = torch.arange(batch * draft, device="cuda").view(batch, draft)
        following = torch.tensor([[1, 2, 3, 4, 5, -1]] * batch, device="cuda")
        sibling = torch.full((batch, draft), -1, device="cuda")
        target = torch.cat([candidates[:, 1:], candidates[:, :1]], 1).contiguous()
        predicts, accepted = (
            _filled((batch * draft + 1,), torch.int32),
            torch.full((batch, draft), -1, dtype=torch.int32, device="cuda"),
        )
        count = _filled((batch,), torch.int32)
        k.verify_tree_greedy(predicts, accepted, count, candidates, index, following, sibling, target)
        return predicts, accepted, count

    r.run("verify_tree_greedy", verify)
    mask = torch.randint(-(1 << 31), (1 << 31) - 1, (4, 1000), dtype=torch.int32, device="cuda")

    def bitmask() -> Any:
        logits = rand(4, 32_000)
        k.apply_token_bitmask_inplace_cuda(logits, mask)
        return logits

    r.run("apply_token_bitmask", bitmask)


def mla(r: Recorder) -> None:
    """FlashMLA."""
    from sgl_kernel.flash_mla import flash_mla_with_kvcache, get_mla_metadata

    lengths = torch.tensor([64, 500, 1023, 2048], dtype=torch.int32, device="cuda")
    table = torch.arange(4 * 32, dtype=torch.int32, device="cuda").view(4, 32)
    for heads in (16, 64):

        def decode() -> Any:
            cache = rand(4 * 32, 64, 1, 576, dtype=HALF)
            plan, splits = get_mla_metadata(lengths, heads, 1)
            return flash_mla_with_kvcache(
                rand(4, 1, heads, 576, dtype=HALF), cache, table, lengths, 512, plan, splits
            )

        r.run(f"flash_mla {heads}", decode)


def run_all(r: Recorder) -> dict[str, Any]:
    """Run every group."""
    for group in (elementwise, routing, gemm, speculation, mla):
        torch.manual_seed(1234)  # inputs made before a group's first operation
        try:
            group(r)
        except Exception as error:
            r.results[f"group {group.__name__}"] = {"error": repr(error)[:200]}
    return {
        "registered": len([n for n in torch._C._dispatch_get_all_op_names() if n.startswith("sgl_kernel::")])
    }
