# SPDX-License-Identifier: Apache-2.0
"""Checks of the machine against the image and the flags. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imagebuild.arch import arch_of_capability, min_driver, parse_arch
from imagebuild.host.facts import Gpu, Gpus
from imagebuild.preflight.findings import Finding
from imagebuild.preflight.flags import Flags
from imagebuild.preflight.host import UNLIMITED, Host
from imagebuild.preflight.image import Image, Wishes

GIB = 1 << 30
# Docker gives a container 64 MB of /dev/shm, and NCCL ends with SIGBUS; 1 GiB a GPU is ample for its buffers.
SHM_PER_GPU = 1 * GIB
STACK = 64 << 20
NOFILE = 65536
CACHE_ROOM = 2 * GIB  # compiled kernels of one image: 30 MB were seen on an H200 with tiny models
MARK = ".imagebuild-plan"  # in the cache volume: the plan of the image that it belongs to


GPU_IDS = ("gpu-arch", "gpu-count", "gpu-mig", "gpu-fabric", "driver", "link")


def check_gpus(image: Image, flags: Flags, host: Host, wishes: Wishes) -> Iterator[Finding]:
    """Yield gpu and, if there are any, all of GPU_IDS."""
    gpus, devices = host.gpus, host.gpus.devices
    if not devices:
        yield from _no_gpu(gpus, wishes)
        return
    lost = [f"GPU {gpu.index}: {gpu.fault}" for gpu in devices if gpu.fault]
    if lost:
        yield Finding("gpu", "missing", "; ".join(lost), "look at dmesg (Xid) on the host, then restart it")
    else:
        names = " and ".join(sorted({gpu.name for gpu in devices}))
        yield Finding("gpu", "ok", f"{len(devices)} x {names}, driver {gpus.driver}")
    yield _arch(image, gpus.healthy)
    yield _count(flags, gpus.healthy)
    split = [gpu for gpu in gpus.healthy if gpu.mig]
    yield _none("gpu-mig", split, "no GPU is split", "split by MIG", "nvidia-smi -mig 0")
    out = [gpu for gpu in gpus.healthy if gpu.fabric not in ("", "completed")]
    command = "systemctl start nvidia-fabricmanager"
    yield _none("gpu-fabric", out, "up, or none needed", "not in the NVSwitch fabric yet", command)
    yield _driver(image, gpus.driver)
    yield _link(flags, gpus, wishes)


def _no_gpu(gpus: Gpus, wishes: Wishes) -> Iterator[Finding]:
    why = gpus.detail or gpus.problem
    if wishes.action == "serve":
        help_text = "docker run --gpus all; in compose, is IMAGEBUILD_GPU_DRIVER right (nvidia or cdi)?"
        yield Finding("gpu", "missing", f"no GPU in this container: {why}", help_text)
        return
    yield Finding("gpu", "skipped", f"needs GPU: {why}")
    for name in GPU_IDS:
        yield Finding(name, "skipped", "needs GPU")


def _arch(image: Image, gpus: Sequence[Gpu]) -> Finding:
    wanted = parse_arch(image.arch)
    wrong = [gpu for gpu in gpus if gpu.capability != wanted.capability]
    if not wrong:
        return Finding("gpu-arch", "ok", f"{image.arch}, as the image")
    first = wrong[0].capability or (0, 0)
    found = arch_of_capability(*first)
    name = found.name if found else "sm_" + "".join(map(str, first))
    help_text = "leave out the other GPUs (NVIDIA_VISIBLE_DEVICES or device_ids)"
    if len(wrong) == len(gpus):
        help_text = f"build and run that image: python build.py --arch {name}"
    text = f"{len(wrong)} of {len(gpus)} GPUs are {name} ({wrong[0].name}), the image is for {image.arch}"
    return Finding("gpu-arch", "failed", f"{text}: code for one never runs on the other", help_text)


def _count(flags: Flags, gpus: Sequence[Gpu]) -> Finding:
    if len(gpus) >= flags.gpus:
        return Finding("gpu-count", "ok", f"{flags.gpus} needed, {len(gpus)} there")
    why = f"--tp-size {flags.tp} x --pp-size {flags.pp}"
    text = f"{len(gpus)} GPUs, but the flags need {flags.gpus} ({why})"
    return Finding("gpu-count", "missing", text, "give the container all GPUs, or take a service for fewer")


def _none(name: str, wrong: Sequence[Gpu], good: str, bad: str, command: str) -> Finding:
    """Return whether no GPU is in a state that the host can put right by a command."""
    if not wrong:
        return Finding(name, "ok", good)
    numbers = ", ".join(str(gpu.index) for gpu in wrong)
    return Finding(name, "missing", f"GPU {numbers} is {bad}", f"on the host: {command}")


def _driver(image: Image, driver: str) -> Finding:
    need = min_driver(parse_arch(image.arch), image.cuda)
    branch = driver.partition(".")[0]
    if branch.isdigit() and int(branch) >= need:
        return Finding("driver", "ok", f"{driver}, at least {need} for CUDA {image.cuda}")
    text = f'"{driver}", but CUDA {image.cuda} on {image.arch} needs {need} or later'
    return Finding("driver", "missing", text, f"install driver branch {need} or later on the host")


def _link(flags: Flags, gpus: Gpus, wishes: Wishes) -> Finding:
    if flags.tp == 1:
        return Finding("link", "ok", "no tensor parallelism, no fast link needed")
    square = [row[: flags.tp] for row in gpus.links[: flags.tp]]
    ways = {cell for i, row in enumerate(square) for j, cell in enumerate(row) if i != j}
    slow = sorted(way for way in ways if not way.startswith("NV") and way)
    if not ways or "" in ways:
        return Finding("link", "warning", "how the GPUs are joined cannot be read")
    if not slow:
        return Finding("link", "ok", f"NVLink between all GPUs ({', '.join(sorted(ways))})")
    text = f"no NVLink between all GPUs ({', '.join(slow)})"
    if flags.ep > 1:
        return Finding("link", "ok", f"{text}; whole experts (--ep-size {flags.ep}) are meant for that")
    if not wishes.without_nvlink:
        return Finding("link", "warning", f"{text}: the all-reduces of --tp-size {flags.tp} go over PCIe")
    text += f", --tp-size {flags.tp} would be slow. {wishes.without_nvlink}"
    return Finding("link", "failed", text, "start that service, or IMAGEBUILD_ACCEPT=link to go on")


def check_system(image: Image, flags: Flags, host: Host, mark: str, wishes: Wishes) -> Iterator[Finding]:
    """Yield shm, ulimits and cache; `mark` is the plan that the cache volume says it belongs to."""
    need = SHM_PER_GPU * flags.gpus
    if host.shm < need:
        text = f"/dev/shm has {host.shm / GIB:.2f} GiB, {need / GIB:.0f} needed: NCCL would end with SIGBUS"
        yield Finding("shm", "missing", text, "docker run --shm-size=32g, or --ipc=host")
    else:
        yield Finding("shm", "ok", f"{host.shm / GIB:.0f} GiB")
    yield _limits(host)
    yield _cache(image, host, mark)


def _limits(host: Host) -> Finding:
    low = []
    if host.memlock != UNLIMITED:
        low.append(f"memlock {host.memlock} bytes, expected unlimited")
    if host.stack != UNLIMITED and host.stack < STACK:
        low.append(f"stack {host.stack} bytes, expected {STACK}")
    if host.nofile != UNLIMITED and host.nofile < NOFILE:
        low.append(f"nofile {host.nofile}, expected {NOFILE}")
    if not low:
        return Finding("ulimits", "ok", "memlock unlimited, stack and nofile high enough")
    options = f"--ulimit memlock=-1 --ulimit stack={STACK} --ulimit nofile=1048576"
    return Finding("ulimits", "missing", "; ".join(low), f"docker run {options}")


def _cache(image: Image, host: Host, mark: str) -> Finding:
    if not host.cache_writable:
        text = f"{image.cache} cannot be written: every kernel that is compiled at start needs it"
        return Finding("cache", "missing", text, f"mount a volume there: -v NAME:{image.cache}")
    if mark not in ("", image.plan):
        text = f"{image.cache} belongs to another image: plan {mark[:12]}, this is {image.plan[:12]}"
        return Finding(
            "cache", "failed", text, "one volume per image: IMAGEBUILD_PLAN_<ARCH> in .env names it"
        )
    if host.cache_free < CACHE_ROOM:
        text = f"{image.cache} has {host.cache_free / GIB:.1f} GiB free, kernels need {CACHE_ROOM / GIB:.0f}"
        return Finding("cache", "missing", text, "free disk where Docker keeps its volumes")
    return Finding("cache", "ok", f"{image.cache}, {host.cache_free / GIB:.0f} GiB free")


def check_access(flags: Flags, wishes: Wishes, key: str, port_trouble: str) -> Iterator[Finding]:
    """Yield port and api-key. `key` is the secret's, `port_trouble` why the port cannot be bound."""
    if port_trouble:
        yield Finding(
            "port",
            "missing",
            f"{flags.host}:{flags.port}: {port_trouble}",
            "stop what uses it, or choose --port",
        )
    else:
        yield Finding("port", "ok", f"{flags.host}:{flags.port} is free")
    if key or flags.api_key or flags.config:
        yield Finding("api-key", "ok", "a key is set" if key or flags.api_key else "--config may set a key")
    elif wishes.exposed:
        text = f"the port is published on {wishes.bind} and no API key is set: anybody could use the server"
        yield Finding(
            "api-key", "missing", text, "IMAGEBUILD_API_KEY_FILE=FILE in .env, or publish on 127.0.0.1"
        )
    else:
        where = (
            f"published on {wishes.bind} only" if wishes.bind else "nobody said where the port is published"
        )
        yield Finding("api-key", "ok", f"no key; {where}")
