# SPDX-License-Identifier: Apache-2.0
"""Live progress bars by rich: one for each task, details below while they run. See `progress`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.progress import Task as RichTask
from rich.text import Text

from imagebuild.progress import Progress, Task, Unit, size_text


@contextlib.contextmanager
def open_bars(stream: TextIO) -> Iterator[Progress]:
    """Show bars on a terminal until the context ends; the cursor comes back however it ends."""
    bars = RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        _Amount(),
        _Rate(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(file=stream, force_terminal=True),
        refresh_per_second=5,
        redirect_stdout=False,  # stdout carries the result
        redirect_stderr=stream is sys.stderr,
    )
    with bars:
        yield _Bars(bars)


class _Bars:
    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars

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
        task = _Task(self._bars, TaskID(-1), detail)
        task.ident = self._bars.add_task(task.label(description), total=total, completed=done, unit=unit)
        try:
            yield task
        finally:
            if detail:
                self._bars.remove_task(task.ident)
            else:
                self._bars.stop_task(task.ident)

    def say(self, line: str) -> None:
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Task:
    def __init__(self, bars: RichProgress, ident: TaskID, detail: bool) -> None:
        self._bars, self.ident, self._detail = bars, ident, detail

    def label(self, text: str) -> str:
        return f"  {_short(text)}" if self._detail else text

    def advance(self, count: int) -> None:
        self._bars.advance(self.ident, count)

    def describe(self, text: str) -> None:
        self._bars.update(self.ident, description=self.label(text))


class _Amount(ProgressColumn):
    def render(self, task: RichTask) -> Text:
        if task.fields["unit"] == "bytes":
            total = f" of {size_text(task.total)}" if task.total else ""
            return Text(size_text(task.completed) + total)
        return Text(f"{task.completed:.0f}" + (f" of {task.total:.0f}" if task.total else ""))


class _Rate(ProgressColumn):
    def render(self, task: RichTask) -> Text:
        speed = task.finished_speed or task.speed or 0
        return Text(f"{size_text(speed)}/s" if speed > 0 and task.fields["unit"] == "bytes" else "")


def _short(name: str, width: int = 38) -> str:
    """Return a file name cut in its middle, since wheels differ at both ends."""
    return name if len(name) <= width else f"{name[: width - 15]}…{name[-14:]}"
