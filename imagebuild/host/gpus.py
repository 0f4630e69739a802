# SPDX-License-Identifier: Apache-2.0
"""The host's GPUs: by NVML, else by nvidia-smi's text.

`python -m imagebuild.host.gpus` prints what both say, as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from imagebuild import process
from imagebuild.errors import PreconditionError
from imagebuild.host import smi
from imagebuild.host.facts import Gpu, Gpus

ROOT = Path(__file__).resolve().parent.parent.parent
WSL_PROGRAM = "/usr/lib/wsl/lib/nvidia-smi"  # not on every distribution's PATH
TIMEOUT_S = 60.0  # a first call without persistence mode wakes 8 GPUs up, which takes up to 20 s


def read_gpus(sysfs: Path = Path("/sys")) -> Gpus:
    """Return the host's GPUs. Whatever is broken is told in it; nothing is raised."""
    found = by_nvml()
    if found.problem in {"no-program", "no-driver", "failed", "timeout"}:
        other = smi.read(run_smi)
        found = other if other.devices or found.problem == "no-program" else found
    return with_numa(found, sysfs)


def by_nvml() -> Gpus:
    """Return what NVML says, asked in a process of its own."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from imagebuild.host.nvml import main; main()"
    ended = process.attempt([sys.executable, "-c", start], timeout=TIMEOUT_S)
    if ended.status is None:
        return Gpus("nvml", problem="timeout", detail=f"NVML did not answer in {TIMEOUT_S:.0f} s")
    if ended.status != 0:
        lines = ended.err.strip().splitlines()
        return Gpus("nvml", problem="failed", detail=lines[-1] if lines else f"exit {ended.status}")
    return from_json(json.loads(ended.out))


def run_smi(arguments: Sequence[str]) -> process.Ended | None:
    """Run nvidia-smi; None: there is none."""
    program = shutil.which("nvidia-smi") or WSL_PROGRAM
    try:
        return process.attempt([program, *arguments], timeout=TIMEOUT_S)
    except PreconditionError:
        return None


def from_json(value: dict[str, Any]) -> Gpus:
    """Return what `asdict` and JSON made of a Gpus."""
    devices = tuple(
        Gpu(**{**gpu, "capability": tuple(gpu["capability"]) if gpu["capability"] else None})
        for gpu in value["devices"]
    )
    squares = {key: tuple(tuple(row) for row in value[key]) for key in ("links", "p2p")}
    return Gpus(**{**value, **squares, "devices": devices})


def with_numa(found: Gpus, sysfs: Path) -> Gpus:
    """Fill in the NUMA nodes from /sys, where a single node is -1."""

    def node(gpu: Gpu) -> int | None:
        try:
            number = int((sysfs / "bus/pci/devices" / gpu.bus_id / "numa_node").read_text())
        except (OSError, ValueError):
            return gpu.numa
        return number if number >= 0 else gpu.numa

    return replace(found, devices=tuple(replace(gpu, numa=node(gpu)) for gpu in found.devices))


def difference(one: Gpus, other: Gpus) -> list[str]:
    """Return the names of what two ways of asking do not agree on, of all that a recommendation hangs on."""
    names = ("driver", "links", "p2p", "problem")
    out = [name for name in names if getattr(one, name) != getattr(other, name)]
    out += ["number of GPUs"] if len(one.devices) != len(other.devices) else []
    same = ("name", "uuid", "bus_id", "capability", "memory_mib", "mig", "fabric")
    for left, right in zip(one.devices, other.devices, strict=False):
        out += [f"GPU{left.index} {name}" for name in same if getattr(left, name) != getattr(right, name)]
    return out


def main() -> None:
    """Print what NVML and what nvidia-smi say, and where they differ."""
    one, other = by_nvml(), smi.read(run_smi)
    found = {"nvml": asdict(one), "nvidia-smi": asdict(other), "differ": difference(one, other)}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
