# SPDX-License-Identifier: Apache-2.0
"""Refresh and check the locks under images/: Python stacks, build tools, Debian bases."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from imagebuild.catalog import LockFile, read_base, read_stack, read_tools, stack_lock, stack_names
from imagebuild.debian import find_keyring, resolve_packages
from imagebuild.errors import IntegrityError
from imagebuild.files import write_text
from imagebuild.layer.spec import Artifact
from imagebuild.lock import Lock, changes, render_lock
from imagebuild.manifest import PythonSource
from imagebuild.mirror import find_mirrors
from imagebuild.python_packages import resolve_wheels
from imagebuild.settings import Settings


@dataclass(frozen=True)
class Job:
    """One lock and how it is made anew. `kind` is "python" or "debian"."""

    file: LockFile
    kind: str
    make: Callable[[Settings], tuple[Artifact, ...]]


@dataclass(frozen=True)
class Refreshed:
    """What refreshing one lock changed: the locks before (if any) and after, one line per change."""

    job: Job
    old: Lock | None
    new: Lock
    lines: tuple[str, ...]

    @property
    def written(self) -> bool:
        """Whether the file on disk changed."""
        return self.old != self.new


def _debian_maker(images: Path, name: str) -> Callable[[Settings], tuple[Artifact, ...]]:
    manifest, _ = read_base(images, name)

    def make(settings: Settings) -> tuple[Artifact, ...]:
        mirrors = find_mirrors(option=settings.debian_mirror, security_option=settings.debian_security_mirror)
        return resolve_packages(
            sorted(manifest.packages),
            release=manifest.release,
            architecture=manifest.architecture,
            mirrors=mirrors,
            keyring=find_keyring(),
        )

    return make


def _python_maker(source: PythonSource) -> Callable[[Settings], tuple[Artifact, ...]]:
    return lambda _: resolve_wheels(source)


def jobs(images: Path, *, base_only: bool = False) -> list[Job]:
    """Return every lock of the project, Debian bases first; `base_only` leaves Python out."""
    found = []
    for path in sorted(images.glob("base/*/base.yaml")):
        _, file = read_base(images, path.parent.name)
        found.append(Job(file, "debian", _debian_maker(images, path.parent.name)))
    if base_only:
        return found
    tools, file = read_tools(images)
    found.append(Job(file, "python", _python_maker(tools.source)))
    for name in stack_names(images):
        stack, _ = read_stack(images, name)
        found.append(Job(stack_lock(images, stack), "python", _python_maker(stack.source)))
    return found


def refresh(job: Job, settings: Settings, now: datetime.datetime) -> Refreshed:
    """Make one lock anew and write it if anything differs.

    `created` moves only when an artifact does, so a refresh without news changes no image.
    """
    old = job.file.read() if job.file.path.is_file() else None
    artifacts = tuple(sorted(job.make(settings), key=lambda a: a.name))
    created = now.strftime("%Y-%m-%dT00:00:00Z")
    if old is not None and old.artifacts == artifacts:
        created = old.created
    new = Lock(created=created, inputs=job.file.expected_inputs, artifacts=artifacts)
    if new != old:
        write_text(job.file.path, render_lock(new))
    return Refreshed(job, old, new, tuple(changes(old, new)))


def stale(images: Path) -> list[str]:
    """Return one line for every lock that does not fit its manifest (offline).

    A missing or malformed lock is such a line too.
    """
    lines = []
    for job in jobs(images):
        try:
            if job.file.stale:
                lines.append(f"{job.file.path}: made from other inputs than {job.file.path.parent} has now")
        except IntegrityError as error:
            lines.append(error.message)
    return lines
