# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import re

import pytest

from imagebuild.progress import files_text, open_progress, size_text, time_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_quiet_says_nothing() -> None:
    stream = io.StringIO()
    with open_progress(quiet=True, stream=stream) as progress, progress.task("fetching", 10) as task:
        task.advance(10)
        progress.say("hello")
    assert stream.getvalue() == ""


def test_a_pipe_gets_a_line_now_and_then_and_one_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("imagebuild.progress.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    with open_progress(stream=stream) as progress, progress.task("fetching", 4_000, done=1_000) as task:
        for _ in range(10):
            with progress.task("a.whl", 300, detail=True) as detail:
                detail.advance(300)
            now[0] += 2
            task.advance(300)
    assert stream.getvalue().splitlines() == [
        "fetching: 1.9 kB of 4.0 kB (47 %), 150 B/s, 0:14 left",
        "fetching: 2.8 kB of 4.0 kB (70 %), 150 B/s, 0:08 left",
        "fetching: 3.7 kB of 4.0 kB (92 %), 150 B/s, 0:02 left",
        "fetching: 4.0 kB of 4.0 kB (100 %), 150 B/s, took 0:20",
    ]


def test_steps_have_no_bytes_and_may_have_no_total() -> None:
    stream = io.StringIO()
    with open_progress(stream=stream) as progress:
        with progress.task("building", 12, unit="steps") as task:
            task.advance(3)
        with progress.task("waiting", None, unit="steps") as task:
            task.describe("still waiting")
            task.advance(2)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("building: 3 of 12 (25 %), took")
    assert second.startswith("still waiting: 2, took")


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    name = "sglang_kernel-0.4.4-cp310-abi3-manylinux2014_x86_64.whl"
    with open_progress(stream=stream) as progress:
        with progress.task("fetching", 2_000_000) as task, progress.task(name, 10, detail=True):
            task.advance(1_500_000)
            progress.say("a [bold] line")
        with progress.task("steps", 3, unit="steps") as task:
            task.advance(2)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "1.5 MB of 2.0 MB" in text and "75%" in text and "2 of 3" in text
    assert "sglang_kernel" in text and "x86_64.whl" in text and "…" in text
    assert "a [bold] line" in text
    assert re.search(r"\x1b\[[0-9;]*3[0-9]", stream.getvalue()), "in colour"


@pytest.mark.parametrize(("name", "value", "escapes"), [("NO_COLOR", "1", True), ("TERM", "dumb", False)])
def test_colour_and_bars_can_be_refused(
    name: str, value: str, escapes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    stream = Terminal()
    with open_progress(stream=stream) as progress, progress.task("fetching", 10) as task:
        task.advance(10)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", stream.getvalue())
    assert ("\x1b" in stream.getvalue()) == escapes and "10 B" in stream.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_949, "99.9 kB"), (99_950, "100 kB"),
     (531_000_000, "531 MB"), (4_601_990_672, "4.6 GB"), (548e9, "548 GB"), (5e12, "5000 GB")],
)  # fmt: skip
def test_sizes(count: float, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3723, "1:02:03")])
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_counts() -> None:
    assert [files_text(n) for n in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
