# SPDX-License-Identifier: Apache-2.0
"""`Host`: what a container sees of its machine: GPUs by `imagebuild.host`, the rest from the kernel."""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from imagebuild.host.facts import Gpus
from imagebuild.host.gpus import read_gpus

SHM = Path("/dev/shm")
UNLIMITED = -1
NO_GPUS = Gpus("none")


@dataclass(frozen=True)
class Host:
    """Sizes in bytes; limits are the soft ones, -1: unlimited."""

    gpus: Gpus = NO_GPUS
    shm: int = 0
    memlock: int = UNLIMITED
    stack: int = UNLIMITED
    nofile: int = UNLIMITED
    cache_writable: bool = True
    cache_free: int = 0


def read_host(cache: Path) -> Host:
    """Look at the machine; nothing that cannot be read is an error here."""
    return Host(
        gpus=read_gpus(),
        shm=_size(SHM, "total"),
        memlock=_limit(resource.RLIMIT_MEMLOCK),
        stack=_limit(resource.RLIMIT_STACK),
        nofile=_limit(resource.RLIMIT_NOFILE),
        cache_writable=os.access(cache, os.W_OK | os.X_OK),
        cache_free=_size(cache, "free"),
    )


def _limit(which: int) -> int:
    soft = resource.getrlimit(which)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _size(path: Path, kind: str) -> int:
    try:
        return int(getattr(shutil.disk_usage(path), kind))
    except OSError:
        return 0
