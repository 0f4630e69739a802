# SPDX-License-Identifier: Apache-2.0
"""Models made on the spot: real safetensors files, small ones with bytes and large ones as sparse files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from imagebuild.models.drafter_keys import expected_tensors
from imagebuild.models.lockfile import LockedFile, LockedRepo
from imagebuild.models.shapes import DrafterShape, TargetShape
from imagebuild.models.tensors import BITS

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
README = """---
license: other
license_name: modified-mit
tags:
- compressed-tensors
---
# Weights

See the report.
"""

TARGET_CONFIG: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "text_config": {
        "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 4,
        "first_k_dense_replace": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
        "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "kv_lora_rank": 16,
        "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "vocab_size": 512,
        "max_position_embeddings": 4096, "rope_theta": 50000.0, "rope_scaling": None,
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}},
        },
    },
}  # fmt: skip
DRAFTER_CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 4096, "rope_theta": 50000.0,
    "block_size": 4, "dflash_config": {"mask_token_id": 511, "target_layer_ids": [0, 2]},
}  # fmt: skip


def noise(seed: str, size: int) -> bytes:
    """Return bytes that repeat nowhere, the same for a seed."""
    return hashlib.shake_128(seed.encode()).digest(size)


def header(tensors: Tensors) -> tuple[bytes, int]:
    """Return a safetensors header (its length first) and the size of the data that follows."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = BITS[dtype] // 8
        for side in shape:
            size *= side
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw, at


def safetensors(tensors: Tensors, seed: str = "a") -> bytes:
    """Return a whole file with pseudo-random weights."""
    head, size = header(tensors)
    return head + noise(seed, size)


def write_sparse(path: Path, tensors: Tensors) -> int:
    """Write a real header and a hole for the data; return the file's size in bytes."""
    head, size = header(tensors)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    return len(head) + size


def target_tensors(
    shape: TargetShape, prefix: str = "language_model."
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return all tensors of an MLA mixture of experts with packed experts, as Kimi K2.x stores them."""
    mla, experts, hidden = shape.mla, shape.experts, shape.hidden_size
    assert mla and mla.q_lora_rank and experts and shape.quantisation and shape.quantisation.group_size
    query, group = mla.nope_head_dim + mla.rope_head_dim, shape.quantisation.group_size
    out: dict[str, tuple[str, tuple[int, ...]]] = {
        f"{prefix}model.embed_tokens.weight": ("BF16", (shape.vocab_size, hidden)),
        f"{prefix}lm_head.weight": ("BF16", (shape.vocab_size, hidden)),
        f"{prefix}model.norm.weight": ("BF16", (hidden,)),
    }

    def mlp(at: str, inner: int) -> None:
        for name in ("gate_proj", "up_proj"):
            out[f"{at}.{name}.weight"] = ("BF16", (inner, hidden))
        out[f"{at}.down_proj.weight"] = ("BF16", (hidden, inner))

    def packed(at: str, rows: int, columns: int) -> None:
        out[f"{at}.weight_packed"] = ("I32", (rows, columns // 8))
        out[f"{at}.weight_scale"] = ("BF16", (rows, columns // group))
        out[f"{at}.weight_shape"] = ("I32", (2,))

    for layer in range(shape.layers):
        at = f"{prefix}model.layers.{layer}"
        out |= {
            f"{at}.input_layernorm.weight": ("BF16", (hidden,)),
            f"{at}.post_attention_layernorm.weight": ("BF16", (hidden,)),
            f"{at}.self_attn.q_a_proj.weight": ("BF16", (mla.q_lora_rank, hidden)),
            f"{at}.self_attn.q_a_layernorm.weight": ("BF16", (mla.q_lora_rank,)),
            f"{at}.self_attn.q_b_proj.weight": ("BF16", (shape.heads * query, mla.q_lora_rank)),
            f"{at}.self_attn.kv_a_proj_with_mqa.weight": (
                "BF16", (mla.kv_lora_rank + mla.rope_head_dim, hidden)
            ),
            f"{at}.self_attn.kv_a_layernorm.weight": ("BF16", (mla.kv_lora_rank,)),
            f"{at}.self_attn.kv_b_proj.weight": (
                "BF16", (shape.heads * (mla.nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)
            ),
            f"{at}.self_attn.o_proj.weight": ("BF16", (hidden, shape.heads * mla.v_head_dim)),
        }  # fmt: skip
        if layer < experts.dense_layers:
            mlp(f"{at}.mlp", shape.intermediate_size)
            continue
        mlp(f"{at}.mlp.shared_experts", experts.intermediate_size * experts.shared)
        out[f"{at}.mlp.gate.weight"] = ("BF16", (experts.routed, hidden))
        for expert in range(experts.routed):
            for name in ("gate_proj", "up_proj"):
                packed(f"{at}.mlp.experts.{expert}.{name}", experts.intermediate_size, hidden)
            packed(f"{at}.mlp.experts.{expert}.down_proj", hidden, experts.intermediate_size)
    return out


def shards(tensors: Tensors, count: int) -> Iterator[tuple[str, Tensors]]:
    """Yield (file name, its tensors) for `count` shards of about one size."""
    total = header(tensors)[1]
    groups: list[dict[str, tuple[str, tuple[int, ...]]]] = [{} for _ in range(count)]
    at = 0
    for name, value in tensors.items():
        groups[min(count - 1, at * count // total)][name] = value
        at += header({name: value})[1]
    for number, group in enumerate(groups, 1):
        yield f"model-{number:05}-of-{count:06}.safetensors", group


def index(split: Mapping[str, Tensors]) -> bytes:
    """Return a model.safetensors.index.json."""
    total = sum(header(tensors)[1] for tensors in split.values())
    weight_map = {name: file for file, tensors in split.items() for name in tensors}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}).encode()


def small_target(seed: str = "t", count: int = 3, **text: Any) -> dict[str, bytes]:
    """Return the files of a small target; keywords change its text_config."""
    from imagebuild.models.config import target_shape

    config = json.loads(json.dumps(TARGET_CONFIG))
    config["text_config"].update(text)
    split = dict(shards(target_tensors(target_shape(config)), count))
    files = {name: safetensors(tensors, seed + name) for name, tensors in split.items()}
    return {
        "README.md": README.encode(),
        "LICENSE": b"a licence\n",
        "chat_template.jinja": b"{{ messages }}\n",
        "config.json": json.dumps(config, indent=1).encode(),
        "code/modeling_tiny.py": b"# nothing\n",
        "model.safetensors.index.json": index(split),
        "tiktoken.model": noise(seed, 3000),
        **files,
    }


def drafter_tensors(shape: DrafterShape) -> Tensors:
    """Return a drafter's exact tensors."""
    return {name: ("BF16", sides) for name, sides in expected_tensors(shape).items()}


def small_drafter(seed: str = "d", **config: Any) -> dict[str, bytes]:
    """Return the files of a small drafter; keywords change its config."""
    from imagebuild.models.config import drafter_shape

    raw = {**json.loads(json.dumps(DRAFTER_CONFIG)), **config}
    tensors = drafter_tensors(drafter_shape(raw))
    return {
        "README.md": b"---\nlicense: mit\n---\n# Tiny DFlash\n",
        "config.json": json.dumps(raw).encode(),
        "model.safetensors": safetensors(tensors, seed),
    }


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write a model's files below a folder."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def locked(
    files: Mapping[str, bytes], repo: str = "acme/Tiny", name: str = "target", commit: str = "c" * 40
) -> LockedRepo:
    """Return the lock of some files."""
    return LockedRepo(
        name=name,
        repo=repo,
        commit=commit,
        files=tuple(
            LockedFile(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())
            for path, data in files.items()
        ),
    )


def source_yaml(target: Mapping[str, Any], drafter: Mapping[str, Any]) -> str:
    """Return an images/models/tiny.yaml for shapes given as dumped models (JSON is YAML)."""
    return json.dumps(
        {
            "schema": 1, "name": "tiny", "title": "Tiny",
            "target": {
                "repo": "acme/Tiny", "license": "mit", "shape": target,
                "about_bytes": sum(map(len, small_target().values())),
                "lookalikes": ["acme/Tiny-Old"],
            },
            "drafters": [
                {"name": name, "repo": repo, "about_bytes": 250000, "license": "mit", "shape": drafter}
                for name, repo in (("long", "acme/Tiny-DFlash"), ("old", "acme/Old-DFlash"))
            ],
        }
    )  # fmt: skip


def images_with_tiny(root: Path) -> Path:
    """Make an images/ folder that has the model `tiny`; return it."""
    from imagebuild.models.config import drafter_shape, target_shape

    target = target_shape(TARGET_CONFIG).model_dump(mode="json", exclude_none=True)
    drafter = drafter_shape(DRAFTER_CONFIG).model_dump(mode="json", exclude_none=True)
    (root / "images" / "models").mkdir(parents=True)
    (root / "images" / "models" / "tiny.yaml").write_text(source_yaml(target, drafter))
    real = Path(__file__).parent.parent / "images" / "gpus.yaml"
    (root / "images" / "gpus.yaml").write_text(real.read_text())
    return root / "images"
