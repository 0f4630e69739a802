# SPDX-License-Identifier: Apache-2.0
"""Carry locked files to a machine without network: `fetch --export DIR` there, `--from DIR` here.

An exported folder holds the files under their own names and `SHA256SUMS`, which `sha256sum -c`
can check without this tool. Any other folder with files of the right names serves as well
(`pip download`, `apt-get download`); the locks' hashes decide.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagebuild.cache import Store, blocks, check_space, disk_error, hash_file, write_all
from imagebuild.crew import Stopped
from imagebuild.errors import IntegrityError, ManifestError, PreconditionError
from imagebuild.layer.spec import Artifact
from imagebuild.progress import Progress, Quiet, files_text

SUMS = "SHA256SUMS"


def export_to(
    directory: Path, artifacts: Iterable[Artifact], store: Store, progress: Progress | None = None
) -> int:
    """Copy files out of the cache and write `SHA256SUMS`; return the bytes copied now.

    Several exports may share a folder. A file that is there with the right hash is left alone.

    Raises ManifestError if two files of one name differ, IntegrityError for a damaged file in the
    cache, PreconditionError for a missing one or a disk that is full or cannot be written.
    """
    wanted: dict[str, Artifact] = {}
    for artifact in artifacts:
        if wanted.setdefault(artifact.file, artifact).sha256 != artifact.sha256:
            raise ManifestError(
                f"{artifact.file}: two locks name files of this name with different hashes",
                hint="export the archs into different folders",
            )
    progress = progress or Quiet()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        listed = _read_sums(directory)
    except OSError as error:
        raise disk_error(error, directory) from error
    todo = [a for a in wanted.values() if not _is_file(directory / a.file, a)]
    check_space(directory, sum(a.size for a in todo), "export to a larger disk")
    pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1))
    with progress.task("exporting", sum(a.size for a in todo)) as task, pool:
        copied = list(pool.map(lambda a: _copy_out(a, store, directory, task.advance), todo))
    for artifact in wanted.values():
        listed[artifact.file] = artifact.sha256
    lines = [f"{sha256}  {name}\n" for name, sha256 in sorted(listed.items()) if (directory / name).is_file()]
    temporary = directory / f".{SUMS}.part"
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.replace(directory / SUMS)
    return sum(copied)


def find_in(source: Path, artifacts: Iterable[Artifact]) -> dict[str, tuple[Path, ...]]:
    """Return sha256 -> the files below `source` that may be the artifact, by its name.

    Raises PreconditionError if the folder or any of the files is not there.
    """
    if not source.is_dir():
        raise PreconditionError(f"--from: no such folder: {source}", hint="is the disk mounted?")
    by_name: dict[str, list[Path]] = {}
    for folder, _, names in os.walk(source, followlinks=True):
        for name in names:
            by_name.setdefault(name, []).append(Path(folder) / name)
    found: dict[str, tuple[Path, ...]] = {}
    missing: list[str] = []
    for artifact in artifacts:
        paths = [p for name in _names(artifact) for p in by_name.get(name, ())]
        if paths:
            found[artifact.sha256] = tuple(sorted(paths))
        else:
            missing.append(artifact.file)
    if missing:
        lines = "".join(f"\n  {name}" for name in missing[:20])
        more = f"\n  and {len(missing) - 20} more" if len(missing) > 20 else ""
        raise PreconditionError(
            f"--from {source}: it lacks {files_text(len(missing))}:{lines}{more}",
            hint="export with the same locks: python build.py fetch --arch ARCH --export DIR",
        )
    return found


def copy_in(
    artifact: Artifact,
    paths: Iterable[Path],
    store: Store,
    *,
    advance: Callable[[int], None],
    stop: threading.Event,
) -> bool:
    """Put the file among `paths` that has the artifact's hash into the cache; False if others do.

    Raises IntegrityError if none has it, PreconditionError if one cannot be read or written, Stopped.
    """
    wrong: list[str] = []
    with store.open_part(artifact.sha256) as part:
        if part is None:
            return False
        if store.has(artifact):
            return True
        for path in paths:
            part.seek(0)
            part.truncate()
            digest, size = hashlib.sha256(), 0
            try:
                source = path.open("rb")
            except OSError as error:
                raise PreconditionError(f"{path}: {error.strerror}", hint="make it readable") from error
            with source:
                for block in blocks(source):
                    if stop.is_set():
                        raise Stopped
                    digest.update(block)
                    write_all(part, block)
                    size += len(block)
                    advance(len(block))
            if digest.hexdigest() == artifact.sha256:
                store.commit(part, artifact.sha256)
                return True
            advance(-size)
            wrong.append(f"{path} has sha256 {digest.hexdigest()}")
        part.seek(0)
        part.truncate()
    raise IntegrityError(
        f"{artifact.file}: the lock has sha256 {artifact.sha256}, but {'; '.join(wrong)}; it was not taken",
        hint="export again with the same locks, or copy the folder again",
    )


def _names(artifact: Artifact) -> list[str]:
    """Return the names a file goes by: its own, and for a .deb that of apt's cache (with the epoch)."""
    names = [artifact.file]
    if artifact.kind == "deb":
        architecture = artifact.file.rpartition("_")[2]
        names.append(f"{artifact.name}_{artifact.version.replace(':', '%3a')}_{architecture}")
    return list(dict.fromkeys(names))


def _is_file(path: Path, artifact: Artifact) -> bool:
    try:
        if 0 < artifact.size != path.stat().st_size:
            return False
        with path.open("rb") as file:
            return hash_file(file)[0] == artifact.sha256
    except OSError:
        return False


def _copy_out(artifact: Artifact, store: Store, directory: Path, advance: Callable[[int], None]) -> int:
    target = directory / artifact.file
    temporary = directory / f".{artifact.file}.part"
    digest, size = hashlib.sha256(), 0
    try:
        with store.path(artifact.sha256).open("rb") as source, temporary.open("wb", buffering=0) as out:
            for block in blocks(source):
                digest.update(block)
                write_all(out, block)
                size += len(block)
                advance(len(block))
        if digest.hexdigest() == artifact.sha256:
            temporary.replace(target)
            return size
    except FileNotFoundError:
        raise PreconditionError(
            f"{artifact.file} is not in the cache {store.root}", hint="python build.py fetch gets it"
        ) from None
    except OSError as error:
        raise disk_error(error, target) from error
    finally:
        temporary.unlink(missing_ok=True)
    store.path(artifact.sha256).unlink(missing_ok=True)
    raise IntegrityError(
        f"{artifact.file}: damaged in the cache: expected sha256 {artifact.sha256}, "
        f"found {digest.hexdigest()} ({store.path(artifact.sha256)}, removed)",
        hint="run again to fetch it anew",
    )


def _read_sums(directory: Path) -> dict[str, str]:
    try:
        lines = (directory / SUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.partition("  ") for line in lines)
    return {name: sha256 for sha256, _, name in pairs if name and "/" not in name}
