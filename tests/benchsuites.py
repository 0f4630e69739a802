# SPDX-License-Identifier: Apache-2.0
"""A suite for the server of timedserver.py, and results to reason about."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imagebuild.bench.result import Arm, BenchResult, Cell, Check, Run, Spread

HERE = Path(__file__).parent
ROOT = HERE.parent


def suite_text(**change) -> str:
    """Return a suite as YAML (JSON is YAML)."""
    value: dict[str, Any] = {
        "schema": 1,
        "name": "timed",
        "title": "A server with known timing",
        "model": "none",
        "reason": "shows that the harness measures right",
        "arms": [
            {"name": "plain", "layout": "one"},
            {"name": "fast", "layout": "one", "speculation": "dflash", "same_as": "plain"},
        ],
        "concurrency": [1, 4],
        "lengths": [{"input": 8, "output": 8}],
        "repeats": 2,
        "requests_per_user": 2,
        "min_requests": 2,
        "gate": {"tokens": 8, "equal_tokens": 8, "prompts": [{"text": "t1 t2 t3", "begins": "t186 t193"}]},
    }
    return json.dumps(value | change)


@contextlib.contextmanager
def timed_server(*options: str) -> Iterator[str]:
    """Run a server of known timing in a process of its own; give its URL."""
    argv = [sys.executable, str(HERE / "timedserver.py"), *options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()


def bench_argv(*arguments: str) -> list[str]:
    """Return the command line of `build.py bench` in this Python's own environment."""
    return [sys.executable, "-m", "imagebuild.cli", "bench", *arguments]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `build.py bench`."""
    return subprocess.run(
        bench_argv(*arguments), capture_output=True, text=True, cwd=ROOT, check=False, timeout=300
    )


def spread(value: float) -> Spread:
    """Return a spread without width."""
    return Spread(median=value, mean=value, p90=value, p99=value)


def run_of(rate: float, **change) -> Run:
    """Return a run with a rate and what follows from it."""
    values: dict[str, Any] = {
        "seconds": 10.0, "requests": 8, "failed": 0, "input_tokens": 80, "output_tokens": 800,
        "tokens_per_s": rate, "user_tokens_per_s": rate, "ttft_ms": spread(100.0),
        "itl_ms": spread(1e3 / rate), "e2e_ms": spread(1e4),
    }  # fmt: skip
    return Run(**values | change)


def arm_of(name: str, rates: dict[int, list[float]], *, passed: bool = True, **change) -> Arm:
    """Return an arm: users → the rates of its repeats."""
    cells = tuple(
        Cell(concurrency=users, input=8, output=8, runs=tuple(run_of(rate) for rate in values))
        for users, values in rates.items()
    )
    gate = (Check(name="twice the same", passed=passed),)
    values: dict[str, Any] = {
        "name": name,
        "layout": "one",
        "speculation": "none",
        "url": "",
        "gate": gate,
        "cells": cells,
    }
    return Arm(**values | change)


def result_of(*arms: Arm, **change) -> BenchResult:
    """Return a result of these arms."""
    values: dict[str, Any] = {
        "suite": "timed", "title": "A title", "model": "k26", "created": "2026-12-01T00:00:00Z", "tool": "0",
        "load_generator": "x", "prompts": "random-ids", "suite_digest": "0" * 64, "complete": True,
        "arms": arms,
    }  # fmt: skip
    return BenchResult(**values | change)
