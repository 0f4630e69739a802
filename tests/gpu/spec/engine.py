# SPDX-License-Identifier: Apache-2.0
"""One SGLang engine on tiny models: run the tasks of a JSON description, write a JSON result.

    python3 engine.py SPEC.json OUT.json

SPEC: {"target": folder, "draft": folder or absent, "algorithm": "DFLASH" (default) or "DDTREE",
"options": engine options, "env": variables, "tasks": {name: {"kind": …, …}}, "turn": "shared" or
"alone"}. Kinds are the functions below whose names begin with `task_`. Every task's result is written
when it is there. An engine with a turn "alone" runs its tasks while no other with a turn does, and its
processes stand still until then: a scheduler takes a whole core even when it has nothing to do.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VOCAB = 512
DEFAULTS = {
    "skip_tokenizer_init": True,
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "mem_fraction_static": 0.5,
    "max_total_tokens": 65536,
    "context_length": 4096,
    "max_running_requests": 8,
    "cuda_graph_max_bs_decode": 8,
    "cuda_graph_backend_prefill": "disabled",
    "page_size": 1,
    "random_seed": 1,
    "log_level": "info",
}


def prompts(count: int, seed: int, symbols: int = VOCAB - 2) -> list[list[int]]:
    """Random prompts of 5 to 69 tokens."""
    rng = random.Random(seed)
    return [[rng.randrange(symbols) for _ in range(rng.randrange(5, 70))] for _ in range(count)]


def sampling(task: dict[str, Any]) -> dict[str, Any]:
    known = ("temperature", "top_p", "top_k", "min_p", "stop_token_ids")
    chosen = {key: task[key] for key in known if key in task}
    return {"temperature": 0, "max_new_tokens": task.get("tokens", 128), "ignore_eos": True} | chosen


def task_text(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Decode prompts: all at once, `groups` of them one after another if given; ids and steps."""
    ids = task.get("ids") or prompts(task.get("prompts", 8), task.get("seed", 11), task.get("symbols", 510))
    chosen: Any = sampling(task)
    if task.get("ragged"):
        chosen = [
            dict(chosen, max_new_tokens=chosen["max_new_tokens"] // (1 + i % 4)) for i in range(len(ids))
        ]
    if task.get("flush", True):
        engine.flush_cache()
    outputs = []
    step = task.get("at_once", len(ids))
    for first in range(0, len(ids), step):
        these = chosen[first : first + step] if isinstance(chosen, list) else chosen
        outputs += engine.generate(input_ids=ids[first : first + step], sampling_params=these)
    gaps = None
    if task.get("gaps"):
        # Distance between the two best logits at every step: how near a tie was.
        engine.flush_cache()
        scored = []
        for first in range(0, len(ids), step):
            these = chosen[first : first + step] if isinstance(chosen, list) else chosen
            scored += engine.generate(
                input_ids=ids[first : first + step],
                sampling_params=these,
                return_logprob=True,
                top_logprobs_num=2,
            )
        tops = [o["meta_info"]["output_top_logprobs"] for o in scored]
        gaps = [[round(top[0][0] - top[1][0], 7) for top in row] for row in tops]
    meta = [o["meta_info"] for o in outputs]
    steps = [m.get("spec_verify_ct") for m in meta]
    done = sum(m["completion_tokens"] for m in meta)
    return {
        "prompts": ids,
        "ids": [o["output_ids"] for o in outputs],
        "steps": steps,
        "histogram": [m.get("spec_accept_histogram") for m in meta],
        "gaps": gaps,
        "accept": round(done / sum(steps), 4) if steps and all(steps) else None,
        "meta": meta[0],
    }


def task_counts(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Sample one prompt many times: how often each continuation came."""
    prompt = task.get("prompt") or prompts(1, task.get("seed", 5), task.get("symbols", 510))[0]
    found: collections.Counter[str] = collections.Counter()
    done = steps = 0
    for _ in range(task["rounds"]):
        outputs = engine.generate(input_ids=[prompt] * task["count"], sampling_params=sampling(task))
        for output in outputs:
            found[" ".join(map(str, output["output_ids"]))] += 1
            done += output["meta_info"]["completion_tokens"]
            steps += output["meta_info"].get("spec_verify_ct") or 0
    return {"counts": dict(found), "accept": round(done / steps, 4) if steps else None}


def task_logprobs(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Log-probabilities of the best tokens after every position of given texts (no speculation)."""
    engine.flush_cache()
    outputs = engine.generate(
        input_ids=task["ids"],
        sampling_params={"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
        return_logprob=True, logprob_start_len=0, top_logprobs_num=task.get("top", 20),
    )  # fmt: skip
    rows = []
    for output in outputs:
        meta = output["meta_info"]
        tops = [*meta["input_top_logprobs"][1:], meta["output_top_logprobs"][0]]
        rows.append([[(token, value) for value, token, *_ in top] for top in tops])
    return {"rows": rows}


def task_speed(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second at several batch sizes, in rounds."""
    ids = prompts(max(task["batches"]), task.get("seed", 21), task.get("symbols", 510))
    chosen = sampling(task)
    for batch, times in zip(task["batches"], task["warm"], strict=True):
        for _ in range(times):
            engine.generate(input_ids=ids[:batch], sampling_params=chosen)
    rates: dict[str, list[float]] = {str(batch): [] for batch in task["batches"]}
    accept: dict[str, list[float]] = {str(batch): [] for batch in task["batches"]}
    for _ in range(task["rounds"]):
        for batch in task["batches"]:
            engine.generate(input_ids=ids[:batch], sampling_params=dict(chosen, max_new_tokens=16))
            clock = time.perf_counter()
            outputs = engine.generate(input_ids=ids[:batch], sampling_params=chosen)
            seconds = time.perf_counter() - clock
            done = sum(o["meta_info"]["completion_tokens"] for o in outputs)
            steps = sum(o["meta_info"].get("spec_verify_ct") or 0 for o in outputs)
            rates[str(batch)].append(round(done / seconds, 1))
            accept[str(batch)].append(round(done / steps, 3) if steps else 1.0)
    return {"tokens_per_second": rates, "accept": accept}


def task_leak(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    """More text than the KV pool holds, with radix cache and ragged lengths, then an idle check."""
    ids = prompts(task["prompts"], 31)
    chosen = [dict(sampling(task), max_new_tokens=task["tokens"] // (1 + i % 5)) for i in range(len(ids))]
    total = 0
    for _ in range(task.get("rounds", 2)):
        outputs = engine.generate(input_ids=ids, sampling_params=chosen)
        total += sum(o["meta_info"]["completion_tokens"] for o in outputs)
    time.sleep(3)  # the scheduler checks its pools when idle and ends the process if a slot is missing
    flushed = engine.flush_cache()
    after = engine.generate(input_ids=ids[:8], sampling_params=sampling({"tokens": 32}))
    return {"tokens": total, "flushed": str(flushed), "ids": [o["output_ids"] for o in after]}


def task_metrics(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    """The lines of /metrics about DDTREE (the engine must run with enable_metrics)."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    lines = generate_latest(registry).decode().splitlines()
    return {"lines": [line for line in lines if "ddtree" in line and not line.startswith("#")]}


def task_internal(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    """What the server says about itself."""
    info = engine.get_server_info()
    state = info.get("internal_states", [{}])[0]
    keys = ("memory_usage", "avg_spec_accept_length", "last_gen_throughput")
    return {key: state.get(key) for key in keys}


@contextlib.contextmanager
def turn(kind: str | None, started: bool) -> Iterator[None]:
    """Wait for this engine's turn. started: its processes are there already and must stand still."""
    if kind is None:
        yield
        return
    import psutil

    others = psutil.Process().children(recursive=True) if started else []
    for process in others:
        process.send_signal(signal.SIGSTOP)
    with (Path(os.environ.get("GPU_WORK", "/tmp")) / "turn").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH if kind == "shared" else fcntl.LOCK_EX)
        for process in others:
            process.send_signal(signal.SIGCONT)
        yield


def main() -> None:
    spec, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    target = Path(spec["target"])
    dtype = json.loads((target / "config.json").read_text())["torch_dtype"]
    os.environ.update(spec.get("env", {}))
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
    plugins = [str(HERE / "probe_plugin")] + [str(HERE / "fp32_plugin")] * (dtype == "float32")
    sys.path[:0] = plugins
    os.environ["PYTHONPATH"] = os.pathsep.join([*plugins, os.environ.get("PYTHONPATH", "")])
    clock = time.perf_counter()
    import sglang

    options = DEFAULTS | {"model_path": str(target), "dtype": dtype}
    if spec.get("draft"):
        options |= {
            "speculative_algorithm": spec.get("algorithm", "DFLASH"),
            "speculative_draft_model_path": spec["draft"],
            "speculative_draft_attention_backend": "triton",
        }
    engine = sglang.Engine(**(options | spec.get("options", {})))
    result: dict[str, Any] = {"spec": spec, "start": round(time.perf_counter() - clock, 1), "tasks": {}}
    alone = "alone" if spec.get("turn") == "alone" else None
    with turn(alone, started=True):
        for name, task in spec["tasks"].items():
            clock = time.perf_counter()
            found = globals()[f"task_{task['kind']}"](engine, task)
            result["tasks"][name] = found | {"seconds": round(time.perf_counter() - clock, 2)}
            out.write_text(json.dumps(result, default=str) + "\n")
        result["done"] = True
        out.write_text(json.dumps(result, default=str) + "\n")
        engine.shutdown()


if __name__ == "__main__":
    with turn(
        "shared" if json.loads(Path(sys.argv[1]).read_text()).get("turn") == "shared" else None, started=False
    ):
        main()
