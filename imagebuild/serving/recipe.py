# SPDX-License-Identifier: Apache-2.0
"""compose/recipes/MODEL.yaml as written: how one model is served, on which GPUs, as which services.

`resolve_service` (in `service`) turns one service on one arch into a `Serving`, with everything decided.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from imagebuild.diagnostics import Refused
from imagebuild.errors import ManifestError
from imagebuild.manifest import Model
from imagebuild.manifest_fields import ArchName, Env, Line, Name, Reason
from imagebuild.yamlfile import Positions, load_with_positions

# What SGLang 0.5.15.post1 offers for --attention-backend on NVIDIA GPUs.
Attention = Literal[
    "triton", "flashinfer", "fa3", "fa4", "trtllm_mla", "trtllm_mha", "tokenspeed_mla", "cutlass_mla",
    "flashmla",
]  # fmt: skip
Moe = Literal["auto", "marlin", "triton", "flashinfer_trtllm", "flashinfer_cutlass", "deep_gemm"]
Link = Literal["nvlink", "pcie"]
Count = Annotated[int, Field(ge=1, le=1024)]
Tokens = Annotated[int, Field(ge=1, le=1 << 22)]


class Parallel(Model):
    """How the model is spread: `tp` x `pp` GPUs; `ep` groups of experts among the TP ranks.

    `dp_attention` is the number of data-parallel attention groups (1: off).
    """

    tp: Count = 1
    ep: Count = 1
    pp: Count = 1
    dp_attention: Count = 1

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        return self.tp * self.pp


class Speculation(Model):
    """`dflash`: a chain of the drafter's block; `ddtree`: a tree, by a plugin of the stack.

    `draft_tokens` (ddtree) is the upper bound of a tree's nodes, its root included.
    """

    kind: Literal["none", "dflash", "ddtree"] = "none"
    draft_tokens: Annotated[int, Field(ge=2, le=1024)] | None = None

    @model_validator(mode="after")
    def _tokens_of_a_tree(self) -> Speculation:
        if (self.kind == "ddtree") != (self.draft_tokens is not None):
            raise Refused("draft_tokens belongs to ddtree, which needs it", at=("draft_tokens",))
        return self


class ArchSettings(Model):
    """What differs between GPUs. `gpu` is a row of images/gpus.yaml: its memory and usual link.

    `context` is the longest request in tokens, `memory_fraction` SGLang's --mem-fraction-static.
    `all_reduce_fusion` "off" also means --enforce-disable-flashinfer-allreduce-fusion where SGLang would
    choose one. `env` is set in the container.
    """

    gpu: Line
    context: Tokens
    memory_fraction: Annotated[float, Field(gt=0, lt=1)]
    kv_dtype: Literal["auto", "fp8_e4m3"] = "auto"
    attention: Attention
    draft_attention: Attention
    moe: Moe
    all_reduce_fusion: Literal["off", "trtllm", "mnnvl"] = "off"
    env: Env = Field(default_factory=dict)
    reason: Reason


class ServiceItem(Model):
    """One service. `requests` run at the same time at most; `drafter` names one of the model's, or none.

    `attention` and `draft_attention` replace those of every arch, with `reason`.
    """

    name: Name
    title: Line
    parallel: Parallel
    drafter: Name = "none"
    speculation: Speculation = Speculation()
    requests: Count
    attention: Attention | None = None
    draft_attention: Attention | None = None
    reason: Reason | None = None


class Measured(Model):
    """A public or own measurement: output tokens per second of all `concurrency` requests together."""

    service: Name
    arch: ArchName
    link: Link
    concurrency: Count
    tokens_per_s: Annotated[float, Field(gt=0)]
    source: Reason


class LinkSettings(Model):
    """What GPUs that are joined this way get: variables (NCCL's), and the service that is recommended."""

    prefer: Name
    env: Env = Field(default_factory=dict)
    reason: Reason


class Parsers(Model):
    """SGLang's parsers for this model's output."""

    reasoning: Name
    tool_call: Name


class RecipeFile(Model):
    """compose/recipes/<name>.yaml. `name` is also the model's in images/models."""

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    trust_remote_code: bool = False
    parsers: Parsers | None = None
    archs: Annotated[dict[ArchName, ArchSettings], Field(min_length=1)]
    links: dict[Link, LinkSettings]
    measured: tuple[Measured, ...] = ()
    services: tuple[ServiceItem, ...]

    @model_validator(mode="after")
    def _names(self) -> RecipeFile:
        names = [service.name for service in self.services]
        for index, service in enumerate(self.services):
            if service.name in names[:index]:
                raise Refused(f"a second service {service.name}", at=("services", index, "name"))
            replaced = service.attention or service.draft_attention
            if replaced and service.reason is None:
                raise Refused("say why it differs from the arch: reason", at=("services", index))
        for link, settings in self.links.items():
            if settings.prefer not in names:
                raise Refused("no such service", allowed=names, at=("links", link, "prefer"))
        for index, item in enumerate(self.measured):
            if item.service not in names:
                raise Refused("no such service", allowed=names, at=("measured", index, "service"))
        return self

    def service(self, name: str) -> ServiceItem:
        """Return a service by name. Raises Refused with all names."""
        found = next((service for service in self.services if service.name == name), None)
        if found is None:
            raise Refused(f'{self.name} has no service "{name}"', allowed=[s.name for s in self.services])
        return found


def recipe_names(compose: Path) -> list[str]:
    """Return the models that have recipes, sorted."""
    return sorted(path.stem for path in (compose / "recipes").glob("*.yaml"))


def read_recipes(compose: Path, name: str) -> tuple[RecipeFile, Positions]:
    """Read a model's recipes. Raises Diagnostics for every error in the file."""
    found, at = load_with_positions(compose / "recipes" / f"{name}.yaml", RecipeFile)
    if found.name != name:
        raise ManifestError(at.diagnostic(("name",), "differs from the file's name", allowed=[name]).render())
    return found, at
