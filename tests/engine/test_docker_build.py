# SPDX-License-Identifier: Apache-2.0
"""The docker engine end to end: build, reuse, resume, refuse; on a small project."""

import os
import random
import shutil
import signal
import subprocess
import uuid

import pytest


def docker(*argv):
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def in_image(reference, *argv):
    return docker("run", "--rm", "--pull=never", "--network=none", reference, *argv)


def test_a_build_gives_an_image_that_runs(project):
    made = project.build()
    assert made["digest"].startswith("sha256:")
    script = "import click, packaging, ssl, sqlite3; print(click.__file__)"
    assert "/opt/venv/lib/python3.11/site-packages/click" in in_image(
        made["reference"], "python", "-c", script
    )
    folder = "/opt/venv/lib/python3.11/site-packages/click/__pycache__"
    assert in_image(made["reference"], "ls", folder) == "__init__.cpython-311.pyc"
    assert (
        docker("inspect", "-f", '{{index .Config.Labels "io.imagebuild.plan"}}', made["reference"])
        == (made["plan"])
    )


def test_the_same_plan_is_not_built_again_unless_asked(project):
    first = project.build()
    again = project.run("--arch", "103", "--stop-after", "build")
    assert "is built already" in again.stderr
    assert again.stdout.strip() == first["digest"]
    assert "is built already" not in project.run("--arch", "103", "--stop-after", "build", "--rebuild").stderr


def test_a_launch_file_edit_rebuilds_the_last_layer_only(project):
    before = project.build()
    words = f"Image {uuid.uuid4()} for"  # never built before, so never in the engine's cache
    project.edit("images/launch/entrypoint", "SGLang image for", words)
    done = project.run("--arch", "sm_103", "--stop-after", "build")
    assert done.returncode == 0
    assert "layer python: cached" in done.stderr
    assert "layer launch: cached" not in done.stderr
    after = project.build()
    assert after["reference"] != before["reference"]
    assert in_image(after["reference"]).startswith(f"{words} sm_103")
    assert in_image(before["reference"]).startswith("SGLang image for sm_103")


def test_a_flipped_byte_in_the_cache_ends_with_4_and_the_next_run_heals(project):
    project.build()
    wheel = next(
        p for p in (project.cache / "files").rglob("*") if p.is_file() and p.stat().st_size < 200_000
    )
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.unlink()
    wheel.write_bytes(content)
    done = project.run("--arch", "sm_103", "--stop-after", "build", "--rebuild")
    assert done.returncode == 4
    assert "damaged in the cache" in done.stderr
    assert wheel.name in done.stderr
    assert "next: run again" in done.stderr
    assert not wheel.exists()
    healed = project.build("--rebuild")
    assert in_image(healed["reference"], "python", "-c", "import click, packaging") == ""


def test_export_and_from_build_the_same_plan_without_network(project, tmp_path):
    export = tmp_path / "export"
    done = project.run("fetch", "--arch", "sm_103", "--export", str(export))
    assert done.returncode == 0, done.stderr
    digest = project.build()["plan"]
    shutil.rmtree(project.cache)
    alone = project.run("--arch", "sm_103", "--stop-after", "build", prefix=("unshare", "-n"))
    assert alone.returncode == 3
    assert "--from" in alone.stderr
    shutil.rmtree(project.cache, ignore_errors=True)
    made = project.build("--from", str(export), "--rebuild", prefix=("unshare", "-n"))
    assert made["plan"] == digest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_build_leaves_nothing_half_and_resumes(project, number):
    rng = random.Random(int(number))
    for _ in range(4):
        status, err = project.stop_after(rng.uniform(0.3, 8), number, "--rebuild")
        if number != signal.SIGKILL and status not in (0, -number):  # -number: before Python was up
            assert status == 130, err[-2000:]
            assert "run the same command again" in err
    contexts = list((project.cache / "contexts").glob("*")) if (project.cache / "contexts").is_dir() else []
    assert all((path / "layer.json").is_file() for path in contexts if path.name.startswith("python-"))
    made = project.build()
    assert in_image(made["reference"], "python", "-c", "import click, packaging") == ""
    plan = in_image(made["reference"], "cat", "/etc/imagebuild/plan.json")
    assert made["plan"] and '"arch": "sm_103"' in plan


def test_without_docker_the_build_stops_before_it_downloads(project):
    shutil.rmtree(project.cache)
    env = project.env(DOCKER_HOST="unix:///nonexistent/docker.sock")
    argv = project.argv("--arch", "sm_103", "--engine", "docker")
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 3
    assert "no Docker Engine answers" in done.stderr
    assert "scripts/install-docker" in done.stderr
    assert not (project.cache / "files").exists()


def test_dry_run_changes_nothing(project):
    shutil.rmtree(project.cache)
    done = project.run("--arch", "sm_103", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "would fetch" in done.stdout
    assert not project.cache.exists() or not any(project.cache.rglob("files/*"))


def test_no_file_of_the_build_host_gets_in(project, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://user:hunter2@127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "*")
    made = project.build("--rebuild")
    inspected = docker("inspect", made["reference"]) + docker("history", "--no-trunc", made["reference"])
    assert "hunter2" not in inspected
    assert os.uname().nodename not in docker("inspect", "-f", "{{json .Config}}", made["reference"]).split()
