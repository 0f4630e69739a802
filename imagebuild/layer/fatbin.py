# SPDX-License-Identifier: Apache-2.0
"""CUDA fat binaries: containers of entries, each one piece of GPU code.

Layout, little endian, decoded from what nvcc 13.0 writes for every -gencode form and checked
against cuobjdump on every pinned wheel:

    container header, 16 bytes: u32 magic, u16 version = 1, u16 header size = 16, u64 size behind it
    entry header, >= 64 bytes:  u16 kind, u16 version, u32 header size, u64 payload size, u32
        compressed size, u32 options, u16 minor, u16 major, u32 arch, u32 name, u32 name length,
        u64 flags, u64 key, u64 uncompressed size
    kind:  1 PTX, 2 cubin; others (8 LTO-IR, 0x10 Mercury …) are never judged or touched
    flags: 0x100000 the arch is specific (a), 0x200000 it is a family's (f)

A driver chooses by entry headers alone; compression is inside the payload and does not matter here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from imagebuild.layer.binary import FormatError, Source, check_range
from imagebuild.layer.gpucode import Code, Kind

MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_KINDS: dict[int, Kind] = {1: "ptx", 2: "elf"}
_FLAG_A, _FLAG_F = 0x100000, 0x200000
_MAX_HEADER = 1 << 20
_PROBE = 64  # a payload that begins with this many zeros is blank: real ones begin with a magic number
_MAX_ENTRIES = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One piece of code: `at` and `size` (bytes) are its payload's; `blank` if that is all zero."""

    code: Code
    at: int
    size: int
    blank: bool


@dataclass(frozen=True)
class Container:
    """One container at byte `at`, `size` bytes with its header."""

    at: int
    size: int
    entries: tuple[Entry, ...]


class Budget:
    """How many headers one file may make us read.

    Every entry is at least 64 bytes, so an honest file needs no more than a 64th of its size;
    containers that claim one another's bytes would otherwise take quadratic time.
    """

    def __init__(self, size: int) -> None:
        self.left = min(2 * size // _ENTRY.size + 64, _MAX_ENTRIES)

    def spend(self) -> None:
        """Count one. Raises BudgetSpent when there are none left."""
        self.left -= 1
        if self.left < 0:
            raise BudgetSpent("more GPU-code entries than a file of this size can hold")


class BudgetSpent(FormatError):
    """A file claims too many entries."""


def read_container(source: Source, at: int, limit: int, budget: Budget) -> Container:
    """Read the container at `at`, which must end at or before `limit`.

    Raises FormatError where its entries do not fill it exactly.
    """
    budget.spend()
    check_range(at, _CONTAINER.size, limit)
    magic, version, header, size = _CONTAINER.unpack(source.read(at, _CONTAINER.size))
    if struct.pack("<I", magic) != MAGIC or version != 1 or header != _CONTAINER.size:
        raise FormatError(f"no GPU-code container at {at:#x}")
    end = at + header + size
    if end > limit:
        raise FormatError(f"the container at {at:#x} claims {size} bytes and runs past {limit:#x}")
    entries = []
    here = at + header
    while here < end:
        budget.spend()
        if here + _ENTRY.size > end:
            raise FormatError(f"the entry at {here:#x} is cut off")
        entry, here = _read_entry(source, here, end)
        entries.append(entry)
    return Container(at, header + size, tuple(entries))


def _read_entry(source: Source, at: int, end: int) -> tuple[Entry, int]:
    kind, _, header, size, _, _, _, _, arch, _, _, flags, _, _ = _ENTRY.unpack(source.read(at, _ENTRY.size))
    start = at + header
    if not _ENTRY.size <= header <= _MAX_HEADER or start + size > end:
        raise FormatError(
            f"the entry at {at:#x} claims {header} + {size} bytes; its container ends at {end:#x}"
        )
    suffix = "a" if flags & _FLAG_A else "f" if flags & _FLAG_F else ""
    code = Code(_KINDS.get(kind, "other"), arch, suffix)  # type: ignore[arg-type]
    blank = size > 0 and not any(source.read(start, min(size, _PROBE)))
    return Entry(code, start, size, blank), start + size
