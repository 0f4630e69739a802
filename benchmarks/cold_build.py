# SPDX-License-Identifier: Apache-2.0
"""Time a cold build of each arch, and a rebuild after one edited launch file; write JSON and a table.

    python benchmarks/cold_build.py [ARCH ...]

Cold means: an empty download cache, an empty environment of the tool, no image and no build
cache in the engine (it is pruned: do not run this where others build). Runs from a copy of the
project, so that the edit touches nothing. Needs Docker and about 25 GB of disk; the image is
removed again. Times are wall-clock seconds of `python build.py`, start of Python included.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "cold_build.json"
TABLE = ROOT / "docs" / "benchmarks.md"
LIMIT_COLD_S, LIMIT_REBUILD_S = 360, 30
MARK_BEGIN, MARK_END = "<!-- cold_build: begin -->", "<!-- cold_build: end -->"
STEPS = {
    "fetch": r"fetched and checked in (\d+) s",
    "contexts": r"build contexts ready in (\d+) s",
    "build": r"built \S+ \(.*\) in (\d+) s",
}


def machine() -> dict[str, Any]:
    """Return the size of this machine and the versions that matter."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    server = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, check=True
    )
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "cpu": cpu[1] if cpu else platform.machine(),
        "docker": server.stdout.strip(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def timed(project: Path, cache: Path, arch: str) -> dict[str, Any]:
    """Run one build; return its wall time, the times of its steps and its result."""
    own = ("IMAGEBUILD_VENV_DIR", "IMAGEBUILD_DEV")
    env = {k: v for k, v in os.environ.items() if k not in own} | {"IMAGEBUILD_CACHE_DIR": str(cache)}
    argv = ["python3", str(project / "build.py"), "--arch", arch, "--stop-after", "build", "--json"]
    start = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
    seconds = time.monotonic() - start
    if done.returncode != 0:
        sys.exit(f"build of {arch} failed ({done.returncode}):\n{done.stderr[-4000:]}")
    steps = {
        name: int(found[1]) for name, pattern in STEPS.items() if (found := re.search(pattern, done.stderr))
    }
    result = json.loads(done.stdout)
    return {"seconds": round(seconds, 1), "steps": steps, "size_gb": round(result["size"] / 1e9, 2), **{
        key: result[key] for key in ("reference", "plan")
    }}  # fmt: skip


def measure(arch: str) -> dict[str, Any]:
    """Measure one arch, cold and after an edit, and remove what was built."""
    subprocess.run(["docker", "builder", "prune", "--all", "--force"], check=True, capture_output=True)
    with tempfile.TemporaryDirectory(prefix="imagebuild-bench-") as folder:
        project, cache = Path(folder) / "project", Path(folder) / "cache"
        shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        cold = timed(project, cache, arch)
        with open(project / "images" / "launch" / "entrypoint", "a", encoding="utf-8") as file:
            file.write(f"# edited for a benchmark at {time.time_ns()}\n")
        rebuild = timed(project, cache, arch)
    for found in (cold, rebuild):
        subprocess.run(["docker", "image", "rm", "-f", found["reference"]], check=True, capture_output=True)
    subprocess.run(["docker", "builder", "prune", "--all", "--force"], check=True, capture_output=True)
    return {
        "cold": cold,
        "rebuild": rebuild,
        "rebuild_to_cold": round(rebuild["seconds"] / cold["seconds"], 3),
        "cold_to_limit": round(cold["seconds"] / LIMIT_COLD_S, 3),
        "rebuild_to_limit": round(rebuild["seconds"] / LIMIT_REBUILD_S, 3),
    }


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    host = results["machine"]
    lines = [
        f"{results['date']}, {host['cores']} cores ({host['cpu']}), {host['memory_gb']} GB memory, "
        f"Docker {host['docker']}, load {host['load_before']} before.",
        "",
        "| arch | cold s (limit 360) | fetch | contexts | docker build | launch edit s (limit 30) | GB |",
        "|---|---|---|---|---|---|---|",
    ]
    for arch, found in results["archs"].items():
        cold, rebuild = found["cold"], found["rebuild"]
        steps = cold["steps"]
        lines.append(
            f"| {arch} | {cold['seconds']} | {steps['fetch']} | {steps['contexts']} | {steps['build']} "
            f"| {rebuild['seconds']} | {cold['size_gb']} |"
        )
    return "\n".join(lines)


def main(archs: list[str]) -> None:
    """Measure, write the JSON and put the table into docs/benchmarks.md."""
    results: dict[str, Any] = {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "archs": {},
    }
    for arch in archs:
        print(f"{arch}: cold build and rebuild", file=sys.stderr, flush=True)
        results["archs"][arch] = measure(arch)
        print(json.dumps(results["archs"][arch], indent=1), flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = TABLE.read_text(encoding="utf-8")
    before, rest = text.split(MARK_BEGIN)
    after = rest.split(MARK_END)[1]
    TABLE.write_text(f"{before}{MARK_BEGIN}\n{table(results)}\n{MARK_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or ["sm_103", "sm_120"])
