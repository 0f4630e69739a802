# SPDX-License-Identifier: Apache-2.0
"""Hash many large files on all cores, in little memory; and sample blocks for a quick look.

sha256 is sequential within a file, so a single file keeps one core busy; shards of one size keep all.
hashlib and readinto release the interpreter's lock for such blocks, so threads do.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from imagebuild.crew import cores

BLOCK = 1 << 20  # bytes; one buffer per thread, small enough to stay in a core's cache
SAMPLES = 16
SAMPLE_SIZE = 64 << 10
MAX_THREADS = 128


def hash_file(path: Path, advance: Callable[[int], None], stop: threading.Event | None = None) -> str:
    """Return a file's sha256, or nothing if `stop` was set. Raises OSError."""
    digest = hashlib.sha256()
    buffer = bytearray(BLOCK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(buffer):
            digest.update(view[:count])
            advance(count)
            if stop is not None and stop.is_set():
                return ""
    return digest.hexdigest()


def hash_all(files: Iterable[tuple[Path, int]], advance: Callable[[int], None]) -> dict[Path, str | OSError]:
    """Return the sha256 of each (path, size), or why it cannot be read. Big files begin first."""
    ordered = sorted(files, key=lambda item: -item[1])
    results: dict[Path, str | OSError] = {}
    if not ordered:
        return results
    stop = threading.Event()

    def one(path: Path) -> str | OSError:
        try:
            return hash_file(path, advance, stop)
        except OSError as error:
            return error

    with ThreadPoolExecutor(min(len(ordered), 2 * cores(), MAX_THREADS)) as pool:
        pending = {pool.submit(one, path): path for path, _ in ordered}
        try:
            while pending:
                for future in wait(pending, timeout=0.5, return_when=FIRST_COMPLETED).done:
                    results[pending.pop(future)] = future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return results


def sample(path: Path, size: int) -> str:
    """Return a hash over blocks spread evenly over a file, first and last included; reads at most 1 MiB.

    Raises OSError.
    """
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb", buffering=0) as file:
        last = max(0, size - SAMPLE_SIZE)
        places = sorted({last * i // (SAMPLES - 1) for i in range(SAMPLES)})
        for place in places:
            digest.update(os.pread(file.fileno(), SAMPLE_SIZE, place))
    return digest.hexdigest()
