# SPDX-License-Identifier: Apache-2.0
"""Threads that work one list off together, and count into the same bar."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence

from imagebuild.progress import Task

POLL_S = 0.2
_GOODBYE_S = 3.0


class Stopped(Exception):
    """The run was interrupted or failed elsewhere."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def work_together(loops: Sequence[Callable[[], None]], stop: threading.Event) -> None:
    """Run each loop in a thread until all have returned.

    A loop returns when nothing is left or `stop` is set, and may raise Stopped then. What else one
    raises is a bug: it stops the others and is raised here. So is KeyboardInterrupt, soon after
    Ctrl-C: a thread that does not return within 3 s is left behind.
    """
    crashes: list[BaseException] = []

    def guarded(loop: Callable[[], None]) -> None:
        try:
            loop()
        except Stopped:
            pass
        except BaseException as error:
            crashes.append(error)
            stop.set()

    threads = [threading.Thread(target=functools.partial(guarded, loop), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(POLL_S)
    except BaseException:
        stop.set()
        end = time.monotonic() + _GOODBYE_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        raise
    if crashes:
        raise crashes[0]


class Counter:
    """Counts one file's bytes into the bar of the whole and into its own, if it has one."""

    def __init__(self, overall: Task, done: int) -> None:
        self.overall, self.done = overall, done
        self.detail: Task | None = None

    def advance(self, count: int) -> None:
        """See `Task.advance`."""
        self.done += count
        for task in (self.overall, self.detail):
            if task is not None:
                task.advance(count)

    def describe(self, text: str) -> None:
        """See `Task.describe`."""
        if self.detail is not None:
            self.detail.describe(text)
