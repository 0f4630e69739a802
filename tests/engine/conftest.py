# SPDX-License-Identifier: Apache-2.0
"""A small project with the real Debian base and two small real wheels, built by the real engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from imagebuild.catalog import project_root
from imagebuild.lock import Lock, python_inputs, read_lock, render_lock
from imagebuild.manifest import StackManifest
from imagebuild.yamlfile import load

ROOT = project_root().resolve()
STACK = "sglang-0.5.15.post1"
WHEELS = ("click", "packaging")


@dataclass
class Project:
    """A copy of this project whose only stack is small. `cache` is its own, empty at first."""

    root: Path
    cache: Path
    venv: Path

    def argv(self, *args):
        return [sys.executable, str(self.root / "build.py"), *args]

    def env(self, **more):
        own = {"IMAGEBUILD_CACHE_DIR": str(self.cache), "IMAGEBUILD_VENV_DIR": str(self.venv)}
        return {**os.environ, **own, **more}

    def run(self, *args, prefix=(), timeout=600):
        return subprocess.run(
            [*prefix, *self.argv(*args)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.env(),
            check=False,
        )

    def build(self, *args, **kwargs):
        """Build and return the JSON result; the build must succeed."""
        done = self.run("--arch", "sm_103", "--stop-after", "build", "--json", *args, **kwargs)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    def stop_after(self, seconds, number, *args):
        """Start a build, signal it (and wait for it) after some seconds; return status and stderr."""
        process = subprocess.Popen(
            self.argv("--arch", "sm_103", "--stop-after", "build", *args),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env(),
        )
        time.sleep(seconds)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        return process.returncode, err

    def edit(self, name, old, new):
        path = self.root / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def _small_stack(images):
    folder = images / "stacks" / STACK
    path = folder / "stack.yaml"
    raw = yaml.safe_load(path.read_text())
    lock = read_lock(folder / "python.lock")
    artifacts = tuple(a for a in lock.artifacts if a.name in WHEELS)
    raw["source"]["requirements"] = [f"{a.name}=={a.version}" for a in artifacts]
    raw["source"]["prereleases"] = []
    raw["source"]["exclude_newer"] = str(raw["source"]["exclude_newer"])
    raw["main"] = "click"
    raw["order"] = []
    raw.pop("slim")
    bytecode = f"stacks/{STACK}/bytecode.txt"
    transforms = [{"kind": "bytecompile", "list": bytecode}]
    raw["layers"] = [{"name": "python", "packages": ["*"], "transforms": transforms}]
    path.write_text(yaml.safe_dump(raw))
    stack = load(path, StackManifest)
    small = Lock(created=lock.created, inputs=python_inputs(stack.source), artifacts=artifacts)
    (folder / "python.lock").write_text(render_lock(small))
    (images / bytecode).write_text("opt/venv/lib/python3.11/site-packages/click/__init__.py\n")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def project(tmp_path, tmp_path_factory, shared_cache):
    """A fresh copy of the small project; downloads are shared by the session, nothing else is."""
    root = tmp_path / "project"
    root.mkdir()
    for name in (
        "build.py",
        "Dockerfile.template",
        "requirements.lock",
        "requirements-dev.lock",
        "requirements-report.lock",
    ):
        shutil.copy(ROOT / name, root / name)
    for name in ("imagebuild", "images"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("sm_90", "sm_120"):
        shutil.rmtree(root / "images" / name)
    _small_stack(root / "images")
    (root / "images" / "sm_103" / "policy.yaml").unlink()  # its rules name wheels that are not here
    cache = tmp_path / "cache"
    shutil.copytree(shared_cache, cache, copy_function=os.link)
    made = Project(root, cache, tmp_path_factory.getbasetemp() / "venv")
    yield made
    images = subprocess.run(
        ["docker", "images", "-q", "--filter", "label=io.imagebuild.version.click"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    if images:
        subprocess.run(["docker", "rmi", "-f", *images], capture_output=True, check=True)
    for path in (cache / "files").rglob("*"):
        target = shared_cache / path.relative_to(cache)
        if path.is_file() and path.suffix != ".part" and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
