# SPDX-License-Identifier: Apache-2.0
"""Make the environment: one maker at a time, in a work folder, renamed when complete.

Standard library only; imported only when there is something to make.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from imagebuild.bootstrap import DEV_LOCK, MARKER, REPORT_LOCK, is_ready
from imagebuild.bootstrap_ways import OFFLINE_WAYS, WAYS, Job
from imagebuild.errors import ImageBuildError, PreconditionError

Say = Callable[[str], None]
SIZES_MB = {REPORT_LOCK: 85, DEV_LOCK: 130}  # to download; 40 without extras


def _say(text: str) -> None:
    print(f"imagebuild: {text}", file=sys.stderr, flush=True)


def _say_nothing(text: str) -> None:
    pass


@contextlib.contextmanager
def _locked(path: Path, say: Say) -> Iterator[None]:
    """Hold a lock that the system drops when this process ends, however it ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another imagebuild makes {path.stem}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _refuse_foreign(folder: Path) -> None:
    """IMAGEBUILD_VENV_DIR may name anything: replace only what this module made."""
    if folder.exists() and not (folder / MARKER).is_file() and (folder.is_file() or any(folder.iterdir())):
        raise PreconditionError(
            f"{folder} is not empty and not an environment that imagebuild made",
            hint="set IMAGEBUILD_VENV_DIR to a new folder, or unset it",
        )


def _short(error: Exception) -> str:
    """The end of an installer's message, where it says what went wrong."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("WARNING: ")]
    return "\n     ".join(lines if len(lines) <= 8 else [lines[0], "...", *lines[-6:]])


def _install(job: Job, say: Say) -> str:
    """Try one way after the other; return the name of the one that worked.

    Raises PreconditionError with every reason if none did.
    """
    ways = WAYS if job.wheels is None else OFFLINE_WAYS
    reasons: list[str] = []
    for number, (name, way) in enumerate(ways, start=1):
        try:
            way(job)
        except (ImageBuildError, OSError) as error:
            reasons.append(f"  {number}. {name}: {_short(error)}")
            following = f"; trying {ways[number][0]}" if number < len(ways) else ""
            say(f"{name}: {_short(error).splitlines()[-1].strip()}{following}")
            shutil.rmtree(job.env, ignore_errors=True)
        else:
            return name
    raise PreconditionError(
        "no way to install the locked Python environment worked:\n" + "\n".join(reasons),
        hint="make one of these work (on Debian and Ubuntu: apt-get install python3-venv). Without network:"
        " on another machine with the same Python version run `python3 -m pip download --require-hashes"
        f" --only-binary :all: -r {job.lock.name} -d wheels`, copy the folder here, and set"
        " IMAGEBUILD_WHEELS to it",
    )


def _make_locked(folder: Path, lines: list[str], lock: Path, say: Say) -> None:
    for stale in folder.parent.glob(f"{folder.name}.work-*"):
        shutil.rmtree(stale, ignore_errors=True)  # of a killed start
    say(
        f"making a Python environment from {lock.name} in {folder}"
        f" (once; {SIZES_MB.get(lock.name, 40)} MB to download; to remove it: rm -r {folder})"
    )
    started = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.work-", dir=folder.parent))
    wheels = os.environ.get("IMAGEBUILD_WHEELS")
    try:
        job = Job(work=work, lock=lock, wheels=Path(wheels).absolute() if wheels else None)
        way = _install(job, say)
        (job.env / MARKER).write_text("\n".join([*lines, f"made with {way}", ""]), encoding="utf-8")
        if folder.exists():
            folder.rename(work / "replaced")
        job.env.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"environment ready in {time.monotonic() - started:.1f} s ({way})")


def make(folder_name: str, lines: list[str], lock: Path | str, *, quiet: bool) -> None:
    """Make the environment `folder_name` from `lock`, with `lines` in its marker.

    Raises PreconditionError if no way works, or the folder cannot be written or is somebody else's.
    """
    folder = Path(folder_name)
    say = _say_nothing if quiet else _say
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(folder)
        with _locked(folder.with_name(f"{folder.name}.lock"), say):
            if not is_ready(folder_name, lines):  # the one we waited for may have made it
                _make_locked(folder, lines, Path(lock), say)
    except OSError as error:
        raise PreconditionError(
            f"cannot make the Python environment {folder}: {error}",
            hint="make room or give the right to write there, or set IMAGEBUILD_CACHE_DIR to another folder",
        ) from error
