# SPDX-License-Identifier: Apache-2.0
"""The least that building an image can cost: inflate, compress and hash the same bytes, nothing else.

    python -m benchmarks.floor WORK.json

WORK.json names the locked files (`files`, each with its kind: hashed; wheels inflated, .debs' data
unpacked) and the layers' tars (`tars`: hashed, compressed with the engine's zstd at its level, the
result hashed too). Nothing is written. One process per core, largest pieces first; prints nothing.
The tars should be in the page cache.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import mmap
import multiprocessing
import os
import sys
import zlib
from pathlib import Path

import zstandard

from imagebuild.cache import hash_file
from imagebuild.layer.archive import Archive
from imagebuild.layer.debtar import ar_members, member
from imagebuild.oci_blob import ZSTD_LEVEL

_CHUNK = 1 << 20
Piece = tuple[int, str, str]  # bytes of output, what to do, the file (and the member's name)


def pieces(files: list[tuple[str, str]], tars: list[str]) -> list[Piece]:
    """Return the pieces of work, largest first; zstd counts four times, as it is that much slower."""
    found: list[Piece] = []
    for name, kind in files:
        found.append((os.path.getsize(name) // 4, "hash", name))
        if kind == "deb":
            found.append((os.path.getsize(name) * 4, "deb", name))
            continue
        batch: list[str] = []
        size = 0
        for info in sorted(Archive(Path(name)).members.values(), key=lambda i: -i.file_size):
            batch.append(info.filename)
            size += info.file_size
            if size > 64 << 20:
                found.append((size, "inflate", "\0".join([name, *batch])))
                batch, size = [], 0
        found.append((size, "inflate", "\0".join([name, *batch])))
    found += [(os.path.getsize(name) * 4, "pack", name) for name in tars]
    return sorted(found, reverse=True)


def _inflate(names: str) -> None:
    path, *members = names.split("\0")
    archive = Archive(Path(path))
    for name in members:
        info = archive.members[name]
        inflater = zlib.decompressobj(-15)
        at, left = info.header_offset + 30, info.compress_size
        head = os.pread(archive.descriptor, 30, info.header_offset)
        at += int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        while left:
            data = os.pread(archive.descriptor, min(left, 1 << 18), at)
            at, left = at + len(data), left - len(data)
            if info.compress_type:
                inflater.decompress(data)


def _unpack_deb(path: str) -> None:
    with open(path, "rb") as file:
        _, offset, size = member(ar_members(file, path), "data.tar", path)
        file.seek(offset)
        lzma.decompress(file.read(size))


def _hash(path: str) -> None:
    with open(path, "rb") as file:
        hash_file(file)


def _pack(path: str) -> None:
    plain, packed = hashlib.sha256(), hashlib.sha256()
    # One worker thread beside this one, as a layer of the engine has.
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, threads=1).compressobj()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        with memoryview(content) as view:
            for at in range(0, len(view), _CHUNK):
                data = view[at : at + _CHUNK]
                plain.update(data)
                packed.update(compressor.compress(data))
                data.release()
        packed.update(compressor.flush())


_DO = {"hash": _hash, "deb": _unpack_deb, "inflate": _inflate, "pack": _pack}


def _do(piece: Piece) -> None:
    _DO[piece[1]](piece[2])


def main() -> None:
    """Do it all once."""
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    todo = pieces(work["files"], work["tars"])
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for _ in pool.imap_unordered(_do, todo):
            pass


if __name__ == "__main__":
    main()
