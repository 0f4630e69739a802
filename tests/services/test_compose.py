# SPDX-License-Identifier: Apache-2.0
"""The project's compose files with the real image: one-shots and preflight on a tiny model, without a GPU."""

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest

from imagebuild.catalog import arch_names, project_root
from imagebuild.models.lockfile import ModelLock, render_lock
from imagebuild.models.source import read_source, source_inputs
from imagebuild.serving.service import read_model_recipes, services_of
from tests.modelfiles import locked, small_drafter, small_target, write

ROOT = project_root().resolve()
SOURCE = read_source(ROOT / "images", "k26")
TARGET = small_target(
    num_attention_heads=8, num_key_value_heads=8, moe_intermediate_size=256, num_hidden_layers=8,
    max_position_embeddings=262144,
)  # fmt: skip
DRAFTER = small_drafter(num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=262144)
SERVICES = ("k26-tp8", "k26-ep8", "k26-ep4", "k26-tp8-ddtree", "k26-pp8", "k26-tp8-plain")
# What the machine that tests may not be able to give: a limit above its own, NVLink.
ACCEPT = "ulimits"


class Project:
    """A copy of compose.yaml and what it reads, with a models folder and a .env of its own."""

    def __init__(self, folder: Path, reference: str, arch: str) -> None:
        self.folder, self.name = folder, f"imagebuild-test-{uuid.uuid4().hex[:8]}"
        shutil.copy(ROOT / "compose.yaml", folder)
        shutil.copytree(ROOT / "compose", folder / "compose")
        shutil.copytree(ROOT / "images" / "models", folder / "images" / "models")
        self.models = folder / "models"
        write(self.models / SOURCE.target.place, TARGET)
        write(self.models / SOURCE.drafters[0].place, DRAFTER)
        key = arch.upper()
        self.values = {
            "IMAGEBUILD_ARCH": arch,
            f"IMAGEBUILD_IMAGE_{key}": reference,
            f"IMAGEBUILD_PLAN_{key}": self.name,
            "IMAGEBUILD_MODELS_DIR": str(self.models),
        }
        self.lock = folder / "images" / "models" / "k26.lock"
        self.relock()

    def relock(self) -> None:
        repos = (locked(TARGET, SOURCE.target.repo), locked(DRAFTER, SOURCE.drafters[0].repo, "long"))
        lock = ModelLock(schema=1, name="k26", created="x", inputs=source_inputs(SOURCE), repos=repos)
        self.lock.write_text(render_lock(lock))

    def write_env(self, **values: str) -> None:
        lines = [f"{key}={value}\n" for key, value in {**self.values, **values}.items()]
        (self.folder / ".env").write_text("".join(lines))

    def compose(self, *words: str, **values: str) -> subprocess.CompletedProcess[str]:
        self.write_env(**values)
        files = ["-f", "compose.yaml", "-f", "compose/no-gpu.yaml"]
        env = {key: value for key, value in os.environ.items() if not key.startswith("IMAGEBUILD_")}
        return subprocess.run(
            ["docker", "compose", "-p", self.name, *files, *words],
            cwd=self.folder, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def check(self, service: str, action: str = "check", **values: str) -> tuple[int, Any, str]:
        """Run a service's container with an action; return exit code, its JSON, everything it wrote."""
        given = {"IMAGEBUILD_ACCEPT": ACCEPT, **values}
        words = ["-e", f"IMAGEBUILD_ACTION={action}", "-e", "IMAGEBUILD_JSON=1"]
        done = self.compose("run", "--rm", "--quiet-pull", *words, service, **given)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return done.returncode, json.loads(lines[-1]) if lines else {}, done.stdout + done.stderr


@pytest.fixture(scope="module")
def project(reference, plan):
    folder = Path(tempfile.mkdtemp(prefix="imagebuild-compose-"))
    folder.chmod(0o755)  # the container's user is another one
    made = Project(folder, reference, plan.arch)
    yield made
    made.compose("down", "--volumes", "--timeout", "1")
    shutil.rmtree(folder)


def states(answer):
    return {check["id"]: check["state"] for check in answer["checks"]}


@pytest.mark.parametrize("arch", arch_names(ROOT / "images"))
@pytest.mark.parametrize("driver", ["nvidia", "cdi"])
def test_compose_takes_every_file(project, arch, driver):
    image = f"IMAGEBUILD_IMAGE_{arch.upper()}"
    project.write_env(IMAGEBUILD_ARCH=arch, IMAGEBUILD_GPU_DRIVER=driver, **{image: "x"})
    done = subprocess.run(
        ["docker", "compose", "config", "--format=json"],
        cwd=project.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]
    recipes = read_model_recipes(ROOT / "compose", ROOT / "images", "k26")
    for serving in services_of(recipes, arch):
        service = found[serving.service]
        assert service["command"] == ["serve", *serving.flags]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == driver
        (port,) = service["ports"]
        assert port["host_ip"] == "127.0.0.1"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["healthcheck"]["test"] == ["CMD", "imagebuild-entrypoint", "health"]


def test_without_env_compose_says_what_to_run(project):
    (project.folder / ".env").unlink(missing_ok=True)
    done = subprocess.run(
        ["docker", "compose", "config"], cwd=project.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "run ./scripts/probe first" in done.stderr


def test_from_a_filled_volume_to_a_passed_preflight_in_one_command(project):
    status, answer, text = project.check("k26-tp8")
    assert status == 0, text
    found = states(answer)
    assert {name for name, state in found.items() if state == "skipped"} == {
        "gpu", "gpu-arch", "gpu-count", "gpu-mig", "gpu-fabric", "driver", "link",
    }  # fmt: skip
    assert not {"missing", "failed"} & set(found.values())
    assert found["weights-lock"] == found["contract"] == found["arguments"] == found["memory"] == "ok"
    assert answer["effective"]["speculative_num_draft_tokens"] == 4


@pytest.mark.parametrize("service", SERVICES[1:])
def test_the_other_services_pass_too(project, service):
    status, answer, text = project.check(service)
    assert status == 0, text
    assert ("speculative_algorithm" in answer["effective"]) == (service not in ("k26-pp8", "k26-tp8-plain"))


def test_a_plan_asks_nothing_of_the_host(project):
    status, answer, text = project.check("k26-tp8-plain", "plan", IMAGEBUILD_ACCEPT="")
    assert status == 0, text
    assert {"target", "weights-lock", "arguments", "memory"} <= states(answer).keys()
    assert "shm" not in states(answer)


def test_serve_does_not_start_without_a_gpu(project):
    status, answer, text = project.check("k26-tp8", "serve")
    assert (status, states(answer)["gpu"]) == (3, "missing"), text


@pytest.fixture
def key(project):
    path = project.folder / "key"
    path.write_text("topsecret-of-the-test\n")
    path.chmod(0o644)
    return path


def test_others_need_a_key_and_nobody_sees_it(project, key):
    bind = {"IMAGEBUILD_BIND": "0.0.0.0", "IMAGEBUILD_PORT": "0"}
    status, answer, _ = project.check("k26-tp8-plain", **bind)
    assert (status, states(answer)["api-key"]) == (3, "missing")
    status, answer, text = project.check("k26-tp8-plain", IMAGEBUILD_API_KEY_FILE=str(key), **bind)
    assert (status, states(answer)["api-key"]) == (0, "ok"), text
    assert "topsecret" not in text


def test_an_unknown_id_or_action_is_refused(project):
    words = ["run", "--rm", "--no-deps", "k26-tp8-plain"]
    for wrong, text in (
        ("IMAGEBUILD_ACCEPT", 'no check "weights"'),
        ("IMAGEBUILD_ACTION", "IMAGEBUILD_ACTION"),
    ):
        done = project.compose(*words, **{wrong: "weights"})
        assert (done.returncode, text in done.stderr) == (2, True), done.stderr


# --- the one-shots ----------------------------------------------------------------------------


def one_shot(project, name, **values):
    done = project.compose("up", "--no-log-prefix", "--exit-code-from", name, name, **values)
    return done.returncode, done.stdout + done.stderr


def test_without_a_lock_nothing_starts(project):
    project.lock.unlink()
    try:
        status, text = one_shot(project, "models")
        assert (status, "no lock for moonshotai/Kimi-K2.6" in text) == (4, True), text
        done = project.compose("up", "--exit-code-from", "k26-tp8", "k26-tp8")
        assert done.returncode != 0
        assert "didn't complete successfully" in done.stderr
        status, text = one_shot(project, "models", IMAGEBUILD_ACCEPT="weights-lock")
        assert status == 0, text
    finally:
        project.relock()


@pytest.mark.parametrize(
    ("file", "service", "data", "reason"),
    [
        ("Kimi-K2.6/model-00002-of-000003.safetensors", "models", None, "is missing"),
        ("Kimi-K2.6/tiktoken.model", "models", b"other", "has 5 bytes"),
        ("Kimi-K2.6-DFlash-tmp-long/README.md", "drafter", b"X" * 40, "has sha256"),
    ],
)  # fmt: skip
def test_a_damaged_volume_is_named_and_stops_the_server(project, file, service, data, reason):
    path = project.models / file
    whole = path.read_bytes()
    project.compose("down", "--volumes", "--timeout", "1")
    try:
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data[: len(whole)] if len(data) >= len(whole) else data)
        status, text = one_shot(project, service)
        assert (status, reason in text, path.name in text) == (4, True, True), text
    finally:
        path.write_bytes(whole)


def test_the_drafter_is_staged_once(project):
    assert "staged, " in one_shot(project, "drafter")[1]
    assert "staged already" in one_shot(project, "drafter")[1]


def test_other_weights_than_locked_fail_in_the_preflight_too(project):
    path = project.models / "Kimi-K2.6" / "LICENSE"
    whole = path.read_bytes()
    words = ["run", "--rm", "--no-deps", "-e", "IMAGEBUILD_ACTION=check", "k26-tp8-plain"]
    try:
        path.write_bytes(b"a licence?")
        done = project.compose(*words, IMAGEBUILD_ACCEPT=ACCEPT)  # the same size: seen by hashing only
        assert done.returncode == 0, done.stdout + done.stderr
        path.write_bytes(b"longer than it was")
        done = project.compose(*words, IMAGEBUILD_ACCEPT=ACCEPT)
        assert (done.returncode, "LICENSE: has 18 bytes" in done.stdout) == (1, True), done.stdout
    finally:
        path.write_bytes(whole)
