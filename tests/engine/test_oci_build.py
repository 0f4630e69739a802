# SPDX-License-Identifier: Apache-2.0
"""The embedded engine end to end, on a small project: no root, no daemon, no network, same bytes."""

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.daemons import free_port, own_registry
from tests.trees import docker_tree, layout_tree


def docker(*argv):
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def oci(project, *args, prefix=(), **env):
    argv = [*prefix, *project.argv("--arch", "sm_103", "--stop-after", "build", "--engine", "oci", "--json")]
    done = subprocess.run([*argv, *args], capture_output=True, text=True, env=project.env(**env), check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture
def registry(tmp_path):
    """Debian's docker-registry on loopback."""
    with own_registry(tmp_path / "registry", free_port()) as address:
        yield address


def test_a_layout_that_skopeo_copies(project, tmp_path):
    made = oci(project, "--output", str(tmp_path / "layout"))
    copy = ["skopeo", "copy", f"oci:{tmp_path / 'layout'}", f"oci:{tmp_path / 'copy'}:one"]
    subprocess.run(copy, check=True, capture_output=True)
    for name in ("layout", "copy"):
        argv = ["skopeo", "inspect", f"oci:{tmp_path / name}"]
        done = subprocess.run(argv, check=True, capture_output=True, text=True)
        assert json.loads(done.stdout)["Digest"] == made["digest"]


def test_load_into_docker_and_a_single_file(project, tmp_path):
    made = oci(project, "--load", "--output", str(tmp_path / "image.tar"))
    assert docker("inspect", "-f", "{{.Id}}", made["reference"]) == made["loaded"]
    assert "sm_103" in docker("run", "--rm", "--pull=never", "--network=none", made["reference"])
    docker("rmi", "-f", made["reference"])
    docker("load", "-i", str(tmp_path / "image.tar"))
    assert docker("inspect", "-f", "{{.Id}}", made["reference"]) == made["loaded"]


def test_push_and_pull_through_a_real_registry(project, registry):
    made = oci(project, "--push", f"{registry}/team/small:one")
    assert made["pushed"] == f"{registry}/team/small@{made['digest']}"
    again = oci(project, "--push", f"{registry}/team/small:two")
    assert again["digest"] == made["digest"]
    docker("pull", made["pushed"])
    try:
        assert "sm_103" in docker("run", "--rm", "--pull=never", "--network=none", made["pushed"])
    finally:
        docker("rmi", "-f", made["pushed"])


def test_other_surroundings_give_the_same_digest(project, tmp_path):
    first = oci(project, "--no-layer-cache")["digest"]
    moved = tmp_path / "another place"
    shutil.copytree(project.root, moved / "project")
    project.root = moved / "project"
    shutil.rmtree(project.cache / "blobs")
    shutil.rmtree(project.cache / "contexts")
    surroundings = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1"}
    prefix = ("sh", "-c", 'umask 077; exec taskset -c 0 "$@"', "sh")
    assert oci(project, "--no-layer-cache", prefix=prefix, **surroundings)["digest"] == first


def test_without_root_docker_and_network(project):
    """As nobody, in a network namespace without network, from an exported folder."""
    area = Path(tempfile.mkdtemp(prefix="imagebuild-nobody-", dir="/tmp"))
    try:
        shutil.copytree(project.root, area / "project")
        assert project.run("fetch", "--arch", "sm_103", "--export", str(area / "export")).returncode == 0
        expected = oci(project)["digest"]
        # Debian's Python: root's own may lie in a home that nobody can enter.
        build = ["/usr/bin/python3", str(area / "project" / "build.py"), "--arch", "sm_103"]
        venv = {"IMAGEBUILD_VENV_DIR": str(area / "venv")}
        plan = [*build, "--stop-after", "plan"]
        subprocess.run(plan, env={**os.environ, **venv}, check=True, capture_output=True)
        subprocess.run(["chmod", "-R", "a+rX", str(area)], check=True)
        (area / "out").mkdir()
        (area / "out").chmod(0o777)
        argv = ["unshare", "-n", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *build]
        argv += ["--stop-after", "build", "--json", "--engine", "auto", "--from", str(area / "export")]
        argv += ["--output", str(area / "out" / "layout")]
        own = {"HOME": str(area / "out"), "TMPDIR": str(area / "out"), "DOCKER_HOST": "unix:///nonexistent"}
        env = {**os.environ, **venv, **own, "IMAGEBUILD_CACHE_DIR": str(area / "out" / "cache")}
        done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd="/", check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout)["digest"] == expected
        assert (area / "out" / "layout" / "index.json").is_file()
    finally:
        shutil.rmtree(area)


def test_auto_says_why_it_is_not_docker(project):
    env = project.env(DOCKER_HOST="unix:///nonexistent")
    argv = project.argv("--arch", "sm_103", "--stop-after", "build")
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "engine oci" in done.stderr
    assert "not docker: no Docker Engine answers" in done.stderr


def test_both_engines_give_the_same_tree(project, tmp_path):
    reference = project.build("--engine", "docker")["reference"]
    oci(project, "--output", str(tmp_path / "layout"))
    theirs, ours = docker_tree(reference), layout_tree(tmp_path / "layout")
    paths = theirs.keys() | ours.keys()
    assert {p: (theirs.get(p), ours.get(p)) for p in paths if theirs.get(p) != ours.get(p)} == {}
    assert len(ours) > 8000


def test_unpack_gives_a_root_that_runs(project, tmp_path):
    root = tmp_path / "root"
    done = project.run("unpack", "--arch", "sm_103", str(root))
    assert done.returncode == 0, done.stderr
    script = "import click, ssl; print(ssl.create_default_context().cert_store_stats()['x509_ca'])"
    found = subprocess.run(
        ["chroot", str(root), "/opt/venv/bin/python", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(found.stdout) > 100
    again = project.run("unpack", "--arch", "sm_103", str(root))
    assert again.returncode == 3
    assert "not empty" in again.stderr


def test_a_killed_build_resumes_to_the_same_digest(project):
    expected = oci(project)["digest"]
    rng = random.Random(3)
    for _ in range(4):
        shutil.rmtree(project.cache / "layers")
        shutil.rmtree(project.cache / "blobs")
        process = subprocess.Popen(
            project.argv("--arch", "sm_103", "--stop-after", "build", "--engine", "oci"),
            env=project.env(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(rng.uniform(0.5, 6))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert oci(project)["digest"] == expected


def test_two_builds_in_one_cache(project):
    argv = project.argv("--arch", "sm_103", "--stop-after", "build", "--engine", "oci", "--json")
    both = [
        subprocess.Popen(argv, env=project.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    results = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert len({json.loads(out)["digest"] for out, _ in results}) == 1


def test_a_damaged_blob_in_the_cache_is_made_again(project, tmp_path):
    expected = oci(project)["digest"]
    blobs = sorted((project.cache / "blobs" / "sha256").iterdir(), key=lambda p: -p.stat().st_size)
    content = blobs[0].read_bytes()
    blobs[0].unlink()
    blobs[0].write_bytes(content[: len(content) // 2])
    made = oci(project, "--output", str(tmp_path / "layout"))
    assert made["digest"] == expected
    layout_tree(tmp_path / "layout")


def test_a_full_disk_is_a_clear_error(project, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    project.run("fetch", "--arch", "sm_103", "--export", str(tmp_path / "export"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=450m", "tmpfs", str(small)], check=True)
    try:
        done = subprocess.run(
            project.argv("--arch", "sm_103", "--stop-after", "build", "--engine", "oci", "--no-layer-cache",
                         "--from", str(tmp_path / "export")),
            capture_output=True, text=True, env=project.env(IMAGEBUILD_CACHE_DIR=str(small)), check=False,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr[-2000:]
        assert (
            "No space left" in done.stderr
            or "not enough space" in done.stderr
            or "disk is full" in done.stderr
        )
        left = [p for p in small.rglob(".blob-*")]
        assert left == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
