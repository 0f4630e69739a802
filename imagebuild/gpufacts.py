# SPDX-License-Identifier: Apache-2.0
"""`FileFacts`: what GPU code each file has, independent of any target. Facts are cached by wheel.

The readers are imagebuild.layer.scan and what it imports; this module gives them files: members
of wheels, files of folders, and streams of a tar.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from imagebuild.layer.archive import Archive
from imagebuild.layer.binary import BytesSource, FileSource, FormatError, Source
from imagebuild.layer.gpucode import Code
from imagebuild.layer.scan import FileKind, Found, Place, Way, scan

# Files of these names hold text or data and cannot be loaded as code; to look into each of a
# stack's 83,000 files would double the time.
_NEVER = (
    ".py", ".pyi", ".pyc", ".h", ".hpp", ".cuh", ".inc", ".inl", ".c", ".cc", ".cpp", ".cu", ".json", ".txt",
    ".md", ".rst", ".csv", ".mo", ".pyx", ".pxd", ".pxi", ".yaml", ".yml", ".html", ".cmake", ".toml",
)  # fmt: skip
Job = tuple[Path, tuple[str, ...], Path | None]  # a wheel, its members to read, where to spool them
_MAGICS = (b"\x7fELF", b"!<arch>\n", b"\x50\xed\x55\xba")
_IN_MEMORY = 8 << 20
_BATCH = 96 << 20  # bytes that one job of a worker process reads


@dataclass(frozen=True)
class Group:
    """Containers alike in one file: where they are, the codes they hold (with whether the payload
    is blank), how many such containers there are, and the payload bytes of each code in all of them.
    """

    place: Place
    where: str
    codes: tuple[tuple[Code, bool], ...]
    count: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class FileFacts:
    """One file with GPU code, or an ELF file without; loose files of one folder count as one.

    `path` is relative to site-packages or the folder; `size` in bytes. `files` is how many files
    this stands for. `needs` are the libraries it is linked against, `name` its own library name.
    `problem` says why it could not be read.
    """

    path: str
    size: int
    kind: FileKind
    read_by: Way
    groups: tuple[Group, ...] = ()
    files: int = 1
    name: str = ""
    needs: tuple[str, ...] = ()
    problem: str = ""


def may_hold_code(path: str, head: bytes) -> bool:
    """Tell by its name and first bytes whether a file is worth reading."""
    return path.endswith(".ptx") or head.startswith(_MAGICS)


def file_facts(source: Source, path: str) -> FileFacts | None:
    """Read one file; None if it is of no kind that holds GPU code. A damaged file has a `problem`."""
    try:
        code = scan(source, path)
    except FormatError as error:
        return FileFacts(path, source.size, "elf", "file", problem=str(error))
    if code is None:
        return None
    groups = tuple(_groups(code.found))
    return FileFacts(path, source.size, code.kind, code.read_by, groups, 1, code.name, code.needs)


def _groups(found: Iterable[Found]) -> Iterator[Group]:
    counts: Counter[tuple[Place, str, tuple[tuple[Code, bool], ...]]] = Counter()
    sizes: dict[tuple[Place, str, tuple[tuple[Code, bool], ...]], list[int]] = {}
    for item in found:
        codes = tuple((entry.code, entry.blank) for entry in item.container.entries)
        key = (item.place, item.where, codes)
        counts[key] += 1
        total = sizes.setdefault(key, [0] * len(codes))
        for index, entry in enumerate(item.container.entries):
            total[index] += entry.size
    for key in sorted(counts):
        yield Group(*key, counts[key], tuple(sizes[key]))


def read_stream(stream: IO[bytes], size: int, path: str, folder: Path | None) -> FileFacts | None:
    """Read one file from a stream, by way of a temporary file in `folder` if it is large."""
    head = stream.read(8)
    if not may_hold_code(path, head):
        return None
    if size <= _IN_MEMORY:
        return file_facts(BytesSource(head + stream.read()), path)
    with tempfile.TemporaryFile(dir=folder, prefix="imagebuild-", buffering=0) as spool:
        spool.write(head)
        shutil.copyfileobj(stream, spool, 1 << 20)
        return file_facts(FileSource.of(spool.fileno()), path)


def worth_opening(path: str) -> bool:
    """Tell by its name alone whether a file may hold code."""
    return not path.endswith(_NEVER)


def read_members(job: Job) -> list[FileFacts]:
    """Read some members of a wheel: what one job of a worker process does."""
    wheel, names, folder = job
    found = []
    archive = Archive(wheel)
    for name in names:
        with archive.open(name) as stream:
            facts = read_stream(stream, archive.members[name].file_size, name, folder)
        if facts is not None:
            found.append(facts)
    return found


def wheel_jobs(wheel: Path, folder: Path | None) -> list[tuple[int, Job]]:
    """Split a wheel into jobs of about the same size: (bytes, job).

    Raises LayerError for what is no wheel.
    """
    jobs = []
    names: list[str] = []
    size = 0
    infos = Archive(wheel).members.values()
    members = [i for i in infos if not i.is_dir() and worth_opening(i.filename)]
    for member in sorted(members, key=lambda m: -m.file_size):
        names.append(member.filename)
        size += member.file_size
        if size >= _BATCH:
            jobs.append((size, (wheel, tuple(names), folder)))
            names, size = [], 0
    if names:
        jobs.append((size, (wheel, tuple(names), folder)))
    return jobs


def wheel_facts(
    wheels: Iterable[Path], folder: Path | None, workers: int
) -> dict[Path, tuple[FileFacts, ...]]:
    """Read many wheels with `workers` processes, the largest pieces first."""
    jobs = sorted((job for wheel in wheels for job in wheel_jobs(wheel, folder)), key=lambda j: -j[0])
    if workers <= 1:
        done = [read_members(job) for _, job in jobs]
    else:
        with ProcessPoolExecutor(workers) as pool:
            done = list(pool.map(read_members, [job for _, job in jobs]))
    found: dict[Path, list[FileFacts]] = {}
    for (_, (wheel, _, _)), facts in zip(jobs, done, strict=True):
        found.setdefault(wheel, []).extend(facts)
    return {wheel: joined(facts) for wheel, facts in found.items()}


def folder_facts(root: Path) -> tuple[FileFacts, ...]:
    """Read every file below a folder, or one file. Links are not followed."""
    found = []
    paths = (
        [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())
    )
    for path in paths:
        name = path.name if root.is_file() else path.relative_to(root).as_posix()
        if not worth_opening(name):
            continue
        with open(path, "rb") as file:
            if may_hold_code(name, file.read(8)):
                facts = file_facts(FileSource.of(file.fileno()), name)
                found += [facts] if facts is not None else []
    return joined(found)


def joined(facts: Iterable[FileFacts]) -> tuple[FileFacts, ...]:
    """Sort by path and count the loose code files of one top folder and ending as one."""
    found: dict[str, FileFacts] = {}
    loose: dict[str, list[FileFacts]] = {}
    for item in facts:
        if item.kind in ("cubin", "ptx", "fatbin") and not item.problem and "/" in item.path:
            top, ending = item.path.partition("/")[0], os.path.splitext(item.path)[1]
            loose.setdefault(f"{top}/**/*{ending}", []).append(item)
        else:
            found[item.path] = item
    for path, items in loose.items():
        found[path] = _sum(path, items)
    return tuple(found[path] for path in sorted(found))


def _sum(path: str, items: list[FileFacts]) -> FileFacts:
    groups: dict[tuple[tuple[Code, bool], ...], Group] = {}
    for group in (group for item in items for group in item.groups):
        before = groups.get(group.codes)
        if before is None:
            groups[group.codes] = group
        else:
            sizes = tuple(a + b for a, b in zip(before.sizes, group.sizes, strict=True))
            groups[group.codes] = Group("loose", "", group.codes, before.count + group.count, sizes)
    size, files = sum(item.size for item in items), sum(item.files for item in items)
    ordered = tuple(groups[key] for key in sorted(groups))
    return FileFacts(path, size, items[0].kind, "file", ordered, files)
