# SPDX-License-Identifier: Apache-2.0
"""Bytes of a model's weights, from its shape alone, and how each part is spread over GPUs.

    part                          elements                                            spread
    embedding, lm_head            vocab x hidden, each                                TP, first and last stage
    attention, MLA                hiddenx(q_lora + kv_lora + rope)                    on every GPU (no heads)
                                  q_loraxheadsx(nope+rope) + kv_loraxheadsx(nope+v)
                                  + headsxvxhidden                                    TP
    attention, otherwise          hiddenxhead_dimx(2xheads + 2xkv_heads)              TP
    dense and shared MLP          3 x hidden x intermediate (x shared experts)        TP
    router                        hidden x experts                                    on every GPU
    routed experts                experts x 3 x hidden x intermediate                 TP or EP: the same share
    vision tower and projector    layersx(4h^2 + 2hxi) + (4h)^2 + 4hxhidden             on every GPU

A quantised weight takes bits + 16/group bits (one bf16 scale per group). Norms and biases are left out:
less than 0.01 %. Source: SGLang's models/deepseek_v2.py, models/dflash.py, layers/moe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from imagebuild.models.shapes import DrafterShape, Quantisation, TargetShape

Spread = Literal["tp", "copied", "experts", "first", "last"]
BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "float8_e4m3fn": 1.0}


@dataclass(frozen=True)
class Part:
    """Some weights: `size` in bytes over the whole model; `per_layer` tells PP that layers share it out."""

    name: str
    size: float
    spread: Spread
    per_layer: bool = True


def weight_bits(quantisation: Quantisation | None, dtype: str) -> float:
    """Return the bits that one weight takes, its share of the scales included."""
    if quantisation is None:
        return 8 * BYTES.get(dtype, 2.0)
    scale = 16 / quantisation.group_size if quantisation.group_size else 0.0
    return quantisation.bits + scale


def target_parts(shape: TargetShape) -> tuple[Part, ...]:
    """Return the parts of a target's weights."""
    plain = BYTES.get(shape.dtype, 2.0)
    quantised = weight_bits(shape.quantisation, shape.dtype) / 8
    linear = quantised if shape.quantisation and shape.quantisation.covers == "linear" else plain
    hidden, layers = shape.hidden_size, shape.layers
    copied, split = _attention(shape)
    parts = [
        Part("embedding", shape.vocab_size * hidden * plain, "first", per_layer=False),
        Part("lm_head", shape.vocab_size * hidden * plain, "last", per_layer=False),
        Part("attention", layers * split * linear, "tp"),
        Part("attention down-projections", layers * copied * linear, "copied"),
    ]
    experts = shape.experts
    dense = experts.dense_layers if experts else layers
    parts.append(Part("dense MLP", dense * 3 * hidden * shape.intermediate_size * linear, "tp"))
    if experts:
        sparse = layers - dense
        one = 3 * hidden * experts.intermediate_size
        parts += [
            Part("shared experts", sparse * experts.shared * one * linear, "tp"),
            Part("router", sparse * hidden * experts.routed * plain, "copied"),
            Part("routed experts", sparse * experts.routed * one * quantised, "experts"),
        ]
    if shape.vision:
        inner = shape.vision.intermediate_size or 4 * shape.vision.hidden_size
        side = shape.vision.hidden_size
        tower = shape.vision.layers * (4 * side * side + 2 * side * inner)
        joined = 4 * side  # 2 x 2 patches
        size = (tower + joined * joined + joined * hidden) * plain
        parts.append(Part("vision", size, "copied", per_layer=False))
    return tuple(part for part in parts if part.size)


def _attention(shape: TargetShape) -> tuple[int, int]:
    """Return one layer's attention weights: (on every GPU, split over heads), in elements."""
    hidden, heads = shape.hidden_size, shape.heads
    if shape.mla is None:
        head = shape.head_dim or hidden // heads
        return 0, hidden * head * 2 * (heads + shape.kv_heads)
    mla = shape.mla
    query = mla.nope_head_dim + mla.rope_head_dim
    copied = hidden * (mla.kv_lora_rank + mla.rope_head_dim)
    split = mla.kv_lora_rank * heads * (mla.nope_head_dim + mla.v_head_dim) + heads * mla.v_head_dim * hidden
    if mla.q_lora_rank:
        copied += hidden * mla.q_lora_rank
        split += mla.q_lora_rank * heads * query
    else:
        split += hidden * heads * query
    return copied, split


def drafter_parts(shape: DrafterShape) -> tuple[Part, ...]:
    """Return the parts of a DFlash drafter's weights; it uses the target's embedding and lm_head."""
    plain = BYTES.get(shape.dtype, 2.0)
    hidden = shape.hidden_size
    attention = hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    mlp = 3 * hidden * shape.intermediate_size
    ids = len(shape.target_layer_ids) or shape.layers
    return (
        Part("drafter layers", shape.layers * (attention + mlp) * plain, "tp", per_layer=False),
        Part("drafter fc", ids * hidden * hidden * plain, "copied", per_layer=False),
    )


def total(parts: tuple[Part, ...]) -> int:
    """Return the bytes of all parts, as on disk."""
    return round(sum(part.size for part in parts))


def per_gpu(parts: tuple[Part, ...], layers: int, tp: int, pp: int) -> float:
    """Return the bytes on the fullest GPU. Each of `pp` stages has ceil(layers/pp) layers at most."""
    share = -(-layers // pp) / layers
    middle = 0.0
    ends = {"first": 0.0, "last": 0.0}
    for part in parts:
        size = part.size * (share if part.per_layer else 1.0)
        if part.spread in ("first", "last"):
            ends[part.spread] += size / tp
        else:
            middle += size if part.spread == "copied" else size / tp
    return middle + (sum(ends.values()) if pp == 1 else max(ends.values()))


def kv_bytes(shape: TargetShape, kv_dtype: str, tp: int, pp: int = 1) -> float:
    """Return the bytes of one token's key-value rows on one GPU.

    MLA: layers x (kv_lora_rank + rope_head_dim), the same on every GPU; else layers x 2 x the GPU's
    own kv heads x head_dim.
    """
    size = KV_BYTES[kv_dtype]
    layers = -(-shape.layers // pp)
    if shape.mla:
        return layers * (shape.mla.kv_lora_rank + shape.mla.rope_head_dim) * size
    head = shape.head_dim or shape.hidden_size // shape.heads
    return layers * 2 * max(1, -(-shape.kv_heads // tp)) * head * size


def drafter_kv_bytes(shape: DrafterShape, tp: int) -> float:
    """Return the bytes of one token's rows in the drafter's own bf16 pool on one GPU."""
    return shape.layers * 2 * max(1, -(-shape.kv_heads // tp)) * shape.head_dim * 2.0


KV_BYTES = {"bf16": 2.0, "fp8": 1.0}
