# SPDX-License-Identifier: Apache-2.0
"""Write tiny random-weight target and DFlash-drafter checkpoints.

Targets (vocabulary 512, hidden size 256, six layers):

* ``qwen3``    - ``Qwen3ForCausalLM``, dense, grouped-query attention;
* ``deepseek`` - ``DeepseekV3ForCausalLM``, multi-head latent attention with the
  real head sizes of the Kimi K2 text model (kv_lora_rank 512, rope 64, nope 128,
  v 128), one dense layer and five mixture-of-experts layers (8 experts, top 2);
* ``mla``      - the same with dense layers only, for exact tests in float32: the
  experts' rounding would hide what the attention does.

Drafters (architecture ``DFlashDraftModel``, block size 8):

* ``draft-random`` - random weights: almost nothing is accepted;
* ``draft-anchor`` - always proposes the target's favourite token.

The targets are *anchored*: all embeddings share one direction and the output row
of token ``ANCHOR`` leans towards it, so that greedy decoding emits ``ANCHOR``
about two times in three, and context-dependent other tokens in between.  With
``draft-anchor`` the accepted length of each block is therefore the length of a
run of ``ANCHOR``: every value from 1 to the block size turns up without training
a drafter.

Only torch and safetensors are needed.  The same seed gives the same files.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB = 512
HIDDEN = 256
LAYERS = 6
BLOCK = 8
ANCHOR = 7
MASK = VOCAB - 1
#: Zero-based target layers whose outputs feed the drafter (each <= LAYERS - 2).
TARGET_LAYER_IDS = [1, 2, 4]
MAX_POSITIONS = 4096
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

#: Scale of each residual branch's output projection in the targets.  Near 1, the
#: next token depends strongly on the whole context, so that a wrong mask, position
#: or cache slot changes the output soon.
BRANCH_GAIN = 1.0
#: Scale of the matrices that read the residual stream, whose norm is dominated by
#: the shared direction that they do not see.
READ_GAIN = 2.5
#: A small rotary base: attention from equal tokens at neighbouring positions then
#: differs, which keeps greedy decoding out of one-token loops.
ROPE_THETA = 100.0
#: Norm of the direction shared by all embeddings, in units of a random row's norm.
SHARED = 2.0


class Builder:
    """Collects named random tensors, all drawn from one seeded generator.

    ``reader`` and ``writer`` matrices read from and write to the residual stream;
    both are orthogonal to the shared direction ``self.shared``, so that the layers
    neither see nor change it.
    """

    def __init__(self, seed: int):
        self.gen = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, torch.Tensor] = {}
        shared = self.randn(HIDDEN)
        self.shared = shared / shared.norm()

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.gen)

    def linear(self, name: str, rows: int, cols: int, gain: float = 1.0) -> None:
        self.tensors[f"{name}.weight"] = self.randn(rows, cols) * (gain / math.sqrt(cols))

    def reader(self, name: str, rows: int, gain: float = 1.0) -> None:
        w = self.randn(rows, HIDDEN) * (gain / math.sqrt(HIDDEN))
        self.tensors[f"{name}.weight"] = w - torch.outer(w @ self.shared, self.shared)

    def writer(self, name: str, cols: int, gain: float = 1.0) -> None:
        w = self.randn(HIDDEN, cols) * (gain / math.sqrt(cols))
        self.tensors[f"{name}.weight"] = w - torch.outer(self.shared, self.shared @ w)

    def norm(self, name: str, size: int, jitter: float = 0.1) -> None:
        self.tensors[f"{name}.weight"] = 1.0 + jitter * self.randn(size)

    def mlp(self, name: str, inter: int, gain: float) -> None:
        self.reader(f"{name}.gate_proj", inter, READ_GAIN)
        self.reader(f"{name}.up_proj", inter, READ_GAIN)
        self.writer(f"{name}.down_proj", inter, gain)

    def embeddings(self, lean: float) -> None:
        """Anchored embedding and output matrices."""
        shared = self.shared
        embed = self.randn(VOCAB, HIDDEN)
        embed -= torch.outer(embed @ shared, shared)
        embed += SHARED * math.sqrt(HIDDEN) * shared
        # The mask row carries mostly the shared direction, so that a drafter that
        # changes it little proposes ANCHOR.
        embed[MASK] = 0.25 * embed[MASK] + 2 * SHARED * math.sqrt(HIDDEN) * shared
        head = self.randn(VOCAB, HIDDEN) / math.sqrt(HIDDEN)
        head -= torch.outer(head @ shared, shared)
        head[ANCHOR] += lean / math.sqrt(HIDDEN) * shared
        self.tensors["model.embed_tokens.weight"] = embed
        self.tensors["lm_head.weight"] = head


def qwen3_target(seed: int, lean: float) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    heads, kv_heads, head_dim, inter = 8, 4, 64, 512
    b = Builder(seed)
    b.embeddings(lean)
    for i in range(LAYERS):
        p = f"model.layers.{i}"
        b.reader(f"{p}.self_attn.q_proj", heads * head_dim)
        b.reader(f"{p}.self_attn.k_proj", kv_heads * head_dim)
        b.reader(f"{p}.self_attn.v_proj", kv_heads * head_dim, READ_GAIN)
        b.writer(f"{p}.self_attn.o_proj", heads * head_dim, BRANCH_GAIN)
        # Query and key norms above 1 make the attention peaky, hence sensitive to
        # which positions are visible.
        for n in ("q_norm", "k_norm"):
            b.tensors[f"{p}.self_attn.{n}.weight"] = 1.5 + 0.1 * b.randn(head_dim)
        b.mlp(f"{p}.mlp", inter, BRANCH_GAIN)
        b.norm(f"{p}.input_layernorm", HIDDEN, jitter=0.0)
        b.norm(f"{p}.post_attention_layernorm", HIDDEN, jitter=0.0)
    b.norm("model.norm", HIDDEN, jitter=0.0)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": inter,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "rope_theta": ROPE_THETA,
        "max_position_embeddings": MAX_POSITIONS,
        "vocab_size": VOCAB,
    }
    return config, b.tensors


def deepseek_target(
    seed: int, lean: float, dense_layers: int = 1
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    heads, q_rank, kv_rank, rope, nope, v_dim = 16, 128, 512, 64, 128, 128
    experts, moe_inter, inter = 8, 128, 512
    b = Builder(seed)
    b.embeddings(lean)
    for i in range(LAYERS):
        p = f"model.layers.{i}"
        a = f"{p}.self_attn"
        b.reader(f"{a}.q_a_proj", q_rank)
        b.norm(f"{a}.q_a_layernorm", q_rank)
        b.linear(f"{a}.q_b_proj", heads * (nope + rope), q_rank, 1.5)
        b.reader(f"{a}.kv_a_proj_with_mqa", kv_rank + rope, READ_GAIN)
        b.norm(f"{a}.kv_a_layernorm", kv_rank)
        b.linear(f"{a}.kv_b_proj", heads * (nope + v_dim), kv_rank)
        b.writer(f"{a}.o_proj", heads * v_dim, BRANCH_GAIN)
        if i < dense_layers:
            b.mlp(f"{p}.mlp", inter, BRANCH_GAIN)
        else:
            b.reader(f"{p}.mlp.gate", experts, READ_GAIN)
            b.tensors[f"{p}.mlp.gate.e_score_correction_bias"] = 0.1 * b.randn(experts)
            for e in range(experts):
                b.mlp(f"{p}.mlp.experts.{e}", moe_inter, BRANCH_GAIN)
            b.mlp(f"{p}.mlp.shared_experts", moe_inter, BRANCH_GAIN)
        b.norm(f"{p}.input_layernorm", HIDDEN, jitter=0.0)
        b.norm(f"{p}.post_attention_layernorm", HIDDEN, jitter=0.0)
    b.norm("model.norm", HIDDEN, jitter=0.0)
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": HIDDEN,
        "intermediate_size": inter,
        "moe_intermediate_size": moe_inter,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": q_rank,
        "kv_lora_rank": kv_rank,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": nope,
        "v_head_dim": v_dim,
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": dense_layers,
        "moe_layer_freq": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "rope_theta": ROPE_THETA,
        "max_position_embeddings": MAX_POSITIONS,
        "vocab_size": VOCAB,
    }
    return config, b.tensors


def drafter(seed: int, gain: float) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A two-layer DFlash drafter whose residual branches are scaled by ``gain``."""
    layers, heads, kv_heads, head_dim, inter = 2, 8, 2, 64, 512
    b = Builder(seed)
    for i in range(layers):
        p = f"layers.{i}"
        b.linear(f"{p}.self_attn.q_proj", heads * head_dim, HIDDEN)
        b.linear(f"{p}.self_attn.k_proj", kv_heads * head_dim, HIDDEN)
        b.linear(f"{p}.self_attn.v_proj", kv_heads * head_dim, HIDDEN)
        b.linear(f"{p}.self_attn.o_proj", HIDDEN, heads * head_dim, gain)
        b.norm(f"{p}.self_attn.q_norm", head_dim)
        b.norm(f"{p}.self_attn.k_norm", head_dim)
        b.mlp(f"{p}.mlp", inter, gain)
        b.norm(f"{p}.input_layernorm", HIDDEN)
        b.norm(f"{p}.post_attention_layernorm", HIDDEN)
    b.norm("norm", HIDDEN, jitter=0.0)
    b.linear("fc", HIDDEN, len(TARGET_LAYER_IDS) * HIDDEN)
    b.norm("hidden_norm", HIDDEN)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": inter,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "max_position_embeddings": MAX_POSITIONS,
        "vocab_size": VOCAB,
        "block_size": BLOCK,
        "num_target_layers": LAYERS,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TARGET_LAYER_IDS},
    }
    return config, b.tensors


def write(path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], dtype: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    torch_dtype = DTYPES[dtype]
    out = {}
    for name, tensor in tensors.items():
        keep = torch.float32 if name.endswith("e_score_correction_bias") else torch_dtype
        out[name] = tensor.to(keep).contiguous()
    save_file(out, str(path / "model.safetensors"), metadata={"format": "pt"})
    config = dict(config, torch_dtype=str(torch_dtype).removeprefix("torch."))
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")


#: The lean of the output row of ANCHOR, per target.
LEAN = {"qwen3": 14.0, "deepseek": 15.0, "mla": 12.0}


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("out", type=Path, help="folder to write the checkpoints into")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--dtypes", default="bf16,fp32", help="comma-separated: bf16, fp16, fp32")
    args = ap.parse_args()
    parts = {
        "qwen3": qwen3_target(args.seed, LEAN["qwen3"]),
        "deepseek": deepseek_target(args.seed + 1, LEAN["deepseek"]),
        "mla": deepseek_target(args.seed + 4, LEAN["mla"], dense_layers=LAYERS),
        "draft-random": drafter(args.seed + 2, 16.0),
        "draft-anchor": drafter(args.seed + 3, 0.02),
    }
    for dtype in args.dtypes.split(","):
        for name, (config, tensors) in parts.items():
            path = args.out / f"{name}-{dtype}"
            write(path, config, tensors, dtype)
            size = (path / "model.safetensors").stat().st_size
            print(f"{path}  {len(tensors)} tensors  {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
