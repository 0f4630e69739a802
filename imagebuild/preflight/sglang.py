# SPDX-License-Identifier: Apache-2.0
"""What the image's SGLang makes of the flags, asked in a process of its own; and the memory plan after it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild import process
from imagebuild.arch import TABLE, parse_arch
from imagebuild.diagnostics import Refused
from imagebuild.host.facts import Gpu
from imagebuild.models import memory
from imagebuild.models.gpus import Gpu as KnownGpu
from imagebuild.models.gpus import find_gpu, read_gpus
from imagebuild.preflight.findings import Finding
from imagebuild.preflight.flags import Flags
from imagebuild.preflight.host import Host
from imagebuild.preflight.image import Image
from imagebuild.preflight.weights import Models

SCRIPT = Path(__file__).with_name("arguments.py")
OURS_MIB = 2048  # less is what the driver itself takes
DEADLINE = 300  # seconds; 20 are usual, most of them imports


@dataclass(frozen=True)
class Resolved:
    """`effective` are the values that differ from SGLang's defaults, `said` its lines about changes."""

    refused: str = ""
    effective: dict[str, Any] | None = None
    said: tuple[str, ...] = ()


def assumed_gpu(image: Image, name: str) -> KnownGpu:
    """Return the GPU to plan for: by name, or the first of the image's arch in images/gpus.yaml.

    Raises Refused for a name that is unknown or of another arch.
    """
    images = TABLE.parent
    mine = [gpu for gpu in read_gpus(images) if gpu.arch == image.arch]
    if not name and not mine:
        raise Refused(
            f"images/gpus.yaml has no GPU of {image.arch}", allowed=[g.short for g in read_gpus(images)]
        )
    if not name:
        return mine[0]
    found = find_gpu(images, name)
    if found.arch != image.arch:
        raise Refused(
            f"{found.short} is {found.arch}, the image {image.arch}", allowed=[g.short for g in mine]
        )
    return found


def resolve(words: Sequence[str], count: int, assumed: KnownGpu | None) -> Resolved:
    """Run SGLang's argument resolution; for `count` GPUs that are not there if one is `assumed`."""
    gpu, env = None, {"HF_HUB_OFFLINE": "1"}
    if assumed is not None:
        capability = parse_arch(assumed.arch).capability
        gpu = {
            "capability": capability, "name": assumed.name, "count": count,
            "memory": assumed.memory_mib << 20,
        }  # fmt: skip
        # Without a driver libcuda.so.1 is only there as the stub for linking.
        old = os.environ.get("LD_LIBRARY_PATH", "")
        stubs = f"{os.environ.get('CUDA_HOME', '')}/lib/stubs"
        env["LD_LIBRARY_PATH"] = f"{old}:{stubs}" if old else stubs
    request = json.dumps({"runs": [list(words)], "gpu": gpu})
    ended = process.attempt([sys.executable, "-P", str(SCRIPT)], text=request, timeout=DEADLINE, env=env)
    try:
        answer = json.loads(ended.out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = " | ".join(ended.err.strip().splitlines()[-3:])
        how = f"exit {ended.status}" if ended.status is not None else f"no end in {DEADLINE} s"
        return Resolved(refused=f"its argument resolution broke ({how}): {last}")
    if "refused" in answer:
        return Resolved(refused=str(answer["refused"]))
    return Resolved(effective=answer["effective"], said=tuple(answer["said"]))


def check_arguments(found: Resolved) -> Finding:
    """Return whether SGLang takes the flags."""
    if found.effective is None:
        return Finding("arguments", "failed", f"SGLang refuses them: {found.refused}", "correct the flags")
    return Finding(
        "arguments", "ok", f"SGLang takes them; {len(found.effective)} values differ from its defaults"
    )


def check_memory(
    flags: Flags, models: Models, host: Host, assumed: KnownGpu | None, effective: dict[str, Any]
) -> Iterator[Finding]:
    """Yield whether it fits: into the least free memory of the GPUs, or into that of the assumed one."""
    gpus = [gpu for gpu in host.gpus.healthy if gpu.memory_mib is not None][: flags.gpus]
    if models.target is None or (assumed is None and not gpus):
        yield Finding(
            "memory", "skipped", "needs GPU" if models.target else "needs a config.json of a known shape"
        )
        return
    if assumed is not None:
        name, size = assumed.name, assumed.memory_mib << 20
    else:
        least = min(gpus, key=_free)
        name = f"{least.name} with {_free(least) / memory.GIB:.1f} GiB free"
        size = min(_free(least) + int(memory.CONTEXT), (least.memory_mib or 0) << 20)
    kv_dtype = str(effective.get("kv_cache_dtype", flags.kv_dtype or ""))
    setup = memory.Setup(
        gpu=name, memory=size, tp=flags.tp, pp=flags.pp, ep=flags.ep, context=flags.context or 0,
        kv_dtype="fp8" if "fp8" in kv_dtype else "bf16", tree_nodes=(flags.draft_tokens or 0) * flags.tree,
        mem_fraction=float(effective.get("mem_fraction_static", flags.mem_fraction or 0.85)),
    )  # fmt: skip
    plan = memory.plan(models.target, models.drafter, setup)
    if plan.fits:
        text = f"{plan.tokens:,} tokens fit on {flags.gpus} x {name} at {setup.mem_fraction:g}"
        yield Finding("memory", "ok", text)
        return
    ways = f"one of: {'; '.join(plan.ways)}" if plan.ways else "other GPUs, or more of them"
    used = [
        f"GPU {gpu.index}: {(gpu.used_mib or 0) / 1024:.1f} GiB are in use"
        for gpu in gpus
        if (gpu.used_mib or 0) > OURS_MIB
    ]
    yield Finding("memory", "failed", "; ".join([*plan.problems, *used]), ways)


def _free(gpu: Gpu) -> int:
    return ((gpu.memory_mib or 0) - (gpu.used_mib or 0)) << 20
