# SPDX-License-Identifier: Apache-2.0
"""A small real image that broken ones are made from: the locked Debian base, two wheels, one patch.

It has everything that a whole image has but size: a patched wheel, one whose licence forbids edits, a
file left out by slimming, byte-code, our launch files, and the Plan of a checkout of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from imagebuild.cache import Store
from imagebuild.catalog import project_root
from imagebuild.fetch import fetch
from imagebuild.lock import Lock, python_inputs, read_lock, render_lock
from imagebuild.manifest import StackManifest
from imagebuild.oci_read import read_layout
from imagebuild.patch_tree import write_patch
from imagebuild.plan import Plan, from_json
from imagebuild.settings import load_settings
from imagebuild.unpack import unpack_image
from imagebuild.yamlfile import load

ROOT = project_root().resolve()
STACK = "sglang-0.5.15.post1"
ARCH = "sm_103"
SITE = "opt/venv/lib/python3.11/site-packages"
PATCHED = "click/globals.py"
LEFT_OUT = "click/_winconsole.py"
RESOLVE = """\
import sys
from pathlib import Path
from imagebuild.plan import to_text
from imagebuild.resolve import resolve

print(to_text(resolve(Path("images"), sys.argv[1])))
"""
PROBE = """\
# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

sys.exit(0 if "IMAGE = True" in (Path(sys.argv[1]) / "click/globals.py").read_text() else 1)
"""


@dataclass(frozen=True)
class Small:
    """The checkout, the OCI layout built from it, its unpacked root and its Plan."""

    project: Path
    layout: Path
    root: Path
    plan: Plan


def make_project(target: Path) -> None:
    """Copy this checkout and make its stack small."""
    for name in ("imagebuild", "images", "tests/image"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tests/conftest.py", target / "tests/conftest.py")
    for name in ("build.py", "Dockerfile.template", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, target / name)
    images = target / "images"
    for path in images.glob("sm_*"):
        if path.name != ARCH:
            shutil.rmtree(path)
    (images / ARCH / "policy.yaml").unlink()  # its rules name wheels that are not here
    for path in images.glob("patches/*/"):
        shutil.rmtree(path)
    _small_stack(images)


def _small_stack(images: Path) -> None:
    folder = images / "stacks" / STACK
    path = folder / "stack.yaml"
    raw = yaml.safe_load(path.read_text())
    lock = read_lock(folder / "python.lock")
    artifacts = tuple(a for a in lock.artifacts if a.name in ("click", "packaging"))
    raw["source"]["requirements"] = [f"{a.name}=={a.version}" for a in artifacts]
    raw["source"]["prereleases"] = []
    raw["source"]["exclude_newer"] = str(raw["source"]["exclude_newer"])
    raw["main"], raw["order"] = "click", []
    why = {"BSD-3-Clause": raw["slim"]["licences"]["BSD-3-Clause"]}
    ballast = {"package": "click", "paths": [LEFT_OUT], "reason": "it is for another operating system"}
    raw["slim"] = {"licences": why, "ballast": [ballast]}
    bytecode = {"kind": "bytecompile", "list": f"stacks/{STACK}/bytecode.txt"}
    patch = {"kind": "patch", "patches": ["mark"]}
    raw["layers"] = [{"name": "python", "packages": ["*"], "transforms": [patch, {"kind": "slim"}, bytecode]}]
    (folder / "bytecode.txt").write_text(f"{SITE}/{PATCHED}\n{SITE}/click/core.py\n")
    path.write_text(yaml.safe_dump(raw))
    source = load(path, StackManifest).source
    small = Lock(created=lock.created, inputs=python_inputs(source), artifacts=artifacts)
    (folder / "python.lock").write_text(render_lock(small))
    _add_patch(images, next(a for a in artifacts if a.name == "click"), lock.created)


def _add_patch(images: Path, click, created: str) -> None:
    settings = load_settings({})
    fetch([click], settings, source=None, created=created)
    trees = (images.parent / "before", images.parent / "after")
    with zipfile.ZipFile(Store(settings.cache_dir).path(click.sha256)) as archive:
        text = archive.read(PATCHED).decode()
    for tree, content in zip(trees, (text, text + "\nIMAGE = True\n"), strict=True):
        (tree / PATCHED).parent.mkdir(parents=True)
        (tree / PATCHED).write_text(content)
    folder = write_patch(images, "mark", STACK, "click", trees).folder
    (folder / "patch.yaml").write_text((folder / "patch.yaml").read_text().replace("TODO", "to do"))
    (folder / "probe.py").write_text(PROBE)


def build_small(folder: Path) -> Small:
    """Build the image with the embedded engine and unpack it."""
    project, layout, root = folder / "project", folder / "layout", folder / "root"
    make_project(project)
    argv = [sys.executable, str(project / "build.py"), "--arch", ARCH, "--engine", "oci"]
    argv += ["--stop-after", "build", "--output", str(layout)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    plan = plan_of(project)
    image = read_layout(layout)
    unpack_image(image.layers, image.blobs, root, plan.mtime, lambda line: None)
    return Small(project, layout, root, plan)


def plan_of(project: Path) -> Plan:
    """Resolve the Plan of another checkout, with its own code."""
    argv = [sys.executable, "-c", RESOLVE, ARCH]
    done = subprocess.run(argv, cwd=project, capture_output=True, text=True, check=True)
    return from_json(done.stdout)


def check(project: Path, layout: Path, root: Path, results: Path) -> tuple[dict[str, dict[str, object]], str]:
    """Run all image checks of a checkout on a layout; return the results by check, and pytest's output."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/image"]
    argv += ["--image", str(layout), "--root", str(root), "--results", str(results)]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, cwd=project, capture_output=True, text=True, env=env, check=False)
    assert results.is_file(), done.stdout[-4000:] + done.stderr[-4000:]
    checks: dict[str, dict[str, object]] = json.loads(results.read_text())["checks"]
    return checks, done.stdout
