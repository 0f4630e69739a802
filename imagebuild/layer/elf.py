# SPDX-License-Identifier: Apache-2.0
"""ELF64 little-endian files: headers, sections, segments, and the memory image a loader makes.

Only what the GPU-code reader and the compactor need; every offset is checked. Layout: System V
ABI, "Object Files" (also elf(5)).
"""

from __future__ import annotations

import bisect
import struct
from dataclasses import dataclass

from imagebuild.layer.binary import FormatError, Source, check_range

MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
ET_REL, ET_DYN = 1, 3
EM_CUDA = 190
PT_LOAD, PT_DYNAMIC, PT_PHDR, PT_GNU_STACK = 1, 2, 6, 0x6474E551
SHT_STRTAB, SHT_RELA, SHT_DYNAMIC, SHT_NOBITS = 3, 4, 6, 8
SHF_ALLOC = 2
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")
SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")
_MAX_HEADERS = 1 << 17  # sections or segments
_MAX_NAME = 4096
_MAX_DYNAMIC = 1 << 16  # bytes
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 1, 5, 10, 14


@dataclass(frozen=True)
class Section:
    """One section; `offset` and `size` are in the file (size too for NOBITS, which has no bytes)."""

    name: str
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    align: int


@dataclass(frozen=True)
class Segment:
    """One program header, in bytes."""

    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    align: int


@dataclass(frozen=True)
class Elf:
    """The headers of one file. `phoff` and `shoff` say where the two tables are."""

    type: int
    machine: int
    abi_version: int
    flags: int
    phoff: int
    shoff: int
    segments: tuple[Segment, ...]
    sections: tuple[Section, ...]

    @property
    def loads(self) -> tuple[Segment, ...]:
        """The segments that are mapped into memory."""
        return tuple(s for s in self.segments if s.type == PT_LOAD)


def is_elf(source: Source) -> bool:
    """Tell whether this is a 64-bit little-endian ELF file."""
    return source.size >= HEADER.size and source.read(0, 6) == MAGIC


def read_elf(source: Source) -> Elf:
    """Read the headers. Raises FormatError where they do not fit the file."""
    if not is_elf(source):
        raise FormatError("not a 64-bit little-endian ELF file")
    ident, kind, machine, _, _, phoff, shoff, flags, _, phsize, phnum, shsize, shnum, names = HEADER.unpack(
        source.read(0, HEADER.size)
    )
    if (shoff and shsize != SECTION.size) or (phnum and phsize != SEGMENT.size):
        raise FormatError(f"table entries of {phsize} and {shsize} bytes; they have 56 and 64")
    sections: list[Section] = []
    if shoff:
        first = SECTION.unpack(source.read(shoff, SECTION.size))
        shnum = shnum or first[5]
        names = first[6] if names == 0xFFFF else names
        sections = _sections(source, shoff, shnum, names)
    table = source.read(phoff, _table_size(phnum, SEGMENT.size, "segments"))
    segments = tuple(Segment(*fields) for fields in SEGMENT.iter_unpack(table))
    for segment in segments:
        if segment.type == PT_LOAD:
            check_extent(segment.offset, segment.filesz, source.size, "a segment")
            if segment.memsz < segment.filesz or segment.vaddr + segment.memsz >= 1 << 64:
                raise FormatError(f"a segment at {segment.vaddr:#x} of {segment.memsz} bytes in memory")
    return Elf(kind, machine, ident[8], flags, phoff, shoff, segments, tuple(sections))


def check_extent(offset: int, size: int, limit: int, what: str) -> None:
    """Raise FormatError if [offset, offset + size) is not within `limit` bytes."""
    if offset + size > limit:
        raise FormatError(f"{what} at {offset:#x} of {size} bytes runs past the file's {limit} bytes")


def _table_size(count: int, each: int, what: str) -> int:
    if count > _MAX_HEADERS:
        raise FormatError(f"{count} {what}; at most {_MAX_HEADERS} are read")
    return count * each


def _text(table: bytes, at: int) -> bytes:
    return table[at : at + _MAX_NAME].partition(b"\0")[0]


def _sections(source: Source, shoff: int, count: int, names: int) -> list[Section]:
    raw = list(SECTION.iter_unpack(source.read(shoff, _table_size(count, SECTION.size, "sections"))))
    if names >= len(raw):
        raise FormatError(f"the names are in section {names} of {len(raw)}")
    strings = source.read(raw[names][4], raw[names][5]) if names and raw[names][1] == SHT_STRTAB else b""
    found = []
    for name, kind, flags, addr, offset, size, _, _, align, _ in raw:
        if kind not in (0, SHT_NOBITS):
            check_extent(offset, size, source.size, "a section")
        text = _text(strings, name).decode("latin-1")
        found.append(Section(text, kind, flags, addr, offset, size, align))
    return found


class MemoryImage:
    """The bytes at each virtual address after loading: file content, zeros behind it.

    `size` is the end of the highest segment. Addresses between segments read as zeros, as do the
    holes of a compacted file. Raises FormatError for segments that overlap or go backwards.
    """

    def __init__(self, source: Source, loads: tuple[Segment, ...]) -> None:
        self._source = source
        self.loads = loads
        end = 0
        for segment in loads:
            if segment.vaddr < end:
                raise FormatError(f"the segment at {segment.vaddr:#x} overlaps the one before it")
            end = segment.vaddr + segment.memsz
        self.size = end
        self._starts = [segment.vaddr for segment in loads]

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from address `at`."""
        check_range(at, size, self.size)
        pieces: list[bytes] = []
        index = max(bisect.bisect_right(self._starts, at) - 1, 0)
        end = at + size
        for segment in self.loads[index:]:
            if segment.vaddr >= end:
                break
            start, stop = max(at, segment.vaddr), min(end, segment.vaddr + segment.filesz)
            if start < stop:
                pieces += [
                    bytes(start - at),
                    self._source.read(segment.offset + start - segment.vaddr, stop - start),
                ]
                at = stop
        return b"".join([*pieces, bytes(end - at)])

    def backed(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [start, end) that have bytes in the file, as (start, end) addresses."""
        found = []
        for segment in self.loads:
            low, high = max(start, segment.vaddr), min(end, segment.vaddr + segment.filesz)
            if low < high:
                found.append((low, high))
        return found


def linkage(source: Source, elf: Elf) -> tuple[str, tuple[str, ...]]:
    """Return a shared object's own name and the libraries that it needs; both empty if it has none."""
    segment = next((s for s in elf.segments if s.type == PT_DYNAMIC), None)
    if segment is None or not elf.loads:
        return "", ()
    image = MemoryImage(source, elf.loads)
    tags: list[tuple[int, int]] = []
    size = min(segment.memsz, _MAX_DYNAMIC) // _DYNAMIC.size * _DYNAMIC.size
    for tag, value in _DYNAMIC.iter_unpack(image.read(segment.vaddr, size)):
        if tag == 0:
            break
        tags.append((tag, value))
    strings = {tag: value for tag, value in tags if tag in (_DT_STRTAB, _DT_STRSZ)}
    if len(strings) != 2:
        return "", ()
    table = image.read(strings[_DT_STRTAB], strings[_DT_STRSZ])

    def named(wanted: int) -> list[str]:
        return [_text(table, value).decode("utf-8", "replace") for tag, value in tags if tag == wanted]

    return "".join(named(_DT_SONAME)[:1]), tuple(named(_DT_NEEDED))
