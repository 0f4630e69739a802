# SPDX-License-Identifier: Apache-2.0
"""Does it fit: weights, drafter and key-value pool per GPU, from the shapes alone.

SGLang measures the free memory F before it loads, keeps F x (1 - mem_fraction) for activations and
CUDA graphs, and gives what is left after the weights to the key-value pool
(model_runner_kv_cache_mixin, profile_max_num_token):

    F    = memory - CONTEXT                     CUDA context and NCCL, before the measurement
    pool = F x mem_fraction - weights - OVERHEAD
    pool tokens = pool / (target's + drafter's bytes per token)

OVERHEAD (work areas of the MoE kernels, padding, the allocator's slack) is fitted to the only public
figures for this model: 116K tokens in bf16 and 232K in fp8 on 8 x 96 GB at TP8 and 0.85 without drafter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from imagebuild.models.shapes import DrafterShape, TargetShape
from imagebuild.models.sizes import (
    drafter_kv_bytes,
    drafter_parts,
    kv_bytes,
    per_gpu,
    target_parts,
    total,
)

GIB = 1 << 30
CONTEXT = 0.7 * GIB
OVERHEAD = 1.25 * GIB
RESERVE = 2.0 * GIB  # activations of a chunked prefill and CUDA graphs need at least this
KvDtype = Literal["bf16", "fp8"]


@dataclass(frozen=True)
class Setup:
    """How the model would be served. `memory` is one GPU's, in bytes; `tree_nodes` a DDTree's, 0: none.

    `tp` x `pp` GPUs; `ep` divides `tp` (the experts' groups). `requests` of `context` tokens each shall
    be in the pool at the same time.
    """

    gpu: str
    memory: int
    tp: int
    pp: int = 1
    ep: int = 1
    context: int = 0
    requests: int = 1
    kv_dtype: KvDtype = "bf16"
    mem_fraction: float = 0.85
    tree_nodes: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on the fullest GPU. `problems` says what does not fit or is impossible; `ways` what would fit."""

    setup: Setup
    weights_total: int
    drafter_total: int
    weights: int
    drafter: int
    overhead: int
    pool: int
    token: int
    tokens: int
    outside: int
    problems: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether nothing is against it."""
        return not self.problems


def plan(target: TargetShape, drafter: DrafterShape | None, setup: Setup) -> MemoryPlan:
    """Compute a plan, with other setups that would fit if this one does not."""
    found = _compute(target, drafter, setup)
    return found if found.fits else replace(found, ways=_ways(target, drafter, setup))


def _compute(target: TargetShape, drafter: DrafterShape | None, setup: Setup) -> MemoryPlan:
    parts = target_parts(target)
    small = drafter_parts(drafter) if drafter else ()
    weights = per_gpu(parts, target.layers, setup.tp, setup.pp)
    extra = per_gpu(small, target.layers, setup.tp, 1) if drafter else 0.0
    free = setup.memory - CONTEXT
    pool = free * setup.mem_fraction - weights - extra - OVERHEAD
    token = kv_bytes(target, setup.kv_dtype, setup.tp, setup.pp)
    token += drafter_kv_bytes(drafter, setup.tp) if drafter else 0.0
    found = MemoryPlan(
        setup=setup,
        weights_total=total(parts),
        drafter_total=total(small),
        weights=round(weights),
        drafter=round(extra),
        overhead=round(OVERHEAD + CONTEXT),
        pool=max(0, round(pool)),
        token=round(token),
        tokens=max(0, int(pool // token)),
        outside=round(free * (1 - setup.mem_fraction)),
    )
    problems = [*impossible(target, drafter, setup), *_lacks(found, target, pool)]
    return replace(found, problems=tuple(problems))


def _lacks(found: MemoryPlan, target: TargetShape, pool: float) -> list[str]:
    """Return what does not fit, with numbers."""
    setup, out = found.setup, []
    if pool <= 0:
        need = found.weights + found.drafter + found.overhead
        out.append(
            f"the weights do not fit: {need / GIB:.1f} GiB per GPU with overhead, "
            f"{setup.memory * setup.mem_fraction / GIB:.1f} GiB at --mem-fraction {setup.mem_fraction}"
        )
    context = setup.context or target.context
    if pool > 0 and found.tokens < context * setup.requests:
        need = context * setup.requests * found.token
        out.append(
            f"the context does not fit: {setup.requests} x {context} tokens need {need / GIB:.1f} GiB "
            f"per GPU, the pool has {found.pool / GIB:.1f} GiB ({found.tokens} tokens)"
        )
    tree = tree_bytes(setup.tree_nodes, setup.requests, context)
    if found.outside < RESERVE + tree:
        out.append(
            f"too little outside the pool: {found.outside / GIB:.1f} GiB left by --mem-fraction "
            f"{setup.mem_fraction}, {(RESERVE + tree) / GIB:.1f} GiB needed for activations and CUDA graphs"
        )
    return out


def tree_bytes(nodes: int, requests: int, context: int) -> float:
    """Return the graph buffers of a tree verify on Triton: 8 + 1 bytes per request, node and position."""
    return requests * (nodes + 1) * context * 9.0 if nodes else 0.0


def impossible(target: TargetShape, drafter: DrafterShape | None, setup: Setup) -> list[str]:
    """Return what the server would refuse, whatever the memory."""
    out = []
    tp, ep = setup.tp, setup.ep
    if target.heads % tp:
        out.append(f"--tp {tp} does not divide the {target.heads} attention heads")
    if target.mla is None and target.kv_heads % tp and tp % target.kv_heads:
        out.append(f"--tp {tp} and {target.kv_heads} key-value heads: neither divides the other")
    if tp % ep:
        out.append(f"--ep {ep} does not divide --tp {tp}: SGLang makes expert groups of the TP ranks")
    if ep > 1 and target.experts is None:
        out.append(f"--ep {ep}: the model has no experts")
    if target.experts and target.experts.routed % ep:
        out.append(f"--ep {ep} does not divide the {target.experts.routed} experts")
    if target.experts and tp % ep == 0:
        width, group = target.experts.intermediate_size, _group(target)
        if width % (tp // ep * group):
            out.append(
                f"an expert of width {width} over {tp // ep} GPUs is no multiple of the "
                f"quantisation's group of {group}"
            )
    if setup.pp > target.layers:
        out.append(f"--pp {setup.pp}: more stages than the {target.layers} layers")
    if drafter and setup.pp > 1:
        out.append(f"--pp {setup.pp}: DFlash refuses pipeline parallelism; use --drafter none")
    context = setup.context or target.context
    if context > target.context:
        out.append(f"--context {context}: the model's positions end at {target.context}")
    return out


def _group(target: TargetShape) -> int:
    return (target.quantisation.group_size if target.quantisation else None) or 1


def _ways(target: TargetShape, drafter: DrafterShape | None, setup: Setup) -> tuple[str, ...]:
    """Return changes of the setup that would fit, one of each kind, the cheapest of it."""
    ways = []
    for kind in _changes(target, drafter, setup):
        for text, change, with_drafter in kind:
            other = change != setup or with_drafter is not drafter
            if other and _compute(target, with_drafter, change).fits:
                ways.append(text)
                break
    return tuple(ways)


_Change = tuple[str, Setup, "DrafterShape | None"]


def _changes(target: TargetShape, drafter: DrafterShape | None, setup: Setup) -> Iterator[list[_Change]]:
    """Yield, kind by kind, the changes worth trying."""
    fp8 = replace(setup, kv_dtype="fp8")
    yield [("--kv-dtype fp8", fp8, drafter)]
    fractions = [f for f in (0.88, 0.9, 0.92) if f > setup.mem_fraction]
    yield [(f"--mem-fraction {f}", replace(setup, mem_fraction=f), drafter) for f in fractions]
    shorter: list[_Change] = []
    for base, more in ((setup, ""), (fp8, " --kv-dtype fp8")):
        tokens = _compute(target, drafter, base).tokens // setup.requests // 1024 * 1024
        if 0 < tokens < (setup.context or target.context):
            shorter.append((f"--context {tokens}{more}", replace(base, context=tokens), drafter))
    yield shorter
    yield [("--drafter none", setup, None)] if drafter else []
    wider = [tp for tp in (2, 4, 8, 16, 32, 64) if tp > setup.tp]
    yield [
        (f"--tp {tp} (more of these GPUs)", replace(setup, tp=tp, ep=tp if setup.ep > 1 else 1), drafter)
        for tp in wider
    ]
    drop = " --drafter none" if drafter else ""
    yield [
        (f"--pp {pp}{drop} ({pp * setup.tp} GPUs)", replace(setup, pp=pp), None)
        for pp in (2, 4, 8) if pp > setup.pp
    ]  # fmt: skip
    yield [(f"--ep {ep}", replace(setup, ep=ep), drafter) for ep in (1, 2, 4, 8) if setup.tp % ep == 0]
    yield [("--pp 1", replace(setup, pp=1), drafter)]


def describe(found: MemoryPlan, context: int) -> str:
    """Return a plan as lines for people; sizes in GiB, as nvidia-smi counts."""
    setup = found.setup
    used = found.weights + found.drafter + found.overhead
    size = f"{setup.memory / GIB:.1f} GiB"
    rows = [
        f"{setup.tp * setup.pp} x {setup.gpu} ({size}), TP {setup.tp}, EP {setup.ep}, "
        f"PP {setup.pp}, KV {setup.kv_dtype}, mem fraction {setup.mem_fraction}",
        f"  weights    {found.weights / GIB:7.1f} GiB per GPU  (model {found.weights_total / GIB:.1f} GiB)",
        f"  drafter    {found.drafter / GIB:7.1f} GiB per GPU  (model {found.drafter_total / GIB:.1f} GiB)",
        f"  overhead   {found.overhead / GIB:7.1f} GiB per GPU  (context, NCCL, kernels' work areas)",
        f"  KV pool    {found.pool / GIB:7.1f} GiB per GPU  ({found.tokens:,} tokens, {found.token:,} bytes)",
        f"  outside    {found.outside / GIB:7.1f} GiB per GPU  (activations, CUDA graphs)",
        f"  used       {used / GIB:7.1f} GiB before the pool",
        f"  requests   {found.tokens // max(1, context)} of {context:,} tokens at the same time",
    ]
    rows += [f"  no: {problem}" for problem in found.problems]
    if found.problems:
        rows += [f"  would fit: {way}" for way in found.ways] or [
            "  nothing that changes one thing would fit"
        ]
    else:
        rows.append("  it fits")
    return "\n".join(rows)
