# SPDX-License-Identifier: Apache-2.0
"""Runs SGLang's own load generator again and again in one process, where SGLang is installed.

    python -c "$(cat bench_driver.py)" '{"base": [...], "url": "...", "runs": [...], ...}'

The benchmark harness passes this text to a Python in the image, so nothing is mounted or copied.
Importing SGLang takes ten seconds, so all runs of one server share one process. Each finished run
is one line on stdout: MARK and JSON. When stdin closes, whoever started it is gone, and it ends.

Around each run it reads the server's counters: what the load generator cannot see is how many
verify calls the tokens took, and how full the KV pool was.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import traceback
import urllib.request
from typing import Any

MARK = "\x1eimagebuild-bench "
SAMPLE_EVERY_S = 2.0
COUNTERS = ("sglang:generation_tokens_total", "sglang:spec_verify_calls_total", "sglang:num_requests_total")
GAUGES = ("sglang:token_usage", "sglang:num_queue_reqs", "sglang:num_running_reqs")
_ROW = re.compile(r"^(\w+:\w+)(?:\{[^}]*\})? (\S+)", re.MULTILINE)


def metrics(url: str) -> dict[str, float]:
    """Return the server's counters (summed over labels) and gauges (largest); empty without metrics."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            text = answer.read().decode("utf-8", "replace")
    except OSError:
        return {}
    found: dict[str, float] = {}
    for name, value in _ROW.findall(text):
        if name in COUNTERS:
            found[name] = found.get(name, 0.0) + float(value)
        elif name in GAUGES:
            found[name] = max(found.get(name, 0.0), float(value))
    return found


class Sampler(threading.Thread):
    """Reads the gauges while a run goes on and keeps the largest of each."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.peak, self.over = url, {}, threading.Event()  # type: ignore[var-annotated]

    def run(self) -> None:
        while not self.over.wait(SAMPLE_EVERY_S):
            for name, value in metrics(self.url).items():
                self.peak[name] = max(self.peak.get(name, 0.0), value)


def prompt_file(folder: str, prompts: list[str], count: int, seed: int) -> str:
    """Write `count` conversations for SGLang's `custom` data set; no two begin alike (prefix cache)."""
    path = os.path.join(folder, "prompts.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        for number in range(count):
            text = f"({seed}-{number}) {prompts[number % len(prompts)]}"
            turns = [{"content": text}, {"content": "An answer, which is not used."}]
            file.write(json.dumps({"conversations": turns}) + "\n")
    return path


def arguments(job: dict[str, Any], run: dict[str, Any], folder: str) -> list[str]:
    """Return the load generator's command line for one run."""
    argv = [
        "serving", *job["base"], "--base-url", job["url"], "--warmup-requests", "0", "--flush-cache",
        "--max-concurrency", str(run["concurrency"]), "--num-prompts", str(run["requests"]),
        "--seed", str(run["seed"]), "--output-file", os.path.join(folder, "out.jsonl"), "--output-details",
    ]  # fmt: skip
    if job.get("prompts"):
        path = prompt_file(folder, job["prompts"], run["requests"], run["seed"])
        argv += ["--dataset-name", "custom", "--dataset-path", path]
        return [*argv, "--sharegpt-output-len", str(run["output"])]
    argv += ["--dataset-name", "random-ids", "--tokenize-prompt", "--random-range-ratio", "1"]
    return [*argv, "--random-input-len", str(run["input"]), "--random-output-len", str(run["output"])]


def one_run(serving: Any, job: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """Do one run and return the generator's result without texts and single latencies."""
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = arguments(job, run, folder)
        sampler = Sampler(job["url"])
        before = metrics(job["url"])
        sampler.start()
        with contextlib.redirect_stdout(sys.stderr):
            serving.cli_main()
        sampler.over.set()
        after = metrics(job["url"])
        with open(os.path.join(folder, "out.jsonl"), encoding="utf-8") as file:
            result: dict[str, Any] = json.loads(file.readlines()[-1])
    errors = [text for text in result.pop("errors") if text]
    for name in ("generated_texts", "ttfts", "itls", "input_lens", "output_lens", "server_info"):
        result.pop(name, None)
    return {
        "result": result,
        "errors": len(errors),
        "error": errors[0][-2000:] if errors else "",
        "counted": {name: after[name] - before.get(name, 0.0) for name in COUNTERS if name in after},
        "peak": sampler.peak,
    }


def main() -> None:
    """Do all runs of the job; a run that fails is a line too."""
    job = json.loads(sys.argv[1])

    def leave() -> None:
        sys.stdin.read()
        os._exit(130)

    threading.Thread(target=leave, daemon=True).start()
    out = sys.stdout
    # Its proxy settings are for the way out; the server is on this machine.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"
    from sglang.benchmark import serving

    for run in job["runs"]:
        try:
            value = one_run(serving, job, run)
        except (Exception, SystemExit):
            value = {"result": None, "errors": 1, "error": traceback.format_exc()[-2000:]}
        out.write(f"{MARK}{json.dumps({'id': run['id'], **value})}\n")
        out.flush()


if __name__ == "__main__":
    main()
