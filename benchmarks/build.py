# SPDX-License-Identifier: Apache-2.0
"""From fetched files to an image in a registry on 127.0.0.1: four ways to do it, on one machine.

    python -m benchmarks.build [--only a,d,b:cold+pull] [--work DIR] [--arch sm_120]

a: the embedded engine. p: the same without slimming. b: docker buildx with our Dockerfile. c: what
a user would write, one RUN of pip install of the same lock. d: the floor, inflating, compressing
and hashing a's bytes and nothing else; e: the same for p. Every way begins with all files fetched
and in the page cache, and ends when the registry has the image.

cold: empty caches but the downloads, and what `build` notes about the GPU code of each. patch: one
changed line of a patch. arch: a second architecture. pull: `docker pull` of the first image into an
empty daemon. A way does all four, or those named after a colon. Each has a registry of its own.

Starts a registry (Debian's docker-registry) and, for b, c and pull, a Docker Engine of its own
(scripts/install-docker puts the programs there; root). Needs 30 GB below --work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import requests
import yaml
import zstandard

from benchmarks.gauge import Cost, measured
from imagebuild.cache import Store
from imagebuild.catalog import project_root
from imagebuild.layer.archive import Archive
from imagebuild.layer.patching import apply_file, parse, sha256
from imagebuild.plan import Plan
from imagebuild.resolve import resolve
from imagebuild.settings import load_settings
from tests.daemons import free_port, own_engine, own_registry

ROOT = project_root().resolve()
RESULTS = ROOT / "benchmarks" / "results" / "build.json"
TABLE = ROOT / "docs" / "benchmarks.md"
MARK_BEGIN, MARK_END = "<!-- build: begin -->", "<!-- build: end -->"
SECOND, PATCH = "sm_103", "jit-arch-suffix"
WAYS = {
    "a": "embedded engine", "p": "embedded engine, --no-slim", "b": "docker buildx, our Dockerfile",
    "c": "docker, one RUN of pip install", "d": "floor of a", "e": "floor of p",
}  # fmt: skip
FLOORS = {"d": "a", "e": "p"}
STEPS = ("cold", "patch", "arch", "pull")
PIP_DOCKERFILE = """\
FROM scratch
ADD base.tar /
RUN --mount=type=bind,from=wheels,target=/wheels --mount=type=bind,from=pip,target=/pip \\
    python3.11 /pip/pip.whl/pip install --no-cache-dir --no-index --no-deps --require-hashes \\
    --break-system-packages --root-user-action=ignore --find-links /wheels -r /wheels/requirements.txt \\
    && echo "{line}" >> /usr/local/lib/python3.11/dist-packages/sglang/jit_kernel/utils.py
"""


class Bench:
    """One run: the folders, the registry, and what was measured. `arch` is the first architecture."""

    def __init__(self, work: Path, arch: str) -> None:
        self.work, self.arch = work, arch
        self.store = Store(load_settings({}).cache_dir)
        self.port = free_port()
        self.costs: dict[str, dict[str, Cost]] = {}
        self.images: dict[str, dict[str, Any]] = {}

    def push_to(self, way: str, step: str) -> str:
        """Return the reference that a way pushes to."""
        return f"127.0.0.1:{self.port}/bench/{way}:{step}"

    def plan(self, arch: str, *, slim: bool = True, project: Path = ROOT) -> Plan:
        """Return the plan of an arch."""
        return resolve(project / "images", arch, slim=slim)

    def fetched(self, plan: Plan) -> list[Path]:
        """Return a plan's files, read once so that they are in the page cache."""
        paths = [self.store.path(a.sha256) for a in plan.artifacts]
        for path in paths:
            with open(path, "rb") as file:
                while file.read(1 << 22):
                    pass
        return paths

    def cache(self, way: str) -> Path:
        """Return the cache of a way: the downloads, and the facts about them."""
        folder = self.work / way / "cache"
        if not folder.is_dir():
            for name in ("files", "gpucode"):
                shutil.copytree(self.store.root / name, folder / name, copy_function=os.link)
        return folder

    def project(self, step: str) -> Path:
        """Return a copy of the project, for `patch` with one line of a patch changed."""
        folder = self.work / f"project-{step}"
        if not folder.is_dir():
            shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*cache"))
            if step == "patch":
                _change_patch(folder, self.plan(self.arch), self.store)
        return folder

    def note(self, way: str, step: str, cost: Cost, **image: Any) -> None:
        """Keep what was measured."""
        self.costs.setdefault(way, {})[step] = cost
        if image:
            self.images.setdefault(way, {})[step] = image
        print(f"{way} {step}: {cost} {image or ''}", file=sys.stderr, flush=True)


def _change_patch(project: Path, plan: Plan, store: Store) -> None:
    """Change one added line of a patch, and the hash that its description states."""
    folder = project / "images" / "patches" / PATCH
    about = (folder / "patch.yaml").read_text(encoding="utf-8")
    described = yaml.safe_load(about)
    text = (folder / "change.patch").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    number = next(
        n for n, line in enumerate(lines) if line.startswith("+") and line[1:].strip().startswith("#")
    )
    lines[number] = lines[number].rstrip("\n") + " Changed for a benchmark.\n"
    (folder / "change.patch").write_text("".join(lines), encoding="utf-8")
    (path, states), *more = described["files"].items()
    assert not more, f"{PATCH} changes one file"
    wheel = next(a for a in plan.artifacts if a.name == described["package"])
    patched = apply_file(Archive(store.path(wheel.sha256)).read(path), parse("".join(lines), PATCH)[0])
    (folder / "patch.yaml").write_text(about.replace(states["after"], sha256(patched)), encoding="utf-8")


def embedded(bench: Bench, way: str, steps: list[str]) -> None:
    """Measure the embedded engine."""
    slim = way == "a"
    for step in _builds(steps):
        arch = SECOND if step == "arch" else bench.arch
        project, cache = bench.project("patch" if step == "patch" else "cold"), bench.cache(way)
        plan = bench.plan(arch, slim=slim, project=project)
        bench.fetched(plan)
        argv = [sys.executable, str(project / "build.py"), "--arch", arch, "--stop-after", "build", "--json"]
        argv += ["--engine", "oci", "--cache-dir", str(cache), "--push", bench.push_to(way, step)]
        cost, out = measured([argv + ([] if slim else ["--no-slim"])], {})
        made = json.loads(out)
        layers = [layer["digest"] for layer in pushed(bench, way, step)]
        bench.note(way, step, cost, mb=round(made["size"] / 1e6), digest=made["digest"], layers=layers)


def buildx(bench: Bench, steps: list[str]) -> None:
    """Measure docker with our Dockerfile, and docker push."""
    with own_engine(bench.work / "engine") as (pid, env):
        for step in _builds(steps):
            arch = SECOND if step == "arch" else bench.arch
            project, cache = bench.project("patch" if step == "patch" else "cold"), bench.cache("b")
            plan = bench.plan(arch, project=project)
            bench.fetched(plan)
            build = [sys.executable, str(project / "build.py"), "--arch", arch, "--stop-after", "build"]
            build += ["--engine", "docker", "--cache-dir", str(cache), "--json"]
            target = bench.push_to("b", step)
            argvs = [build, ["docker", "tag", plan.reference, target], ["docker", "push", "-q", target]]
            cost, _ = measured(argvs, env, {pid})
            bench.note("b", step, cost, mb=pushed_mb(bench, "b", step))


def pip(bench: Bench, steps: list[str]) -> None:
    """Measure a Dockerfile of one RUN, and docker push."""
    with own_engine(bench.work / "engine") as (pid, env):
        for step in _builds(steps):
            if step != "cold":
                _make_room(bench.push_to("c", "cold"), env)
            plan = bench.plan(SECOND if step == "arch" else bench.arch)
            bench.fetched(plan)
            folder = _pip_context(bench, plan, "# changed" if step == "patch" else "# added")
            target = bench.push_to("c", step)
            build = ["docker", "buildx", "build", "-q", "--network=none", "--load", "--tag", target]
            build += [
                "--build-context",
                f"wheels={folder / 'wheels'}",
                "--build-context",
                f"pip={folder / 'pip'}",
            ]
            cost, _ = measured([[*build, str(folder)], ["docker", "push", "-q", target]], env, {pid})
            bench.note("c", step, cost, mb=pushed_mb(bench, "c", step))


def _make_room(image: str, env: dict[str, str]) -> None:
    """Remove an image and its layers; the copy of the wheels in the daemon stays."""
    for argv in (["rmi", image], ["builder", "prune", "-af", "--filter", "type=regular"]):
        subprocess.run(["docker", *argv], env={**os.environ, **env}, capture_output=True, check=True)


def _pip_context(bench: Bench, plan: Plan, line: str) -> Path:
    folder = bench.work / "c"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wheels").mkdir(parents=True)
    (folder / "pip").mkdir()
    wheels = [a for a in plan.artifacts if a.kind == "wheel" and a not in plan.tools]
    for wheel in wheels:
        os.link(bench.store.path(wheel.sha256), folder / "wheels" / wheel.file)
    lock = "".join(f"{a.name}=={a.version} --hash=sha256:{a.sha256}\n" for a in wheels)
    (folder / "wheels" / "requirements.txt").write_text(lock)
    import ensurepip

    bundled = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"), None)
    bundled = bundled or next(Path("/usr/share/python-wheels").glob("pip-*.whl"))
    shutil.copy(bundled, folder / "pip" / "pip.whl")
    (folder / "Dockerfile").write_text(PIP_DOCKERFILE.format(line=line))
    base = next((bench.cache("b") / "contexts").glob("base-tar-*/base.tar"), None) or _base_tar(bench, plan)
    os.link(base, folder / "base.tar")
    return folder


def _base_tar(bench: Bench, plan: Plan) -> Path:
    from imagebuild.context import write_contexts

    def locate(artifact: Any) -> Path:
        return bench.store.path(artifact.sha256)

    parent = bench.cache("b") / "contexts"
    return (
        write_contexts(plan, ROOT / "images", parent, locate, lambda _: None)[plan.layers[0].name]
        / "base.tar"
    )


def pushed(bench: Bench, way: str, step: str) -> list[dict[str, Any]]:
    """Return the layers (digest, size) of an image in the registry."""
    url = f"http://127.0.0.1:{bench.port}/v2/bench/{way}/manifests/{step}"
    kinds = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
    layers: list[dict[str, Any]] = requests.get(url, headers={"Accept": kinds}, timeout=60).json()["layers"]
    return layers


def pushed_mb(bench: Bench, way: str, step: str) -> int:
    """Return what pulling an image takes, MB."""
    return round(sum(int(layer["size"]) for layer in pushed(bench, way, step)) / 1_000_000)


def floor(bench: Bench, way: str, of: str) -> None:
    """Measure what the bytes of an image cost at the least."""
    slim = of == "a"
    plan = bench.plan(bench.arch, slim=slim)
    folder = bench.work / "tars"
    folder.mkdir()
    blobs = bench.work / of / "cache" / "blobs" / "sha256"
    tars = []
    for digest in bench.images[of]["cold"]["layers"]:
        name = digest.partition(":")[2]
        tars.append(str(folder / name))
        with open(blobs / name, "rb") as source, open(tars[-1], "wb") as out:
            zstandard.ZstdDecompressor().copy_stream(source, out)
    files = [(str(bench.store.path(a.sha256)), a.kind) for a in plan.artifacts]
    (bench.work / "floor.json").write_text(json.dumps({"files": files, "tars": tars}))
    bench.fetched(plan)
    for tar in tars:
        with open(tar, "rb") as file:
            while file.read(1 << 22):
                pass
    argv = [sys.executable, "-m", "benchmarks.floor", str(bench.work / "floor.json")]
    cost, _ = measured([argv], {"PYTHONPATH": str(ROOT)})
    shutil.rmtree(folder)
    bench.note(way, "cold", cost)


def pull(bench: Bench, way: str) -> None:
    """Measure docker pull of a way's first image into an empty engine."""
    with own_engine(bench.work / "engine") as (pid, env):
        cost, _ = measured([["docker", "pull", "-q", bench.push_to(way, "cold")]], env, {pid})
        bench.note(way, "pull", cost)


def _builds(steps: list[str]) -> list[str]:
    return [step for step in steps if step != "pull"]


def run(bench: Bench, way: str, steps: list[str]) -> None:
    """Measure one way."""
    if way in FLOORS:
        floor(bench, way, FLOORS[way])
        return
    with own_registry(bench.work / "registry", bench.port):
        if way in "ap":
            embedded(bench, way, steps)
        elif way == "b":
            buildx(bench, steps)
        else:
            pip(bench, steps)
        if "pull" in steps:
            pull(bench, way)


def ratios(costs: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return what the targets are about, as far as it was measured: of wall and of processor time."""
    pairs = {
        "a to floor, cold (at most 1.5)": ("a", "d", "cold"),
        "p to floor, cold": ("p", "e", "cold"),
        "b to a, cold (at least 2.5)": ("b", "a", "cold"),
        "c to a, cold (at least 4)": ("c", "a", "cold"),
        "c to p, cold": ("c", "p", "cold"),
        "c to a, patch (at least 50)": ("c", "a", "patch"),
        "b to a, patch": ("b", "a", "patch"),
        "b to a, second arch": ("b", "a", "arch"),
        "c to a, second arch": ("c", "a", "arch"),
        "c to a, pull and unpack (at least 2)": ("c", "a", "pull"),
        "c to p, pull and unpack": ("c", "p", "pull"),
    }
    found = {}
    for name, (over, under, step) in pairs.items():
        one, other = costs.get(over, {}).get(step), costs.get(under, {}).get(step)
        if one and other:
            cpu = [cost["cpu_s"] + cost["daemon_cpu_s"] for cost in (one, other)]
            wall = round(one["wall_s"] / other["wall_s"], 2)
            found[name] = {"wall": wall, "cpu": round(cpu[0] / cpu[1], 2)}
    return found


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown, a part for each run."""
    lines: list[str] = []
    for found in results["runs"]:
        host = found["machine"]
        lines += [
            f"{found['date']}, {host['cores']} cores ({host['cpu']}), {host['memory_gb']} GB memory, "
            f"scheduled {host['scheduled']}; {found['arch']}, then {SECOND}; zstd {host['zstd_level']}.",
            "",
            "| | step | wall s | cpu s | daemons' cpu s | whole machine's | peak MB | to pull MB | load |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for way, steps in found["costs"].items():
            for step, cost in steps.items():
                size = found["images"].get(way, {}).get(step, {}).get("mb", "-")
                lines.append(
                    f"| {way}: {WAYS[way]} | {step} | {cost['wall_s']} | {cost['cpu_s']} "
                    f"| {cost['daemon_cpu_s']} | {cost['machine_cpu_s']} | {cost['peak_mb']:.0f} | {size} "
                    f"| {cost['load_before']} |"
                )
        lines += ["", "| ratio | of wall time | of processor time |", "|---|---|---|"]
        lines += [f"| {name} | {v['wall']} | {v['cpu']} |" for name, v in found["ratios"].items()]
        lines.append("")
    return "\n".join(lines).rstrip()


def _scheduling() -> str:
    """Return how this process, and so all that it starts, is put before others."""
    kinds = {os.SCHED_OTHER: "fairly", os.SCHED_RR: "before all others", os.SCHED_FIFO: "before all others"}
    nice = os.nice(0)
    return kinds.get(os.sched_getscheduler(0), "otherwise") + (f", nice {nice}" if nice else "")


def machine() -> dict[str, Any]:
    """Return what matters of this machine."""
    from imagebuild.oci_blob import ZSTD_LEVEL

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = [line for line in Path("/proc/cpuinfo").read_text().split("\n") if line.startswith("model name")]
    return {
        "cores": os.cpu_count(),
        "cpu": names[0].partition(": ")[2] if names else platform.machine(),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": platform.release(),
        "scheduled": _scheduling(),
        "python": platform.python_version(),
        "zstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
        "zstd_level": ZSTD_LEVEL,
    }


def save(bench: Bench, before: list[dict[str, Any]]) -> dict[str, Any]:
    """Write the JSON and put the table into docs/benchmarks.md; return what was written."""
    costs = {way: {step: asdict(cost) for step, cost in c.items()} for way, c in bench.costs.items()}
    run = {
        "date": time.strftime("%Y-%m-%d"),
        "arch": bench.arch,
        "machine": machine(),
        "costs": costs,
        "images": bench.images,
        "ratios": ratios(costs),
    }
    results = {"schema": 2, "runs": [*before, run]}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    head, rest = TABLE.read_text(encoding="utf-8").split(MARK_BEGIN)
    TABLE.write_text(
        f"{head}{MARK_BEGIN}\n{table(results)}\n{MARK_END}{rest.split(MARK_END)[1]}", encoding="utf-8"
    )
    return results


def main() -> None:
    """Measure what was asked for; write the JSON and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        default="a,d,p:cold+pull,e,b,c:cold+patch+pull",
        help="ways, in this order (d needs a, e needs p)",
    )
    parser.add_argument("--work", type=Path, default=Path("/var/tmp/imagebuild-bench"))
    parser.add_argument("--arch", default="sm_120")
    parser.add_argument("--keep", action="store_true", help="add to the runs that were measured before")
    options = parser.parse_args()
    before = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"] if options.keep else []
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    bench = Bench(options.work.resolve(), options.arch)
    for step in ("cold", "patch"):
        bench.project(step)  # both now: the project may change while this runs
    for arch in (bench.arch, SECOND):  # `build` would read the GPU code of each wheel once
        audit = [sys.executable, str(bench.project("cold") / "build.py"), "audit", "--arch", arch]
        subprocess.run(audit, stdout=subprocess.DEVNULL, check=True)
    try:
        for asked in options.only.split(","):
            way, _, steps = asked.partition(":")
            run(bench, way, steps.split("+") if steps else list(STEPS))
            save(bench, before)
    finally:
        shutil.rmtree(options.work, ignore_errors=True)
    print(table(save(bench, before)))


if __name__ == "__main__":
    main()
