# SPDX-License-Identifier: Apache-2.0
"""Read GPUs from nvidia-smi's text, where there is no NVML: old drivers, WSL, broken hosts included."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from imagebuild.host.driver import bus_id, problem_of
from imagebuild.host.facts import Gpu, Gpus
from imagebuild.host.matrix import LINK, P2P, read_table
from imagebuild.process import Ended

Run = Callable[[Sequence[str]], Ended | None]
"""Runs nvidia-smi with these arguments; None: there is no such program."""

FIELDS: tuple[str, ...] = (
    "index", "name", "uuid", "compute_cap", "memory.total", "memory.used", "driver_version",
    "pci.bus_id", "mig.mode.current",
)  # fmt: skip
OLD_FIELDS: tuple[str, ...] = (
    "index",
    "name",
    "uuid",
    "memory.total",
    "memory.used",
    "driver_version",
    "pci.bus_id",
)
_DEAD = re.compile(
    r"Unable to determine the device handle for GPU\s*(?:\d+:\s+)?([0-9a-f:]+\.\d):\s*(.+)", re.I
)
_MISSING = ("", "N/A", "[N/A]", "[NOT SUPPORTED]", "[INSUFFICIENT PERMISSIONS]")
_SICK = re.compile(r"\[?(ERR!|GPU is lost|GPU requires reset|Unknown Error)\]?", re.I)


def read(run: Run) -> Gpus:
    """Return what nvidia-smi says of GPUs, links and peer access."""
    ended, fields = run(_query(FIELDS)), FIELDS
    if ended is None:
        return Gpus("none", problem="no-program", detail="no nvidia-smi on the PATH")
    if "is not a valid field" in ended.out + ended.err:
        fields = OLD_FIELDS
        ended = run(_query(fields)) or ended
    found = read_query(ended, fields)
    if not found.devices or found.problem == "timeout":
        return found
    indices = [gpu.index for gpu in found.devices]
    links = read_table(_text(run(("topo", "-m"))), LINK)
    peers = read_table(_text(run(("topo", "-p2p", "rw"))), P2P)
    fabric = _fabric(_text(run(_query(("index", "fabric.state")))))
    devices = tuple(
        replace(gpu, numa=links.numa.get(gpu.index), fabric=fabric.get(gpu.index, ""))
        for gpu in found.devices
    )
    return replace(found, devices=devices, links=links.square(indices), p2p=peers.square(indices))


def _query(fields: Sequence[str]) -> tuple[str, ...]:
    return (f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")


def read_query(ended: Ended, fields: Sequence[str]) -> Gpus:
    """Return GPUs from the CSV of `--query-gpu`; lines that are none name lost GPUs or say what is wrong."""
    devices: list[Gpu] = []
    words: list[str] = []
    driver = ""
    for line in (ended.out + "\n" + ended.err).splitlines():
        cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
        row = dict(zip(fields, cells, strict=False))
        dead = _DEAD.search(line)
        if dead:
            devices.append(Gpu(_free(devices), bus_id=bus_id(dead[1]), fault=dead[2].strip()))
        elif len(cells) == len(fields) and cells[0].isdigit():
            devices.append(_gpu(row, cells))
            driver = driver or _known(row["driver_version"])
        if dead or len(cells) != len(fields):
            words.append(line.strip())
    detail = " ".join(word for word in words if word)
    devices.sort(key=lambda gpu: gpu.index)
    if ended.status is None:
        return Gpus("nvidia-smi", driver, tuple(devices), problem="timeout", detail=detail)
    bad = ended.status != 0 or not devices
    problem = problem_of(ended.status, detail) if bad else ""
    return Gpus("nvidia-smi", driver, tuple(devices), problem=problem, detail=detail)


def _free(devices: list[Gpu]) -> int:
    """Return an index for a GPU whose own is not said."""
    return max((gpu.index for gpu in devices), default=-1) + 1


def _gpu(row: dict[str, str], cells: list[str]) -> Gpu:
    sick = next((match[1] for cell in cells if (match := _SICK.fullmatch(cell))), "")
    capability = re.fullmatch(r"(\d+)\.(\d+)", row.get("compute_cap", ""))
    mig = _known(row.get("mig.mode.current", "")).casefold()
    return Gpu(
        index=int(row["index"]),
        name=_known(row["name"]),
        uuid=_known(row["uuid"]),
        bus_id=bus_id(_known(row["pci.bus_id"])),
        capability=(int(capability[1]), int(capability[2])) if capability else None,
        memory_mib=_number(row["memory.total"]),
        used_mib=_number(row["memory.used"]),
        mig=mig == "enabled" if mig else None,
        fault=sick,
    )


def _known(text: str) -> str:
    return "" if text.upper() in _MISSING or _SICK.fullmatch(text) else text


def _number(text: str) -> int | None:
    digits = re.match(r"\d+", text)  # "N MiB" where nounits is ignored
    return int(digits[0]) if digits else None


def _text(ended: Ended | None) -> str:
    return ended.out if ended is not None else ""


def _fabric(text: str) -> dict[int, str]:
    """Return the NVSwitch fabric's state by GPU, in small letters; old drivers do not know the field."""
    states = {}
    for line in text.splitlines():
        index, _, state = line.partition(",")
        if index.strip().isdigit() and _known(state.strip()):
            states[int(index)] = state.strip().casefold()
    return states
