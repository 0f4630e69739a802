# SPDX-License-Identifier: Apache-2.0
"""`Source`: bounds-checked random access to bytes that are not in memory.

Readers of untrusted formats see a file only through this, so a lying offset or size is a
FormatError that names the place, never a crash or a huge allocation.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

_CHUNK = 1 << 20
MAX_READ = 1 << 26  # bytes: no header or table that we read at once is larger


class FormatError(Exception):
    """A file is not what its format says; the message names what and at which byte."""


class Source(Protocol):
    """`size` is in bytes; `read` returns exactly `size` bytes from `at`, or raises FormatError."""

    @property
    def size(self) -> int: ...

    def read(self, at: int, size: int) -> bytes: ...


def check_range(at: int, size: int, limit: int) -> None:
    """Raise FormatError unless `size` bytes at `at` lie below `limit` and may be read at once."""
    if at < 0 or size < 0 or at + size > limit:
        raise FormatError(f"{size} bytes at {at:#x} do not lie within {limit} bytes")
    if size > MAX_READ:
        raise FormatError(f"a table of {size} bytes at {at:#x}; at most {MAX_READ} are read")


@dataclass(frozen=True)
class BytesSource:
    """Bytes in memory."""

    data: bytes

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.data)

    def read(self, at: int, size: int) -> bytes:
        """Return bytes."""
        check_range(at, size, len(self.data))
        return self.data[at : at + size]


@dataclass(frozen=True)
class FileSource:
    """An open file from byte `start` on. Reads with pread, so threads may share it."""

    descriptor: int
    size: int
    start: int = 0

    @classmethod
    def of(cls, descriptor: int) -> FileSource:
        """Return the source of a whole open file."""
        return cls(descriptor, os.fstat(descriptor).st_size)

    def read(self, at: int, size: int) -> bytes:
        """Return bytes."""
        check_range(at, size, self.size)
        data = os.pread(self.descriptor, size, self.start + at)
        while len(data) < size:
            more = os.pread(self.descriptor, size - len(data), self.start + at + len(data))
            if not more:
                raise FormatError(f"the file ends at {self.start + at + len(data):#x}; it got shorter")
            data += more
        return data


@dataclass(frozen=True)
class Part:
    """A slice of another source: a member of an archive."""

    whole: Source
    start: int
    size: int

    def read(self, at: int, size: int) -> bytes:
        """Return bytes."""
        check_range(at, size, self.size)
        return self.whole.read(self.start + at, size)


class SourceStream(io.RawIOBase):
    """A stream over a source, from its begin."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        size = min(len(buffer), self._source.size - self._at, _CHUNK)
        buffer[:size] = self._source.read(self._at, size)
        self._at += size
        return size


def occurrences(source: Source, needle: bytes, start: int, end: int, step: int = 1) -> Iterator[int]:
    """Yield where `needle` begins in [start, end), at multiples of `step`; reads every byte once."""
    at = start
    while at + len(needle) <= end:
        data = source.read(at, min(_CHUNK, end - at))
        found = data.find(needle)
        while found >= 0:
            if (at + found) % step == 0:
                yield at + found
            found = data.find(needle, found + 1)
        at += max(len(data) - len(needle) + 1, 1)


def chunks(source: Source, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of [start, end) in pieces of at most 1 MiB."""
    while start < end:
        data = source.read(start, min(_CHUNK, end - start))
        yield data
        start += len(data)


def is_zero(source: Source, start: int, end: int) -> bool:
    """Tell whether all bytes of [start, end) are zero."""
    return all(not data.strip(b"\0") for data in chunks(source, start, end))
