# SPDX-License-Identifier: Apache-2.0
"""`Archive`: the members of a wheel, read with every length and checksum held against what it says.

A zip file states everything twice and zipfile believes the first it finds. Here a damaged or
hostile one is a LayerError that names the wheel and the member. Format: PKWARE's APPNOTE 6.3.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from imagebuild.layer.entries import LayerError, safe_path

_IN, _OUT = 1 << 18, 1 << 20
_LOCAL = struct.Struct("<4s22xHH")  # signature, …, length of the name, length of the extra field
_EXTRA = 1 << 10
_HEAD = 64
_ENCRYPTED, _UTF8 = 0x1, 0x800
_UNREADABLE = (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError, OverflowError)
# Deflate reaches 1032:1 on zeros. The largest of a stack's wheels, full of padding, is below 10:1.
_MOST_RATIO, _ALWAYS_FINE = 100, 64 << 20


class Archive:
    """An open wheel, safe to use from many threads; `members` are its files by name, in its order.

    `origin` names it in errors. Raises LayerError for a file that is no zip, a member twice, an
    encrypted or otherwise unreadable one, members that overlap, and a bomb.
    """

    def __init__(self, path: Path, origin: str = "") -> None:
        self.origin = origin or path.name
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        size = os.fstat(self.descriptor).st_size
        try:
            with zipfile.ZipFile(path) as archive:
                infos = archive.infolist()
        except _UNREADABLE as error:
            raise LayerError(f"{self.origin}: not a wheel: {error}") from error
        self.members: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            if info.filename in self.members:
                raise LayerError(f"{self.origin}: holds the same member twice: {info.filename}")
            self.members[info.filename] = info
        self._check_places(size)

    def _check_places(self, size: int) -> None:
        total, end, before = 0, 0, ""
        for info in sorted(self.members.values(), key=lambda i: i.header_offset):
            if info.header_offset < end:
                raise LayerError(f"{self.origin}: {info.filename} and {before} overlap")
            end, before = info.header_offset + _LOCAL.size + info.compress_size, info.filename
            total += info.file_size
        if end > size:
            raise LayerError(f"{self.origin}: {before} is cut off")
        if total > max(_ALWAYS_FINE, _MOST_RATIO * size):
            raise LayerError(f"{self.origin}: {size} bytes would become {total}, as in a zip bomb")

    def __contains__(self, name: str) -> bool:
        """Whether there is a member of that name."""
        return name in self.members

    def open(self, name: str) -> IO[bytes]:
        """Return a member's content as a stream. Raises LayerError if there is none or it is unreadable."""
        info = self.members.get(name)
        if info is None:
            raise LayerError(f"{self.origin}: has no {name}")
        return cast("IO[bytes]", Member(self, info))

    def read(self, name: str) -> bytes:
        """Return a member's content. Raises LayerError as `open` and reading do."""
        return self.open(name).read()

    def unpack(self, folder: Path, wanted: Callable[[str], bool] = lambda _: True) -> None:
        """Write the members whose name is wanted below `folder`. Raises LayerError, also for unsafe names."""
        for name, info in self.members.items():
            if not info.is_dir() and wanted(name):
                target = folder / safe_path(name, self.origin)
                target.parent.mkdir(parents=True, exist_ok=True)
                with self.open(name) as stream, open(target, "wb") as out:
                    shutil.copyfileobj(stream, out, _OUT)

    def text(self, name: str) -> str:
        """Return a member's content as text. Raises LayerError also where it is not UTF-8."""
        try:
            return self.read(name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise LayerError(f"{self.origin}: {name}: not UTF-8: {error}") from error


class Member(io.RawIOBase):
    """One member's content, from its begin. `read(n)` may give less than n bytes, but not less than 64."""

    def __init__(self, archive: Archive, info: zipfile.ZipInfo) -> None:
        self._archive, self._info = archive, info
        self._where = f"{archive.origin}: {info.filename}"
        if info.flag_bits & _ENCRYPTED or info.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise LayerError(f"{self._where}: allowed: members that are stored or deflated, not encrypted")
        self._input = self._first()
        self._left = info.compress_size - len(self._input)
        raw = self._inflated() if info.compress_type == zipfile.ZIP_DEFLATED else iter(self._more, b"")
        self._pieces = self._checked(raw)
        self._ready = b""

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes, all of them if negative. Raises LayerError for damage."""
        if size is None or size < 0:
            ready, self._ready = self._ready, b""
            return b"".join([ready, *self._pieces])
        while len(self._ready) < min(size, _HEAD) and (piece := next(self._pieces, b"")):
            self._ready += piece
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer as far as `read` would."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _first(self) -> bytes:
        """Check the local header; move to the content and return its begin."""
        info = self._info
        name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")
        wanted = _LOCAL.size + len(name) + _EXTRA + min(info.compress_size, _IN)
        head = os.pread(self._archive.descriptor, wanted, info.header_offset)
        if len(head) < _LOCAL.size or head[:4] != b"PK\3\4":
            raise LayerError(f"{self._where}: its local header is missing")
        _, name_size, extra_size = _LOCAL.unpack_from(head)
        if head[_LOCAL.size : _LOCAL.size + name_size] != name:
            raise LayerError(f"{self._where}: has another name in its local header")
        start = _LOCAL.size + name_size + extra_size
        data = head[start : start + min(info.compress_size, _IN)]
        self._at = info.header_offset + start + len(data)
        return data

    def _more(self) -> bytes:
        """Return the next piece as it is in the archive, or nothing at the end."""
        if self._input:
            data, self._input = self._input, b""
            return data
        data = os.pread(self._archive.descriptor, min(self._left, _IN), self._at)
        if self._left and not data:
            raise LayerError(f"{self._where}: is cut off")
        self._at += len(data)
        self._left -= len(data)
        return data

    def _inflated(self) -> Iterator[bytes]:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        tail = b""
        while not inflater.eof:
            data = tail or self._more()
            try:
                piece = inflater.decompress(data, _OUT)
            except zlib.error as error:
                raise LayerError(f"{self._where}: damaged: {error}") from error
            tail = inflater.unconsumed_tail
            if piece:
                yield piece
            elif not data and not inflater.eof:
                raise LayerError(f"{self._where}: the compressed data is cut off")
        if inflater.unused_data or self._left:
            raise LayerError(f"{self._where}: data follows the end of the compressed data")

    def _checked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        size = crc = 0
        for piece in pieces:
            size += len(piece)
            crc = zlib.crc32(piece, crc)
            if size > self._info.file_size:
                break
            yield piece
        if size != self._info.file_size:
            more = "more than " if size > self._info.file_size else f"{size} bytes instead of "
            raise LayerError(f"{self._where}: holds {more}the {self._info.file_size} bytes it announces")
        if crc != self._info.CRC:
            raise LayerError(f"{self._where}: damaged: its checksum is {crc:08x}, not {self._info.CRC:08x}")
