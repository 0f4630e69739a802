# SPDX-License-Identifier: Apache-2.0
"""The real image, built by both engines: the same files, and from the embedded one the same digest again.

Takes about six minutes and is not part of CI yet; tests/engine/test_oci_build.py does a small project:

    IMAGEBUILD_TEST_IMAGE=REF IMAGEBUILD_TEST_ARCH=sm_120 python -m pytest tests/equivalence
"""

import json
import os
import subprocess
import sys

import pytest

from imagebuild.catalog import project_root
from tests.trees import docker_tree, layout_tree

pytestmark = pytest.mark.engine
BUILD = [sys.executable, str(project_root().resolve() / "build.py"), "--stop-after", "build", "--json"]


def build(arch, *args, prefix=(), **env):
    argv = [*prefix, *BUILD, "--arch", arch, "--engine", "oci", "--no-layer-cache", *args]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **env}, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_both_engines_give_the_same_files_and_the_same_plan_the_same_digest(tmp_path):
    reference, arch = os.environ["IMAGEBUILD_TEST_IMAGE"], os.environ["IMAGEBUILD_TEST_ARCH"]
    layout = tmp_path / "layout"
    first = build(arch, "--output", str(layout))
    theirs, ours = docker_tree(reference), layout_tree(layout)
    paths = theirs.keys() | ours.keys()
    assert {p: (theirs.get(p), ours.get(p)) for p in paths if theirs.get(p) != ours.get(p)} == {}
    assert len(ours) > 50_000
    surroundings = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "TMPDIR": str(tmp_path)}
    one_core = ("sh", "-c", 'umask 077; cd /; exec taskset -c 0 "$@"', "sh")
    again = build(arch, prefix=one_core, **surroundings)
    assert again["digest"] == first["digest"]
    assert again["plan"] == first["plan"]
