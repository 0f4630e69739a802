# SPDX-License-Identifier: Apache-2.0
"""`Store`: the download cache, content-addressed and shared by all archs, processes and runs.

`<root>/files/<first two digits>/<sha256>` is a whole file; `<sha256>.part` beside it is a download
under way, locked (flock) by whoever writes it. A rename makes the whole file, so a killed process
leaves at most a `.part`, which the next run continues.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from imagebuild.crew import cores
from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.layer.spec import Artifact
from imagebuild.progress import Progress, Quiet, files_text, size_text

PART_MAX_AGE_S = 7 * 24 * 3600
SPACE_MARGIN = 64 << 20  # bytes left free for the file system's own needs
_BLOCK = 1 << 20


class DiskTrouble(PreconditionError):
    """The disk is full or cannot be written."""


@dataclass(frozen=True)
class Store:
    """The cache below `root`; makes its folders when it first writes."""

    root: Path

    def path(self, sha256: str) -> Path:
        """Return where the whole file with this hash is, or would be."""
        return self.root / "files" / sha256[:2] / sha256

    def part_path(self, sha256: str) -> Path:
        """Return where an unfinished download of this hash is, or would be."""
        return self.path(sha256).with_name(sha256 + ".part")

    def has(self, artifact: Artifact) -> bool:
        """Tell whether the file is there with the right size; `verify` reads its bytes too."""
        try:
            size = self.path(artifact.sha256).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return False
        return artifact.size <= 0 or size == artifact.size

    def part_size(self, sha256: str) -> int:
        """Return how many bytes of an unfinished download are there."""
        try:
            return self.part_path(sha256).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return 0

    @contextlib.contextmanager
    def open_part(self, sha256: str) -> Iterator[BinaryIO | None]:
        """Open the `.part` file of a hash for this process and thread alone; None if another has it.

        An empty one is removed at the end. Raises DiskTrouble.
        """
        path = self.part_path(sha256)
        file = _open_locked(path)
        if file is None:
            yield None
            return
        with file:
            try:
                yield file
            finally:
                if os.fstat(file.fileno()).st_size == 0 and _is(file, path):
                    path.unlink()

    def commit(self, file: BinaryIO, sha256: str) -> Path:
        """Make a complete `.part` file, whose hash the caller has checked, the whole file."""
        os.fchmod(file.fileno(), 0o444)
        os.replace(self.part_path(sha256), self.path(sha256))
        return self.path(sha256)

    def verify(self, artifacts: Iterable[Artifact], progress: Progress | None = None) -> None:
        """Read every file anew, on all cores, and compare size and hash with the lock's.

        Raises IntegrityError naming all files that differ, after removing them; PreconditionError
        if files are missing.
        """
        wanted = list({a.sha256: a for a in artifacts}.values())
        progress = progress or Quiet()
        total = sum(a.size for a in wanted)
        with progress.task("checking hashes", total) as task, ThreadPoolExecutor(cores()) as pool:
            try:
                found = list(pool.map(lambda a: self._hash(a, task.advance), wanted))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        bad = [(a, digest) for a, digest in zip(wanted, found, strict=True) if digest not in (a.sha256, "")]
        for artifact, _ in bad:
            self.path(artifact.sha256).unlink(missing_ok=True)
        if bad:
            lines = [
                f"{a.file}: damaged in the cache: expected sha256 {a.sha256}, found {digest} "
                f"({self.path(a.sha256)}, removed)"
                for a, digest in bad
            ]
            raise IntegrityError("\n".join(lines), hint="run again to fetch it anew")
        missing = [a.file for a, digest in zip(wanted, found, strict=True) if not digest]
        if missing:
            raise PreconditionError(
                f"not in the cache {self.root}: {files_text(len(missing))}: {', '.join(missing[:5])}"
                + (" …" if len(missing) > 5 else ""),
                hint="python build.py fetch gets them",
            )

    def check_space(self, need: int) -> None:
        """Raise PreconditionError if the cache's file system has less than `need` bytes free."""
        check_space(self.root, need, "use --cache-dir DIR on a larger disk, or `python build.py gc`")

    def gc(self, keep: set[str], *, dry_run: bool = False) -> int:
        """Remove files whose sha256 is not in `keep`, and stale parts. Returns the bytes (to be) freed.

        A part is stale if its file is not in `keep` or it is older than a week. What another
        process is writing stays.
        """
        freed = 0
        for path in sorted(self.root.glob("files/??/*")):
            try:
                info = path.stat()
            except FileNotFoundError:
                continue
            sha256 = path.name.removesuffix(".part")
            if sha256 == path.name:
                if sha256 not in keep:
                    freed += info.st_size
                    if not dry_run:
                        path.unlink(missing_ok=True)
            elif sha256 not in keep or time.time() - info.st_mtime > PART_MAX_AGE_S:
                with self.open_part(sha256) as file:
                    if file is not None:
                        freed += info.st_size
                        if not dry_run:
                            path.unlink(missing_ok=True)
        return freed

    def _hash(self, artifact: Artifact, advance: Callable[[int], None]) -> str:
        """Return the file's sha256, or nothing if it is missing."""
        try:
            with self.path(artifact.sha256).open("rb") as file:
                return hash_file(file, advance)[0]
        except FileNotFoundError:
            return ""


def hash_file(file: BinaryIO, advance: Callable[[int], None] = lambda _: None) -> tuple[str, int]:
    """Return (sha256, size in bytes) of an open file from where it stands; `advance` gets block sizes."""
    digest, size = hashlib.sha256(), 0
    for block in blocks(file):
        digest.update(block)
        size += len(block)
        advance(len(block))
    return digest.hexdigest(), size


def blocks(file: BinaryIO) -> Iterator[memoryview]:
    """Yield an open file's bytes in large blocks; each is valid until the next one is asked for."""
    buffer = bytearray(_BLOCK)
    view = memoryview(buffer)
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        yield view[:count]


def write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write to an unbuffered file.

    Raises DiskTrouble.
    """
    view = memoryview(data)
    try:
        while view:
            view = view[file.write(view) :]
    except OSError as error:
        raise disk_error(error, Path(str(file.name))) from error


def disk_error(error: OSError, path: Path) -> DiskTrouble:
    """Return what a failed write means to the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = size_text(_free(path.parent))
        return DiskTrouble(
            f"the disk is full: {path.parent} ({free} free)",
            hint="free space or use --cache-dir DIR on a larger disk; a re-run goes on from here",
        )
    return DiskTrouble(
        f"cannot write {path}: {error.strerror or error}",
        hint="use --cache-dir DIR with a folder you can write",
    )


def check_space(folder: Path, need: int, hint: str) -> None:
    """Raise PreconditionError if the file system of `folder` (or its parent) lacks `need` bytes."""
    free = _free(folder)
    if need > 0 and need + SPACE_MARGIN > free:
        raise PreconditionError(
            f"not enough space in {folder}: {size_text(need)} needed, {size_text(free)} free", hint=hint
        )


def _free(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _is(file: BinaryIO, path: Path) -> bool:
    """Tell whether `path` still names the open file (another process may have renamed or removed it)."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o644)


def _open_locked(path: Path) -> BinaryIO | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = open(path, "r+b", buffering=0, opener=_create)  # noqa: SIM115
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return None
            if _is(file, path):
                return file
            file.close()  # its last owner finished it between our open and our lock
    except OSError as error:
        raise disk_error(error, path) from error
