# SPDX-License-Identifier: Apache-2.0
"""`TargetShape` and `DrafterShape`: what a server needs to know of a model before it loads it.

They are written in images/models/*.yaml and in locks, and read out of a config.json by `config`.
Sizes of layers count elements, not bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]


class Model(BaseModel):
    """Base of all data of this package: strict, frozen, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Rope(Model):
    """Rotary position embedding: `factor` stretches the `original` context length (1: not at all)."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original: int | None = None


class Mla(Model):
    """Multi-head latent attention: one compressed key-value row per token, the same on every GPU."""

    kv_lora_rank: Count
    q_lora_rank: Count | None
    nope_head_dim: Count
    rope_head_dim: Count
    v_head_dim: Count


class Experts(Model):
    """The mixture of experts of all layers after the first `dense_layers`."""

    routed: Count
    per_token: Count
    shared: Annotated[int, Field(ge=0)]
    intermediate_size: Count
    dense_layers: Annotated[int, Field(ge=0)] = 0


class Quantisation(Model):
    """`covers`: only the routed experts are quantised, or every linear layer of the text model."""

    method: str
    format: str = ""
    bits: Count
    group_size: Count | None = None
    covers: Literal["experts", "linear"] = "linear"

    @property
    def label(self) -> str:
        """Return `compressed-tensors INT4 g32 (experts)`."""
        group = f" g{self.group_size}" if self.group_size else ""
        kind = "FP" if "float" in self.format or self.method in ("fp8", "modelopt") else "INT"
        return f"{self.method} {kind}{self.bits}{group} ({self.covers})"


class Vision(Model):
    """A vision tower; only its size matters here."""

    layers: Count
    hidden_size: Count
    intermediate_size: Count | None = None


class TargetShape(Model):
    """The large model. `context` is the most tokens that its positions allow.

    `dtype` is that of the weights that are not quantised.
    """

    architecture: str
    model_type: str
    hidden_size: Count
    layers: Count
    heads: Count
    kv_heads: Count
    head_dim: Count | None = None
    intermediate_size: Count
    vocab_size: Count
    context: Count
    dtype: str = "bfloat16"
    rope: Rope
    mla: Mla | None = None
    experts: Experts | None = None
    quantisation: Quantisation | None = None
    vision: Vision | None = None


class DrafterShape(Model):
    """A DFlash drafter. `target_layer_ids` are the target's layers whose outputs it reads, from 0.

    `layer_types` empty means full attention everywhere. `target_layers` is how many layers it thinks
    its target has (None: the config does not say).
    """

    architecture: str
    model_type: str
    hidden_size: Count
    layers: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate_size: Count
    vocab_size: Count
    context: Count
    dtype: str = "bfloat16"
    rope: Rope
    block_size: Count
    mask_token_id: int | None
    target_layer_ids: tuple[int, ...]
    layer_types: tuple[str, ...] = ()
    sliding_window: Count | None = None
    target_layers: Count | None = None
