# SPDX-License-Identifier: Apache-2.0
"""Does a model's folder hold the bytes of the lock? `examine` says it per file, `verify` decides.

The first time every byte is hashed; afterwards a file that looks unchanged (`stamp`) is only sampled.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.models.hashing import hash_all, sample
from imagebuild.models.lockfile import OURS, LockedFile, LockedRepo
from imagebuild.models.shards import Weights, check_weights
from imagebuild.models.stamp import Mark, Stamp, mark, read_stamp, unchanged, write_stamp
from imagebuild.progress import Progress, Quiet, files_text, size_text

_LOADED = (".safetensors", ".bin", ".py", ".json", ".pt", ".gguf")  # what a server may load

# unread: looks right, but nobody has hashed it (`glance` only)
State = Literal["ok", "unread", "missing", "size", "hash", "changed", "unreadable", "link"]


@dataclass(frozen=True)
class Finding:
    """What one file is. `text` says it for people; `hashed` whether all its bytes were read now."""

    path: str
    state: State
    text: str = ""
    hashed: bool = False


@dataclass(frozen=True)
class Report:
    """What a folder is, compared with one repo of a lock."""

    repo: LockedRepo
    folder: Path
    findings: tuple[Finding, ...]
    extra: tuple[str, ...] = ()
    weights: Weights = field(default_factory=Weights)
    stamped: bool = True

    @property
    def bad(self) -> tuple[Finding, ...]:
        """The files that are not as locked."""
        return tuple(finding for finding in self.findings if finding.state != "ok")

    @property
    def ok(self) -> bool:
        """Whether all files are as locked and the weights are whole."""
        return not self.bad and not self.weights.problems


def examine(
    folder: Path, repo: LockedRepo, *, full: bool = False, progress: Progress | None = None
) -> tuple[list[Finding], Stamp]:
    """Compare every file with the lock; return the findings in the lock's order, and the new stamp.

    With `full` every file is hashed, whatever its stamp says.
    """
    progress = progress or Quiet()
    old = {} if full else read_stamp(folder)
    found: dict[str, Finding] = {}
    new: Stamp = {}
    todo: list[LockedFile] = []
    for file in repo.files:
        quick = _quick(folder, file, old.get(file.path))
        if quick is None:
            todo.append(file)
            continue
        found[file.path] = quick
        if quick.state == "ok":
            new[file.path] = old[file.path]
    total = sum(file.size for file in todo)
    before = {file.path: _times(folder / file.path) for file in todo}
    with progress.task(f"checking {repo.repo}", total or None) as task:
        digests = hash_all(((folder / file.path, file.size) for file in todo), task.advance)
    for file in todo:
        path = folder / file.path
        found[file.path] = _judge(file, digests[path])
        if before[file.path] != _times(path):
            found[file.path] = Finding(file.path, "unreadable", "changed while it was read", hashed=True)
        if found[file.path].state == "ok":
            new[file.path] = mark(path, file.sha256)
    return [found[file.path] for file in repo.files], new


def glance(folder: Path, repo: LockedRepo) -> list[Finding]:
    """Compare what can be compared in seconds: kind, size, stamp and samples; no file is read whole."""
    stamp = read_stamp(folder)
    return [_quick(folder, file, stamp.get(file.path)) or Finding(file.path, "unread") for file in repo.files]


def _times(path: Path) -> tuple[int, ...]:
    try:
        info = os.stat(path)
    except OSError:
        return ()
    return info.st_size, info.st_mtime_ns, info.st_ino


def _quick(folder: Path, file: LockedFile, known: Mark | None) -> Finding | None:
    """Return a finding that needs no hashing, or None if the file must be hashed."""
    path = folder / file.path
    try:
        finding = _outside(path, file)
        if finding is None and known is not None and known.sha256 == file.sha256 and unchanged(path, known):
            finding = Finding(file.path, "ok")
            if sample(path, file.size) != known.sample:
                text = "its bytes changed, but not its time: a failing disk, or edited and set back"
                finding = Finding(file.path, "changed", text)
    except (FileNotFoundError, NotADirectoryError):
        finding = Finding(file.path, "missing", "is missing")
    except OSError as error:
        finding = Finding(file.path, "unreadable", f"cannot be read: {error.strerror or error}")
    return finding


def _outside(path: Path, file: LockedFile) -> Finding | None:
    """Return what is wrong without looking into a file. Raises OSError."""
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        return Finding(file.path, "link", f"is a link to {os.readlink(path)}: expected a real file")
    if not stat.S_ISREG(info.st_mode):
        return Finding(file.path, "unreadable", "is not a regular file")
    if info.st_size != file.size:
        return Finding(file.path, "size", f"has {info.st_size} bytes, expected {file.size}")
    return None


def _judge(file: LockedFile, result: str | OSError) -> Finding:
    if isinstance(result, OSError):
        return Finding(file.path, "unreadable", f"cannot be read: {result.strerror or result}", hashed=True)
    if result != file.sha256:
        return Finding(file.path, "hash", f"has sha256 {result}, expected {file.sha256}", hashed=True)
    return Finding(file.path, "ok", hashed=True)


def verify(folder: Path, repo: LockedRepo, *, full: bool = False, progress: Progress | None = None) -> Report:
    """Examine a folder, check index, shards and headers, and renew the stamp.

    Raises PreconditionError if the folder is not there.
    """
    progress = progress or Quiet()
    if not folder.is_dir():
        raise PreconditionError(f"{folder}: no such folder", hint="python build.py models fetch gets it")
    findings, stamp = examine(folder, repo, full=full, progress=progress)
    with progress.task("reading headers", None, unit="steps") as task:
        weights = check_weights(folder, task.advance)
    stamped = write_stamp(folder, stamp)
    return Report(repo, folder, tuple(findings), _extra(folder, repo), weights, stamped)


def _extra(folder: Path, repo: LockedRepo) -> tuple[str, ...]:
    """Return the weight and code files that the lock does not know; a server could load them."""
    known = {file.path for file in repo.files}
    found = (p.relative_to(folder) for p in folder.rglob("*") if p.suffix in _LOADED)
    outside = (p.as_posix() for p in found if p.parts[0] not in (OURS, ".cache", ".git"))
    return tuple(sorted(path for path in outside if path not in known))


def describe(report: Report) -> str:
    """Return a report as lines for people."""
    count, repo = len(report.findings), report.repo
    hashed = sum(finding.hashed for finding in report.findings)
    lines = [f"{report.folder}: {repo.repo} {repo.commit[:12]}".rstrip()]
    lines += [f"  {finding.path}: {finding.text}" for finding in report.bad]
    lines += [f"  {name}: {text}" for name, texts in report.weights.problems.items() for text in texts]
    lines += [f"  {name}: not in the lock" for name in report.extra]
    good = count - len(report.bad)
    lines.append(
        f"  {good} of {files_text(count)} as locked ({hashed} hashed, {count - hashed} by stamp), "
        f"{report.weights.files} headers, {size_text(repo.total)}"
    )
    if not report.stamped:
        lines.append("  the folder cannot be written, so the next check hashes everything again")
    return "\n".join(lines)


def require(reports: list[Report], name: str) -> None:
    """Raise IntegrityError naming every bad file of all reports."""
    if not all(report.ok for report in reports):
        bad = "\n".join(describe(report) for report in reports if not report.ok)
        hint = f"python build.py models fetch {name} gets these files anew, and only these"
        raise IntegrityError(bad, hint=hint)
