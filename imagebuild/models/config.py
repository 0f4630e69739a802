# SPDX-License-Identifier: Apache-2.0
"""config.json → `TargetShape` or `DrafterShape`; a config is others' data, so it is read leniently.

Multimodal configs nest the text model below `text_config`, and Kimi K2.x keeps its
`quantization_config` there too (SGLang lifts it from there as well: configs/kimi_k25.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from imagebuild.errors import CheckFailed
from imagebuild.models.shapes import (
    DrafterShape,
    Experts,
    Mla,
    Quantisation,
    Rope,
    TargetShape,
    Vision,
)

M = TypeVar("M", bound=BaseModel)

MAX_BYTES = 16 << 20
Config = Mapping[str, Any]
_UNQUANTISED = ("self_attn", "shared_experts", "attn")  # in `ignore`: only experts are quantised


def read_json(path: Path, limit: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON object of at most `limit` bytes. Raises CheckFailed naming the file."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise CheckFailed(f"{path}: larger than {limit} bytes", hint="it is no config of a model")
        value = json.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise CheckFailed(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise CheckFailed(f"{path}: not JSON: {error}", hint="fetch the file again") from None
    if not isinstance(value, dict):
        raise CheckFailed(f"{path}: not JSON: expected one object", hint="fetch the file again")
    return value


def text_config(config: Config) -> Config:
    """Return the part about the text model: `text_config`, `llm_config`, or all of it."""
    for name in ("text_config", "llm_config", "language_config"):
        inner = config.get(name)
        if isinstance(inner, dict):
            return inner
    return config


def quantization_config(config: Config) -> Config | None:
    """Return the quantisation's part, from the top or from below `text_config`."""
    for place in (config, text_config(config)):
        for name in ("quantization_config", "compression_config"):
            if isinstance(place.get(name), dict):
                found: Config = place[name]
                return found
    return None


def is_drafter(config: Config) -> bool:
    """Tell whether a config is a DFlash drafter's."""
    names = " ".join(str(name) for name in _items(config.get("architectures")))
    return "dflash" in names.lower() or isinstance(config.get("dflash_config"), dict)


def quantisation(config: Config) -> Quantisation | None:
    """Return how the weights are quantised, or None if they are not. Raises CheckFailed if it is unclear."""
    raw = quantization_config(config)
    if raw is None:
        return None
    method = str(raw.get("quant_method") or raw.get("quant_algo") or "unknown")
    weights: Config = raw
    groups = raw.get("config_groups")
    if isinstance(groups, dict) and groups:
        first = next(iter(groups.values()))
        found = first.get("weights") if isinstance(first, dict) else None
        weights = found if isinstance(found, dict) else {}
    bits = weights.get("num_bits") or weights.get("bits") or _bits_of(f"{method} {raw.get('quant_algo', '')}")
    if not isinstance(bits, int) or not 1 <= bits <= 16:
        raise CheckFailed(f"quantization_config of {method}: how many bits? found {bits!r}")
    group = weights.get("group_size")
    kind = str(raw.get("format") or "")
    if weights.get("type") == "float" and "float" not in kind:
        kind = f"{kind} float".strip()
    ignored = " ".join(map(str, _items(raw.get("ignore") or raw.get("modules_to_not_convert"))))
    experts = bool(text_config(config).get("n_routed_experts")) and any(x in ignored for x in _UNQUANTISED)
    return Quantisation(
        method=method,
        format=kind,
        bits=bits,
        group_size=group if isinstance(group, int) and group > 0 else None,
        covers="experts" if experts else "linear",
    )


def _bits_of(name: str) -> int | None:
    found = re.search(r"(?:fp|int|w|bit)[-_]?(\d{1,2})", name.lower())
    return int(found[1]) if found else None


def rope(config: Config) -> Rope:
    """Return the rotary embedding, from `rope_parameters` (transformers 5) or the older keys."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        scaling = {}
    original = scaling.get("original_max_position_embeddings")
    return Rope(
        theta=_number(scaling.get("rope_theta") or config.get("rope_theta"), 10000.0),
        kind=str(scaling.get("rope_type") or scaling.get("type") or "default"),
        factor=_number(scaling.get("factor"), 1.0),
        original=original if isinstance(original, int) else None,
    )


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any, default: float) -> float:
    return float(value) if isinstance(value, (int, float)) and value else default


def target_shape(config: Config, where: str = "config.json") -> TargetShape:
    """Read a target's config. Raises CheckFailed naming every key that is missing or wrong."""
    text = text_config(config)
    vision = config.get("vision_config")
    values: dict[str, Any] = {
        **_common(text),
        "architecture": _first(config.get("architectures")),
        "model_type": config.get("model_type", text.get("model_type")),
        "quantisation": quantisation(config),
        "mla": _mla(text),
        "experts": _experts(text),
        "vision": _vision(vision) if isinstance(vision, dict) else None,
    }
    return _build(TargetShape, values, where)


def drafter_shape(config: Config, where: str = "config.json") -> DrafterShape:
    """Read a DFlash drafter's config. Raises CheckFailed naming every key that is missing or wrong.

    The block size may stand at the top or in `dflash_config`, and is 16 if it stands nowhere
    (SGLang's parse_dflash_draft_config).
    """
    dflash = config.get("dflash_config")
    if not isinstance(dflash, dict):
        dflash = {}
    block = dflash.get("block_size") or config.get("block_size")
    layer_types = _items(config.get("layer_types"))
    values: dict[str, Any] = {
        **_common(config),
        "architecture": _first(config.get("architectures")),
        "model_type": config.get("model_type"),
        "block_size": block or 16,
        "mask_token_id": dflash.get("mask_token_id"),
        "target_layer_ids": tuple(_items(dflash.get("target_layer_ids"))),
        "layer_types": tuple(layer_types),
        "sliding_window": config.get("sliding_window") if "sliding_attention" in layer_types else None,
        "target_layers": config.get("num_target_layers"),
    }
    hidden, heads = values["hidden_size"], values["heads"]
    if values["head_dim"] is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        values["head_dim"] = hidden // heads
    return _build(DrafterShape, values, where)


_KEYS = {  # our name -> config.json's, for messages
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "context": "max_position_embeddings",
    "architecture": "architectures",
}


def _common(text: Config) -> dict[str, Any]:
    heads = text.get("num_attention_heads")
    return {
        "hidden_size": text.get("hidden_size"),
        "layers": text.get("num_hidden_layers"),
        "heads": heads,
        "kv_heads": text.get("num_key_value_heads", heads),
        "head_dim": text.get("head_dim"),
        "intermediate_size": text.get("intermediate_size"),
        "vocab_size": text.get("vocab_size"),
        "context": text.get("max_position_embeddings"),
        "dtype": str(text.get("dtype") or text.get("torch_dtype") or "bfloat16"),
        "rope": rope(text),
    }


def _mla(text: Config) -> Mla | None:
    if not isinstance(text.get("kv_lora_rank"), int):
        return None
    names = {
        "kv_lora_rank": "kv_lora_rank", "q_lora_rank": "q_lora_rank", "nope_head_dim": "qk_nope_head_dim",
        "rope_head_dim": "qk_rope_head_dim", "v_head_dim": "v_head_dim",
    }  # fmt: skip
    return _build(Mla, {ours: text.get(theirs) for ours, theirs in names.items()}, "config.json")


def _experts(text: Config) -> Experts | None:
    routed = text.get("n_routed_experts") or text.get("num_experts") or text.get("num_local_experts")
    if not isinstance(routed, int):
        return None
    values = {
        "routed": routed,
        "per_token": text.get("num_experts_per_tok"),
        "shared": text.get("n_shared_experts") or 0,
        "intermediate_size": text.get("moe_intermediate_size") or text.get("intermediate_size"),
        "dense_layers": text.get("first_k_dense_replace") or 0,
    }
    return _build(Experts, values, "config.json")


def _vision(raw: Config) -> Vision | None:
    layers = raw.get("num_hidden_layers") or raw.get("vt_num_hidden_layers") or raw.get("depth")
    hidden = raw.get("hidden_size") or raw.get("vt_hidden_size")
    inner = raw.get("intermediate_size") or raw.get("vt_intermediate_size")
    if not isinstance(layers, int) or not isinstance(hidden, int):
        return None
    if not isinstance(inner, int):
        inner = None
    return _build(
        Vision, {"layers": layers, "hidden_size": hidden, "intermediate_size": inner}, "config.json"
    )


def _first(names: Any) -> Any:
    return names[0] if isinstance(names, list) and names else None


def _build(kind: type[M], values: Mapping[str, Any], where: str) -> M:
    try:
        return kind(**values)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            name = str(problem["loc"][0])
            lines.append(f"{where}: {_KEYS.get(name, name)}: {problem['msg']}, found {problem['input']!r}")
        hint = "it is no config of a model that this tool knows, or the file is damaged: fetch it again"
        raise CheckFailed("\n".join(dict.fromkeys(lines)), hint=hint) from None
