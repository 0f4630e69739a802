# SPDX-License-Identifier: Apache-2.0
"""The single-file archive in other hands than the Engine's default store: containerd's, Podman, skopeo."""

import json
import os
import shutil
import subprocess
import tempfile

import pytest

from tests.daemons import own_engine


@pytest.fixture
def archive(project, tmp_path):
    """An archive of the small project's image, and what the build said."""
    path = tmp_path / "image.tar"
    done = subprocess.run(
        project.argv("--arch", "sm_103", "--stop-after", "build", "--engine", "oci", "--json",
                     "--output", str(path)),
        capture_output=True, text=True, env=project.env(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return path, json.loads(done.stdout)


def run(*argv, **env):
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **env}, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def has_docker0():
    return "docker0" in run("ip", "-br", "link", "show", "type", "bridge")


def test_docker_load_into_a_containerd_store(archive, tmp_path):
    path, made = archive
    before = has_docker0()
    with own_engine(tmp_path / "engine", containerd_snapshotter=True) as (_, env):
        assert "io.containerd.snapshotter" in run("docker", "info", "-f", "{{.DriverStatus}}", **env)
        run("docker", "load", "-i", str(path), **env)
        # This store calls an image by its manifest: the digest that the build printed.
        assert run("docker", "inspect", "-f", "{{.Id}}", made["reference"], **env) == made["digest"]
        told = run("docker", "run", "--rm", "--pull=never", "--network=none", made["reference"], **env)
        assert "sm_103" in told
    # The machine's own Engine keeps its bridge: one with --bridge=none would have deleted it.
    assert has_docker0() == before


def test_podman_load_and_run(archive, tmp_path):
    path, made = archive
    run_root = tempfile.mkdtemp(prefix="podman-", dir="/tmp")  # at most 50 characters
    places = [f"--root={tmp_path / 'root'}", f"--runroot={run_root}", "--storage-driver=overlay"]
    podman = ["podman", *places, "--cgroup-manager=cgroupfs", "--events-backend=file"]
    try:
        run(*podman, "load", "-i", str(path))
        found = json.loads(run(*podman, "image", "inspect", made["reference"]))[0]
        assert found["Labels"]["io.imagebuild.arch"] == "sm_103"
        box = ["--rm", "--pull=never", "--network=none", "--cgroups=disabled"]
        # By default Podman raises these, which root in a container that runs the tests may not.
        box += ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
        assert "sm_103" in run(*podman, "run", *box, made["reference"])
    finally:
        subprocess.run([*podman, "system", "reset", "--force"], capture_output=True, check=False)
        for path in (tmp_path / "root", run_root):
            shutil.rmtree(path, ignore_errors=True)


def test_skopeo_reads_the_archive(archive, tmp_path):
    path, made = archive
    run("skopeo", "copy", f"oci-archive:{path}", f"oci:{tmp_path / 'copy'}:one")
    assert json.loads(run("skopeo", "inspect", f"oci:{tmp_path / 'copy'}"))["Digest"] == made["digest"]
