# SPDX-License-Identifier: Apache-2.0
"""On a GPU host: a sweep by the benchmark harness itself, over HTTP, with a tiny trained pair of models.

    python3 tests/gpu/sweep.py MODELS OUT [--seconds 160]

MODELS holds pair-bf16 and pair-draft-bf16 (tests/gpu/spec). Three servers start side by side, without
speculation, with DFLASH and with DDTREE, and are measured one after the other. OUT gets the results folder;
`scripts/bench report` makes tables and plots of it. What is missing at the deadline is missing in the result.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

SYMBOLS = 32  # the language that the pair was trained on
PORTS = {"none": 30101, "dflash": 30102, "ddtree": 30103}
BUDGETS = "0,8,16,32"
COMMON = [
    "--attention-backend", "triton", "--sampling-backend", "pytorch", "--grammar-backend", "none",
    "--mem-fraction-static", "0.12", "--max-total-tokens", "65536", "--context-length", "4096",
    "--max-running-requests", "64", "--cuda-graph-bs-decode", "1", "2", "4", "8", "16", "32", "64",
    "--cuda-graph-backend-prefill", "disabled", "--page-size", "1", "--random-seed", "1", "--enable-metrics",
    "--skip-server-warmup", "--host", "127.0.0.1", "--dtype", "bfloat16",
]  # fmt: skip


def suite() -> dict[str, Any]:
    """Return the suite as JSON: every arm must answer as the one without speculation."""
    arms = [{"name": name, "layout": "tp1", "speculation": name} for name in PORTS]
    for arm in arms[1:]:
        arm["same_as"] = "none"
    prompts = [{"ids": [(7 * i + 3 * j * j) % SYMBOLS for j in range(24)]} for i in range(4)]
    return {
        "schema": 1,
        "name": "pair",
        "title": "Tiny trained pair, 1 H200, bf16",
        "model": "pair",
        "reason": "shows the harness and DDTREE on a real GPU, no model of use",
        "arms": arms,
        "concurrency": [1, 8, 64],
        "lengths": [{"input": 64, "output": 128}],
        "repeats": 3,
        "requests_per_user": 2,
        "min_requests": 6,
        "ready_timeout_s": 110,
        "gate": {"tokens": 32, "equal_tokens": 16, "prompts": prompts},
    }


def write_tokenizer(folder: Path, words: int) -> None:
    """Write a tokenizer of so many words: SGLang's load generator reads text only."""
    from tests.timedserver import tokenizer_files

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tokenizer_files(words).items():
        (folder / name).write_text(text)


def stand_in_for_datasets(folder: Path) -> None:
    """SGLang's load generator imports Hugging Face's `datasets` for sets that are not used here."""
    if importlib.util.find_spec("datasets") is None:
        folder.mkdir(exist_ok=True)
        (folder / "datasets.py").write_text("load_dataset = None\n")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def start(models: Path, name: str, out: Path) -> subprocess.Popen[bytes]:
    """Start a server; its log is in OUT."""
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(models / "pair-bf16"), *COMMON]
    env = {**os.environ, "SGLANG_DDTREE_BUDGETS": BUDGETS, "TRITON_F32_DEFAULT": "ieee"}
    argv += ["--port", str(PORTS[name])]
    if name != "none":
        argv += ["--speculative-algorithm", name.upper()]
        argv += ["--speculative-draft-model-path", str(models / "pair-draft-bf16")]
        argv += ["--speculative-draft-attention-backend", "triton"]
    if name == "ddtree":
        argv += ["--speculative-num-draft-tokens", str(max(map(int, BUDGETS.split(","))) + 1)]
    with (out / f"server-{name}.log").open("wb") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log, env=env, start_new_session=True)


def measure(models: Path, out: Path) -> None:
    """Run the suite with the harness's own code."""
    from imagebuild.bench.load import Where
    from imagebuild.bench.runner import Setting, run_suite
    from imagebuild.bench.runs import Folder
    from imagebuild.bench.suite import Suite
    from imagebuild.progress import open_progress

    found = Suite.model_validate_json(json.dumps(suite()))
    words = models / "words"
    write_tokenizer(words, SYMBOLS)
    with open_progress() as progress:
        setting = Setting(
            suite=found,
            prompts=(),
            folder=Folder(out / "sweep", found, ()),
            urls={name: f"http://127.0.0.1:{port}" for name, port in PORTS.items()},
            service_url="",
            where=lambda arm, server: Where((sys.executable,), server.url, str(words)),
            compose=None,
            progress=progress,
            report=lambda line: print(line, flush=True),
        )
        run_suite(setting, found.arms)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=160)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(given.models / "pair-bf16", 512)
    stand_in_for_datasets(given.models / "stand-in")

    def stop() -> None:
        print("the time is up", flush=True)
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(given.seconds, stop)
    timer.daemon = True
    timer.start()
    begun = time.monotonic()
    servers = [start(given.models, name, given.out) for name in PORTS]
    try:
        measure(given.models, given.out)
    except KeyboardInterrupt:
        print("stopped: the result has what was measured", flush=True)
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGKILL)
        print(f"{time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
