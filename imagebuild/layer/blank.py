# SPDX-License-Identifier: Apache-2.0
"""Blanking: which payloads a GPU can never load, and the file without them.

Only payloads of cubins and PTX in .nv_fatbin and __nv_relfatbin become zero. Container and entry headers,
sizes and offsets stay, so the driver's walk and choice, every symbol and every relocation are what they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from imagebuild.layer.binary import Source, chunks
from imagebuild.layer.gpucode import loadable
from imagebuild.layer.scan import FileCode

_EDITED = ("fatbin", "relocatable")


@dataclass(frozen=True)
class Span:
    """Bytes [start, end) of a file."""

    start: int
    end: int


def blankable(code: FileCode, gpu: int) -> list[Span]:
    """Return the payloads that the GPU with this number can never load, in file order, adjacent ones apart.

    Nothing of a file that was compacted already.
    """
    spans = [
        Span(entry.at, entry.at + entry.size)
        for found in code.found
        if found.place in _EDITED and not found.mapped
        for entry in found.container.entries
        if entry.size and not loadable(entry.code, gpu)
    ]
    return sorted(spans, key=lambda span: span.start)


def blanked(source: Source, spans: Iterable[Span], start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of [start, end) with the spans as zeros, in pieces of at most 1 MiB."""
    at = start
    for span in spans:
        if span.end <= at or span.start >= end:
            continue
        yield from chunks(source, at, max(at, span.start))
        at = max(at, span.start)
        stop = min(span.end, end)
        yield from zeros(stop - at)
        at = stop
    yield from chunks(source, at, end)


def zeros(size: int) -> Iterator[bytes]:
    """Yield `size` zero bytes in pieces of at most 1 MiB."""
    block = bytes(min(max(size, 0), 1 << 20))
    while size > 0:
        yield block[: min(size, len(block))]
        size -= len(block)
