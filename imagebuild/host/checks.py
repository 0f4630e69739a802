# SPDX-License-Identifier: Apache-2.0
"""Facts → findings about GPUs and their links. One line and one stable id each; docs/probe.md lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from imagebuild.arch import min_driver, parse_arch
from imagebuild.catalog import arch_names, read_recipe
from imagebuild.host.advice import arch_of, archs_of, link_of, usual_link
from imagebuild.host.facts import Gpus, Matrix, Problem
from imagebuild.host.report import Finding, Level
from imagebuild.models.gpus import read_gpus

BUSY_MIB = 2048  # a driver, a display server and MIG keep less
_CUDA = "13.0"  # of GPUs without an image here
_INSTALL = "install NVIDIA's driver, branch 580 or later"
_PROBLEMS: dict[Problem, tuple[str, Level, str, str]] = {
    "no-program": ("driver.missing", "missing", "neither NVML nor nvidia-smi is here", _INSTALL),
    "no-driver": ("driver.missing", "missing", "NVIDIA's driver is not loaded", _INSTALL),
    "no-gpu": ("gpu.none", "missing", "the driver sees no GPU", "lspci | grep -i nvidia; dmesg | grep NVRM"),
    "mismatch": (
        "driver.mismatch", "fail", "the loaded kernel module and the libraries are of different versions",
        "reboot, or unload and load the nvidia modules after the upgrade",
    ),
    "blocked": (
        "driver.blocked", "fail", "the system does not let this user or container ask the driver",
        "look at the rights of /dev/nvidia*, and at the container's devices",
    ),
    "lost": ("gpu.lost", "fail", "a GPU fell off the bus", "dmesg | grep Xid; power the host off and on"),
    "timeout": ("driver.silent", "fail", "the driver does not answer", "dmesg | grep -e Xid -e NVRM; reboot"),
    "failed": ("driver.unknown", "fail", "the driver answers with an error", "dmesg | grep NVRM"),
}  # fmt: skip


def gpu_findings(gpus: Gpus, images: Path) -> Iterator[Finding]:
    """Return what is to be said of driver and GPUs."""
    if gpus.problem:
        identity, level, text, then = _PROBLEMS[gpus.problem]
        if not any(gpu.fault for gpu in gpus.devices):  # each is named below
            yield Finding(identity, level, f"{text} ({gpus.detail})" if gpus.detail else text, then)
    if gpus.driver:
        yield from _driver(gpus, images)
    yield from _devices(gpus, images)


def _driver(gpus: Gpus, images: Path) -> Iterator[Finding]:
    archs = {arch.name: arch for gpu in gpus.devices if (arch := arch_of(gpu))} or {"": parse_arch("sm_90")}
    built = arch_names(images)
    cuda = {name: read_recipe(images, name).stack.cuda for name in archs if name in built}
    least = max(min_driver(arch, cuda.get(name, _CUDA)) for name, arch in archs.items())
    branch = gpus.driver.partition(".")[0]
    if not branch.isdigit() or int(branch) < least:
        text = f"driver {gpus.driver} is too old: CUDA {_CUDA} needs branch {least} or later"
        yield Finding("driver.old", "fail", text, _INSTALL)
    else:
        yield Finding("driver.ok", "ok", f"driver {gpus.driver}, by {gpus.source}")


def _devices(gpus: Gpus, images: Path) -> Iterator[Finding]:
    for gpu in gpus.devices:
        if gpu.fault:
            text = f"GPU{gpu.index} {gpu.bus_id} does not answer: {gpu.fault}"
            yield Finding("gpu.lost", "fail", text, "dmesg | grep Xid; reset it or power the host off and on")
    cut = [gpu for gpu in gpus.healthy if gpu.mig]
    if cut:
        text = f"MIG is on for GPU {_numbers(gpu.index for gpu in cut)}: parts of GPUs have no peer access"
        ids = ",".join(str(gpu.index) for gpu in cut)
        yield Finding("gpu.mig", "fail", text, f"nvidia-smi -i {ids} -mig 0, then reset those GPUs")
    yield from _kinds(gpus, images)
    busy = [gpu for gpu in gpus.usable if (gpu.used_mib or 0) > BUSY_MIB]
    if busy:
        used = ", ".join(f"GPU{gpu.index} {gpu.used_mib} MiB" for gpu in busy)
        text = f"memory is in use ({used}): a server's memory plan counts with all of it"
        yield Finding("gpu.busy", "warning", text, "nvidia-smi; end what uses them")


def _kinds(gpus: Gpus, images: Path) -> Iterator[Finding]:
    groups: dict[tuple[str, int | None, str], int] = {}
    for gpu in gpus.healthy:
        arch = arch_of(gpu)
        key = (gpu.name or "unnamed GPU", gpu.memory_mib, arch.name if arch else "")
        groups[key] = groups.get(key, 0) + 1
    text = ", ".join(
        f"{count} x {name}, {memory or '?'} MiB, {arch or 'unknown arch'}"
        for (name, memory, arch), count in groups.items()
    )
    archs = archs_of(gpus)
    if len(archs) > 1:
        then = (
            "give the server GPUs of one kind only: CUDA_VISIBLE_DEVICES, or device_ids in its compose file"
        )
        yield Finding("gpu.mixed", "fail", text, then)
    elif len(groups) > 1:
        text += ": the smallest memory counts for all"
        yield Finding("gpu.differ", "warning", text)
    elif groups:
        yield Finding("gpu.ok", "ok", text)
    built = arch_names(images)
    strange = [name or "an arch that images/archs.yaml lacks" for name in archs if name not in built]
    if strange:
        text = f"there is no image for {', '.join(strange)}, only for {', '.join(built)}"
        yield Finding("gpu.no-image", "fail", text, "docs/new-arch.md")


def link_findings(gpus: Gpus, iommu: str, images: Path) -> Iterator[Finding]:
    """Return what is to be said of the links between the usable GPUs."""
    link = link_of(gpus)
    if link == "single":
        return
    usual = usual_link(gpus, read_gpus(images))
    words = _words(gpus, gpus.links)
    states = sorted({gpu.fabric for gpu in gpus.usable if gpu.fabric})
    if any(state != "completed" for state in states):
        text = f"the NVSwitch fabric is not ready ({', '.join(states)}): CUDA fails with error 802"
        then = "systemctl status nvidia-fabricmanager; its version must be the driver's"
        yield Finding("link.fabric", "fail", text, then)
    if link == "nvlink":
        yield Finding("link.nvlink", "ok", f"NVLink between all pairs ({words})")
    elif link == "partial":
        yield Finding("link.partial", "warning", f"NVLink between some pairs only ({words}){_alone(gpus)}")
    elif link == "unknown":
        yield Finding("link.unknown", "warning", "how the GPUs are joined is not known", "nvidia-smi topo -m")
    elif usual == "nvlink":
        text = f"such GPUs usually have NVLink, here it is off ({words})"
        then = "nvidia-smi nvlink --status; systemctl status nvidia-fabricmanager"
        yield Finding("link.off", "warning", text, then)
    else:
        yield Finding("link.pcie", "ok", f"PCIe between the GPUs ({words})")
    yield from _peers(gpus)
    nodes = sorted({gpu.numa for gpu in gpus.usable if gpu.numa is not None})
    if nodes:
        split = [
            f"node {node}: GPU {_numbers(g.index for g in gpus.usable if g.numa == node)}" for node in nodes
        ]
        yield Finding("link.numa", "ok", f"NUMA {', '.join(split)}")
    if link != "nvlink" and iommu == "translated":
        text = "the IOMMU translates traffic between GPUs: peer access over PCIe is slow or hangs"
        yield Finding("link.iommu", "warning", text, "boot with iommu=pt, or turn it off; ACS likewise")


def _peers(gpus: Gpus) -> Iterator[Finding]:
    if not gpus.p2p:
        yield Finding("link.peer-unknown", "note", "whether GPUs reach each other's memory is not known")
        return
    places = _places(gpus)
    refused = [
        (i, j, gpus.p2p[i][j]) for i in places for j in places if i < j and gpus.p2p[i][j] not in ("OK", "")
    ]
    if refused:
        some = ", ".join(f"{i}-{j} {cell}" for i, j, cell in refused[:4])
        text = f"{len(refused)} pairs of GPUs have no peer access ({some}): NCCL goes through host memory"
        then = "IOMMU and ACS in the firmware; nvidia-smi topo -p2p rw"
        yield Finding("link.no-peer", "warning", text, then)
    else:
        yield Finding("link.peer", "ok", "every GPU reaches every other one's memory")


def _places(gpus: Gpus) -> list[int]:
    return [index for index, gpu in enumerate(gpus.devices) if gpu in gpus.usable]


def _words(gpus: Gpus, cells: Matrix) -> str:
    places = _places(gpus)
    return ", ".join(
        sorted({cells[i][j] for i in places for j in places if i != j and cells and cells[i][j]})
    )


def _alone(gpus: Gpus) -> str:
    """Name the GPUs that have no NVLink at all, where the others have it."""
    places = _places(gpus)
    alone = [i for i in places if not any(gpus.links[i][j].startswith("NV") for j in places if j != i)]
    return f"; GPU {_numbers(alone)} has none" if alone else ""


def _numbers(indices: Iterator[int] | Sequence[int]) -> str:
    return ", ".join(str(index) for index in indices)
