# SPDX-License-Identifier: Apache-2.0
"""What the checks look at: each fact is found out once, and all of them at the same time in the background.

A fact is a fixture of its name (conftest.py); only those that the chosen tests ask for are found out.
The first ones take longest, so they start first.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from imagebuild.arch import parse_arch
from imagebuild.audit import Audit, judge
from imagebuild.audit_sources import by_wheel, owners
from imagebuild.cache import Store
from imagebuild.catalog import project_root
from imagebuild.checks.findings import Difference, Finding, after_edits, differences, judge_edits, judge_tree
from imagebuild.checks.tree import Node, Wanted, expected_tree
from imagebuild.context import unpacked_base
from imagebuild.gpufacts import FileFacts
from imagebuild.layer.edits import FOLDER
from imagebuild.layer.spec import Artifact
from imagebuild.models.gpus import read_gpus
from imagebuild.plan import Plan
from imagebuild.plan_audit import policy_of
from imagebuild.settings import load_settings
from tests.image.server_lines import CASES, server_lines
from tests.image.targets import PROBES, Result, Target

IMAGES = project_root().resolve() / "images"
# sh -c: the request, a variable to set, the script that answers it
ASK = 'printf %s "$1" | env "$2" python -P "$3"'
CONTENT_BYTES = 256 << 10
_FACTS = TypeAdapter(tuple[FileFacts, ...])
# Modules whose wheel has another name, or a submodule that says more than the package itself. What a
# wheel of the Plan is not, is not imported; plugins of the ledger come from the Plan.
MODULES = {
    "cuda-tile": ("cuda.tile",),
    "flashinfer-python": ("flashinfer", "flashinfer.comm"),
    "sgl-deep-gemm": ("deep_gemm",),
    "sglang": ("sglang.srt.server_args",),
    "sglang-kernel": ("sgl_kernel",),
    "apache-tvm-ffi": ("tvm_ffi",),
    **{name: (name,) for name in ("click", "torch", "torchvision", "torchaudio", "triton")},
    **{name: (name,) for name in ("transformers", "xgrammar")},
}


@dataclass(frozen=True)
class Image:
    """An image and its Plan: what a fact is found out from."""

    target: Target
    plan: Plan

    @cached_property
    def stubs(self) -> str:
        """Environment that lets code which needs libcuda.so.1 be imported where there is no driver."""
        home = self.plan.config.env.get("CUDA_HOME", "")
        return f"LD_LIBRARY_PATH={home}/lib/stubs"

    @property
    def preflight(self) -> str:
        """The script of the preflight that resolves SGLang's arguments, absolute."""
        end = "/preflight/arguments.py"
        return next(file.target for file in self.plan.layers[-1].files if file.target.endswith(end))

    @property
    def site(self) -> str:
        """The site-packages folder, absolute."""
        return f"{self.plan.prefix}/lib/python{self.plan.python}/site-packages"

    def probe(self, name: str, *args: str, env: str = "") -> Any:
        """Run probes/NAME.py in the image and return the JSON that it prints last."""
        words = " ".join(f"'{word}'" for word in args)
        done = self.target.host.run(f"cd /tmp && {env} python -B {PROBES}/{name}.py {words}")
        assert done.rc == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return json.loads(done.stdout.strip().splitlines()[-1])


def _jit(image: Image) -> Any:
    arch = parse_arch(image.plan.arch)
    major, minor = map(str, arch.capability)
    return image.probe("jit", major, minor, arch.nvcc.lstrip("0123456789"), env=image.stubs)


@dataclass(frozen=True)
class Server:
    """What SGLang makes of each command line of server_lines.py, and the trace of its network calls."""

    answers: dict[str, dict[str, Any]]
    trace: str


def _server(image: Image) -> Server:
    """Run the code of the image's own preflight, all command lines in one process, for 8 GPUs of the arch."""
    if "sglang" not in image.plan.packages:
        return Server({}, "")
    gpu = next(gpu for gpu in read_gpus(IMAGES) if gpu.arch == image.plan.arch)
    wanted = {"name": gpu.name, "memory": gpu.memory_mib << 20, "count": 8}
    wanted["capability"] = parse_arch(image.plan.arch).capability
    lines = server_lines(image.plan.arch)
    request = json.dumps({"gpu": wanted, "runs": list(lines.values())})
    done, trace = image.target.traced("sh", "-c", ASK, "sh", request, image.stubs, image.preflight)
    assert done.rc == 0, f"{done.out[-3000:]}\n{done.err[-6000:]}"
    answers = [json.loads(line) for line in done.out.splitlines()]
    return Server(dict(zip(lines, answers, strict=True)), trace)


def _preflight(image: Image) -> tuple[Result, str]:
    """Return how the entry point's own check of a DFlash server ends, and its trace."""
    if "sglang" not in image.plan.packages:
        return Result(0, "", ""), ""
    return image.target.traced("check", "--json", *CASES["bare"])


def _metrics(image: Image) -> Any:
    return image.probe("metrics", env=image.stubs)


def _plugins(plan: Plan) -> list[str]:
    """Return the import names of the ledger's plugin wheels."""
    return [item["wheel"].partition("-")[0] for item in plan.ledger if "wheel" in item]


def _imports(image: Image) -> dict[str, str]:
    modules = [m for name, found in MODULES.items() if name in image.plan.packages for m in found]
    gpu = map(str, parse_arch(image.plan.arch).capability)
    result: dict[str, str] = image.probe("imports", *gpu, *modules, *_plugins(image.plan), env=image.stubs)
    return result


def _toolchain(image: Image) -> Any:
    return image.probe("toolchain", f"sm_{parse_arch(image.plan.arch).nvcc}")


def _audit(image: Image) -> Audit:
    """Judge the GPU code of every file that is really in the image."""
    found = image.probe("gpu_code", image.plan.prefix, env="PYTHONPATH=/mnt")
    records = {path: text for path, text in image.probe("records", image.site).items()}
    gpu = parse_arch(image.plan.arch)
    facts = by_wheel(_FACTS.validate_python(found, strict=False), owners(records))
    return judge(facts, gpu, policy_of(IMAGES, gpu), whole=False)


def _wanted(image: Image) -> dict[str, Wanted]:
    store = Store(load_settings({}).cache_dir)
    missing = [a.file for a in image.plan.artifacts if not store.has(a)]
    hint = f"python build.py fetch --arch {image.plan.arch}"
    assert not missing, f"{len(missing)} files of the Plan are not in the cache, next: {hint}"

    def locate(artifact: Artifact) -> Path:
        return store.path(artifact.sha256)

    with tempfile.TemporaryDirectory() as folder:
        base = unpacked_base(image.plan, store.root / "contexts", Path(folder), locate)
        return expected_tree(image.plan, IMAGES, base, locate)


def _tree(image: Image) -> dict[str, Node]:
    found = {}
    for path, (kind, mode, uid, gid, size, mtime, last, link) in json.loads(image.target.tree()).items():
        content = {"sha256": last} if kind == "file" else {"target": last} if kind == "symlink" else {}
        found[path] = Node(kind, mode, uid, gid, size, mtime=mtime, link=link, **content)
    return found


def _needed(image: Image) -> Any:
    return image.probe("needed")


def _records(image: Image) -> dict[str, str]:
    found: dict[str, str] = image.probe("records", image.site)
    return found


def _bytecode(image: Image) -> Any:
    return image.probe("pyc", image.plan.prefix, "/usr/lib")


def _packages(image: Image) -> Any:
    return image.probe("packages")


FACTS: dict[str, Callable[[Image], Any]] = {
    "jit": _jit,
    "imports": _imports,
    "server": _server,
    "preflight": _preflight,
    "tree": _tree,
    "wanted": _wanted,
    "audit": _audit,
    "toolchain": _toolchain,
    "metrics": _metrics,
    "needed": _needed,
    "bytecode": _bytecode,
    "records": _records,
    "packages": _packages,
}


class Background:
    """Finds out facts with as many threads as there are cores."""

    def __init__(self, image: Image, names: set[str]) -> None:
        self._pool = ThreadPoolExecutor(os.cpu_count())
        self._facts: dict[str, Future[Any]] = {
            name: self._pool.submit(find, image) for name, find in FACTS.items() if name in names
        }

    def __getitem__(self, name: str) -> Any:
        return self._facts[name].result()

    def close(self) -> None:
        """Wait for what is under way and drop the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def read_edits(image: Image) -> dict[str, list[dict[str, Any]]]:
    """Return path → its edits in order, from the image's own receipt."""
    found: dict[str, list[dict[str, Any]]] = {}
    for layer in image.plan.layers:
        file = image.target.root.file(f"/{FOLDER}/{layer.name}.json")
        if file.exists:
            for edit in json.loads(file.content_string)["edits"]:
                found.setdefault(edit["path"], []).append(edit)
    return found


def judge_image(
    image: Image, found: dict[str, Node], wanted: dict[str, Wanted], edits: dict[str, list[dict[str, Any]]]
) -> list[Finding]:
    """Return everything that is wrong with the files of an image."""
    ledger = [item["id"] for item in image.plan.ledger]
    items = differences(found, after_edits(wanted, edits), image.target.own)
    contents = _contents(image, items)
    return [*judge_edits(wanted, edits, ledger), *judge_tree(items, contents, wanted, edits)]


def _contents(image: Image, items: list[Difference]) -> dict[str, bytes]:
    """Read the small files among the differences, a hundred at the most."""
    files = [item for item in items if item.found is not None and item.found.kind == "file"]
    small = [item.path for item in files if item.found is not None and item.found.size <= CONTENT_BYTES]
    return {path: image.target.root.file(f"/{path}").content for path in small[:100]}
