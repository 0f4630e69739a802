# SPDX-License-Identifier: Apache-2.0
"""The two containers inside a .deb: the ar archive, and the compressed tars that it holds.

The tar reader understands what dpkg understands and no more: ustar headers with GNU long names; files,
directories and links. Everything else in an archive is an error, so nothing needs to be trusted.
"""

from __future__ import annotations

import lzma
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from imagebuild.layer.entries import LayerError, safe_path

_CHUNK = 1 << 18
_NAME_LIMIT = 4096
_ID_LIMIT = 0xFFFFFFFE

Member = tuple[str, int, int]  # name, offset of the content, its size


def ar_members(stream: IO[bytes], origin: str) -> list[Member]:
    """Return (name, offset, size) of each ar member; sizes are checked against the file's."""
    end = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    if stream.read(8) != b"!<arch>\n":
        raise LayerError(f"{origin}: not a .deb file (no ar header)")
    members: list[Member] = []
    position = 8
    while position < end:
        stream.seek(position)
        header = stream.read(60)
        name = header[:16].decode("ascii", "replace").rstrip().rstrip("/")
        digits = header[48:58].strip()
        if len(header) != 60 or header[58:] != b"`\n" or not digits.isdigit():
            raise LayerError(f"{origin}: damaged ar header at byte {position}")
        size = int(digits)
        if position + 60 + size > end:
            raise LayerError(f"{origin}: member {name!r} is truncated: {size} bytes announced")
        members.append((name, position + 60, size))
        position += 60 + size + size % 2
    if not members or members[0][0] != "debian-binary":
        raise LayerError(f"{origin}: not a .deb file (first member is not debian-binary)")
    stream.seek(members[0][1])
    version = stream.read(min(members[0][2], 16))
    if not version.startswith(b"2."):
        raise LayerError(f"{origin}: debian-binary: unknown format version {version!r}; allowed: 2.x")
    return members


def member(members: Sequence[Member], stem: str, origin: str) -> Member:
    """Return the one member called `stem` with any compression suffix."""
    found = [m for m in members if m[0] == stem or m[0].startswith(stem + ".")]
    if len(found) != 1:
        raise LayerError(f"{origin}: has {len(found)} members {stem}.*; a .deb has one")
    return found[0]


class _Decompressor(Protocol):
    """What lzma's decompressor has, and what `_Gzip` gives zlib's."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    """zlib's decompressor with the interface of lzma's."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def _decompressor(suffix: str, where: str) -> _Decompressor | None:
    if suffix == "":
        return None
    if suffix == "xz":
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=256 << 20)
    if suffix == "gz":
        return _Gzip()
    if suffix == "zst":
        raise LayerError(
            f"{where}: zstd-compressed packages (Ubuntu's) are not supported; allowed: xz, gz and none, "
            "as in Debian 12"
        )
    raise LayerError(f"{where}: unknown compression; allowed: xz, gz and none")


class Unpacked:
    """The decompressed bytes of one ar member, read forward, at most `limit` of them."""

    def __init__(self, stream: IO[bytes], offset: int, size: int, limit: int, where: str) -> None:
        stream.seek(offset)
        self._stream = stream
        self._left = size
        self._limit = limit
        self._total = 0
        self._buffer = b""
        self._position = 0
        self._where = where
        self._inner = _decompressor(where.rpartition(".tar")[2].lstrip("."), where)

    def _more(self) -> bytes:
        """Return the next non-empty piece of output, or nothing at the end."""
        piece = self._plain() if self._inner is None else self._inflate(self._inner)
        self._total += len(piece)
        if self._total > self._limit:
            raise LayerError(f"{self._where}: unpacks to more than the limit of {self._limit} bytes")
        return piece

    def _plain(self) -> bytes:
        data = self._stream.read(min(self._left, _CHUNK))
        self._left -= len(data)
        return data

    def _inflate(self, inner: _Decompressor) -> bytes:
        piece = b""
        while not piece and not inner.eof:
            data = self._plain() if inner.needs_input else b""
            if inner.needs_input and not data:
                raise LayerError(f"{self._where}: the compressed data is truncated")
            try:
                piece = inner.decompress(data, _CHUNK * 4)
            except (lzma.LZMAError, zlib.error) as error:
                raise LayerError(f"{self._where}: damaged: {error}") from error
        if inner.eof and (self._left or inner.unused_data):
            raise LayerError(f"{self._where}: data follows the end of the compressed data")
        return piece

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        have = len(self._buffer) - self._position
        if have < size:
            parts = [self._buffer[self._position :]]
            while have < size:
                piece = self._more()
                if not piece:
                    raise LayerError(f"{self._where}: the tar is truncated")
                parts.append(piece)
                have += len(piece)
            self._buffer = b"".join(parts)
            self._position = 0
        data = self._buffer[self._position : self._position + size]
        self._position += size
        return data

    def skip(self, size: int) -> None:
        """Read and forget `size` bytes."""
        self.read(size)

    def finish(self) -> None:
        """Read to the end, so that the compressed data's own checks run. Only zeros may be left."""
        rest = self._buffer[self._position :] or self._more()
        while rest:
            if rest.strip(b"\0"):
                raise LayerError(f"{self._where}: data follows the end of the tar")
            rest = self._more()


@dataclass(frozen=True)
class Head:
    """One member of a tar; fields as in `Entry`, except that a hard link's `target` is not normalised."""

    path: str
    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    target: str


_KINDS = {b"0": "file", b"\0": "file", b"1": "hardlink", b"2": "symlink", b"5": "dir"}
_REFUSED = {
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a FIFO",
    b"S": "a sparse file",
    b"x": "a pax header",
    b"g": "a global pax header",
}


def tar_headers(tar: Unpacked, origin: str) -> Iterator[Head]:
    """Yield each member's header; the caller reads its content and padding before the next one."""
    long_name = long_link = ""
    while True:
        block = tar.read(512)
        if not block.strip(b"\0"):
            tar.finish()
            return
        total = sum(block) - sum(block[148:156]) + 8 * 32
        if _octal(block[148:156], origin, "checksum") != total:
            raise LayerError(f"{origin}: damaged tar header (checksum)")
        kind = block[156:157]
        size = _octal(block[124:136], origin, "size")
        if kind in (b"L", b"K"):
            if not 0 < size <= _NAME_LIMIT:
                raise LayerError(f"{origin}: a name of {size} bytes; allowed: 1 to {_NAME_LIMIT}")
            text = _text(tar.read(size), origin)
            tar.skip(-size % 512)
            if kind == b"L":
                long_name = text
            else:
                long_link = text
            continue
        name = long_name or _ustar_name(block, origin)
        if "\n" in name:  # dpkg's lists have one path a line
            raise LayerError(f"{origin}: refused path {name!r}")
        target = long_link or _text(block[157:257], origin)
        long_name = long_link = ""
        if kind not in _KINDS:
            what = _REFUSED.get(kind, f"tar member type {kind!r}")
            raise LayerError(
                f"{origin}: {name}: is {what}; allowed: files, directories, symbolic and hard links"
            )
        word = _KINDS[kind]
        if size and word != "file":
            raise LayerError(f"{origin}: {name}: a {word} of {size} bytes")
        yield Head(
            safe_path(name.rstrip("/") or "/", origin),
            word,
            _octal(block[100:108], origin, "mode") & 0o7777,
            _octal(block[108:116], origin, "uid", _ID_LIMIT),
            _octal(block[116:124], origin, "gid", _ID_LIMIT),
            size,
            target if word in ("symlink", "hardlink") else "",
        )


def _text(raw: bytes, origin: str) -> str:
    try:
        return raw.split(b"\0", 1)[0].decode()
    except UnicodeDecodeError as error:
        raise LayerError(f"{origin}: the name {raw!r} is not UTF-8") from error


def _ustar_name(block: bytes, origin: str) -> str:
    name = _text(block[:100], origin)
    prefix = _text(block[345:500], origin) if block[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _octal(raw: bytes, origin: str, what: str, largest: int = 1 << 62) -> int:
    """Read a tar number: octal text, or GNU's base 256 for large values."""
    digits = raw.strip(b" \0")
    if raw[0] == 0x80:
        value = int.from_bytes(raw[1:], "big")
    elif digits.strip(b"01234567"):
        value = -1
    else:
        value = int(digits or b"0", 8)
    if not 0 <= value <= largest:
        raise LayerError(f"{origin}: damaged tar header ({what} {raw!r})")
    return value
