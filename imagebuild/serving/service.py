# SPDX-License-Identifier: Apache-2.0
"""`Serving`: one service on one arch, with every flag and variable decided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from imagebuild.diagnostics import raise_all
from imagebuild.models.gpus import Gpu, find_gpu
from imagebuild.models.source import DrafterSource, ModelSource, read_source
from imagebuild.serving.plugins import stack_plugins
from imagebuild.serving.recipe import (
    ArchSettings,
    Parallel,
    RecipeFile,
    ServiceItem,
    Speculation,
    read_recipes,
    recipe_names,
)
from imagebuild.serving.rules import Choice, refusals
from imagebuild.yamlerrors import Positions

MODELS, DRAFTER, PORT = "/models", "/drafter", 30000


@dataclass(frozen=True)
class Serving:
    """`flags` are SGLang's, in the order in which they are shown; `env` is set in the container.

    `target_dir` and `drafter_dir` (None: no speculation) are paths in the container. `drafter` is the
    drafter's name in images/models.
    """

    service: str
    title: str
    model: str
    arch: str
    gpu: Gpu
    parallel: Parallel
    speculation: Speculation
    target_dir: str
    drafter: str | None
    drafter_dir: str | None
    flags: tuple[str, ...]
    env: dict[str, str]


@dataclass(frozen=True)
class ModelRecipes:
    """One model's recipes with the files that they lean on."""

    file: RecipeFile
    at: Positions
    source: ModelSource
    images: Path


def read_model_recipes(compose: Path, images: Path, name: str) -> ModelRecipes:
    """Read a model's recipes and source. Raises ManifestError."""
    file, at = read_recipes(compose, name)
    return ModelRecipes(file, at, read_source(images, name), images)


def read_all(compose: Path, images: Path) -> tuple[ModelRecipes, ...]:
    """Read the recipes of all models. Raises ManifestError."""
    return tuple(read_model_recipes(compose, images, name) for name in recipe_names(compose))


def services_of(recipes: ModelRecipes, arch: str) -> tuple[Serving, ...]:
    """Return all services that an arch's image can run: those that need a missing plugin are left out.

    Raises Diagnostics with everything that SGLang would refuse or that cannot fit, all at once.
    """
    have = stack_plugins(recipes.images, arch)
    items = [item for item in recipes.file.services if item.speculation.kind in have | {"none", "dflash"}]
    choices = [choose(recipes, item, arch) for item in items]
    raise_all(problem for choice in choices for problem in refusals(choice, recipes.at, have))
    return tuple(serving(recipes, choice) for choice in choices)


def resolve_service(recipes: ModelRecipes, name: str, arch: str) -> Serving:
    """Return one service. Raises Refused (no such service) or Diagnostics with why it is refused."""
    choice = choose(recipes, recipes.file.service(name), arch)
    raise_all(refusals(choice, recipes.at, stack_plugins(recipes.images, arch)))
    return serving(recipes, choice)


def choose(recipes: ModelRecipes, item: ServiceItem, arch: str) -> Choice:
    """Join a service with its arch's settings. Raises Diagnostics for an arch without any."""
    settings = recipes.file.archs.get(arch)
    if settings is None:
        problem = recipes.at.diagnostic(("archs",), f"no settings for {arch}", allowed=recipes.file.archs)
        raise_all([problem])
    assert settings is not None
    return Choice(
        index=recipes.file.services.index(item),
        service=item,
        arch=arch,
        settings=settings,
        gpu=find_gpu(recipes.images, settings.gpu),
        target=recipes.source.target.shape,
        drafter=_drafter(recipes, item),
    )


def _drafter(recipes: ModelRecipes, item: ServiceItem) -> DrafterSource | None:
    return recipes.source.drafter(item.drafter)


def serving(recipes: ModelRecipes, choice: Choice) -> Serving:
    """Return a choice as flags and variables; it was not refused."""
    target_dir = f"{MODELS}/{recipes.source.target.place}"
    drafter_dir = f"{DRAFTER}/{choice.drafter.place}" if choice.drafter else None
    item = choice.service
    return Serving(
        service=item.name,
        title=item.title,
        model=recipes.file.name,
        arch=choice.arch,
        gpu=choice.gpu,
        parallel=item.parallel,
        speculation=item.speculation,
        target_dir=target_dir,
        drafter=choice.drafter.name if choice.drafter else None,
        drafter_dir=drafter_dir,
        flags=tuple(_flags(recipes.file, choice, target_dir, drafter_dir)),
        env=_env(recipes.file, choice),
    )


def _flags(file: RecipeFile, choice: Choice, target_dir: str, drafter_dir: str | None) -> list[str]:
    item, settings = choice.service, choice.settings
    out = ["--model-path", target_dir, "--served-model-name", target_dir.rpartition("/")[2]]
    out += ["--trust-remote-code"] if file.trust_remote_code else []
    if file.parsers:
        out += ["--reasoning-parser", file.parsers.reasoning, "--tool-call-parser", file.parsers.tool_call]
    out += _parallel_flags(item.parallel, settings)
    out += ["--context-length", str(settings.context), "--mem-fraction-static", str(settings.memory_fraction)]
    out += ["--max-running-requests", str(item.requests), "--kv-cache-dtype", settings.kv_dtype]
    out += ["--attention-backend", choice.attention, "--moe-runner-backend", settings.moe]
    if drafter_dir is not None:
        out += ["--speculative-algorithm", item.speculation.kind.upper()]
        out += ["--speculative-draft-model-path", drafter_dir]
        out += ["--speculative-draft-attention-backend", choice.draft_attention]
    if item.speculation.draft_tokens is not None:
        out += ["--speculative-num-draft-tokens", str(item.speculation.draft_tokens)]
    return [*out, "--enable-metrics", "--host", "0.0.0.0", "--port", str(PORT)]


def _parallel_flags(parallel: Parallel, settings: ArchSettings) -> list[str]:
    out = ["--tp-size", str(parallel.tp)]
    out += ["--ep-size", str(parallel.ep)] if parallel.ep > 1 else []
    out += ["--pp-size", str(parallel.pp)] if parallel.pp > 1 else []
    out += (
        ["--dp-size", str(parallel.dp_attention), "--enable-dp-attention"]
        if parallel.dp_attention > 1
        else []
    )
    if settings.all_reduce_fusion == "off" or parallel.tp == 1:
        return [*out, "--enforce-disable-flashinfer-allreduce-fusion"]
    return [*out, "--flashinfer-allreduce-fusion-backend", settings.all_reduce_fusion]


def _env(file: RecipeFile, choice: Choice) -> dict[str, str]:
    """Return the container's variables: NCCL's by link, the arch's, and what the preflight must know."""
    links = file.links
    out = dict(links[choice.gpu.link].env) if choice.gpu.link in links else {}
    out |= choice.settings.env
    out["IMAGEBUILD_SERVICE"] = choice.service.name
    advice = without_nvlink(file, choice.service)
    return out | ({"IMAGEBUILD_WITHOUT_NVLINK": advice} if advice else {})


def without_nvlink(file: RecipeFile, item: ServiceItem) -> str:
    """Return what a host without NVLink should run instead of this service, with the measured reason."""
    links = file.links
    if "pcie" not in links or item.parallel.tp == 1 or item.parallel.ep > 1:
        return ""
    better = links["pcie"].prefer
    if file.service(better).speculation.kind != item.speculation.kind:
        return ""  # it would offer other things: JSON schemas, say
    rates = {m.service: m for m in file.measured if m.link == "pcie" and m.service in (item.name, better)}
    text = f"{better} instead: {links['pcie'].reason}"
    if {item.name, better} <= rates.keys():
        ours, theirs = rates[item.name], rates[better]
        text += f"; {ours.tokens_per_s:g} against {theirs.tokens_per_s:g} tokens/s at concurrency "
        text += f"{ours.concurrency} ({ours.source})"
    return text
