# SPDX-License-Identifier: Apache-2.0
"""The `models` commands without a network: results on stdout, exit codes, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.cli import run
from tests.modelfiles import images_with_tiny, noise, small_drafter, small_target, write

SHARD = "model-00002-of-000003.safetensors"
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write(tmp_path / "models" / "Tiny", small_target())
    write(tmp_path / "models" / "Tiny-DFlash", small_drafter())
    return tmp_path / "models"


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    images_with_tiny(tmp_path / "project")
    monkeypatch.setattr("imagebuild.options.project_root", lambda: tmp_path / "project")
    monkeypatch.setattr("imagebuild.models.fetch.host_network", lambda _: None)

    def do(*words: object) -> tuple[int, str, str]:
        status = run(["models", *map(str, words)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return do


def locked(call: Call, models: Path) -> None:
    assert call("lock", "tiny", "--from", models, "-q")[0] == 0


def test_lock_and_verify_a_folder(call: Call, models: Path) -> None:
    assert call("verify", "tiny", "--dir", models, "-q")[0] == 4, "there is no lock"
    locked(call, models)
    status, out, _ = call("verify", "tiny", "--dir", models, "--json", "-q")
    value = json.loads(out)
    assert status == 0 and value["target"]["hashed"] == 10 and value["long"]["files"] == 3
    assert json.loads(call("verify", "tiny", "--dir", models, "--json", "-q")[1])["target"]["hashed"] == 0
    (models / "Tiny" / SHARD).write_bytes(b"x")
    status, out, err = call("verify", "tiny", "--dir", models, "-q")
    assert (status, out) == (4, "") and f"{SHARD}: has 1 bytes" in err and "only these" in err
    assert call("verify", "tiny", "--dir", models / "no", "-q")[0] == 3


def test_a_lock_of_another_source_is_refused(call: Call, models: Path, tmp_path: Path) -> None:
    locked(call, models)
    path = tmp_path / "project" / "images" / "models" / "tiny.yaml"
    path.write_text(path.read_text().replace('"acme/Tiny",', '"acme/Tiny", "revision": "v2",', 1))
    status, _, err = call("verify", "tiny", "--dir", models, "-q")
    assert status == 4 and "made from another tiny.yaml" in err


def test_a_damaged_folder_is_not_locked(call: Call, models: Path, tmp_path: Path) -> None:
    (models / "Tiny" / SHARD).write_bytes(noise("x", 100))
    status, _, err = call("lock", "tiny", "--from", models, "-q")
    assert status == 1 and SHARD in err
    assert not (tmp_path / "project" / "images" / "models" / "tiny.lock").exists()


def test_fetch_without_a_lock_wants_the_word(call: Call, models: Path, tmp_path: Path) -> None:
    status, out, err = call("fetch", "tiny", "--dir", tmp_path / "m", "-q")
    assert (status, out) == (4, "") and "--unlocked" in err and not (tmp_path / "m").exists()
    status, _, err = call("fetch", "tiny", "--dir", tmp_path / "m", "--from", models, "--unlocked", "-q")
    assert status == 4 and "models lock tiny --from DIR" in err


def test_check_says_what_would_happen(call: Call, models: Path) -> None:
    status, out, _ = call("check", "tiny", "--dir", models, "--tp", 2)
    assert status == 0 and "the drafter fits the target" in out and str(models) in out
    assert "images/models" in call("check", "tiny", "--dir", models / "none", "--tp", 2)[1]
    status, out, err = call("check", "tiny", "--dir", models, "--tp", 3, "--json")
    assert status == 1 and "rules broken" in err
    assert {v["rule"] for v in json.loads(out)["violations"]} == {"tp"}
    write(models / "Tiny-DFlash", small_drafter(hidden_size=32))
    status, out, err = call("check", "tiny", "--dir", models, "--tp", 2)
    assert status == 1 and "error: hidden_size: drafter 32, target 64\n  then: " in out
    write(models / "Tiny-DFlash", {"model.safetensors": b"12345678"})
    status, _, err = call("check", "tiny", "--dir", models, "--tp", 2)
    assert status == 1 and "model.safetensors: its header" in err
    assert call("check", "tiny", "--drafter", "none")[0] == 2


def test_identify_answers_in_json(call: Call, models: Path, tmp_path: Path) -> None:
    status, out, err = call("identify", models / "Tiny", "--json", "-q")
    value: dict[str, Any] = json.loads(out)
    assert status == 1 and value["repo"] == "" and value["confidence"] == "unknown" and "--hub" in err
    assert value["quantisation"] == "compressed-tensors INT4 g32 (experts)"
    locked(call, models)
    status, out, _ = call("identify", models / "Tiny", "--json", "-q")
    assert status == 0 and json.loads(out)["repo"] == "acme/Tiny"
    assert call("identify", tmp_path / "nothing")[0] == 2


def test_plan_by_gpu_or_memory(call: Call) -> None:
    status, out, _ = call("plan", "tiny", "--gpu", "B300", "--tp", 1, "--json")
    assert status == 0 and json.loads(out)["fits"] is True
    status, out, err = call("plan", "tiny", "--gpu-memory", 2048, "--tp", 2)
    assert status == 1 and "no: " in out and "it does not fit" in err
    assert call("plan", "tiny")[0] == 2
    assert call("plan", "tiny", "--gpu", "B3000")[0] == 2
    assert call("plan", "tinny", "--gpu", "B300")[2].count("tiny")


def test_a_token_file_and_an_endpoint_that_are_wrong(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hf_secret and more")
    for path in (tmp_path / "token", tmp_path / "none"):
        status, _, err = call("lock", "tiny", "--token-file", path, "-q")
        assert status == 2 and "--token-file" in err and "hf_secret" not in err
    monkeypatch.setenv("HF_ENDPOINT", "ftp://user:pass@x")
    status, _, err = call("lock", "tiny", "-q")
    assert status == 2 and "HF_ENDPOINT" in err and "pass" not in err
