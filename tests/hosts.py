# SPDX-License-Identifier: Apache-2.0
"""Hosts that we do not have. Their nvidia-smi: tests/data/hosts/NAME.txt is what it prints there.

A section begins with `$ nvidia-smi ARGUMENTS # exit STATUS`; status `none`: it does not come back. The
query of `smi.FIELDS` is written `--query-gpu`, others are written out. A command without a section fails.
"""

from __future__ import annotations

import re
from pathlib import Path

from imagebuild.host import smi
from imagebuild.host.facts import Containers, Host, HubAnswer, Limits, Machine, Storage
from imagebuild.process import Ended

FOLDER = Path(__file__).parent / "data" / "hosts"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
_HEAD = re.compile(r"^\$ nvidia-smi (.+) # exit (\d+|none)\n", re.MULTILINE)


def nvidia_smi(name):
    """Return a function that answers like nvidia-smi on that host."""
    parts = _HEAD.split((FOLDER / f"{name}.txt").read_bytes().decode())[1:]
    known = {
        title: (status, text)
        for title, status, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }

    def run(arguments):
        if not known:
            return None
        words = [word for word in arguments if not word.startswith("--format=")]
        title = " ".join(words)
        if title == f"--query-gpu={','.join(smi.FIELDS)}":
            title = "--query-gpu"
        status, text = known.get(title, ("2", "Invalid combination of input arguments.\n"))
        return Ended(None if status == "none" else int(status), text, "")

    return run


def gpus(name):
    """Return what we read there."""
    return smi.read(nvidia_smi(name))


def machine(**other):
    """A large server with everything in order."""
    good = {
        "kernel": "6.8.0-60-generic", "system": "Ubuntu 24.04.2 LTS", "architecture": "x86_64", "wsl": False,
        "container": False, "cpus": 240, "numa_nodes": 2, "memory_mib": 2 << 20, "available_mib": 2 << 20,
        "shm_mib": 1 << 20, "iommu": "", "limits": Limits(memlock=-1, nofile=1048576, stack=8 << 20),
    }  # fmt: skip
    return Machine(**{**good, **other})


def containers(**other):
    """Docker with NVIDIA's runtime."""
    good = {"engine": "28.1.1", "runtimes": ("nvidia", "runc"), "compose": "2.35.1", "toolkit": "1.17.8"}
    return Containers(**{**good, **other})


def host(name, **other):
    """That host's GPUs in a large server with the model on its disk."""
    storage = Storage("/data/models", 595 * 10**9, 595 * 10**9, 10**12, None, None)
    good = {"machine": machine(), "containers": containers(), "storage": storage, "hub": HubAnswer()}
    return Host(gpus=gpus(name), **{**good, **other})
