# SPDX-License-Identifier: Apache-2.0
"""Read GPUs through NVML. `python -m imagebuild.host.nvml` prints them as JSON.

It runs as a program of its own because a call into a broken driver may never come back, or crash.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from imagebuild.host.driver import bus_id, problem_of
from imagebuild.host.facts import Gpu, Gpus, Matrix

_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}  # nvmlGpuTopologyLevel_t
_P2P = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")  # nvmlGpuP2PStatus_t, in its order
_FABRIC = ("", "not started", "in progress", "completed")  # nvmlGpuFabricState_t
_READ, _WRITE, _NVLINK = 0, 1, 2  # nvmlGpuP2PCapsIndex_t; the binding has a tuple for the first
_SWITCH = 2  # nvmlIntNvLinkDeviceType_t


def read(nvml: Any) -> Gpus:
    """Return what NVML says; `nvml` is the module pynvml of nvidia-ml-py."""
    try:
        nvml.nvmlInit()
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        return Gpus("nvml", problem=problem_of(error.value, str(error)), detail=str(error))
    handles: dict[int, Any] = {}
    devices = []
    for index in range(count):
        try:
            handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            devices.append(_gpu(nvml, index, handles[index]))
        except nvml.NVMLError as error:
            devices.append(Gpu(index, fault=str(error)))
    known = [handles.get(index) for index in range(count)]
    return Gpus(
        "nvml",
        driver,
        tuple(devices),
        links=_matrix(known, lambda a, b: _link(nvml, a, b)),
        p2p=_matrix(known, lambda a, b: _peer(nvml, a, b)),
        problem="" if devices else "no-gpu",
    )


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    """Return a GPU; what it does not support stays unknown. Raises NVMLError if it does not answer."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    mig = _maybe(nvml, "nvmlDeviceGetMigMode", handle)
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        bus_id=_address(nvml.nvmlDeviceGetPciInfo(handle)),
        capability=(int(major), int(minor)),
        memory_mib=int(memory.total) >> 20,
        used_mib=int(memory.used) >> 20,
        mig=bool(mig[0]) if mig else None,
        fabric=_fabric(nvml, handle),
    )


def _fabric(nvml: Any, handle: Any) -> str:
    info = nvml.c_nvmlGpuFabricInfo_t()
    done = _maybe(nvml, "nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info))
    return _FABRIC[info.state] if done is not None and info.state < len(_FABRIC) else ""


def _matrix(handles: list[Any], cell: Callable[[Any, Any], str]) -> Matrix:
    def at(i: int, j: int) -> str:
        if i == j:
            return "X"
        return cell(handles[i], handles[j]) if handles[i] is not None and handles[j] is not None else ""

    return tuple(tuple(at(i, j) for j in range(len(handles))) for i in range(len(handles)))


def _link(nvml: Any, one: Any, other: Any) -> str:
    """Return NV# if both reach each other over NVLink, directly or through switches, else the PCIe way."""
    if _maybe(nvml, "nvmlDeviceGetP2PStatus", one, other, _NVLINK) == 0:
        count = _nvlinks(nvml, one, _address(nvml.nvmlDeviceGetPciInfo(other)))
        if count:
            return f"NV{count}"
    return _LEVELS.get(_maybe(nvml, "nvmlDeviceGetTopologyCommonAncestor", one, other), "")


def _nvlinks(nvml: Any, handle: Any, other: str) -> int:
    """Return how many active links lead to the other GPU or to a switch."""
    count = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if _maybe(nvml, "nvmlDeviceGetNvLinkState", handle, link):
            kind = _maybe(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            far = _maybe(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            count += kind == _SWITCH or (far is not None and _address(far) == other)
    return count


def _peer(nvml: Any, one: Any, other: Any) -> str:
    """Return whether one GPU can read and write the other's memory: the worse of both."""
    found = [_maybe(nvml, "nvmlDeviceGetP2PStatus", one, other, way) for way in (_READ, _WRITE)]
    if None in found:
        return ""
    worst = max(found)
    return _P2P[worst] if worst < len(_P2P) else "U"


def _maybe(nvml: Any, name: str, *given: Any) -> Any:
    """Return a function's answer, or None if this GPU, driver or binding has none."""
    try:
        return getattr(nvml, name)(*given)
    except (nvml.NVMLError, AttributeError):
        return None


def _address(pci: Any) -> str:
    return bus_id(_text(pci.busId))


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def main() -> None:
    """Print what NVML says as JSON; without nvidia-ml-py that it is missing."""
    try:
        import pynvml
    except ImportError:
        found = Gpus("nvml", problem="no-program", detail="this Python has no nvidia-ml-py")
    else:
        found = read(pynvml)
    json.dump(asdict(found), sys.stdout)


if __name__ == "__main__":
    main()
