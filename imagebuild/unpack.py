# SPDX-License-Identifier: Apache-2.0
"""Layer blobs → a root file system in a folder, for chroot, enroot or bubblewrap."""

from __future__ import annotations

import functools
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import zstandard

from imagebuild.layer.entries import Entry, LayerError, write_directory
from imagebuild.layer.tarball import entry_of
from imagebuild.oci_blob import Blob, blob_path

_CHUNK = 1 << 20


class _Gunzip(io.RawIOBase):
    """A gzip frame as a readable stream (gzip.GzipFile is a third slower)."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self._engine, self._ready = source, zlib.decompressobj(31), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        while not self._ready:
            data = self._source.read(_CHUNK)
            if not data:
                return 0
            self._ready = self._engine.decompress(data)
        part, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def open_layer(path: Path, media_type: str) -> IO[bytes]:
    """Return a layer blob's tar as a stream.

    Raises LayerError for a media type that no layer of ours has.
    """
    file = open(path, "rb")  # noqa: SIM115 - the stream that is returned owns it
    if media_type.endswith("+zstd"):
        return zstandard.ZstdDecompressor().stream_reader(file, closefd=True)
    if media_type.endswith("+gzip"):
        return io.BufferedReader(_Gunzip(file), _CHUNK)  # type: ignore[type-var]
    file.close()
    raise LayerError(f"{path.name}: unknown layer type {media_type}")


def layer_members(path: Path, media_type: str) -> Iterator[Entry]:
    """Yield a layer's entries in order; a file's content can be read once, before the next entry.

    Raises LayerError for a damaged blob or a member that a layer of ours cannot have.
    """
    try:
        with open_layer(path, media_type) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for info in tar:
                content = functools.partial(_content, tar, info) if info.isreg() else None
                yield entry_of(info, path.name, content)
    except (tarfile.TarError, zstandard.ZstdError, zlib.error, EOFError) as error:
        raise LayerError(f"{path.name}: damaged layer: {error}") from error


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    stream = tar.extractfile(info)
    assert stream is not None
    return stream


def unpack_image(
    layers: tuple[Blob, ...],
    blobs: Path,
    root: Path,
    mtime: int,
    report: Callable[[str], None],
    seen: Callable[[Entry], None] = lambda entry: None,
) -> int:
    """Unpack layers in order below `root` (empty or new); return the number of paths.

    Owners are set when root runs it. `seen` is told each entry. Raises FileExistsError if `root`
    holds anything, LayerError for a damaged layer or a path that would leave `root`.
    """
    if root.exists() and any(root.iterdir()):
        raise FileExistsError(17, "exists and is not empty", str(root))
    root.mkdir(parents=True, exist_ok=True)
    count = 0
    folders: list[Entry] = []
    for number, layer in enumerate(layers, 1):
        for entry in layer_members(blob_path(blobs, layer.digest), layer.media_type):
            if entry.path:
                write_directory(entry, root, mtime)
                seen(entry)
                count += 1
                if entry.kind == "dir":
                    folders.append(entry)
        report(f"layer {number} of {len(layers)}: {layer.unpacked / 1e6:,.0f} MB")
    for entry in reversed(folders):  # writing into a folder has changed its time
        write_directory(entry, root, mtime)
    return count
