# SPDX-License-Identifier: Apache-2.0
"""Facts → findings about the machine, containers, room and network. docs/probe.md lists the ids."""

from __future__ import annotations

from collections.abc import Iterator

from imagebuild.host.facts import Containers, Gpus, HubAnswer, Machine, Storage
from imagebuild.host.report import Finding, Level
from imagebuild.models.room import MARGIN
from imagebuild.progress import size_text

SHM_MIB = 32 << 10  # what the compose files give a server of its own
MEMORY_MIB = 64 << 10  # that, and about 3 GiB for each of 8 server processes while they load
ENGINE = (23, 0)  # BuildKit's named contexts
COMPOSE = (2, 24)  # include with overrides, !reset
CDI_ENGINE = (25, 0)


def machine_findings(machine: Machine) -> Iterator[Finding]:
    """Return what is to be said of the computer."""
    place = ", in a container" if machine.container else ""
    text = f"{machine.system or 'unknown system'}, kernel {machine.kernel}, {machine.cpus} CPUs{place}"
    if machine.architecture != "x86_64":
        yield Finding("host.cpu", "missing", f"{machine.architecture}: the images are for x86_64")
    if machine.wsl:
        text = f"WSL ({text}) shows no links between GPUs and has no peer access"
        yield Finding("host.wsl", "warning", text, "for more than trials run Linux itself")
    else:
        yield Finding("host.system", "ok", text)
    size = f"{machine.memory_mib >> 10} GiB of memory, {machine.available_mib >> 10} GiB free"
    if machine.available_mib < MEMORY_MIB:
        yield Finding(
            "host.memory", "warning", f"{size}: a server of 8 processes wants {MEMORY_MIB >> 10} GiB"
        )
    else:
        yield Finding("host.memory", "ok", f"{size}, {machine.numa_nodes} NUMA nodes")
    if (machine.shm_mib or 0) < SHM_MIB:
        text = f"/dev/shm has {machine.shm_mib or 0} MiB: NCCL dies by SIGBUS when it is full"
        then = "compose files give 32 GiB of their own; docker run needs --shm-size=32g, not --ipc=host"
        yield Finding("host.shm", "note", text, then)
    limits = machine.limits
    if limits.memlock != -1 or 0 <= limits.nofile < 65536:
        text = f"ulimit memlock {limits.memlock}, nofile {limits.nofile}: too low for a server outside Docker"
        yield Finding(
            "host.limits", "note", text, "compose files set them; else: ulimit -l unlimited -n 1048576"
        )


def container_findings(found: Containers, gpus: Gpus) -> Iterator[Finding]:
    """Return what is to be said of Docker, Compose, the container toolkit and its CDI files."""
    if not found.engine:
        text = f"no Docker Engine answers ({found.problem})"
        then = "install Docker, or on Debian: scripts/install-docker"
        if "permission denied" in found.problem.casefold():
            then = "join the group docker and log in again, or start this as root"
        yield Finding("docker.missing", "missing", text, then)
    elif _version(found.engine) < ENGINE:
        text = f"Docker Engine {found.engine} is too old for building, {ENGINE[0]} is needed"
        yield Finding("docker.old", "fail", text)
    else:
        kind = "rootless " if found.rootless else ""
        yield Finding(
            "docker.ok", "ok", f"{kind}Docker Engine {found.engine}, Compose {found.compose or 'none'}"
        )
    if found.engine and _version(found.compose) < COMPOSE:
        text = f"Compose {found.compose or 'is not there'}: {COMPOSE[0]}.{COMPOSE[1]} or later is needed"
        yield Finding("compose.old", "missing", text, "install docker-compose-plugin")
    if not gpus.devices:
        return
    specs = [cdi for cdi in found.cdi if cdi.kind == "nvidia.com/gpu" or cdi.problem]
    if found.engine and "nvidia" not in found.runtimes and not (specs and _cdi_works(found)):
        text = (
            "Docker cannot give GPUs to containers: no runtime nvidia, and no CDI file that the engine reads"
        )
        then = "install nvidia-container-toolkit, then: nvidia-ctk runtime configure --runtime=docker"
        yield Finding("toolkit.missing", "missing", text, then)
    elif found.engine:
        ways = ["the runtime nvidia"] if "nvidia" in found.runtimes else []
        ways += ["CDI"] if specs and _cdi_works(found) else []
        yield Finding(
            "toolkit.ok", "ok", f"GPUs come by {' and '.join(ways)}, toolkit {found.toolkit or 'unknown'}"
        )
    yield from _cdi(found, gpus)


def gpu_driver(found: Containers) -> str | None:
    """Return how Compose shall get at GPUs (IMAGEBUILD_GPU_DRIVER), None if it cannot."""
    if "nvidia" in found.runtimes:
        return "nvidia"
    usable = any(cdi.kind == "nvidia.com/gpu" and not cdi.problem for cdi in found.cdi)
    return "cdi" if usable and _cdi_works(found) else None


def _cdi_works(found: Containers) -> bool:
    return found.cdi_in_engine and _version(found.engine) >= CDI_ENGINE


def _cdi(found: Containers, gpus: Gpus) -> Iterator[Finding]:
    """Compare CDI files with the driver and the GPUs: they are written once and go stale with an upgrade."""
    again = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    level: Level = "fail" if gpu_driver(found) == "cdi" else "warning"
    for cdi in found.cdi:
        if cdi.problem:
            yield Finding("cdi.broken", "warning", f"{cdi.path} cannot be read: {cdi.problem}", again)
            continue
        if cdi.kind != "nvidia.com/gpu":
            continue
        numbers = {name for name in cdi.devices if name.isdigit()}
        want = {str(gpu.index) for gpu in gpus.devices}
        reasons = []
        if cdi.driver and gpus.driver and cdi.driver != gpus.driver:
            reasons.append(f"it mounts driver {cdi.driver}, {gpus.driver} is loaded")
        if cdi.missing:
            reasons.append(f"{len(cdi.missing)} of its files are gone, {cdi.missing[0]} for one")
        if numbers and numbers != want:
            reasons.append(f"it has {len(numbers)} GPUs, there are {len(want)}")
        if reasons:
            yield Finding("cdi.stale", level, f"{cdi.path} is stale: {'; '.join(reasons)}", again)
        else:
            yield Finding("cdi.ok", "ok", f"{cdi.path} fits driver and GPUs")
    places = [cdi.path for cdi in found.cdi if cdi.kind == "nvidia.com/gpu"]
    if len(places) > 1:
        text = f"{' and '.join(places)} both describe the GPUs; the last one wins"
        yield Finding("cdi.twice", "warning", text, "remove one of them")


def storage_findings(storage: Storage, hub: HubAnswer, model: str) -> Iterator[Finding]:
    """Return what is to be said of room for the model, and of the hub while something is to be fetched."""
    lacks = max(0, storage.needed - storage.present)
    where = storage.models_dir
    limit = min([storage.free, *([storage.quota] if storage.quota is not None else [])])
    if lacks == 0:
        text = f"{size_text(storage.present)} of {model} in {where}"
        yield Finding("model.there", "ok", text, f"python build.py models verify {model}")
    elif lacks + MARGIN > limit:
        text = f"{where} has room for {size_text(limit)}, {size_text(lacks)} of {model} are to come"
        yield Finding("disk.room", "missing", text, "free space, or name a larger disk with --dir DIR")
    else:
        text = f"{where} has room for {size_text(limit)}, {size_text(lacks)} of {model} are to come"
        yield Finding("disk.room", "ok", text, f"scripts/prefetch {model} --dir {where}")
    if lacks and hub.answers is False:
        then = f"carry the model over and run: python build.py models fetch {model} --from DIR"
        yield Finding("hub.unreachable", "warning", hub.detail, then)
    elif hub.answers:
        yield Finding("hub.ok", "ok", hub.detail)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
