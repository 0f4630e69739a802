# SPDX-License-Identifier: Apache-2.0
"""The exact weights of a DFlash drafter; SGLang ignores unknown ones and does not report missing ones.

An optional `model.` before the names is taken off; there is no embedding and no lm_head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from imagebuild.models.shapes import DrafterShape

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype, shape
_SHOWN = 4


def expected_tensors(drafter: DrafterShape) -> dict[str, tuple[int, ...]]:
    """Return the names (without `model.`) and shapes of all weights that SGLang's DFlash model has."""
    hidden, head = drafter.hidden_size, drafter.head_dim
    query, key = drafter.heads * head, drafter.kv_heads * head
    inner = drafter.intermediate_size
    ids = len(drafter.target_layer_ids) or drafter.layers
    out: dict[str, tuple[int, ...]] = {
        "norm.weight": (hidden,),
        "hidden_norm.weight": (hidden,),
        "fc.weight": (hidden, ids * hidden),
    }
    for layer in range(drafter.layers):
        shapes = {
            "self_attn.q_proj": (query, hidden), "self_attn.k_proj": (key, hidden),
            "self_attn.v_proj": (key, hidden), "self_attn.o_proj": (hidden, query),
            "self_attn.q_norm": (head,), "self_attn.k_norm": (head,),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        }  # fmt: skip
        out.update({f"layers.{layer}.{name}.weight": shape for name, shape in shapes.items()})
    return out


def key_problems(drafter: DrafterShape, tensors: Tensors) -> list[tuple[str, str, str]]:
    """Return (rule, what is wrong, what would happen) for the weights of a drafter."""
    expected = expected_tensors(drafter)
    there = {re.sub(r"^model\.", "", name): value for name, value in tensors.items()}
    missing = sorted(expected.keys() - there.keys())
    extra = sorted(there.keys() - expected.keys())
    wrong = [
        f"{name} {list(there[name][1])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in there and there[name][1] != shape
    ]
    kinds = sorted({dtype for dtype, _ in there.values()} - {"BF16", "F16", "F32"})
    out = []
    if missing:
        out.append((
            "keys", f"{len(missing)} weights are missing: {_list(missing)}",
            "no error: SGLang leaves them as allocated, random memory, and next to nothing is accepted",
        ))  # fmt: skip
    if wrong:
        out.append((
            "keys", f"{len(wrong)} weights have another shape: {_list(wrong)}",
            "a shape error while the drafter is loaded, after the target was loaded for minutes",
        ))  # fmt: skip
    if extra:
        out.append((
            "keys", f"{len(extra)} weights that the drafter class does not have: {_list(extra)}",
            "no error: SGLang ignores them; a drafter that needs them drafts badly",
        ))  # fmt: skip
    if kinds:
        out.append((
            "dtype", f"weights in {', '.join(kinds)}: expected BF16",
            "the drafter class is not quantised: they are cast as they are, which gives nonsense",
        ))  # fmt: skip
    return out


def _list(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
