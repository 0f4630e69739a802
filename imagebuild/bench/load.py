# SPDX-License-Identifier: Apache-2.0
"""Make the load: SGLang's own generator, by scripts/lib/bench_driver.py, wherever SGLang is."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild import process
from imagebuild.bench.result import Run, Spread
from imagebuild.catalog import project_root
from imagebuild.errors import BuildError

GENERATOR = "sglang.benchmark.serving"
MARK = "\x1eimagebuild-bench "
_ACCEPTED = ("sglang:generation_tokens_total", "sglang:spec_verify_calls_total")


@dataclass(frozen=True)
class Where:
    """A Python with SGLang: `python` is the start of a command line, `url` the server as seen from there.

    `tokenizer` is a folder there.
    """

    python: tuple[str, ...]
    url: str
    tokenizer: str


@dataclass(frozen=True)
class Job:
    """One run to do; `id` is its name in the results folder."""

    id: str
    concurrency: int
    requests: int
    input: int
    output: int
    seed: int


def in_service(compose: Sequence[str], service: str, port: int, tokenizer: str) -> Where:
    """Run in the service's own container; it has SGLang, the model's tokenizer and no way out."""
    python = (*compose, "exec", "-T", service, "python")
    return Where(python, f"http://127.0.0.1:{port}", tokenizer)


def in_image(image: str, url: str, tokenizer: Path) -> Where:
    """Run in a container of its own, in the host's network."""
    mount = ("-v", f"{tokenizer.absolute()}:/tokenizer:ro")
    options = ("--rm", "-i", "--network=host", "--pull=never", "--entrypoint=python")
    return Where(("docker", "run", *options, *mount, image), url, "/tokenizer")


def command(where: Where, jobs: Iterable[Job], prompts: Sequence[str]) -> list[str]:
    """Return the command line that does all jobs and prints a line for each."""
    text = (project_root() / "scripts" / "lib" / "bench_driver.py").read_text(encoding="utf-8")
    base = ["--backend", "sglang", "--tokenizer", where.tokenizer, "--disable-tqdm"]
    job: dict[str, Any] = {"base": base, "url": where.url, "runs": [vars(run) for run in jobs]}
    if prompts:
        job["prompts"] = list(prompts)
    return [*where.python, "-W", "ignore", "-c", text, json.dumps(job)]


def read_line(line: str) -> tuple[str, dict[str, Any]] | None:
    """Return a result line's id and value; None for all other output."""
    if not line.startswith(MARK):
        return None
    value = json.loads(line[len(MARK) :])
    return value.pop("id"), value


def _spread(result: dict[str, Any], name: str) -> Spread:
    parts = {key: round(float(result[f"{key}_{name}_ms"]), 4) for key in ("median", "mean", "p90", "p99")}
    return Spread(**parts)


def to_run(job: Job, value: dict[str, Any], gpu_memory: tuple[int, ...]) -> Run:
    """Return a driver's line as a Run; a run without a result has failed whole."""
    result = value["result"]
    if result is None:
        nothing = Spread(median=0, mean=0, p90=0, p99=0)
        return Run(
            seconds=0, requests=job.requests, failed=job.requests, error=value["error"].strip()[-600:],
            input_tokens=0, output_tokens=0, tokens_per_s=0, user_tokens_per_s=0,
            ttft_ms=nothing, itl_ms=nothing, e2e_ms=nothing,
        )  # fmt: skip
    tokens, verified = (value["counted"].get(name, 0.0) for name in _ACCEPTED)
    completed, per_token = int(result["completed"]), float(result["median_tpot_ms"])
    peak = value["peak"]
    return Run(
        seconds=round(result["duration"], 4),
        requests=job.requests,
        failed=job.requests - completed,
        error=value["error"].strip()[-600:],
        input_tokens=result["total_input_tokens"],
        output_tokens=result["total_output_tokens"],
        tokens_per_s=round(result["output_throughput"], 3),
        user_tokens_per_s=round(1e3 / per_token, 3) if per_token > 0 else 0,
        ttft_ms=_spread(result, "ttft"),
        itl_ms=_spread(result, "itl"),
        e2e_ms=_spread(result, "e2e_latency"),
        # A request's first token comes from its prefill, not from a verify call.
        accept_length=round((tokens - completed) / verified, 4) if verified else None,
        kv_usage=peak.get("sglang:token_usage"),
        queue=peak.get("sglang:num_queue_reqs"),
        gpu_memory_mib=gpu_memory,
    )


def run_jobs(
    where: Where, jobs: Sequence[Job], prompts: Sequence[str], done: Callable[[Job, dict[str, Any]], None]
) -> None:
    """Do all jobs in one process of the generator and hand over each line as it comes.

    Raises BuildError with the end of the output if the process ends before all are done.
    """
    waiting = {job.id: job for job in jobs}
    tail: deque[str] = deque(maxlen=30)

    def on_line(line: str) -> None:
        found = read_line(line)
        if found is None:
            tail.append(line)
        else:
            done(waiting.pop(found[0]), found[1])

    status = process.stream(command(where, jobs, prompts), on_line, keep_stdin=True)
    if waiting:
        raise BuildError(f"the load generator ended with status {status}\n" + "\n".join(tail))
