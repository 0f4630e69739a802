# SPDX-License-Identifier: Apache-2.0
"""Entries → one compressed layer blob, hashed on the way, in one pass and bounded memory."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol

import zstandard

from imagebuild.layer.entries import Entry
from imagebuild.layer.tarball import write_tar

Compression = Literal["zstd", "gzip"]
MEDIA_TYPES: dict[Compression, str] = {
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
}
# Level 6 makes the sm_103 image 4 % smaller than level 3 for 14 s more on two cores (benchmarks/size.py).
ZSTD_LEVEL = 6
GZIP_LEVEL = 6
_GZIP_WBITS = 31  # deflate in a gzip frame whose header has no time and no name (zlib manual)


@dataclass(frozen=True)
class Blob:
    """One layer blob: `digest` and `size` (bytes) of the compressed form, `diff_id` of the tar in it."""

    digest: str
    size: int
    diff_id: str
    unpacked: int
    media_type: str


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


def _compressor(compression: Compression, threads: int) -> _Compressor:
    if compression == "gzip":
        return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
    # At least one worker thread: zstd's multi-threaded form is another one than its single-threaded
    # form, but does not depend on how many threads there are or how the input is cut.
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, threads=max(1, threads)).compressobj()


class _Pipe:
    """A write-only stream: hashes the tar, compresses it, hashes and stores the result."""

    def __init__(self, out: IO[bytes], compression: Compression, threads: int) -> None:
        self._out = out
        self._compressor = _compressor(compression, threads)
        self._plain, self._packed = hashlib.sha256(), hashlib.sha256()
        self.unpacked = self.size = 0

    def write(self, data: bytes) -> int:
        """Take a piece of the tar."""
        self._plain.update(data)
        self.unpacked += len(data)
        self._store(self._compressor.compress(data))
        return len(data)

    def _store(self, data: bytes) -> None:
        if data:
            self._packed.update(data)
            self.size += len(data)
            self._out.write(data)

    def finish(self) -> tuple[str, str]:
        """Return the digests of the compressed and of the plain form."""
        self._store(self._compressor.flush())
        return f"sha256:{self._packed.hexdigest()}", f"sha256:{self._plain.hexdigest()}"


def blob_path(folder: Path, digest: str) -> Path:
    """Return where a blob lies below a folder of blobs, as in an OCI layout."""
    algorithm, _, value = digest.partition(":")
    return folder / algorithm / value


def write_blob(
    entries: Iterable[Entry],
    folder: Path,
    mtime: int,
    compression: Compression,
    threads: int,
    advance: Callable[[int], None],
) -> Blob:
    """Write a layer below `folder` and return what it is; `advance` gets the bytes of each file.

    The blob appears under its digest only when it is whole. Raises OSError (a full disk, say) and
    whatever reading an entry raises; then nothing is left behind.
    """
    target = folder / "sha256"
    target.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".blob-", dir=target)
    try:
        with os.fdopen(handle, "wb", buffering=1 << 20) as out:
            pipe = _Pipe(out, compression, threads)
            write_tar(entries, pipe, mtime, advance)
            digest, diff_id = pipe.finish()
        os.chmod(name, 0o444)
        os.replace(name, blob_path(folder, digest))
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Blob(digest, pipe.size, diff_id, pipe.unpacked, MEDIA_TYPES[compression])
