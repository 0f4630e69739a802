# SPDX-License-Identifier: Apache-2.0
"""The harness around the load generator, against real servers: gate, runs, interrupt, going on."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchsuites import ROOT, bench, bench_argv, suite_text, timed_server

pytestmark = [pytest.mark.loopback, pytest.mark.subprocess]
STANDIN = str(Path(__file__).parent / "standin")
QUICK = ("--ttft-ms", "20", "--itl-ms", "2")


def arguments(tmp_path, plain, fast, module_path=STANDIN, **change):
    suite = tmp_path / "timed.yaml"
    suite.write_text(suite_text(**change))
    urls = ["--url", f"plain={plain}", "--url", f"fast={fast}"]
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={module_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    more = ["--load-python", str(python), "--tokenizer", str(tmp_path), "--json"]
    return ["run", str(suite), "--out", str(tmp_path / "out"), *urls, *more]


def result(tmp_path):
    return json.loads((tmp_path / "out" / "result.json").read_text())


def test_a_suite_gives_a_result_with_all_cells(tmp_path):
    with timed_server(*QUICK) as plain, timed_server(*QUICK, "--tokens-per-chunk", "4") as fast:
        done = bench(*arguments(tmp_path, plain, fast))
    assert done.returncode == 0, done.stderr
    found = result(tmp_path)
    assert found["complete"]
    assert [arm["name"] for arm in found["arms"]] == ["plain", "fast"]
    for arm in found["arms"]:
        assert [(c["concurrency"], len(c["runs"])) for c in arm["cells"]] == [(1, 2), (4, 2)]
        assert all(run["failed"] == 0 for cell in arm["cells"] for run in cell["runs"])
    # 8 tokens: 1 of the prefill, then 4 and 3 of two verify calls
    fast_runs = found["arms"][1]["cells"][1]["runs"]
    assert [run["accept_length"] for run in fast_runs] == [3.5, 3.5]
    assert found["arms"][0]["cells"][0]["runs"][0]["accept_length"] is None
    assert found["arms"][1]["flags"]["speculative_algorithm"] == "DFLASH"
    assert json.loads(done.stdout)["advice"][0].count("**fast**") == 1


def test_no_figure_of_a_server_that_answers_wrongly(tmp_path):
    with timed_server(*QUICK) as plain, timed_server(*QUICK, "--wrong-after", "5") as fast:
        done = bench(*arguments(tmp_path, plain, fast))
    assert done.returncode == 1
    assert "fast: wrong answers, so no figures" in done.stderr
    assert "the first 5 tokens agree, 8 must" in done.stderr
    plain_arm, fast_arm = result(tmp_path)["arms"]
    assert len(plain_arm["cells"]) == 2
    assert fast_arm["cells"] == []
    assert not all(check["passed"] for check in fast_arm["gate"])


def test_an_interrupted_benchmark_goes_on_per_cell(tmp_path):
    with timed_server("--ttft-ms", "200", "--itl-ms", "5") as plain, timed_server(*QUICK) as fast:
        argv = arguments(tmp_path, plain, fast, repeats=3)
        begun = subprocess.Popen(
            bench_argv(*argv), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        runs = tmp_path / "out" / "runs" / "plain"
        deadline = time.monotonic() + 60
        while len(list(runs.glob("*.json"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        begun.send_signal(signal.SIGINT)
        _, err = begun.communicate(timeout=60)
        assert begun.returncode == 130, err
        kept = {path.name: path.stat().st_mtime_ns for path in runs.glob("*.json")}
        assert 2 <= len(kept) < 6
        assert not result(tmp_path)["complete"]
        done = bench(*argv)
    assert done.returncode == 0, done.stderr
    assert result(tmp_path)["complete"]
    now = {path.name: path.stat().st_mtime_ns for path in runs.glob("*.json")}
    assert len(now) == 6
    assert {name: now[name] for name in kept} == kept


def test_results_of_two_suites_are_not_mixed(tmp_path):
    with timed_server(*QUICK) as url:
        one = bench(*arguments(tmp_path, url, url, repeats=1))
        other = bench(*arguments(tmp_path, url, url, repeats=2))
    assert one.returncode == 0, one.stderr
    assert other.returncode == 4
    assert "another suite" in other.stderr


def test_a_load_generator_that_ends_early_is_an_error_with_its_last_lines(tmp_path):
    with timed_server(*QUICK) as url:
        done = bench(*arguments(tmp_path, url, url, module_path=tmp_path))
    assert done.returncode == 5
    assert "No module named 'sglang'" in done.stderr


def test_a_server_that_is_not_there_is_an_error(tmp_path):
    argv = arguments(tmp_path, "http://127.0.0.1:9", "http://127.0.0.1:9", ready_timeout_s=1)
    done = bench(*argv)
    assert done.returncode == 3
    assert "not ready after" in done.stderr
