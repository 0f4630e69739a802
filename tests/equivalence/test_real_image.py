# SPDX-License-Identifier: Apache-2.0
"""The real image, built by both engines: the same files, and from the embedded one the same digest again.

scripts/test's image stage runs it beside the image that Docker has built; by hand:

    IMAGEBUILD_TEST_IMAGE=REF IMAGEBUILD_TEST_ARCH=sm_120 python -m pytest tests/equivalence
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

from imagebuild.catalog import project_root
from imagebuild.settings import load_settings
from tests.trees import docker_tree, layout_tree

pytestmark = pytest.mark.engine
ROOT = project_root().resolve()


def build(project, arch, *args, prefix=(), **env):
    argv = [
        *prefix,
        sys.executable,
        str(project / "build.py"),
        "--arch",
        arch,
        "--stop-after",
        "build",
        "--json",
    ]
    argv += ["--engine", "oci", "--no-layer-cache", *args]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **env}, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def link(source, target):
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@pytest.fixture(scope="module")
def arch():
    return os.environ["IMAGEBUILD_TEST_ARCH"]


@pytest.fixture(scope="module")
def first(arch, tmp_path_factory):
    """The image of the embedded engine: what its build said, and its layout."""
    layout = tmp_path_factory.mktemp("first") / "layout"
    return build(ROOT, arch, "--output", str(layout)), layout


def test_both_engines_give_the_same_files(first):
    _, layout = first
    theirs, ours = docker_tree(os.environ["IMAGEBUILD_TEST_IMAGE"]), layout_tree(layout)
    paths = theirs.keys() | ours.keys()
    assert {p: (theirs.get(p), ours.get(p)) for p in paths if theirs.get(p) != ours.get(p)} == {}
    assert len(ours) > 50_000


def test_other_surroundings_give_the_same_digest(first, arch, tmp_path):
    """Another folder, working directory, umask, locale, time zone, hash seed, TMPDIR and one core."""
    project = tmp_path / "another place" / "project"
    shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache"))
    # Only the downloads are shared: contexts, base and layers are made anew.
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    for name in ("files", "gpucode"):
        shutil.copytree(load_settings({}).cache_dir / name, cache / name, copy_function=link)
    surroundings = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "TMPDIR": str(scratch)}
    one_core = ("sh", "-c", 'umask 077; cd /; exec taskset -c 0 "$@"', "sh")
    again = build(project, arch, "--cache-dir", str(cache), prefix=one_core, **surroundings)
    assert (again["plan"], again["digest"]) == (first[0]["plan"], first[0]["digest"])
