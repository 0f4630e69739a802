# SPDX-License-Identifier: Apache-2.0
"""Copy a drafter into the volume that servers mount: every byte checked, the old copy there until then."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.models.lockfile import OURS, LockedRepo
from imagebuild.models.stamp import Stamp, mark, write_stamp
from imagebuild.models.verify import examine
from imagebuild.progress import Progress, size_text

_BLOCK = 1 << 20
_RESERVE = 1 << 30  # bytes that stay free beside the copy


def stage(source: Path, target: Path, locked: LockedRepo | None, progress: Progress) -> bool:
    """Make `target` a copy of `source`; return whether anything was copied.

    With a lock its files are copied and no other, and each must have its sha256. Raises PreconditionError
    (no folder, no room, cannot write) and IntegrityError (other bytes); `target` is then as it was.
    """
    if not source.is_dir():
        raise PreconditionError(f"{source}: no such folder", hint="./scripts/prefetch gets it")
    if target.is_dir() and _current(source, target, locked, progress):
        return False
    names = [file.path for file in locked.files] if locked else _all_files(source)
    size = sum(_size(source / name) for name in names)
    temporary, old = target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        free = shutil.disk_usage(target.parent).free
        if free < size + _RESERVE:
            text = f"{target.parent}: {size_text(free)} free, {size_text(size + _RESERVE)} needed"
            raise PreconditionError(text, hint="free disk where Docker keeps its volumes")
        temporary.mkdir()
        _copy_all(source, temporary, names, size, locked, progress)
        if target.exists():
            os.rename(target, old)
        os.rename(temporary, target)
    except OSError as error:
        raise PreconditionError(f"{error.filename or target}: {error.strerror or error}") from None
    finally:
        for leftover in (temporary, old):
            shutil.rmtree(leftover, ignore_errors=True)
    return True


def _copy_all(
    source: Path, folder: Path, names: list[str], size: int, locked: LockedRepo | None, progress: Progress
) -> None:
    hashes = {file.path: file.sha256 for file in locked.files} if locked else {}
    stamp: Stamp = {}
    with progress.task(f"staging {source.name}", size) as task:
        for name in names:
            found = _copy(source / name, folder / name, task.advance)
            if locked and found != hashes[name]:
                text = f"{source / name}: has sha256 {found}, expected {hashes[name]}"
                raise IntegrityError(text, hint="./scripts/prefetch gets this file anew, and only this")
            stamp[name] = mark(folder / name, found)
    write_stamp(folder, stamp)


def _copy(source: Path, target: Path, advance: Callable[[int], None]) -> str:
    """Copy a file with its time; return its sha256. Raises OSError."""
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read, target.open("wb") as write:
        while block := read.read(_BLOCK):
            digest.update(block)
            write.write(block)
            advance(len(block))
        write.flush()
        os.fsync(write.fileno())
    info = source.stat()
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    return digest.hexdigest()


def _current(source: Path, target: Path, locked: LockedRepo | None, progress: Progress) -> bool:
    """Tell whether the copy is as locked; without a lock, whether sizes and times are the source's."""
    if locked is not None:
        return all(finding.state == "ok" for finding in examine(target, locked, progress=progress)[0])
    return _marks(source) == _marks(target)


def _marks(folder: Path) -> dict[str, tuple[int, int]]:
    found = {name: (folder / name).stat() for name in _all_files(folder)}
    return {name: (info.st_size, info.st_mtime_ns) for name, info in found.items()}


def _all_files(folder: Path) -> list[str]:
    """Return the files below a folder, without hidden folders and our own notes."""
    found = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        p.as_posix()
        for p in found
        if not any(x.startswith(".") for x in p.parts[:-1]) and OURS not in p.parts
    ]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise PreconditionError(
            f"{path}: {error.strerror or error}", hint="./scripts/prefetch gets what is missing"
        ) from None
