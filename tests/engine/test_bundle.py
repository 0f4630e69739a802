# SPDX-License-Identifier: Apache-2.0
"""A bundle of the small project: opened without network it runs, and gives its image again."""

import json
import random
import shutil
import subprocess

import pytest


def in_no_network(project, *argv, cwd=None):
    """Run build.py in a network namespace that has no way out, not even loopback."""
    return subprocess.run(
        ["unshare", "-n", *argv], capture_output=True, text=True, env=project.env(), cwd=cwd, check=False
    )


@pytest.fixture
def made(project, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "result.json").write_text("{}")
    file = tmp_path / "small.bundle"
    done = project.run(
        "bundle",
        "make",
        "--arch",
        "sm_103",
        str(file),
        "--packages",
        "--results",
        str(tmp_path / "results"),
        "--json",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return file, json.loads(done.stdout)


def test_a_bundle_opens_without_network_runs_and_rebuilds_to_the_same_digest(project, made, tmp_path):
    file, about = made
    opened = tmp_path / "opened"
    argv = [
        *project.argv("bundle", "open", str(file), str(opened)),
        "--digest",
        about["digest"],
        "--load",
        "--json",
    ]
    argv += ["--unpack", str(tmp_path / "root")]
    done = in_no_network(project, *argv)
    assert done.returncode == 0, done.stderr[-3000:]
    reference = about["reference"]
    try:
        run = ["docker", "run", "--rm", "--pull=never", "--network=none", reference]
        said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        assert "sm_103" in said
    finally:
        subprocess.run(["docker", "rmi", "-f", reference], capture_output=True, check=False)
    inside = ["chroot", str(tmp_path / "root"), "/opt/venv/bin/python", "-c", "import click; print(1)"]
    assert subprocess.run(inside, capture_output=True, text=True, check=True).stdout == "1\n"
    env = (opened / "project" / ".env").read_text()
    assert json.loads(done.stdout)["loaded"] in env
    assert "IMAGEBUILD_ARCH=sm_103" in env
    assert (opened / "results" / "results" / "result.json").read_text() == "{}"
    shutil.rmtree(project.cache)  # nothing of the first build is left
    build = [*project.argv()[:1], str(opened / "project" / "build.py"), "--arch", "sm_103", "--engine", "oci"]
    build += ["--stop-after", "build", "--from", str(opened / "packages"), "--json"]
    again = in_no_network(project, *build, cwd="/")
    assert again.returncode == 0, again.stderr[-3000:]
    assert json.loads(again.stdout)["digest"] == about["image"]


def test_the_same_project_gives_the_same_bundle(project, made, tmp_path):
    file, about = made
    second = tmp_path / "second.bundle"
    done = project.run("bundle", "make", "--arch", "sm_103", str(second), "--packages", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    found = project.run("bundle", "diff", str(second), str(file))
    assert found.returncode == 1
    assert found.stdout == "+ results/results/result.json\n"
    done = project.run("bundle", "verify", str(file), "--digest", about["digest"])
    assert (done.returncode, done.stdout.strip()) == (0, about["digest"])
    other = project.run("bundle", "verify", str(second), "--digest", about["digest"])
    assert other.returncode == 4


def test_a_flipped_byte_is_named_and_nothing_is_opened(project, made, tmp_path):
    file, _ = made
    rng = random.Random(5)
    size = file.stat().st_size
    for _ in range(5):
        place = rng.randrange(size)
        with file.open("r+b") as out:
            out.seek(place)
            byte = out.read(1)
            out.seek(place)
            out.write(bytes([byte[0] ^ 4]))
            out.flush()
            done = project.run("bundle", "open", str(file), str(tmp_path / "opened"))
            out.seek(place)
            out.write(byte)
        assert done.returncode == 4, done.stderr
        assert any(word in done.stderr for word in ("image/", "packages/", "project/", "bundle.json")), (
            done.stderr
        )
        assert not (tmp_path / "opened").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".opened")] == []
