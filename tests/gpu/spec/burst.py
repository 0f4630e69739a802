# SPDX-License-Identifier: Apache-2.0
"""Run many arms (engine.py) side by side on the GPU host and judge them.

    python3 burst.py SET --out $OUT [--jobs 6] [--limit SECONDS]

SET is a function of arms.py. An arm that fails or runs late does not stop the others. Everything is
in $OUT when the limit is reached: summary.txt, results.tar.xz, the compile caches.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import arms

HERE = Path(__file__).resolve().parent
WORK = Path(os.environ["GPU_WORK"])


class Burst:
    """Arms that wait for one another, and what came of them."""

    def __init__(self, out: Path, limit: float) -> None:
        self.out, self.end = out, time.monotonic() + limit
        self.folder = WORK / "results"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.begun = time.monotonic()
        self.finished: dict[str, threading.Event] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.lock = threading.Lock()
        self.summary = (out / "summary.txt").open("a")

    def say(self, line: str) -> None:
        with self.lock:
            text = f"[{time.monotonic() - self.begun:5.0f} s] {line}"
            print(text, flush=True)
            print(text, file=self.summary, flush=True)

    def result(self, name: str) -> dict[str, Any]:
        """An arm's result so far; empty if there is none."""
        try:
            found: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        except (OSError, ValueError):
            found = {}
        return found

    def run(self, arm: dict[str, Any]) -> None:
        """Wait for what the arm needs, run it, say how it ended."""
        name = arm["name"]
        try:
            for need in arm.get("needs", ()):
                self.finished[need].wait(max(0.0, self.end - time.monotonic()))
            command = arm.get("command")
            if command is None:
                spec = arm["spec"](self) if callable(arm["spec"]) else arm["spec"]
                path = self.folder / f"{name}.spec.json"
                path.write_text(json.dumps(spec))
                command = [
                    sys.executable,
                    str(HERE / "engine.py"),
                    str(path),
                    str(self.folder / f"{name}.json"),
                ]
            self._start(name, command, arm.get("limit", 240))
        except Exception as error:  # an arm must not take the others along
            self.say(f"{name}: not run: {type(error).__name__}: {error}")
        finally:
            self.finished[name].set()

    def _start(self, name: str, command: list[str], limit: float) -> None:
        left = min(limit, self.end - time.monotonic())
        if left < 20:
            self.say(f"{name}: not run: no time left")
            return
        clock = time.monotonic()
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            self.running[name] = process
            try:
                code = process.wait(left)
            except subprocess.TimeoutExpired:
                code = 124
            for what in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, what)
                except ProcessLookupError:
                    break
                time.sleep(0.3)
        seconds = time.monotonic() - clock
        self.say(f"{name}: exit {code}, {seconds:.0f} s")
        if code:
            lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
            wrong = [line for line in lines if "Error" in line or "DIFFERENT" in line] or lines
            for line in wrong[-5:]:
                self.say(f"    {line[:300]}")

    def pack(self, caches: bool) -> None:
        """Put results, and what later runs need, where they come back from."""
        with tarfile.open(self.out / "results.tar.xz", "w:xz") as archive:
            for path in sorted(self.folder.iterdir()):
                if path.suffix in (".json", ".log", ".png"):
                    archive.add(path, path.name)
        if not caches:
            return
        pair = [path for path in (WORK / "models").glob("pair*-bf16")]
        if pair:
            with tarfile.open(self.out / "pair.tar", "w") as archive:
                for path in pair:
                    archive.add(path, path.name)
        for cache in ("tvm-ffi", "triton", "flashinfer"):
            if (WORK / "jit-cache" / cache).exists():
                # Triton reads its own intermediate texts never again; they are most of the bytes.
                with tarfile.open(self.out / f"jit-{cache}.tar.xz", "w:xz", preset=1) as archive:
                    archive.add(WORK / "jit-cache" / cache, cache, filter=_needed)


def _needed(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left = (".ttir", ".ttgir", ".llir", ".ptx", ".source")
    return None if info.name.endswith(left) else info


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--limit", type=float, default=500, help="seconds for all arms together")
    parser.add_argument("--no-caches", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    burst = Burst(args.out, args.limit)
    plan = getattr(arms, args.set)(WORK)
    burst.finished = {arm["name"]: threading.Event() for arm in plan}
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(burst.run, plan))
    failed = arms.judge(burst, plan)
    burst.say(f"{len(plan)} arms, {failed} judgements failed")
    burst.pack(not args.no_caches)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
