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
from rich.table import Column
from rich.text import Text

from imagebuild.progress import Progress, Task, Unit, size_text

_NUMBERS = 48  # characters of the columns for percent, amount, rate and time, the gaps and an indent


@contextlib.contextmanager
def open_bars(stream: TextIO) -> Iterator[Progress]:
    """Show bars on a terminal until the context ends; the cursor comes back however it ends."""
    console = Console(file=stream, force_terminal=True)
    bar = 24 if console.width >= 110 else 10
    bars = RichProgress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=bar),
        TaskProgressColumn(),
        _Amount(),
        _Rate(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        refresh_per_second=5,
        redirect_stdout=False,  # stdout carries the result
        redirect_stderr=stream is sys.stderr,
    )
    with bars:
        yield _Bars(bars, name_width=min(38, max(12, console.width - bar - _NUMBERS)))


class _Bars:
    def __init__(self, bars: RichProgress, name_width: int) -> None:
        self._bars, self._name_width = bars, name_width

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
        task = _Task(self._bars, self._name_width if detail else 0)
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
    """`name_width` is that of a detail's file name, 0 for a main task."""

    def __init__(self, bars: RichProgress, name_width: int) -> None:
        self._bars, self._name_width = bars, name_width
        self.ident = TaskID(-1)

    def label(self, text: str) -> str:
        return f"  {_short(text, self._name_width)}" if self._name_width else text

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


def _short(name: str, width: int) -> str:
    """Return a file name cut in its middle, since wheels differ at both ends."""
    end = width // 3 + 1
    return name if len(name) <= width else f"{name[: width - end - 1]}…{name[-end:]}"
