# SPDX-License-Identifier: Apache-2.0
"""Sources, configs, locks and GPUs: what is read, and what is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebuild.diagnostics import Diagnostics, Refused
from imagebuild.errors import CheckFailed, ImageBuildError, IntegrityError
from imagebuild.models.config import drafter_shape, is_drafter, quantisation, read_json, target_shape
from imagebuild.models.gpus import find_gpu, read_gpus
from imagebuild.models.lockfile import (
    LockedFile,
    ModelLock,
    changes,
    check_path,
    locked_facts,
    read_lock,
    render_lock,
)
from imagebuild.models.source import model_names, read_source, source_inputs
from tests.modelfiles import DRAFTER_CONFIG, TARGET_CONFIG, images_with_tiny, locked, small_target

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "images"
CONFIGS = ROOT / "tests" / "image" / "models"


def test_k26_is_as_its_configs_say() -> None:
    source = read_source(IMAGES, "k26")
    target = target_shape(read_json(CONFIGS / "k26" / "config.json"))
    assert target.model_copy(update={"vision": source.target.shape.vision}) == source.target.shape
    assert drafter_shape(read_json(CONFIGS / "drafter" / "config.json")) == source.drafters[0].shape
    assert list(source.repos()) == ["target", "long", "tmp", "k25"]
    assert source.drafter(None) is source.drafters[0] and source.drafter("none") is None


def test_every_source_is_read_and_no_file_names_a_host() -> None:
    for name in model_names(IMAGES):
        assert read_source(IMAGES, name).name == name
    for path in [*(IMAGES / "models").iterdir(), *(ROOT / "imagebuild").rglob("*model*")]:
        if path.is_file() and path.suffix != ".pyc":
            assert "huggingface." not in path.read_text(), path


def test_unknown_names_are_told_what_there_is() -> None:
    with pytest.raises(Refused, match="allowed: k26"):
        read_source(IMAGES, "k62")
    with pytest.raises(Refused, match="allowed: long, tmp, k25, none"):
        read_source(IMAGES, "k26").drafter("lang")
    with pytest.raises(Refused, match="RTX-PRO-6000"):
        find_gpu(IMAGES, "B3000")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("acme/Tiny-DFlash", "acme", "drafters"),
        ('"name": "long"', '"name": "target"', 'name "target" is taken by target'),
        ('"name": "old"', '"name": "long"', 'name "long" is taken by long'),
        ('"license": "mit", "shape"', '"licence": "mit", "shape"', 'did you mean "license"'),
        ('"hidden_size": 64', '"hidden_size": "64"', "expected a whole number"),
        ('"name": "tiny"', '"name": "other"', "differs from the file's name"),
        ('"repo": "acme/Tiny",', '"repo": "acme/Tiny", "revision": "a b",', "match pattern"),
    ],
)
def test_wrong_sources_are_refused_with_a_place(tmp_path: Path, old: str, new: str, text: str) -> None:
    path = images_with_tiny(tmp_path) / "models" / "tiny.yaml"
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))
    with pytest.raises(ImageBuildError) as caught:
        read_source(path.parent.parent, "tiny")
    assert text in str(caught.value) and f"{path}:1:" in str(caught.value)
    assert caught.value.exit_code == 2


def test_inputs_change_with_repos_and_revisions_only() -> None:
    source = read_source(IMAGES, "k26")
    other = source.model_copy(update={"title": "x"})
    moved = source.model_copy(update={"target": source.target.model_copy(update={"revision": "v2"})})
    assert source_inputs(source) == source_inputs(other) != source_inputs(moved)


def test_gpus_are_found_as_people_call_them() -> None:
    for text, name in {
        "B300": "B300", "rtx pro 6000": "RTX-PRO-6000", "NVIDIA H200": "H200", "sm_120": "RTX-PRO-6000",
        "NVIDIA B300 SXM6 AC": "B300", "h100": "H100",
    }.items():  # fmt: skip
        assert find_gpu(IMAGES, text).short == name
    from imagebuild.arch import archs

    known = {gpu: arch.name for arch in archs() for gpu in arch.gpus}
    assert all(known[gpu.name] == gpu.arch for gpu in read_gpus(IMAGES))
    with pytest.raises(Refused, match="its memory: give --gpu-memory"):
        find_gpu(IMAGES, "NVIDIA GH200 480GB")


# --- configs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "label"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8 FP8 (linear)"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq INT4 g128 (linear)"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt FP8 (linear)"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}},
            "compressed-tensors INT8 (linear)",
        ),
    ],
)
def test_quantisations_are_named(raw: dict[str, object], label: str) -> None:
    assert quantisation({"quantization_config": raw}).label == label
    assert quantisation({"text_config": {"quantization_config": raw}}).label == label
    assert quantisation({}) is None


def test_a_config_without_what_is_needed_names_it_all() -> None:
    with pytest.raises(CheckFailed) as caught:
        target_shape({"model_type": "x", "hidden_size": 8})
    for name in ("architectures", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert name in str(caught.value)
    with pytest.raises(CheckFailed, match="how many bits"):
        quantisation({"quantization_config": {"quant_method": "new"}})


def test_block_size_and_rope_from_either_place() -> None:
    base = {**DRAFTER_CONFIG, "block_size": None}
    assert drafter_shape(base).block_size == 16
    base["dflash_config"] = {**base["dflash_config"], "block_size": 8}
    base["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 5e4, "factor": 64, "extra": 1}
    shape = drafter_shape(base)
    assert (shape.block_size, shape.rope.theta, shape.rope.factor) == (8, 5e4, 64.0)
    assert is_drafter(base) and not is_drafter(TARGET_CONFIG)


NAMES = [*TARGET_CONFIG, *TARGET_CONFIG["text_config"], *DRAFTER_CONFIG]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=20,
)


@given(JSON.filter(lambda value: isinstance(value, dict)))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_config_breaks_the_reader(config: dict[str, object]) -> None:
    for read in (target_shape, drafter_shape, quantisation):
        with contextlib.suppress(CheckFailed):
            read({**TARGET_CONFIG, **config})
    locked_facts(config)


@pytest.mark.parametrize("text", ["", "[]", "{", '"a"', "[" * 100_000])
def test_what_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckFailed, match=r"config\.json: "):
        read_json(tmp_path / "config.json")


# --- locks ------------------------------------------------------------------------------------


def a_lock(**kwargs: Any) -> ModelLock:
    repo = locked(small_target())
    repo = repo.model_copy(update=locked_facts(TARGET_CONFIG))
    return ModelLock(
        **{"schema": 1, "name": "tiny", "created": "x", "inputs": "y", "repos": (repo,), **kwargs}
    )


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    lock = a_lock()
    path = tmp_path / "tiny.lock"
    path.write_text(render_lock(lock))
    again = read_lock(path)
    assert again is not None and render_lock(again) == render_lock(lock)
    assert again.repos[0].shape == target_shape(TARGET_CONFIG)
    assert changes(lock, again) == []
    assert len([line for line in path.read_text().splitlines() if '"sha256"' in line]) == 10
    assert read_lock(tmp_path / "none.lock") is None


def test_changes_say_what_moved() -> None:
    old, new = a_lock(), a_lock(repos=(locked(small_target("n"), commit="d" * 40),))
    lines = changes(old, new)
    assert f"~ acme/Tiny {'c' * 12} -> {'d' * 12}" in lines
    assert "~ target/tiktoken.model other bytes" in lines and len(lines) == 5
    assert changes(None, old) == [f"+ acme/Tiny {'c' * 12}: 10 files"]


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.update(schema=2),
        lambda raw: raw.update(more=1),
        lambda raw: raw["repos"][0]["files"][0].update(sha256="0"),
        lambda raw: raw["repos"][0]["files"][0].update(path="../x"),
        lambda raw: raw["repos"][0]["files"][0].update(size=-1),
        lambda raw: raw["repos"][0].update(commit="main"),
        lambda raw: raw["repos"][0]["files"].append({**raw["repos"][0]["files"][0], "path": "license"}),
    ],
)
def test_a_lock_that_was_edited_is_refused(tmp_path: Path, change: Any) -> None:
    raw = json.loads(render_lock(a_lock()))
    change(raw)
    (tmp_path / "l").write_text(json.dumps(raw))
    with pytest.raises(IntegrityError, match="models lock writes it"):
        read_lock(tmp_path / "l")
    (tmp_path / "l").write_text("{")
    with pytest.raises(IntegrityError):
        read_lock(tmp_path / "l")


@pytest.mark.parametrize(
    "path", ["", "/a", "../a", "a/../b", "a//b", "a\\b", "a\tb", ".git/x", ".imagebuild/x", "./a"]
)
def test_paths_that_lead_out_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="no path of a file inside"):
        check_path(path)
    with pytest.raises(ValueError):
        LockedFile(path=path, size=0, sha256="0" * 64)


def test_a_source_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    images = images_with_tiny(tmp_path)
    (images / "models" / "tiny.yaml").write_text("schema: 1\nname: no\n")
    with pytest.raises(Diagnostics, match='missing key "target"'):
        read_source(images, "tiny")
