# SPDX-License-Identifier: Apache-2.0
"""`Spool`: one temporary file for the decompressed content of many archives."""

from __future__ import annotations

import io
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from imagebuild.layer.entries import LayerError

PIECE = 8 << 20
_CHUNK = 1 << 18


class Spool:
    """One temporary file that holds the content of many archives; safe to use from many threads.

    Use as a context manager: entries read from it are valid until it closes.
    """

    def __init__(self, folder: Path | None = None) -> None:
        # Closed by close(): the file must outlive this call.
        self._file = tempfile.TemporaryFile(dir=folder, prefix="imagebuild-spool-", buffering=0)  # noqa: SIM115
        self._end = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the file; open streams stop working."""
        self._file.close()

    def add(self, data: bytes) -> tuple[int, int]:
        """Append `data` and return its (offset, size)."""
        with self._lock:
            offset = self._end
            self._end += len(data)
        view = memoryview(data)
        at = offset
        while view:
            written = os.pwrite(self._file.fileno(), view, at)
            at += written
            view = view[written:]
        return offset, len(data)

    def open(self, pieces: Sequence[tuple[int, int]]) -> IO[bytes]:
        """Return a new stream over the joined (offset, size) pieces."""
        if sum(size for _, size in pieces) <= PIECE:
            return io.BytesIO(b"".join(self.read(offset, size) for offset, size in pieces))
        return io.BufferedReader(_Pieces(self, pieces), _CHUNK)

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes at `offset`."""
        data = os.pread(self._file.fileno(), size, offset)
        if len(data) != size:
            raise LayerError(f"the spool file is cut off at byte {offset + len(data)}")
        return data


class _Pieces(io.RawIOBase):
    def __init__(self, spool: Spool, pieces: Sequence[tuple[int, int]]) -> None:
        self._spool = spool
        self._left = list(pieces)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if not self._left:
            return 0
        offset, size = self._left[0]
        data = self._spool.read(offset, min(size, len(buffer)))
        buffer[: len(data)] = data
        self._left[0] = (offset + len(data), size - len(data))
        if size == len(data):
            del self._left[0]
        return len(data)
