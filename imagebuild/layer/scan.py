# SPDX-License-Identifier: Apache-2.0
"""Find all GPU code in one file: shared objects, static archives, loose cubins, fatbins and PTX.

Containers lie in the sections .nv_fatbin and __nv_relfatbin, where cuobjdump looks too, and in
some NVIDIA libraries elsewhere (.cask_resource, .ldata, .rodata), which cuobjdump does not list.
A compacted file has holes in its .nv_fatbin; it is read as the loader would map it. Nothing is
loaded or run, and time and memory are bounded by the file's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from imagebuild.layer.binary import FormatError, Part, Source, is_zero, occurrences
from imagebuild.layer.cubin import cubin_code, ptx_code
from imagebuild.layer.elf import EM_CUDA, SHT_NOBITS, Elf, MemoryImage, Section, is_elf, linkage, read_elf
from imagebuild.layer.fatbin import MAGIC, Budget, BudgetSpent, Container, Entry, read_container

FORMAT = 1  # raised when the same file would be read differently
Place = Literal["fatbin", "relocatable", "elsewhere", "loose"]
FileKind = Literal["elf", "archive", "cubin", "fatbin", "ptx"]
Way = Literal["sections", "segments", "file"]
_SECTIONS: dict[str, Place] = {".nv_fatbin": "fatbin", "__nv_relfatbin": "relocatable"}
_ARCHIVE = b"!<arch>\n"
_MEMBER = 60  # bytes of a member's header, ar(5)
_ALIGN = 8


@dataclass(frozen=True)
class Found:
    """A container and where it is.

    `place`: fatbin is what the CUDA runtime registers, relocatable what a driver may link anew,
    elsewhere what a library hands to the driver itself, loose a file of its own. `where` is the
    section. Offsets in `container` count from the file's begin, or if `mapped` are addresses of
    the loaded file.
    """

    place: Place
    where: str
    mapped: bool
    container: Container


@dataclass(frozen=True)
class FileCode:
    """What one file holds.

    `read_by` says how it was read: by its sections (as cuobjdump does), by its segments (the
    section table is missing or lost bytes to compaction), or as a plain file. `name` is a shared
    object's own name and `needs` the libraries that it is linked against.
    """

    kind: FileKind
    read_by: Way
    found: tuple[Found, ...]
    name: str = ""
    needs: tuple[str, ...] = ()


def scan(source: Source, name: str = "") -> FileCode | None:
    """Return the GPU code of a file, or None if it is of no kind that can hold any.

    `name` decides only whether text is PTX. Raises FormatError for a damaged file.
    """
    budget = Budget(source.size)
    if is_elf(source):
        return _scan_elf(source, budget)
    head = source.read(0, min(source.size, len(_ARCHIVE)))
    if head == _ARCHIVE:
        return FileCode("archive", "sections", tuple(_scan_archive(source, budget)))
    if head.startswith(MAGIC):
        found = [Found("loose", "", False, c) for c in _walk(source, 0, source.size, budget)]
        return FileCode("fatbin", "file", tuple(found))
    if name.endswith(".ptx"):
        return FileCode("ptx", "file", (_loose(Entry(ptx_code(source), 0, source.size, False)),))
    return None


def _loose(entry: Entry) -> Found:
    return Found("loose", "", False, Container(0, entry.size, (entry,)))


def _scan_elf(source: Source, budget: Budget) -> FileCode:
    elf = read_elf(source)
    if elf.machine == EM_CUDA:
        entry = Entry(cubin_code(source, elf), 0, source.size, False)
        return FileCode("cubin", "file", (_loose(entry),))
    name, needs = linkage(source, elf)
    if not elf.sections:
        found = tuple(_by_segments(source, elf, budget))
        return FileCode("elf", "segments", found, name, needs)
    sections = [s for s in elf.sections if s.name in _SECTIONS and s.size]
    mapped = any(s.type == SHT_NOBITS for s in sections)
    found = (*_by_sections(source, elf, sections, budget), *_elsewhere(source, elf, sections, budget))
    return FileCode("elf", "segments" if mapped else "sections", found, name, needs)


def _by_sections(source: Source, elf: Elf, sections: list[Section], budget: Budget) -> Iterator[Found]:
    for section in sections:
        place, mapped = _SECTIONS[section.name], section.type == SHT_NOBITS
        space: Source = MemoryImage(source, elf.loads) if mapped else source
        start = section.addr if mapped else section.offset
        if start + section.size > space.size:
            raise FormatError(f"{section.name} at {start:#x} of {section.size} bytes is in no segment")
        for container in _walk(space, start, start + section.size, budget):
            yield Found(place, section.name, mapped, container)


def _walk(space: Source, start: int, end: int, budget: Budget) -> Iterator[Container]:
    """Yield the containers that fill [start, end); only zeros may lie between them."""
    at = start
    while at < end:
        following = _next(space, at, end)
        if following < 0:
            return
        container = read_container(space, following, end, budget)
        yield container
        at = following + container.size


def _next(space: Source, at: int, end: int) -> int:
    """Return where the next container begins, -1 if only zeros follow."""
    spans = space.backed(at, end) if isinstance(space, MemoryImage) else [(at, end)]
    for low, high in spans:
        found = next(occurrences(space, MAGIC, low, high), -1)
        if not is_zero(space, low, found if found >= 0 else high):
            raise FormatError(f"bytes at {low:#x} belong to no GPU-code container")
        if found >= 0:
            return found
    return -1


def _file_ranges(elf: Elf, section: Section) -> list[tuple[int, int]]:
    """Return the file ranges that hold a section's bytes; a compacted section has several."""
    if section.type != SHT_NOBITS:
        return [(section.offset, section.offset + section.size)]
    found = []
    for load in elf.loads:
        low = max(section.addr, load.vaddr)
        high = min(section.addr + section.size, load.vaddr + load.filesz)
        if low < high:
            found.append((load.offset + low - load.vaddr, load.offset + high - load.vaddr))
    return found


def _elsewhere(source: Source, elf: Elf, sections: list[Section], budget: Budget) -> Iterator[Found]:
    """Yield containers outside the usual sections. What only looks like one is passed over."""
    at = 0
    taken = sorted(span for section in sections for span in _file_ranges(elf, section))
    for low, high in [*taken, (source.size, source.size)]:
        if at < low:
            for container in _search(source, [(at, low)], low, budget):
                yield Found("elsewhere", _section_at(elf, container.at), False, container)
        at = max(at, high)


def _search(space: Source, spans: list[tuple[int, int]], limit: int, budget: Budget) -> Iterator[Container]:
    """Yield what reads as a container with entries in the spans; it must end before `limit`."""
    free = 0
    for low, high in spans:
        for found in occurrences(space, MAGIC, low, high, _ALIGN):
            if found < free:
                continue
            try:
                container = read_container(space, found, limit, budget)
            except BudgetSpent:
                raise
            except FormatError:
                continue
            if container.entries:
                yield container
                free = found + container.size


def _section_at(elf: Elf, at: int) -> str:
    for section in elf.sections:
        if section.type != SHT_NOBITS and section.offset <= at < section.offset + section.size:
            return section.name
    return ""


def _by_segments(source: Source, elf: Elf, budget: Budget) -> Iterator[Found]:
    """Read a file without section table. Which containers are registered cannot be told."""
    image = MemoryImage(source, elf.loads)
    for container in _search(image, image.backed(0, image.size), image.size, budget):
        yield Found("fatbin", "", True, container)


def _scan_archive(source: Source, budget: Budget) -> Iterator[Found]:
    """Yield the containers of an archive's objects. Format: ar(5)."""
    at = len(_ARCHIVE)
    while at + _MEMBER <= source.size:
        budget.spend()
        header = source.read(at, _MEMBER)
        if header[58:] != b"`\n" or not header[48:58].strip().isdigit():
            raise FormatError(f"the archive member at {at:#x} has no valid header")
        size = int(header[48:58])
        if at + _MEMBER + size > source.size:
            raise FormatError(f"the archive member at {at:#x} of {size} bytes runs past the file")
        member = Part(source, at + _MEMBER, size)
        if is_elf(member):
            for found in _scan_elf(member, budget).found:
                yield replace(found, container=_moved(found.container, member.start))
        at += _MEMBER + size + size % 2


def _moved(container: Container, by: int) -> Container:
    entries = tuple(replace(entry, at=entry.at + by) for entry in container.entries)
    return replace(container, at=container.at + by, entries=entries)
