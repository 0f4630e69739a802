# SPDX-License-Identifier: Apache-2.0
"""The memory plan against the figures that are public for Kimi K2.6, and the rules of the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagebuild.models.gpus import find_gpu
from imagebuild.models.memory import GIB, KvDtype, Setup, describe, plan, tree_bytes
from imagebuild.models.shapes import Quantisation
from imagebuild.models.sizes import drafter_parts, kv_bytes, target_parts, total
from imagebuild.models.source import read_source
from tests.modelfiles import header, target_tensors

IMAGES = Path(__file__).parents[2] / "images"
SOURCE = read_source(IMAGES, "k26")
TARGET, DRAFTER = SOURCE.target.shape, SOURCE.drafters[0].shape


def setup(gpu: str, **changes: Any) -> Setup:
    found = find_gpu(IMAGES, gpu)
    return replace(Setup(gpu=found.short, memory=found.memory_mib << 20, tp=8), **changes)


def test_weights_are_the_public_size_and_the_sum_of_all_tensors() -> None:
    size = total(target_parts(TARGET))
    assert abs(size / (548 * GIB) - 1) < 0.015
    assert abs(size / SOURCE.target.about_bytes - 1) < 0.015
    text = TARGET.model_copy(update={"vision": None})
    exact = header(target_tensors(text))[1]
    assert abs(total(target_parts(text)) / exact - 1) < 1e-4, "norms and weight_shape only"


def test_the_drafter_is_6_48_gib() -> None:
    assert round(total(drafter_parts(DRAFTER)) / GIB, 2) == 6.48


@pytest.mark.parametrize(("dtype", "tokens"), [("bf16", 116_000), ("fp8", 232_000)])
def test_the_pool_on_eight_pro_6000_is_the_one_that_was_reported(dtype: KvDtype, tokens: int) -> None:
    found = plan(TARGET, None, setup("RTX PRO 6000", kv_dtype=dtype, context=100_000))
    assert found.fits and abs(found.tokens / tokens - 1) < 0.02


def test_a_token_of_mla_takes_70272_bytes_on_every_gpu() -> None:
    assert kv_bytes(TARGET, "bf16", 8) == kv_bytes(TARGET, "bf16", 1) == 61 * 576 * 2 == 70_272
    assert kv_bytes(TARGET, "fp8", 8) == 35_136
    grouped = TARGET.model_copy(update={"mla": None, "kv_heads": 8, "head_dim": 128})
    assert kv_bytes(grouped, "bf16", 8) == 61 * 2 * 128 * 2 == kv_bytes(grouped, "bf16", 16)


def test_b300_has_room_for_eight_full_contexts_with_the_drafter() -> None:
    found = plan(TARGET, DRAFTER, setup("B300", requests=8))
    assert found.fits and found.weights / GIB == pytest.approx(71.8, abs=0.2)
    assert found.drafter / GIB == pytest.approx(1.3, abs=0.1) and "it fits" in describe(found, 262_144)


def test_a_drafter_costs_its_weights_and_its_pool() -> None:
    with_it = plan(TARGET, DRAFTER, setup("RTX PRO 6000", kv_dtype="fp8", context=100_000))
    without = plan(TARGET, None, setup("RTX PRO 6000", kv_dtype="fp8", context=100_000))
    assert with_it.fits and with_it.tokens < 0.8 * without.tokens
    assert with_it.token - without.token == 6 * 2 * 1 * 128 * 2


def test_what_does_not_fit_says_what_would() -> None:
    found = plan(TARGET, None, setup("RTX PRO 6000"))
    assert not found.fits and "the context does not fit: 1 x 262144 tokens need 17.2 GiB" in found.problems[0]
    assert any(way.startswith("--context 115") for way in found.ways)
    assert "--mem-fraction 0.92" not in found.ways, "no fraction is enough in bf16"
    wider = setup("RTX PRO 6000", kv_dtype="fp8", mem_fraction=0.85)
    assert "--mem-fraction 0.88" in plan(TARGET, None, wider).ways
    h100 = plan(TARGET, DRAFTER, setup("H100", context=32_768))
    assert "the weights do not fit" in h100.problems[0] and "--tp 16 (more of these GPUs)" in h100.ways
    for found in (h100, plan(TARGET, None, setup("RTX PRO 6000"))):
        assert all(f"would fit: {way}" in describe(found, 262_144) for way in found.ways)


def test_every_way_that_is_named_really_fits() -> None:
    base = setup("RTX PRO 6000", requests=2, context=120_000)
    found = plan(TARGET, DRAFTER, base)
    assert found.ways
    for way in found.ways:
        words = way.partition(" (")[0].split()
        changes: dict[str, Any] = {}
        drafter = None if "none" in words else DRAFTER
        names = {
            "--tp": int,
            "--pp": int,
            "--ep": int,
            "--context": int,
            "--mem-fraction": float,
            "--kv-dtype": str,
        }
        for name, value in zip(words[::2], words[1::2], strict=True):
            if name in names:
                changes[name[2:].replace("-", "_")] = names[name](value)
        assert plan(TARGET, drafter, replace(base, **changes)).fits, way


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tp": 6}, "does not divide the 64 attention heads"),
        ({"ep": 3}, "does not divide --tp 8"),
        ({"tp": 128, "ep": 128}, "does not divide the 64 attention heads"),
        ({"pp": 2}, "DFlash refuses pipeline parallelism"),
        ({"context": 300_000}, "positions end at 262144"),
        ({"pp": 62}, "more stages than the 61 layers"),
        ({"mem_fraction": 0.995}, "too little outside the pool"),
        ({"tree_nodes": 512, "requests": 64, "context": 30_000, "mem_fraction": 0.97}, "too little outside"),
    ],
)
def test_what_the_server_would_refuse(changes: dict[str, Any], text: str) -> None:
    assert text in "\n".join(plan(TARGET, DRAFTER, setup("B300", **changes)).problems)


def test_an_expert_cannot_be_cut_through_a_quantisation_group() -> None:
    wide = TARGET.quantisation
    assert wide
    coarse = TARGET.model_copy(update={"quantisation": wide.model_copy(update={"group_size": 512})})
    found = plan(coarse, None, setup("B300", context=1000))
    assert "no multiple of the quantisation's group of 512" in found.problems[0] and "--ep 2" in found.ways


def test_expert_parallelism_changes_no_bytes() -> None:
    assert plan(TARGET, None, setup("B300", ep=8)).weights == plan(TARGET, None, setup("B300")).weights


def test_tree_buffers_are_those_of_the_triton_backend() -> None:
    assert tree_bytes(32, 32, 262_144) / GIB == pytest.approx(2.06 * 9 / 8, rel=0.03)
    assert tree_bytes(16, 8, 262_144) / GIB == pytest.approx(0.27 * 9 / 8, rel=0.12)


def test_pipeline_stages_share_the_layers() -> None:
    one, two = (plan(TARGET, None, setup("H200", tp=4, pp=pp, context=1000)) for pp in (1, 2))
    assert not one.fits and two.fits and two.weights < 0.53 * one.weights


def test_a_quantisation_of_all_linear_layers_is_smaller() -> None:
    fp8 = Quantisation(method="fp8", bits=8, group_size=None, covers="linear")
    plain = total(target_parts(TARGET.model_copy(update={"quantisation": None})))
    assert 0.5 < total(target_parts(TARGET.model_copy(update={"quantisation": fp8}))) / plain < 0.52
