# SPDX-License-Identifier: Apache-2.0
"""Prove that an edited shared object is the original without what its GPU can never load.

Written against the two files alone, not against the code that edits: the loader's view of both
must be equal in every byte, except that payloads which the GPU cannot load are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from imagebuild.layer.binary import FormatError, Source, is_zero
from imagebuild.layer.elf import (
    HEADER,
    PT_LOAD,
    PT_PHDR,
    SHF_ALLOC,
    SHT_NOBITS,
    Elf,
    MemoryImage,
    Segment,
    is_elf,
    read_elf,
)
from imagebuild.layer.gpucode import loadable
from imagebuild.layer.scan import scan

_CHUNK = 4 << 20
_TABLES = ((32, 48), (56, 58))  # e_phoff, e_shoff, e_phnum: where the two tables are
_SHARED = ("fatbin", "relocatable")


class NotProven(Exception):
    """The edited file differs in more than it may; the message says where."""


@dataclass(frozen=True)
class Proof:
    """What was proven: payloads kept byte for byte, payloads blanked and their bytes, bytes cut out."""

    kept: int
    blanked: int
    blanked_bytes: int
    cut: int


def prove(original: Source, edited: Source, gpu: int) -> Proof:
    """Compare two files. Raises NotProven, or FormatError for a damaged one."""
    code = scan(original)
    if code is None or code.kind != "elf" or not is_elf(edited):
        raise NotProven("only shared objects are edited")
    if any(found.mapped for found in code.found):
        raise NotProven("the original itself is a compacted file")
    old, new = read_elf(original), read_elf(edited)
    entries = [e for f in code.found if f.place in _SHARED for e in f.container.entries if e.size]
    blank = [e for e in entries if not loadable(e.code, gpu)]
    spans = sorted((e.at, e.at + e.size) for e in blank)
    _same_headers(old, new)
    _same_segments(old, new)
    image = MemoryImage(edited, new.loads)
    covered = _same_memory(original, old, image, spans)
    for start, end in spans:
        if not any(low <= start and end <= high for low, high in covered):
            raise NotProven(f"the payload at {start:#x} is not in any segment")
    _same_rest(original, old, edited, new)
    kept = len(entries) - len(blank)
    return Proof(kept, len(blank), sum(e.size for e in blank), max(original.size - edited.size, 0))


def _same_headers(old: Elf, new: Elf) -> None:
    if (old.type, old.machine, old.abi_version, old.flags) != (
        new.type,
        new.machine,
        new.abi_version,
        new.flags,
    ):
        raise NotProven("the ELF headers differ")
    if len(old.sections) != len(new.sections):
        raise NotProven(f"{len(new.sections)} sections instead of {len(old.sections)}")


def _same_segments(old: Elf, new: Elf) -> None:
    """Every original segment must be tiled by new ones of the same kind, flags and addresses."""

    def others(elf: Elf) -> list[tuple[int, ...]]:
        kinds = (PT_LOAD, PT_PHDR)
        return [
            (s.type, s.flags, s.vaddr, s.paddr, s.filesz, s.memsz, s.align)
            for s in elf.segments
            if s.type not in kinds
        ]

    if others(old) != others(new):
        raise NotProven("the program headers differ in more than PT_LOAD and PT_PHDR")
    pieces = list(new.loads)
    for segment in old.loads:
        at = segment.vaddr
        end = segment.vaddr + segment.memsz
        while pieces and (at < end or pieces[0].memsz == 0):
            piece = pieces.pop(0)
            if piece.vaddr != at or piece.flags != segment.flags or piece.vaddr + piece.memsz > end:
                raise NotProven(f"the segment at {piece.vaddr:#x} does not continue {segment.vaddr:#x}")
            at += piece.memsz
        if at != end:
            raise NotProven(f"the segment at {segment.vaddr:#x} ends at {at:#x}, not {end:#x}")
    if pieces:
        raise NotProven(f"a segment at {pieces[0].vaddr:#x} is new")


def _same_memory(
    original: Source, old: Elf, image: MemoryImage, spans: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Compare what is loaded; return the file ranges of the original that are."""
    covered = []
    for segment in old.loads:
        start, end = segment.offset, segment.offset + segment.filesz
        covered.append((start, end))
        inside = [(low, high) for low, high in spans if low < end and start < high]
        at = start
        for low, high in [*inside, (end, end)]:
            _equal(original, image, segment, at, max(low, at))
            first, last = max(low, at), min(high, end)
            if first < last:
                _zero(image, segment, first, last)
            at = max(at, last)
        tail = segment.vaddr + segment.filesz
        if not _zeros_between(image, tail, segment.vaddr + segment.memsz):
            raise NotProven(f"bytes behind the segment at {segment.vaddr:#x} are not zero")
    return covered


def _equal(original: Source, image: MemoryImage, segment: Segment, start: int, end: int) -> None:
    while start < end:
        size = min(_CHUNK, end - start)
        address = segment.vaddr + start - segment.offset
        if _masked(original.read(start, size), start) != _masked(image.read(address, size), start):
            raise NotProven(f"bytes near {start:#x} of the original differ")
        start += size


def _masked(data: bytes, at: int) -> bytes:
    """Zero the three fields of the ELF header that say where the tables are."""
    if at >= HEADER.size:
        return data
    copy = bytearray(data)
    for low, high in _TABLES:
        for index in range(max(low - at, 0), min(high - at, len(copy))):
            copy[index] = 0
    return bytes(copy)


def _zero(image: MemoryImage, segment: Segment, start: int, end: int) -> None:
    low = segment.vaddr + start - segment.offset
    if not _zeros_between(image, low, low + end - start):
        raise NotProven(f"the payload at {start:#x} of the original is not blank")


def _zeros_between(image: MemoryImage, start: int, end: int) -> bool:
    return all(is_zero(image, low, high) for low, high in image.backed(start, end))


def _same_rest(original: Source, old: Elf, edited: Source, new: Elf) -> None:
    """Compare the section tables, and the content of sections that are not loaded."""
    for a, b in zip(old.sections, new.sections, strict=True):
        if (a.name, a.flags, a.addr, a.size, a.align) != (b.name, b.flags, b.addr, b.size, b.align):
            raise NotProven(f"section {a.name} differs from {b.name}")
        if b.type not in (a.type, SHT_NOBITS):
            raise NotProven(f"section {a.name} has another type")
        if a.flags & SHF_ALLOC or a.type in (0, SHT_NOBITS):
            continue
        if a.type != b.type:
            raise NotProven(f"section {a.name} lost its bytes")
        at = 0
        while at < a.size:
            size = min(_CHUNK, a.size - at)
            if original.read(a.offset + at, size) != edited.read(b.offset + at, size):
                raise NotProven(f"section {a.name} has other content")
            at += size


__all__ = ["FormatError", "NotProven", "Proof", "prove"]
