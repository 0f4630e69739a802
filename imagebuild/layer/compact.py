# SPDX-License-Identifier: Apache-2.0
"""Compaction: cut whole blank pages out of a shared object's file, with an equal memory image.

An OCI layer has no sparse files, so a blanked payload costs its full size on every node. A run of
blank pages becomes the zero-filled tail (p_memsz > p_filesz) of a PT_LOAD that is split there; its
bytes leave the file. Virtual addresses stay, so every relocation, symbol and wrapper holds, and
the loader maps zero pages where the payload was. Sections that lost bytes become SHT_NOBITS, and
the program headers move to the file's end. Nothing that rewrites an ELF file (patchelf, strip) may
come after it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from imagebuild.layer.binary import Source
from imagebuild.layer.blank import Span, blanked
from imagebuild.layer.elf import (
    ET_DYN,
    HEADER,
    PT_GNU_STACK,
    PT_LOAD,
    PT_PHDR,
    SECTION,
    SEGMENT,
    SHT_NOBITS,
    Elf,
    Segment,
)

PAGE = 4096
MINIMUM = 64 << 10  # bytes; a smaller hole costs the kernel more than the disk
MAX_HOLES = 2000  # each is two mapped regions, of 65,530 that Linux allows a process by default


@dataclass(frozen=True)
class Layout:
    """A compacted file: the holes, its new program headers, and where the two tables are."""

    holes: tuple[Span, ...]
    segments: tuple[Segment, ...]
    body_size: int
    phoff: int
    size: int


def layout(source: Source, elf: Elf, spans: list[Span]) -> Layout | None:
    """Return how to compact a file whose `spans` are blank; None if nothing can or may be cut."""
    if elf.type != ET_DYN or not elf.shoff or any(section.align > PAGE for section in elf.sections):
        return None
    holes = _holes(elf, spans)
    if not holes:
        return None
    segments = tuple(_split(elf, holes))
    body = source.size - sum(hole.end - hole.start for hole in holes)
    # On a page that no segment reaches: the loader zeroes the rest of a data segment's last page.
    phoff = body + -body % PAGE
    return Layout(holes, segments, body, phoff, phoff + SEGMENT.size * len(segments))


def _holes(elf: Elf, spans: list[Span]) -> tuple[Span, ...]:
    """Return the largest runs of whole pages within blank spans and strictly within a segment."""
    loads = [s for s in elf.loads if (s.vaddr - s.offset) % PAGE == 0]
    found = []
    for span in spans:
        for load in loads:
            low = max(span.start, load.offset + PAGE)
            high = min(span.end, load.offset + load.filesz - PAGE)
            start, end = -(-low // PAGE) * PAGE, high // PAGE * PAGE
            if end - start >= MINIMUM and not _shared(elf, start, end, load):
                found.append(Span(start, end))
                break
    found.sort(key=lambda hole: hole.start - hole.end)
    return tuple(sorted(found[:MAX_HOLES], key=lambda hole: hole.start))


def _shared(elf: Elf, start: int, end: int, load: Segment) -> bool:
    """Tell whether any other segment or the section table uses bytes of [start, end)."""
    table = Segment(0, 0, elf.shoff, 0, 0, SECTION.size * len(elf.sections), 0, 0)
    headers = Segment(0, 0, elf.phoff, 0, 0, SEGMENT.size * len(elf.segments), 0, 0)
    return any(
        other.offset < end and start < other.offset + other.filesz
        for other in (*elf.segments, table, headers)
        if other is not load
    )


def _shift(holes: tuple[Span, ...], offset: int) -> int:
    """Return where the byte at `offset` of the original file is in the compacted one."""
    return offset - sum(hole.end - hole.start for hole in holes if hole.end <= offset)


def _split(elf: Elf, holes: tuple[Span, ...]) -> Iterator[Segment]:
    for s in elf.segments:
        if s.type == PT_PHDR:
            continue
        offset = s.offset if s.type == PT_GNU_STACK else _shift(holes, s.offset)
        if s.type != PT_LOAD:
            yield Segment(s.type, s.flags, offset, s.vaddr, s.paddr, s.filesz, s.memsz, s.align)
            continue
        inside = [hole for hole in holes if s.offset <= hole.start and hole.end <= s.offset + s.filesz]
        at = s.offset
        for hole in inside:
            moved = at - s.offset
            yield Segment(
                PT_LOAD, s.flags, _shift(holes, at), s.vaddr + moved, s.paddr + moved, hole.start - at,
                hole.end - at, PAGE,
            )  # fmt: skip
            at = hole.end
        moved = at - s.offset
        yield Segment(
            PT_LOAD, s.flags, _shift(holes, at), s.vaddr + moved, s.paddr + moved, s.filesz - moved,
            s.memsz - moved, _align(s, _shift(holes, at), bool(inside)),
        )  # fmt: skip


def _align(segment: Segment, offset: int, split: bool) -> int:
    """Return an alignment that the loader accepts: address and offset must agree modulo it."""
    if split or (segment.align > PAGE and (segment.vaddr - offset) % segment.align):
        return PAGE
    return segment.align


def compacted(source: Source, elf: Elf, spans: list[Span], plan: Layout) -> Iterator[bytes]:
    """Yield the compacted file's bytes: headers rewritten, spans blank, holes left out."""
    fields = list(HEADER.unpack(source.read(0, HEADER.size)))
    fields[5], fields[6], fields[10] = plan.phoff, _shift(plan.holes, elf.shoff), len(plan.segments)
    yield HEADER.pack(*fields)
    table = _section_table(source, elf, plan.holes)
    at = HEADER.size
    for stop, skip in [*((hole.start, hole.end) for hole in plan.holes), (source.size, source.size)]:
        if at <= elf.shoff < stop:
            yield from blanked(source, spans, at, elf.shoff)
            yield table
            at = elf.shoff + len(table)
        yield from blanked(source, spans, at, stop)
        at = skip
    yield bytes(plan.phoff - plan.body_size)
    for s in plan.segments:
        yield SEGMENT.pack(s.type, s.flags, s.offset, s.vaddr, s.paddr, s.filesz, s.memsz, s.align)


def _section_table(source: Source, elf: Elf, holes: tuple[Span, ...]) -> bytes:
    table = bytearray(source.read(elf.shoff, SECTION.size * len(elf.sections)))
    for index, section in enumerate(elf.sections):
        if section.type != SHT_NOBITS and any(
            section.offset < hole.end and hole.start < section.offset + section.size for hole in holes
        ):
            struct.pack_into("<I", table, SECTION.size * index + 4, SHT_NOBITS)
        struct.pack_into("<Q", table, SECTION.size * index + 24, _shift(holes, section.offset))
    return bytes(table)
