# SPDX-License-Identifier: Apache-2.0
"""What SGLang forbids, drops silently or cannot fit, said when a recipe is rendered, not after loading.

Sources, all of SGLang 0.5.15.post1: srt/arg_groups/speculative_hook.py (_handle_dflash), overrides.py,
layers/attention/; docs/patches.md names what our patches add. Memory and the drafter's rules are those of
`models plan` and `models check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from imagebuild.arch import parse_arch
from imagebuild.diagnostics import Diagnostic
from imagebuild.models import memory
from imagebuild.models.contract import Flags, check
from imagebuild.models.gpus import Gpu
from imagebuild.models.shapes import TargetShape
from imagebuild.models.source import DrafterSource
from imagebuild.serving.recipe import ArchSettings, ServiceItem
from imagebuild.yamlerrors import Loc, Positions

DRAFT_BACKENDS = ("flashinfer", "fa3", "fa4", "triton")
DROPS_TREES = ("flashinfer", "trtllm_mla", "trtllm_mha", "tokenspeed_mla", "cutlass_mla", "flashmla", "fa4")
# Backend → the compute capabilities (major, or major and minor) that it has kernels for.
KERNELS: dict[str, tuple[tuple[int, ...], ...]] = {
    "trtllm_mla": ((10, 0), (10, 3)),
    "tokenspeed_mla": ((10, 0), (10, 3)),
    "trtllm_mha": ((10,),),
    "cutlass_mla": ((10,),),
    "fa3": ((8,), (9,)),
    "fa4": ((9,), (10, 0)),
    "flashmla": ((9,), (10, 0)),
    "flashinfer_trtllm": ((10,),),
    "deep_gemm": ((9,), (10,)),
}
REASONS = {
    "fa4": "FlashAttention 4 fails on 10.3 and has no kernels for 12.0",
    "fa3": "FlashAttention 3 is for Ampere and Hopper",
    "flashinfer_trtllm": "the TensorRT-LLM MoE kernels are for 10.x",
}


@dataclass(frozen=True)
class Choice:
    """A service with the settings of one arch; `index` is its place in the file."""

    index: int
    service: ServiceItem
    arch: str
    settings: ArchSettings
    gpu: Gpu
    target: TargetShape
    drafter: DrafterSource | None

    @property
    def attention(self) -> str:
        """The target's attention backend."""
        return self.service.attention or self.settings.attention

    @property
    def draft_attention(self) -> str:
        """The drafter's attention backend."""
        return self.service.draft_attention or self.settings.draft_attention


Problem = tuple[Loc, str]


def refusals(choice: Choice, at: Positions, plugins: frozenset[str]) -> list[Diagnostic]:
    """Return everything that speaks against a service on an arch, with its place in the file."""
    found = [*_speculation(choice, plugins), *_kernels(choice), *_attention(choice)]
    if not found:  # with a broken layout their numbers would mislead
        found = [*_memory(choice), *_contract(choice)]
    name = f"{choice.service.name} on {choice.arch}: "
    return [at.diagnostic(loc, name + text) for loc, text in found]


def _here(choice: Choice, *path: str) -> Loc:
    return ("services", choice.index, *path)


def _speculation(choice: Choice, plugins: frozenset[str]) -> Iterator[Problem]:
    item, kind = choice.service, choice.service.speculation.kind
    if kind == "none":
        if choice.drafter is not None:
            text = "a drafter without speculation would never be used: speculation, or drafter: none"
            yield _here(choice, "drafter"), text
        return
    if choice.drafter is None:
        yield _here(choice, "drafter"), f"{kind} needs a drafter: name one of the model's"
    if item.parallel.pp > 1:
        yield (
            _here(choice, "parallel", "pp"),
            f"{kind} works with one pipeline stage only: the drafter reads layers of all stages; "
            "run pipeline parallelism without speculation",
        )
    if item.parallel.dp_attention > 1:
        yield (
            _here(choice, "parallel", "dp_attention"),
            f"{kind} does not work with data-parallel attention before SGLang 0.5.23",
        )
    if kind == "ddtree" and kind not in plugins:
        yield (
            _here(choice, "speculation", "kind"),
            "ddtree is a plugin and the stack's list of patches has none of that name, so SGLang would "
            "not know the algorithm DDTREE",
        )


def _attention(choice: Choice) -> Iterator[Problem]:
    kind = choice.service.speculation.kind
    if kind == "none":
        return
    if choice.draft_attention not in DRAFT_BACKENDS:
        yield (
            _place(choice, "draft_attention"),
            f"the drafter cannot run on {choice.draft_attention}: DFlash has {', '.join(DRAFT_BACKENDS)}",
        )
    if kind == "ddtree" and choice.attention in DROPS_TREES:
        yield (
            _place(choice, "attention"),
            f"{choice.attention} drops a tree's mask on MLA: siblings would see one another and the output "
            "would be wrong without an error; triton keeps it",
        )


def _kernels(choice: Choice) -> Iterator[Problem]:
    capability = parse_arch(choice.arch).capability
    used = [("attention", choice.attention), ("moe", choice.settings.moe)]
    if choice.service.speculation.kind != "none":
        used.append(("draft_attention", choice.draft_attention))
    for key, backend in used:
        known = KERNELS.get(backend)
        if known and not any(capability[: len(part)] == part for part in known):
            names = ", ".join(".".join(map(str, part)) + (".x" if len(part) == 1 else "") for part in known)
            reason = REASONS.get(
                backend, "it has no kernels for other GPUs and fails after minutes of loading"
            )
            yield _place(choice, key), f"{backend} needs compute capability {names}: {reason}"
    fusion = choice.settings.all_reduce_fusion
    if fusion != "off" and capability[0] not in (9, 10):
        yield (
            ("archs", choice.arch, "all_reduce_fusion"),
            f"{fusion}: FlashInfer's all-reduce fusion is for 9.0 and 10.x, SGLang refuses it elsewhere",
        )


def _place(choice: Choice, key: str) -> Loc:
    """Return where a backend was chosen: at the service, or for the whole arch."""
    own = getattr(choice.service, key, None)
    return _here(choice, key) if own is not None else ("archs", choice.arch, key)


def _memory(choice: Choice) -> Iterator[Problem]:
    item, settings = choice.service, choice.settings
    setup = memory.Setup(
        gpu=choice.gpu.short, memory=choice.gpu.memory_mib << 20, tp=item.parallel.tp, pp=item.parallel.pp,
        ep=item.parallel.ep, context=settings.context, mem_fraction=settings.memory_fraction,
        kv_dtype="fp8" if settings.kv_dtype == "fp8_e4m3" else "bf16",
        tree_nodes=item.speculation.draft_tokens or 0,
    )  # fmt: skip
    found = memory.plan(choice.target, choice.drafter.shape if choice.drafter else None, setup)
    for problem in found.problems:
        ways = f"; would fit: {'; '.join(found.ways)}" if found.ways else ""
        yield _here(choice, "parallel"), problem + ways


def _contract(choice: Choice) -> Iterator[Problem]:
    if choice.drafter is None:
        return
    item = choice.service
    flags = Flags(
        tp=item.parallel.tp, pp=item.parallel.pp, draft_tokens=item.speculation.draft_tokens,
        tree=item.speculation.kind == "ddtree", attention=choice.attention,
    )  # fmt: skip
    for violation in check(choice.target, choice.drafter.shape, flags):
        if violation.level == "error":
            yield _here(choice, "drafter"), f"{violation.rule}: {violation.text}: {violation.then}"
