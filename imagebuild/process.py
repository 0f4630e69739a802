# SPDX-License-Identifier: Apache-2.0
"""The only module that starts programs."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagebuild.errors import BuildError, PreconditionError

log = logging.getLogger(__name__)


def _start(
    argv: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    stdout: int,
    stderr: int,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[str]:
    log.debug("run: %s", shlex.join(argv))
    try:
        return subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise PreconditionError(f"program not found: {argv[0]}") from error


def _stop(process: subprocess.Popen[str]) -> None:
    """End a program and all that it started, so that an interrupt leaves nothing running."""
    if process.poll() is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    except ProcessLookupError:
        process.wait()


def _tail(text: str, lines: int = 30) -> str:
    return "\n".join(text.rstrip().splitlines()[-lines:])


def output(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = 600,
) -> str:
    """Run a program and return its standard output.

    Raises PreconditionError if it is not installed, BuildError (with the end of its standard
    error) if it exits non-zero or outlives `timeout` seconds.
    """
    process = _start(argv, cwd, env, subprocess.PIPE, subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{argv[0]} did not finish in {timeout:.0f} s") from error
    finally:
        _stop(process)
    if process.returncode != 0:
        raise BuildError(f"{shlex.join(argv)} exited {process.returncode}\n{_tail(err or out)}")
    return out


def feed(
    argv: Sequence[str],
    text: str,
    *,
    timeout: float = 60,
    ok: Sequence[int] = (0,),
) -> str:
    """Run a program with `text` as its standard input and return its standard output.

    Raises as `output` does, where `ok` are the exit statuses that are no failure; neither the
    input nor the output shows up in errors.
    """
    process = _start(argv, None, None, subprocess.PIPE, subprocess.PIPE, subprocess.PIPE)
    try:
        out, _ = process.communicate(text, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{argv[0]} did not finish in {timeout:.0f} s") from error
    finally:
        _stop(process)
    if process.returncode not in ok:
        raise BuildError(f"{shlex.join(argv)} exited {process.returncode}")
    return out


def stream(
    argv: Sequence[str],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    keep_stdin: bool = False,
) -> int:
    """Run a program, hand each line of its output (both streams) to `on_line`, return its status.

    With `keep_stdin` its standard input stays open, empty, until we are gone: what it started elsewhere (in
    a container) can see that.
    """
    stdin = subprocess.PIPE if keep_stdin else subprocess.DEVNULL
    process = _start(argv, cwd, env, subprocess.PIPE, subprocess.STDOUT, stdin)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            on_line(line.rstrip("\n"))
        return process.wait()
    finally:
        _stop(process)


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit status, None if it did not end within its time, and its output."""

    status: int | None
    out: str
    err: str


def attempt(
    argv: Sequence[str], *, timeout: float, text: str = "", env: Mapping[str, str] | None = None
) -> Ended:
    """Run a program whose failure is an answer too. Raises PreconditionError if it is not installed.

    `text` is its standard input.

    It comes back after `timeout` seconds and a few more even if the program cannot be killed, as one that
    waits in a broken driver.
    """
    process = _start(argv, None, env, subprocess.PIPE, subprocess.PIPE, subprocess.PIPE)
    try:
        out, err = process.communicate(text, timeout=timeout)
        return Ended(process.returncode, out, err)
    except subprocess.TimeoutExpired as late:
        parts = (late.stdout or b"", late.stderr or b"")
        out, err = (p if isinstance(p, str) else p.decode(errors="replace") for p in parts)
        return Ended(None, out, err)
    finally:
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
