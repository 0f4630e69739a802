# SPDX-License-Identifier: Apache-2.0
"""Every GPU-code container of a folder through the driver: does it load, and with which kernels?"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from imagebuild.layer.binary import FileSource, Source, chunks
from imagebuild.layer.elf import MemoryImage, read_elf
from imagebuild.layer.fatbin import Container
from imagebuild.layer.gpucode import loadable
from imagebuild.layer.scan import scan
from tests.gpu.variants import code_of

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_ATTRIBUTES = range(7)  # threads, shared, const, local, registers, PTX version, binary version
_MAX_JIT = 150  # PTX containers that are compiled: a sample, since each takes a compiler run
_MAX_JIT_BYTES = 4 << 20


class Driver:
    """The CUDA driver API of device 0, by ctypes."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        self.device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.gpu = 10 * self._attribute(_MAJOR) + self._attribute(_MINOR)

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self.lib, name)(*args)
        if status:
            raise RuntimeError(f"{name}: {status}")

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def activate(self) -> None:
        """Make the device's primary context current."""
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self._call("cuCtxSetCurrent", context)

    def load(self, data: bytes) -> tuple[int, int, str]:
        """Load a container: (status, kernels, digest of their names and attributes)."""
        module = ctypes.c_void_p()
        buffer = ctypes.create_string_buffer(data, len(data))
        status = self.lib.cuModuleLoadData(ctypes.byref(module), buffer)
        if status:
            return status, 0, ""
        count = ctypes.c_uint()
        self._call("cuModuleGetFunctionCount", ctypes.byref(count), module)
        functions = (ctypes.c_void_p * max(count.value, 1))()
        self._call("cuModuleEnumerateFunctions", functions, count.value, module)
        rows = sorted(repr(self._kernel(f)) for f in functions[: count.value])
        self._call("cuModuleUnload", module)
        return 0, count.value, hashlib.sha256("\n".join(rows).encode()).hexdigest()[:24]

    def _kernel(self, function: int | None) -> tuple[bytes | None, list[int]]:
        name = ctypes.c_char_p()
        self._call("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(function))
        values = []
        for number in _ATTRIBUTES:
            value = ctypes.c_int()
            status = self.lib.cuFuncGetAttribute(ctypes.byref(value), number, ctypes.c_void_p(function))
            values.append(-status if status else value.value)
        return name.value, values


def containers(root: Path) -> Iterator[tuple[str, str, Container, Source]]:
    """Yield (key, place, container, where to read it) of every library below a folder."""
    for folder, _, names in sorted(os.walk(root)):
        for name in sorted(names):
            path = Path(folder) / name
            if code_of(path) is None:
                continue
            with open(path, "rb") as file:
                source = FileSource.of(file.fileno())
                code = scan(source)
                assert code is not None
                image = MemoryImage(source, read_elf(source).loads)
                for index, found in enumerate(code.found):
                    space: Source = image if found.mapped else source
                    yield f"{path.relative_to(root)}#{index}", found.place, found.container, space


def run(root: Path, seconds: float) -> dict[str, object]:
    """Load all containers within a time budget; the results by key, and what was left out."""
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    driver = Driver()
    driver.activate()
    start, jit, skipped = time.monotonic(), 0, 0
    modules: dict[str, list[object]] = {}
    for key, place, container, space in containers(root):
        codes = [e.code for e in container.entries if e.code.kind != "other"]
        if place == "relocatable" or not codes:
            continue
        fits = [code for code in codes if loadable(code, driver.gpu)]
        if fits and not any(code.kind == "elf" for code in fits):
            jit += 1
            if jit > _MAX_JIT or container.size > _MAX_JIT_BYTES:
                skipped += 1
                continue
        if time.monotonic() - start > seconds:
            skipped += 1
            continue
        data = b"".join(chunks(space, container.at, container.at + container.size))
        modules[key] = [bool(fits), *driver.load(data)]
    took = round(time.monotonic() - start, 1)
    return {"gpu": driver.gpu, "modules": modules, "skipped": skipped, "seconds": took}
