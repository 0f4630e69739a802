# SPDX-License-Identifier: Apache-2.0
"""Compare `models fetch` with `hf download` from the same server, and `models verify` with bare hashing.

    python benchmarks/models.py [MEGABYTES]

Writes a table into docs/benchmarks.md and JSON below benchmarks/results/. The server is the tests' hub on
127.0.0.1, in a process of its own; each run is a process of its own, timed from after its imports; the
two sides take turns. Elapsed time is what a user sees; processor time tells the same on a machine that
others use too. Needs three times MEGABYTES (1024) of disk below the temporary folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from imagebuild.crew import cores  # noqa: E402
from imagebuild.models.lockfile import LockedFile, LockedRepo  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "models.json"
TABLE = ROOT / "docs" / "benchmarks.md"
MARK_BEGIN, MARK_END = "<!-- models: begin -->", "<!-- models: end -->"
FILES, TURNS = 8, 7
VERIFIED = "models verify --full"
FROM_FILES = "the same files through hashlib, all cores"
IN_MEMORY = "sha256 of one block in memory, all cores"
SERVER = """
import sys, time
from pathlib import Path
from tests.network.hub import serve_hub, sha256_of
with serve_hub() as hub:
    commit = hub.repo("acme/Big", {p.name: p for p in sorted(Path(sys.argv[1]).iterdir())})
    for body in hub.repos["acme/Big"].commits[commit].values():
        sha256_of(body)
    print(hub.url, commit, flush=True)
    sys.stdin.read()
"""
OURS = """
import resource, sys, time
from pathlib import Path
from imagebuild.models.fetch import Wanted, fetch
from imagebuild.models.hub import open_hub
from imagebuild.models.lockfile import LockedRepo
from imagebuild.settings import Settings
import huggingface_hub.hf_api
from imagebuild.hostconf import host_network
repo = LockedRepo.model_validate_json(Path(sys.argv[1]).read_text())
settings, hub = Settings(cache_dir=Path("/nonexistent")), open_hub()
host_network(settings)
began, cpu = time.monotonic(), time.process_time()
fetch([Wanted(repo, Path(sys.argv[2]))], settings, hub)
print(time.monotonic() - began, time.process_time() - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
THEIRS = """
import sys, time
from huggingface_hub import snapshot_download
began, cpu = time.monotonic(), time.process_time()
snapshot_download("acme/Big", revision=sys.argv[1], local_dir=sys.argv[2])
print(time.monotonic() - began, time.process_time() - cpu, 0)
"""
VERIFY = """
import resource, sys, time
from pathlib import Path
from imagebuild.models.lockfile import LockedRepo
from imagebuild.models.verify import verify
repo = LockedRepo.model_validate_json(Path(sys.argv[1]).read_text())
began, cpu = time.monotonic(), time.process_time()
assert verify(Path(sys.argv[2]), repo, full=True).findings
print(time.monotonic() - began, time.process_time() - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
HASH = """
import hashlib, sys, threading, time
blocks, block = int(sys.argv[1]), bytes(1 << 20)
def work(count):
    digest = hashlib.sha256()
    for _ in range(count):
        digest.update(block)
threads = [threading.Thread(target=work, args=(blocks // int(sys.argv[2]),)) for _ in range(int(sys.argv[2]))]
began, cpu = time.monotonic(), time.process_time()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(time.monotonic() - began, time.process_time() - cpu, 0)
"""
HASH_FILES = """
import hashlib, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
def work(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
with ThreadPoolExecutor(int(sys.argv[2])) as pool:
    began, cpu = time.monotonic(), time.process_time()
    list(pool.map(work, sorted(Path(sys.argv[1]).glob("part-*"))))
print(time.monotonic() - began, time.process_time() - cpu, 0)
"""


Times = tuple[float, float, float]


def run(program: str, *arguments: object, **env: str) -> Times:
    """Return what a program prints: elapsed seconds, processor seconds and kB."""
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    elapsed, cpu, memory = map(float, result.stdout.split()[-3:])
    return elapsed, cpu, memory


def make(root: Path, megabytes: int) -> LockedRepo:
    """Write the model's files; return their lock."""
    (root / "model").mkdir()
    files = []
    for number in range(FILES):
        path = root / "model" / f"part-{number}.bin"
        path.write_bytes(os.urandom((megabytes << 20) // FILES))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        files.append(LockedFile(path=path.name, size=path.stat().st_size, sha256=digest))
    return LockedRepo(name="target", repo="acme/Big", commit="c" * 40, files=tuple(files))


def measure_fetch(root: Path, repo: LockedRepo) -> dict[str, list[Times]]:
    """Fetch with both, in turn, from one server."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(root / "model")],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    times: dict[str, list[Times]] = {"models fetch": [], "hf download": []}
    try:
        assert server.stdout is not None
        url, commit = server.stdout.readline().split()
        env = {"HF_ENDPOINT": url, "HF_HOME": str(root / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        lock = root / "lock.json"
        lock.write_text(repo.model_copy(update={"commit": commit}).model_dump_json())
        for _ in range(TURNS):
            for name, program, first in (("hf download", THEIRS, commit), ("models fetch", OURS, lock)):
                times[name].append(run(program, first, root / "out", **env))
                shutil.rmtree(root / "out")
    finally:
        server.communicate(timeout=10)
    return times


def measure_verify(root: Path, repo: LockedRepo, megabytes: int) -> dict[str, list[Times]]:
    """Verify all bytes; hash the same files, and as many bytes in memory, with nothing else around it."""
    (root / "lock.json").write_text(repo.model_dump_json())
    times: dict[str, list[Times]] = {VERIFIED: [], FROM_FILES: [], IN_MEMORY: []}
    for _ in range(TURNS):
        times[IN_MEMORY].append(run(HASH, megabytes, cores()))
        times[FROM_FILES].append(run(HASH_FILES, root / "model", cores()))
        times[VERIFIED].append(run(VERIFY, root / "lock.json", root / "model"))
    return times


def table(times: dict[str, list[Times]], megabytes: int) -> list[str]:
    """Return the rows of the table: best and median rate, processor seconds, memory."""
    rows = []
    for name, found in times.items():
        elapsed = sorted(t[0] for t in found)
        memory = max(t[2] for t in found) / 1000
        rows.append(
            f"| {name} | {megabytes / elapsed[0]:.0f} | {megabytes / statistics.median(elapsed):.0f} "
            f"| {min(t[1] for t in found):.2f} | {f'{memory:.0f}' if memory else '-'} |"
        )
    return rows


def main() -> None:
    """Measure and write."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        repo = make(root, megabytes)
        times = {**measure_fetch(root, repo), **measure_verify(root, repo, megabytes)}
    rows = [
        "| | best, MiB/s | median, MiB/s | processor, s | memory, MB |", "|---|---|---|---|---|",
        *table(times, megabytes),
    ]  # fmt: skip
    day = time.strftime("%Y-%m-%d")
    head = f"{megabytes} MiB in {FILES} files, {cores()} cores, {TURNS} runs of each in turn, {day}."
    text = TABLE.read_text(encoding="utf-8")
    before, after = text.partition(MARK_BEGIN)[0], text.partition(MARK_END)[2]
    TABLE.write_text(
        f"{before}{MARK_BEGIN}\n{head}\n\n" + "\n".join(rows) + f"\n{MARK_END}{after}", encoding="utf-8"
    )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"megabytes": megabytes, "cores": cores(), "times": times}, indent=1) + "\n"
    )
    print("\n".join(rows))


if __name__ == "__main__":
    main()
