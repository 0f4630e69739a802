# SPDX-License-Identifier: Apache-2.0
"""The preflight on model folders, and the one-shots that make them ready."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuild.errors import CheckFailed, IntegrityError, ManifestError, PreconditionError
from imagebuild.models.lockfile import ModelLock, render_lock
from imagebuild.models.source import read_source, source_inputs
from imagebuild.preflight.flags import Flags, read_flags
from imagebuild.preflight.oneshots import run_drafter, run_models
from imagebuild.preflight.weights import check_models
from imagebuild.toolbox import image_code
from tests.modelfiles import images_with_tiny, locked, small_drafter, small_target, write


class Place:
    """Models, locks and staged drafters below one folder."""

    def __init__(self, root: Path) -> None:
        self.locks = images_with_tiny(root)
        self.target = write(root / "models" / "Tiny", small_target())
        self.drafter = write(root / "models" / "Tiny-DFlash", small_drafter())
        self.models, self.staged = root / "models", root / "staged"
        self.staged.mkdir()

    def lock(self, **inputs: str) -> None:
        source = read_source(self.locks, "tiny")
        repos = (locked(small_target()), locked(small_drafter(), "acme/Tiny-DFlash", "long"))
        lock = ModelLock(
            schema=1,
            name="tiny",
            created="x",
            inputs=inputs.get("inputs", source_inputs(source)),
            repos=repos,
        )
        (self.locks / "models" / "tiny.lock").write_text(render_lock(lock))

    def stage(self, *accepted: str) -> str:
        return run_drafter(["tiny", "long"], self.locks, accepted, self.models, self.staged)

    def flags(self, *words: str) -> Flags:
        base = ["--model-path", str(self.target), "--speculative-algorithm", "DFLASH"]
        return read_flags([*base, "--speculative-draft-model-path", str(self.staged / "Tiny-DFlash"), *words])

    def states(self, *words: str, full: bool = False) -> dict[str, str]:
        found = check_models(self.flags(*words), self.locks, full=full).findings
        assert len({f.id for f in found}) == len(found)
        return {f.id: f.state for f in found}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


GOOD = {"target": "ok", "weights-lock": "ok", "drafter": "ok", "contract": "ok"}


def test_a_filled_volume_passes(place):
    place.lock()
    assert "of 10 files as locked" in run_models(["tiny"], place.locks, (), place.models)
    assert "staged, 25 tensors" in place.stage()
    assert place.states() == GOOD
    assert place.states(full=True) == GOOD


def test_staging_is_done_once_and_repairs_what_changed(place):
    place.lock()
    place.stage()
    assert "staged already" in place.stage()
    (place.staged / "Tiny-DFlash" / "config.json").write_text("{}")
    assert "staged, " in place.stage()
    assert (place.staged / "Tiny-DFlash" / "config.json").read_bytes() == small_drafter()["config.json"]
    assert [p.name for p in place.staged.iterdir()] == ["Tiny-DFlash"]


def test_only_locked_files_are_staged(place):
    place.lock()
    (place.drafter / "evil.py").write_text("import os")
    place.stage()
    assert not (place.staged / "Tiny-DFlash" / "evil.py").exists()


def test_wrong_bytes_are_never_staged_and_the_old_copy_stays(place):
    place.lock()
    place.stage()
    (place.staged / "Tiny-DFlash" / "README.md").unlink()
    data = bytearray((place.drafter / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (place.drafter / "model.safetensors").write_bytes(data)
    with pytest.raises(IntegrityError, match="has sha256"):
        place.stage()
    assert (place.staged / "Tiny-DFlash" / "model.safetensors").exists()
    assert [p.name for p in place.staged.iterdir()] == ["Tiny-DFlash"]


def test_without_a_lock_nothing_goes_unless_accepted(place):
    with pytest.raises(IntegrityError, match="no lock for acme/Tiny"):
        run_models(["tiny"], place.locks, (), place.models)
    with pytest.raises(IntegrityError, match="no lock for acme/Tiny-DFlash"):
        place.stage()
    assert "tensors in 3 files" in run_models(["tiny"], place.locks, ["weights-lock"], place.models)
    assert "staged, " in place.stage("weights-lock")
    assert "staged already" in place.stage("weights-lock")
    os.utime(place.drafter / "config.json", ns=(1, 1))
    assert "staged, " in place.stage("weights-lock")
    assert place.states()["weights-lock"] == "missing"


def test_a_lock_of_another_source_is_none(place):
    place.lock(inputs=hashlib.sha256(b"other").hexdigest())
    place.stage("weights-lock")
    assert place.states()["weights-lock"] == "missing"


@pytest.mark.parametrize(
    ("damage", "id", "state"),
    [
        (lambda p: (p.target / "config.json").unlink(), "target", "missing"),
        (lambda p: (p.target / "model-00002-of-000003.safetensors").unlink(), "target", "failed"),
        (lambda p: (p.target / "tiktoken.model").write_bytes(b"short"), "weights-lock", "failed"),
        (lambda p: (p.target / "LICENSE").unlink(), "weights-lock", "failed"),
        (lambda p: (p.staged / "Tiny-DFlash" / "config.json").unlink(), "drafter", "missing"),
        (lambda p: os.truncate(p.staged / "Tiny-DFlash" / "model.safetensors", 900), "drafter", "failed"),
    ],
)  # fmt: skip
def test_each_damage_has_its_own_id(place, damage, id, state):
    place.lock()
    place.stage()
    damage(place)
    assert place.states()[id] == state


def test_a_drafter_of_another_target_breaks_the_contract(place):
    write(place.drafter, small_drafter(dflash_config={"mask_token_id": 511, "target_layer_ids": [0, 3]}))
    with pytest.raises(CheckFailed, match="target_layer_ids"):
        place.stage("weights-lock")
    assert place.states()["contract"] == "failed"
    assert place.states("--tp", "3")["contract"] == "failed"


def test_models_that_are_not_there(place):
    place.lock()
    found = check_models(read_flags(["--model-path", "/nowhere/x"]), place.locks).findings
    assert [(f.id, f.state) for f in found] == [("target", "missing")]
    assert check_models(read_flags(["--tp", "8"]), place.locks).findings[0].state == "failed"
    for name in ("Tiny", "Tiny-DFlash"):
        (place.models / name).rename(place.models / f"{name}-gone")
    with pytest.raises(PreconditionError, match="no such folder"):
        run_models(["tiny"], place.locks, (), place.models)
    with pytest.raises(PreconditionError, match="no such folder"):
        place.stage()


def test_a_model_that_nobody_locked_is_a_warning(place):
    place.target.rename(place.models / "Own")
    flags = replace(place.flags(), model_path=str(place.models / "Own"), drafter_path=None)
    states = {f.id: f.state for f in check_models(flags, place.locks).findings}
    assert states["weights-lock"] == "warning"


def test_wrong_words(place):
    for words in ([], ["tiny", "long"]):
        with pytest.raises(ManifestError, match="usage"):
            run_models(words, place.locks, (), place.models)
    with pytest.raises(ManifestError, match="no model"):
        run_models(["tinny"], place.locks, (), place.models)
    with pytest.raises(ManifestError, match="no drafter"):
        run_drafter(["tiny", "lang"], place.locks, (), place.models, place.staged)


def test_the_code_in_the_image_is_what_the_preflight_imports():
    code = image_code()
    assert code["__main__.py"].name == "__main__.py"
    for path in (
        "imagebuild/models/verify.py",
        "imagebuild/preflight/arguments.py",
        "imagebuild/__init__.py",
    ):
        assert path in code
    assert not [path for path in code if "command_" in path or "/serving/" in path or "engine" in path]
    assert len(code) < 60
