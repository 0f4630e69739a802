# SPDX-License-Identifier: Apache-2.0
"""Read the computer: kernel, memory, NUMA, /dev/shm, limits, IOMMU, WSL; from /proc and /sys below `root`."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from imagebuild.host.facts import Limits, Machine

_MIB = 1 << 20


def read_machine(bus_ids: Sequence[str], root: Path = Path("/")) -> Machine:
    """Return the machine; `bus_ids` are its GPUs', as in /sys."""
    names = os.uname()
    version = _text(root / "proc/version")
    memory = dict(re.findall(r"(\w+):\s+(\d+) kB", _text(root / "proc/meminfo")))
    return Machine(
        kernel=names.release,
        system=_release(_text(root / "etc/os-release")),
        architecture=names.machine,
        wsl="microsoft" in version.casefold(),
        container=_in_container(root),
        cpus=len(os.sched_getaffinity(0)),
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or 1,
        memory_mib=int(memory.get("MemTotal", 0)) >> 10,
        available_mib=int(memory.get("MemAvailable", 0)) >> 10,
        shm_mib=_size(root / "dev/shm"),
        iommu=_iommu(root, bus_ids),
        limits=Limits(
            memlock=_limit(resource.RLIMIT_MEMLOCK),
            nofile=_limit(resource.RLIMIT_NOFILE),
            stack=_limit(resource.RLIMIT_STACK),
        ),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _release(text: str) -> str:
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', text, re.MULTILINE)
    return found[1] if found else ""


def _in_container(root: Path) -> bool:
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return True
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def _size(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize // _MIB


def _limit(which: int) -> int:
    soft = resource.getrlimit(which)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft


def _iommu(root: Path, bus_ids: Sequence[str]) -> Literal["", "identity", "translated"]:
    """Return the stricter of the GPUs' modes (Documentation/ABI/testing/sysfs-kernel-iommu_groups)."""
    modes = {_text(root / f"sys/bus/pci/devices/{bus}/iommu_group/type").strip() for bus in bus_ids} - {""}
    if not modes:
        return ""
    return "identity" if modes == {"identity"} else "translated"
