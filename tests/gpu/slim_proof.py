# SPDX-License-Identifier: Apache-2.0
"""Does a GPU host's own torch work alike on slimmed libraries? README.md has the exact command.

Stages: prep (copies: as they are, blanked, compacted; each proven byte by byte), driver (every
container through cuModuleLoadData), ops (torch operations), kernels (sglang-kernel's operators), load
(time and memory). Each stage saves its result, so that a cut-off run is not lost. Exit code 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
# Some installed package may be called `tests` too, and would win over a folder without __init__.
_tests = types.ModuleType("tests")
_tests.__path__ = [str(ROOT / "tests")]
sys.modules["tests"] = _tests

from tests.gpu import variants  # noqa: E402

MARK = "@@"  # begins the line of a worker's output that is its JSON result
STAGES = ("prep", "driver", "ops", "kernels", "load")
LINES: list[str] = []


def say(line: str) -> None:
    """Print a line of the summary and keep it."""
    print(line, flush=True)
    LINES.append(line)


def save(out: Path, name: str, value: object) -> None:
    """Write a stage's result and the summary so far."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(value, indent=0, sort_keys=True))
    (out / "summary.txt").write_text("\n".join(LINES) + "\n")


def worker(name: str, *, environment: dict[str, str], argument: str, timeout: float) -> dict[str, Any]:
    """Run a worker function of this file in a process of its own; {"failed": …} if it dies."""
    argv = [sys.executable, str(Path(__file__).resolve()), f"_{name}", "--argument", argument]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {timeout:.0f} s"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            found: dict[str, Any] = json.loads(line[len(MARK) :])
            return found
    return {"failed": f"exit {done.returncode}: {(done.stderr or done.stdout)[-600:]}"}


def environment(work: Path, variant: str, tag: str = "") -> dict[str, str]:
    """Take torch and all its libraries from a copy, with caches of its own."""
    caches = work / f"caches-{variant}{tag}"
    caches.mkdir(parents=True, exist_ok=True)
    return {
        "PYTHONPATH": str(work / variant), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_CACHE_DISABLE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"), "PYTORCH_KERNEL_CACHE_PATH": str(caches),
    }  # fmt: skip


def memory() -> dict[str, Any]:
    """What this process occupies: MiB resident, mapped regions, its libraries (not the driver's, in /usr)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split()[-1] for line in maps if ".so" in line}
    # The driver's own, in /usr, come from the host.
    libraries = {p for p in paths if not p.startswith("/usr/") and ("/torch/" in p or "/nvidia/" in p)}
    resident = {key: int(status[key].split()[0]) // 1024 for key in ("VmRSS", "RssAnon", "RssFile")}
    return {**resident, "regions": len(maps), "libraries": sorted(libraries)}


# --- workers, each in its own process ---------------------------------------------------------------


def _driver(argument: str) -> dict[str, object]:
    from tests.gpu import driver

    root, seconds = argument.split("|")
    return driver.run(Path(root), float(seconds))


def _ops(argument: str) -> dict[str, object]:
    start = time.monotonic()
    import torch

    imported = time.monotonic() - start
    (torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")).sum().item()
    info: dict[str, object] = {"import_s": imported, "first_s": time.monotonic() - start - imported}
    from tests.gpu import operations
    from tests.gpu.recorder import Recorder

    recorder = Recorder()
    info |= operations.run_all(recorder, float(argument))
    return {"info": {**info, **memory()}, "results": recorder.results}


def _kernels(argument: str) -> dict[str, object]:
    from tests.gpu import kernels
    from tests.gpu.recorder import Recorder

    recorder = Recorder()
    info = kernels.run_all(recorder)
    return {"info": {**info, **memory()}, "results": recorder.results}


def _load(argument: str) -> dict[str, object]:
    start = time.monotonic()
    import torch

    imported = time.monotonic()
    x = torch.ones(512, 512, device="cuda", dtype=torch.bfloat16)
    (x @ x).sum().item()
    first = time.monotonic()
    image, kernel = torch.ones(2, 8, 32, 32, device="cuda"), torch.ones(8, 8, 3, 3, device="cuda")
    torch.nn.functional.conv2d(image, kernel).sum().item()
    free, total = torch.cuda.mem_get_info()
    gpu = ((total - free) - torch.cuda.memory_reserved()) >> 20
    times = {"import": imported - start, "first": first - imported, "conv": time.monotonic() - first}
    return {**times, "gpu": gpu, **memory()}


# --- stages ------------------------------------------------------------------------------------------


def prep(options: argparse.Namespace) -> int:
    """Make and prove the copies."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    capability = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    gpu = int(capability.replace(".", ""))
    import importlib.util

    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    report = variants.make(Path(spec.origin).parents[1], options.work, gpu)
    if options.kernels.is_dir():
        for name, row in variants.make(options.kernels, options.work, gpu).items():
            report[f"{name} kernels"] = row
    bad = [line for row in report.values() for line in row["bad"]]  # type: ignore[attr-defined]
    for name, row in report.items():
        say(f"prep sm_{gpu} {name}: {row}")
    save(options.out, "prep", report)
    return len(bad)


def drive(options: argparse.Namespace) -> int:
    """Load every container of every copy."""
    limit = options.driver_seconds

    def one(name: str) -> dict[str, Any]:
        argument = f"{options.work / name}|{limit}"
        eager = {"CUDA_MODULE_LOADING": "EAGER"}
        return worker("driver", environment=eager, argument=argument, timeout=limit + 120)

    with ThreadPoolExecutor(3) as pool:
        found = dict(zip(variants.VARIANTS, pool.map(one, variants.VARIANTS), strict=True))
    bad = 0
    for name, result in found.items():
        if "failed" in result:
            say(f"driver {name}: FAILED {result['failed']}")
            bad += 1
            continue
        modules = result["modules"]
        wrong = [key for key, (fits, status, *_) in modules.items() if fits != (status == 0)]
        say(f"driver {name}: {len(modules)} containers, {result['skipped']} left out, {result['seconds']} s")
        say(f"  the driver's answer is another than the reader's for {len(wrong)}: {wrong[:3]}")
        if name != "orig" and "modules" in found["orig"]:
            orig = found["orig"]["modules"]
            differ = [key for key in orig.keys() & modules.keys() if orig[key] != modules[key]]
            alone = len(orig.keys() ^ modules.keys())
            say(f"driver {name} against orig: {len(differ)} differ {differ[:5]}, {alone} in one only")
            bad += len(differ)
    save(options.out, "driver", found)
    return bad


def _operators(options: argparse.Namespace, stage: str, argument: str, timeout: float) -> int:
    """Run an operator worker on each copy, twice on the original, and compare."""
    from tests.gpu.recorder import compare

    runs = [("orig", ""), ("orig", "-again"), ("orig", "-third"), ("blank", ""), ("small", "")]

    def one(run: tuple[str, str]) -> dict[str, Any]:
        variant, tag = run
        return worker(
            stage, environment=environment(options.work, variant, tag), argument=argument, timeout=timeout
        )

    with ThreadPoolExecutor(4 if stage == "ops" else 1) as pool:
        found = dict(zip(runs, pool.map(one, runs), strict=True))
    bad = 0
    orig, again, third = (found["orig", tag].get("results", {}) for tag in ("", "-again", "-third"))
    # Two repeats find more of what does not repeat (sums by atomic additions) than one.
    again = {
        name: third.get(name, row) if row.get("hash") == orig.get(name, {}).get("hash") else row
        for name, row in again.items()
    }
    for (variant, tag), result in found.items():
        if "failed" in result:
            say(f"{stage} {variant}{tag}: FAILED {result['failed']}")
            bad += 1
            continue
        info = result["info"]
        outside = [
            path
            for path in info.pop("libraries")
            if f"/{variant}/" not in path
            and any(f"/site-packages/{name}/" in path for name in variants.PACKAGES)
        ]
        say(f"{stage} {variant}{tag}: {len(result['results'])} results; {info}")
        say(f"  libraries from outside the copy: {outside[:3]}")
        bad += bool(outside)
        if (variant, tag) != ("orig", ""):
            comparison = compare(orig, again, result["results"])
            different = comparison["different"]
            comparison["different"] = len(different)
            say(f"{stage} {variant}{tag} against orig: {comparison} {different[:8]}")
            bad += len(different) if variant != "orig" else 0
    errors = {
        name: row["error"] for name, row in orig.items() if "error" in row and not name.startswith("op ")
    }
    say(f"{stage}: what fails in the original too: {errors}")
    save(options.out, stage, {f"{v}{t}": r for (v, t), r in found.items()})
    return bad


def load(options: argparse.Namespace) -> int:
    """Import torch and run first kernels, several times each, the first time with a cold page cache."""
    found: dict[str, list[dict[str, Any]]] = {}
    for repeat in range(options.repeats + 1):
        for variant in variants.VARIANTS:
            if repeat == 0:
                os.sync()
                try:
                    Path("/proc/sys/vm/drop_caches").write_text("3")
                except OSError:
                    say("load: the page cache cannot be dropped here; the cold numbers are warm")
            result = worker("load", environment=environment(options.work, variant), argument="", timeout=120)
            result.pop("libraries", None)
            found.setdefault(variant, []).append(result)
    for variant, results in found.items():
        cold, warm = results[0], [r for r in results[1:] if "failed" not in r]
        keys = [key for key in cold if key != "failed"]
        medians = {key: round(statistics.median(r[key] for r in warm), 2) for key in keys} if warm else {}
        first = {key: round(cold[key], 2) for key in keys}
        say(f"load {variant}: cold {first}; warm median of {len(warm)} {medians}")
    save(options.out, "load", found)
    return sum("failed" in r for results in found.values() for r in results)


def main() -> int:
    """Run the stages that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", nargs="+", help=f"all, or some of {', '.join(STAGES)}")
    parser.add_argument("--work", type=Path, default=Path("/tmp/slim-proof"), help="16 GB of disk")
    parser.add_argument("--out", type=Path, default=Path("slim-proof"))
    parser.add_argument("--kernels", type=Path, default=Path("/tmp/slim-kernels"), help="unpacked sgl_kernel")
    parser.add_argument("--driver-seconds", type=float, default=90)
    parser.add_argument("--database-seconds", type=float, default=40)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--argument", default="")
    options = parser.parse_args()
    workers = {"_driver": _driver, "_ops": _ops, "_kernels": _kernels, "_load": _load}
    if options.stage[0] in workers:
        print(MARK + json.dumps(workers[options.stage[0]](options.argument)))
        return 0
    stages = STAGES if options.stage == ["all"] else options.stage
    start, bad = time.monotonic(), 0
    for stage in stages:
        if stage == "prep":
            bad += prep(options)
        elif stage == "driver":
            bad += drive(options)
        elif stage == "ops":
            bad += _operators(options, "ops", str(options.database_seconds), options.database_seconds + 240)
        elif stage == "kernels" and (options.work / "orig" / "sgl_kernel").is_dir():
            bad += _operators(options, "kernels", "", 180)
        elif stage == "load":
            bad += load(options)
        say(f"{stage}: done after {time.monotonic() - start:.0f} s, {bad} differences so far")
    say("no difference" if not bad else f"{bad} DIFFERENCES")
    save(options.out, "result", {"differences": bad})
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
