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
