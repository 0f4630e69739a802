# SPDX-License-Identifier: Apache-2.0
"""Locked repos → folders of real files, all repos at once, every byte checked before it gets its name.

What is there and right stays; what is missing or wrong is brought anew, and only that. An unfinished
file is `.imagebuild/files/…/<sha256>.part` in its model's folder, so a killed run goes on from there.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagebuild.cache import DiskTrouble, Store
from imagebuild.crew import POLL_S, Counter, work_together
from imagebuild.errors import ImageBuildError, IntegrityError, PreconditionError
from imagebuild.hostconf import HostNetwork, host_network
from imagebuild.models import room
from imagebuild.models.hashing import sample
from imagebuild.models.hub import Hub, cached_blob
from imagebuild.models.lockfile import OURS, LockedFile, LockedRepo
from imagebuild.models.receive import Bearer, copy, receive
from imagebuild.models.stamp import Stamp, mark, read_stamp, unchanged, write_stamp
from imagebuild.models.verify import examine
from imagebuild.progress import Progress, Quiet, Task, files_text
from imagebuild.session import LoginRefused, Reach, Session, open_session
from imagebuild.settings import Settings
from imagebuild.transfer import Retry

DETAIL_SIZE = 200_000_000  # bytes; files from this size on get a bar of their own
STAMP_SIZE = 50_000_000  # bytes; after a file of this size the stamp is written at once
_SHOWN = 10


@dataclass(frozen=True)
class Wanted:
    """One repo to have in one folder; `sources` are local folders that may have its files already."""

    repo: LockedRepo
    folder: Path
    sources: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Fetched:
    """What a run did: files and bytes that came, and files that were there."""

    files: int
    size: int
    there: int


@dataclass(frozen=True)
class _Job:
    wanted: Wanted
    file: LockedFile

    @property
    def final(self) -> Path:
        return self.wanted.folder / self.file.path

    @property
    def store(self) -> Store:
        return Store(self.wanted.folder / OURS)


@dataclass
class _Run:
    """What the threads of one run share. `hub` None: local sources only."""

    hub: Hub | None
    host: HostNetwork
    retry: Retry
    progress: Progress
    todo: deque[_Job]
    stamps: dict[Path, Stamp]
    reach: Reach = field(default_factory=Reach)
    failures: list[tuple[_Job, ImageBuildError]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


def fetch(
    wanted: Sequence[Wanted],
    settings: Settings,
    hub: Hub | None,
    *,
    progress: Progress | None = None,
    retry: Retry | None = None,
) -> Fetched:
    """Make every folder hold its repo's files.

    Raises one error for all files that failed: IntegrityError if any had wrong bytes, else
    PreconditionError (room, network, access). What was complete is kept, after an interrupt too.
    """
    progress = progress or Quiet()
    todo: list[_Job] = []
    stamps: dict[Path, Stamp] = {}
    for want in wanted:
        missing, stamps[want.folder] = _missing(want, progress)
        todo += [_Job(want, file) for file in missing]
    there = sum(len(want.repo.files) for want in wanted) - len(todo)
    _room_for(todo)
    totals = {want.folder: want.repo.total for want in wanted}
    # The small repo first: the drafter is ready early, and no single file is left for the end.
    todo.sort(key=lambda job: (totals[job.wanted.folder], -job.file.size, job.file.path))
    if hub is not None:
        _check_commits(todo)
    run = _Run(hub, host_network(settings), retry or Retry(), progress, deque(todo), stamps)
    for want in wanted:
        want.folder.mkdir(parents=True, exist_ok=True)
    try:
        _work(run, settings.jobs)
    finally:
        for folder, stamp in stamps.items():
            write_stamp(folder, stamp)
    _raise_failures(run, len(todo))
    return Fetched(len(todo), sum(job.file.size for job in todo), there)


def missing_bytes(wanted: Iterable[Wanted]) -> int:
    """Return the bytes that a fetch would bring, judged by sizes only."""
    total = 0
    for want in wanted:
        for file in want.repo.files:
            path = want.folder / file.path
            if not (path.is_file() and not path.is_symlink() and path.stat().st_size == file.size):
                total += file.size - min(file.size, Store(want.folder / OURS).part_size(file.sha256))
    return total


def check_room(wanted: Iterable[Wanted]) -> None:
    """Raise PreconditionError if what is missing, judged by sizes only, has no room."""
    _room_for(
        _Job(want, file)
        for want in wanted
        for file in want.repo.files
        if not (want.folder / file.path).is_file() or (want.folder / file.path).stat().st_size != file.size
    )


def _missing(want: Wanted, progress: Progress) -> tuple[list[LockedFile], Stamp]:
    """Return the files to bring, and the stamp of those that are right."""
    if not want.folder.is_dir():
        return list(want.repo.files), {}
    findings, stamp = examine(want.folder, want.repo, progress=progress)
    write_stamp(want.folder, stamp)  # so that no old mark of a bad file is left
    by_path = {file.path: file for file in want.repo.files}
    for finding in findings:
        if finding.state not in ("ok", "missing"):
            progress.say(f"{want.folder / finding.path}: {finding.text}; bringing it anew")
    return [by_path[finding.path] for finding in findings if finding.state != "ok"], stamp


def _room_for(todo: Iterable[_Job]) -> None:
    """Raise PreconditionError if the missing files do not fit, summed over each file system."""
    needs: dict[int, tuple[Path, int, int]] = {}
    for job in todo:
        there = job.wanted.folder
        while not there.exists():
            there = there.parent
        device = os.stat(there).st_dev
        folder, need, count = needs.get(device, (job.wanted.folder.parent, 0, 0))
        rest = job.file.size - min(job.file.size, job.store.part_size(job.file.sha256))
        needs[device] = (folder, need + rest, count + 1)
    for folder, need, count in needs.values():
        room.require(folder, need, count)


def _check_commits(todo: Iterable[_Job]) -> None:
    for job in todo:
        if not job.wanted.repo.commit and not job.wanted.sources:
            raise PreconditionError(
                f"{job.wanted.repo.repo}: its lock was made from a folder and names no commit of the hub",
                hint="give the folder again (--from DIR), or lock it at the hub: python build.py models lock",
            )


# --- one file ---------------------------------------------------------------------------------


def _bring(run: _Run, job: _Job, session: Session, task: Task) -> bool:
    """Bring one file to its place; False if another process is at it. Raises ImageBuildError, Stopped."""
    _check_inside(job)
    if _there(run, job):
        return True
    with job.store.open_part(job.file.sha256) as part:
        if part is None:
            return False
        local = any(
            copy(job.file, source, part, advance=task.advance, stop=run.stop) for source in _sources(job)
        )
        if not local and run.hub is None:
            raise PreconditionError(
                f"{job.wanted.repo.repo}/{job.file.path}: not in {', '.join(map(str, job.wanted.sources))} "
                f"with sha256 {job.file.sha256[:12]}…",
                hint="the folder is another version or damaged; without --from the hub is asked",
            )
        if not local:
            assert run.hub is not None
            receive(
                run.hub, job.wanted.repo, job.file, part, session,
                advance=task.advance, retry=run.retry, stop=run.stop,
            )  # fmt: skip
        job.final.parent.mkdir(parents=True, exist_ok=True)
        os.fchmod(part.fileno(), 0o644)
        os.replace(job.store.part_path(job.file.sha256), job.final)
    known = mark(job.final, job.file.sha256)
    with run.lock:
        stamp = run.stamps[job.wanted.folder]
        stamp[job.file.path] = known
        if job.file.size >= STAMP_SIZE:
            write_stamp(job.wanted.folder, stamp)
    return True


def _check_inside(job: _Job) -> None:
    """Raise IntegrityError if a link in the folder would lead the file out of it."""
    root, parent = job.wanted.folder.resolve(), job.final.parent.resolve()
    if not parent.is_relative_to(root) or job.final.is_dir():
        raise IntegrityError(
            f"{job.final}: its place is a folder or lies behind a link to {parent}",
            hint="models are real files: remove the link",
        )


def _sources(job: _Job) -> list[Path]:
    """Return local files that may be this one: what a link points to, given folders, the client's cache."""
    places = [job.final] if job.final.is_symlink() else []
    for source in job.wanted.sources:
        places += [source / job.wanted.folder.name / job.file.path, source / job.file.path]
    if not job.wanted.sources:
        places.append(cached_blob(job.wanted.repo.repo, job.file.sha256))
    return [place for place in places if place.is_file() and place.stat().st_size == job.file.size]


# --- threads ----------------------------------------------------------------------------------


def _work(run: _Run, jobs: int) -> None:
    """Let threads take files until none is left; raises KeyboardInterrupt soon after Ctrl-C."""
    if not run.todo:
        return
    total = sum(job.file.size for job in run.todo)
    done = sum(job.store.part_size(job.file.sha256) for job in run.todo)
    names = ", ".join(dict.fromkeys(job.wanted.repo.repo for job in run.todo))
    with run.progress.task(f"fetching {names}", total or None, done=done) as task:
        count = min(jobs, len(run.todo))
        work_together([functools.partial(_loop, run, task)] * count, run.stop)


def _loop(run: _Run, overall: Task) -> None:
    with open_session(run.host, run.reach) as session:
        if run.hub is not None and run.hub.token:
            session.auth = Bearer(run.hub.token)
        while not run.stop.is_set():
            try:
                job = run.todo.popleft()
            except IndexError:
                return
            _one(run, job, session, overall)


def _one(run: _Run, job: _Job, session: Session, overall: Task) -> None:
    counter = Counter(overall, job.store.part_size(job.file.sha256))
    try:
        if job.file.size < DETAIL_SIZE:
            brought = _bring(run, job, session, counter)
        else:
            name = f"{job.wanted.folder.name}/{job.file.path}"
            with run.progress.task(name, job.file.size, done=counter.done, detail=True) as counter.detail:
                brought = _bring(run, job, session, counter)
    except ImageBuildError as error:
        run.failures.append((job, error))
        if isinstance(error, (DiskTrouble, LoginRefused)):
            run.stop.set()  # the others would fail alike
        return
    if not brought:
        run.todo.append(job)
        run.stop.wait(POLL_S)


def _there(run: _Run, job: _Job) -> bool:
    """Tell whether another process has brought the file meanwhile, and take over its mark."""
    known = read_stamp(job.wanted.folder).get(job.file.path)
    try:
        if known is None or known.sha256 != job.file.sha256 or job.final.is_symlink():
            return False
        if not unchanged(job.final, known) or sample(job.final, known.size) != known.sample:
            return False
    except OSError:
        return False
    with run.lock:
        run.stamps[job.wanted.folder][job.file.path] = known
    return True


def _raise_failures(run: _Run, total: int) -> None:
    """Raise one error for all failures; files with the same trouble are told together."""
    if not run.failures:
        return
    failures = sorted(run.failures, key=lambda failure: (failure[0].wanted.repo.name, failure[0].file.path))
    errors = [error for _, error in failures]
    messages = list(dict.fromkeys(error.message for error in errors))
    lines = messages[:_SHOWN] + ([f"and {len(messages) - _SHOWN} more"] if len(messages) > _SHOWN else [])
    text = f"could not fetch {len(failures)} of {files_text(total)}:" + "".join(f"\n  {x}" for x in lines)
    hint = "\n        ".join(dict.fromkeys(_hint(error) for error in errors))
    kind: Mapping[bool, type[ImageBuildError]] = {True: IntegrityError, False: PreconditionError}
    raise kind[any(isinstance(error, IntegrityError) for error in errors)](text, hint=hint or None)


def _hint(error: ImageBuildError) -> str:
    hint = error.hint or "run again"
    return hint.replace("--cache-dir DIR", "--dir DIR")
