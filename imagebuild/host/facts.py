# SPDX-License-Identifier: Apache-2.0
"""What was read on a host, before anybody judges it. Part of host.json (docs/schema/host.schema.json)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Problem = Literal["", "no-program", "no-driver", "mismatch", "no-gpu", "blocked", "lost", "timeout", "failed"]
Matrix = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Gpu:
    """One GPU. `fault` is the driver's word for one that does not answer, else empty.

    Memory in MiB. `bus_id` as in /sys (0000:1b:00.0). `mig` None: the GPU has no such mode. `fabric` is
    the state of an NVSwitch fabric, empty where there is none. `numa` None: one node only, or unknown.
    """

    index: int
    name: str = ""
    uuid: str = ""
    bus_id: str = ""
    capability: tuple[int, int] | None = None
    memory_mib: int | None = None
    used_mib: int | None = None
    mig: bool | None = None
    fabric: str = ""
    numa: int | None = None
    fault: str = ""


@dataclass(frozen=True)
class Gpus:
    """All GPUs and how they are joined.

    `links[i][j]` is nvidia-smi's word: X, NV18, PIX, PXB, PHB, NODE, SYS, or "" where it is unknown; `p2p`
    likewise: X, OK, CNS, GNS, TNS, NS, DR, U. Both are empty where nobody could say. `detail` is what the
    driver's own program or library said about `problem`.
    """

    source: Literal["nvml", "nvidia-smi", "none"]
    driver: str = ""
    devices: tuple[Gpu, ...] = ()
    links: Matrix = ()
    p2p: Matrix = ()
    problem: Problem = ""
    detail: str = ""

    @property
    def healthy(self) -> tuple[Gpu, ...]:
        """The GPUs that answer."""
        return tuple(gpu for gpu in self.devices if not gpu.fault)

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """The GPUs that a server can use whole: they answer and are not cut up by MIG."""
        return tuple(gpu for gpu in self.healthy if not gpu.mig)


@dataclass(frozen=True)
class Limits:
    """ulimits of the process that looked, in bytes and numbers; -1: unlimited."""

    memlock: int
    nofile: int
    stack: int


@dataclass(frozen=True)
class Machine:
    """The computer without its GPUs. Sizes in MiB; `shm_mib` None: no /dev/shm.

    `iommu` is how the kernel maps the GPUs' memory traffic: "" no IOMMU, "identity" it passes through,
    "translated" every access between GPUs takes the way over the CPU.
    """

    kernel: str
    system: str
    architecture: str
    wsl: bool
    container: bool
    cpus: int
    numa_nodes: int
    memory_mib: int
    available_mib: int
    shm_mib: int | None
    iommu: Literal["", "identity", "translated"]
    limits: Limits


@dataclass(frozen=True)
class Cdi:
    """One file of the Container Device Interface. `driver` is the version of the libraries that it mounts.

    `missing` are those of its files that are not on the host; `problem` is why it cannot be read.
    """

    path: str
    kind: str = ""
    devices: tuple[str, ...] = ()
    driver: str = ""
    missing: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Containers:
    """What can start containers with GPUs. Empty versions: not there; `problem` is why no engine answers."""

    engine: str = ""
    problem: str = ""
    rootless: bool = False
    runtimes: tuple[str, ...] = ()
    cdi_in_engine: bool = False
    compose: str = ""
    toolkit: str = ""
    cdi: tuple[Cdi, ...] = ()


@dataclass(frozen=True)
class Storage:
    """Room for a model, in bytes: `needed` of its repos in all, `present` of them already."""

    models_dir: str
    needed: int
    present: int
    free: int
    inodes: int | None
    quota: int | None


@dataclass(frozen=True)
class HubAnswer:
    """Whether the hub answers for the model's repo; None: nobody asked."""

    answers: bool | None = None
    detail: str = ""


@dataclass(frozen=True)
class Host:
    """Everything that was read."""

    gpus: Gpus
    machine: Machine
    containers: Containers
    storage: Storage
    hub: HubAnswer
