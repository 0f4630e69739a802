# SPDX-License-Identifier: Apache-2.0
"""Progress of long steps on stderr: bars on a terminal, a line every few seconds elsewhere, or nothing.

    with open_progress(quiet=False) as progress:
        with progress.task("fetching", total_bytes) as task:
            task.advance(n)

All of it may be used from several threads. Colours are rich's, which honours NO_COLOR.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Literal, Protocol, TextIO

Unit = Literal["bytes", "steps"]
PLAIN_EVERY_S = 5.0


class Task(Protocol):
    """One thing under way."""

    def advance(self, count: int) -> None:
        """Note `count` more bytes or steps done (fewer, if negative)."""

    def describe(self, text: str) -> None:
        """Change the text shown for it."""


class Progress(Protocol):
    """Where steps show how far they are."""

    def task(
        self,
        description: str,
        total: int | None,
        *,
        done: int = 0,
        unit: Unit = "bytes",
        detail: bool = False,
    ) -> contextlib.AbstractContextManager[Task]:
        """Begin a task of `total` (None: unknown), `done` before. Only terminals show a `detail`."""

    def say(self, line: str) -> None:
        """Print a line without disturbing the bars."""


class Quiet:
    """Shows nothing."""

    @contextlib.contextmanager
    def task(
        self,
        description: str,
        total: int | None,
        *,
        done: int = 0,
        unit: Unit = "bytes",
        detail: bool = False,
    ) -> Iterator[Task]:
        """See `Progress.task`."""
        yield _Silent()

    def say(self, line: str) -> None:
        """See `Progress.say`."""


@contextlib.contextmanager
def open_progress(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
    """Return the progress display that fits `stream` (standard error by default)."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        yield Quiet()
    elif stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from imagebuild.bars import open_bars  # rich is slow to import

        with open_bars(stream) as bars:
            yield bars
    else:
        yield _Plain(stream)


def size_text(count: float) -> str:
    """Return a number of bytes for people: `4.6 GB` (decimal units, as disks and networks are sold)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def files_text(count: int) -> str:
    """Return `1 file` or `3 files`."""
    return "1 file" if count == 1 else f"{count} files"


def time_text(seconds: float) -> str:
    """Return a duration as `1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Silent:
    def advance(self, count: int) -> None:
        pass

    def describe(self, text: str) -> None:
        pass


class _Plain:
    """A line at most every `PLAIN_EVERY_S` seconds and one at the end of each task."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def task(
        self,
        description: str,
        total: int | None,
        *,
        done: int = 0,
        unit: Unit = "bytes",
        detail: bool = False,
    ) -> Iterator[Task]:
        if detail:
            yield _Silent()
            return
        task = _PlainTask(self, description, total, done, unit)
        yield task
        self.say(task.line(final=True))

    def say(self, line: str) -> None:
        with self._lock:
            print(line, file=self._stream, flush=True)


class _PlainTask:
    def __init__(self, out: _Plain, description: str, total: int | None, done: int, unit: Unit) -> None:
        self._out, self._description, self._total, self._unit = out, description, total, unit
        self._first = self._done = done
        self._started = self._said = time.monotonic()
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            due = time.monotonic() - self._said >= PLAIN_EVERY_S
            if due:
                self._said = time.monotonic()
        if due:
            self._out.say(self.line())

    def describe(self, text: str) -> None:
        self._description = text

    def line(self, *, final: bool = False) -> str:
        """Return `fetching: 1.2 of 4.6 GB (26 %), 150 MB/s, 0:23 left`."""
        elapsed = max(time.monotonic() - self._started, 1e-3)
        rate = (self._done - self._first) / elapsed
        show = size_text if self._unit == "bytes" else lambda n: f"{n:.0f}"
        parts = [show(self._done)]
        if self._total:
            parts = [f"{show(self._done)} of {show(self._total)} ({100 * self._done // self._total} %)"]
        if self._unit == "bytes" and rate > 0:
            parts.append(f"{size_text(rate)}/s")
        if final:
            parts.append(f"took {time_text(elapsed)}")
        elif self._total and rate > 0:
            parts.append(f"{time_text(max(0, self._total - self._done) / rate)} left")
        return f"{self._description}: {', '.join(parts)}"
