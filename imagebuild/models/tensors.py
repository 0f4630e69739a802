# SPDX-License-Identifier: Apache-2.0
"""Read the header of a safetensors file and check it against the file; no tensor is loaded.

The format: 8 bytes little-endian length N, N bytes of JSON (name -> dtype, shape, data_offsets, and
`__metadata__`), then the data. The offsets count from the end of the header, and the tensors fill the
data without holes or overlaps (safetensors, README "Format" and `Metadata::validate`).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MAX_HEADER = 64 << 20  # bytes; the format allows 100 MB, a 1 TB model in one file needs about 40
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One tensor: `size` in bytes."""

    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Header:
    """A safetensors file's tensors by name. `problems` says what is wrong with it (empty: nothing)."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    problems: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All tensors' bytes."""
        return sum(tensor.size for tensor in self.tensors.values())


def read_header(path: Path) -> Header:
    """Read and check one file's header; what is wrong is in `problems`, never an exception."""
    try:
        with path.open("rb") as file:
            return _read(file, path.stat().st_size)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    except _Damaged as error:
        problem = str(error)
    except (ValueError, RecursionError) as error:
        problem = f"its header is no JSON: {str(error)[:100]}"
    return Header({}, {}, (problem,))


class _Damaged(Exception):
    """What is wrong with a header or an entry of it."""


def _read(file: BinaryIO, size: int) -> Header:
    if size < 8:
        raise _Damaged(f"is {size} bytes long, too short for a header")
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise _Damaged(f"its header says {length} bytes, only {size - 8} follow: cut off or overwritten")
    if length > MAX_HEADER:
        raise _Damaged(f"its header says {length} bytes, more than {MAX_HEADER}")
    value = json.loads(file.read(length), object_pairs_hook=_no_twins)
    if not isinstance(value, dict):
        raise _Damaged("its header is no JSON object")
    return _check(value, size - 8 - length)


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name occurs twice")
    return value


def _check(value: dict[str, Any], data: int) -> Header:
    metadata = value.pop("__metadata__", {})
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int, str]] = []
    problems: list[str] = []
    for name, entry in value.items():
        try:
            tensors[name], span = _tensor(entry, data)
        except _Damaged as error:
            problems.append(f"tensor {name}: {error}")
        else:
            spans.append((*span, name))
    problems += _gaps(sorted(spans), data) if not problems else []
    if not isinstance(metadata, dict):
        metadata = {}
    return Header(tensors, {str(k): str(v) for k, v in metadata.items()}, tuple(problems))


def _tensor(entry: Any, data: int) -> tuple[Tensor, tuple[int, int]]:
    """Return a tensor and its span. Raises _Damaged."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise _Damaged("lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _Damaged(f"unknown dtype {str(dtype)[:20]!r}")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise _Damaged("its shape is no list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int for n in offsets):
        raise _Damaged("its data_offsets are no pair of numbers")
    begin, end = offsets
    if not 0 <= begin <= end <= data:
        raise _Damaged(
            f"its bytes {begin} to {end} lie outside the {data} of the file: cut off or overwritten"
        )
    bits = math.prod(shape) * BITS[dtype]
    if bits % 8 or end - begin != bits // 8:
        raise _Damaged(f"{dtype} {shape} takes {bits // 8} bytes, its data_offsets give {end - begin}")
    return Tensor(dtype, tuple(shape), end - begin), (begin, end)


def _gaps(spans: list[tuple[int, int, str]], data: int) -> list[str]:
    at = 0
    for begin, end, name in spans:
        if begin != at:
            return [f"tensor {name}: begins at {begin}, expected {at}: a hole or an overlap"]
        at = end
    return [f"{data - at} bytes follow the last tensor"] if at != data else []
