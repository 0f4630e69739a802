# SPDX-License-Identifier: Apache-2.0
"""A drafter and a target: each broken rule is found and says what would happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imagebuild.models.contract import Flags, check, describe
from imagebuild.models.drafter_keys import expected_tensors
from imagebuild.models.shapes import Rope
from imagebuild.models.source import read_source
from tests.modelfiles import drafter_tensors

SOURCE = read_source(Path(__file__).parents[2] / "images", "k26")
TARGET, DRAFTER = SOURCE.target.shape, SOURCE.drafters[0].shape
FLAGS = Flags(tp=8)


def broken(drafter: dict[str, Any] | None = None, flags: Flags = FLAGS, **target: Any) -> dict[str, str]:
    found = check(TARGET.model_copy(update=target), DRAFTER.model_copy(update=drafter or {}), flags)
    assert all(violation.then and violation.text for violation in found)
    return {violation.rule: violation.level for violation in found}


@pytest.mark.parametrize("drafter", SOURCE.drafters, ids=lambda d: d.name)
@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
def test_the_drafters_of_k26_fit(drafter: Any, tp: int) -> None:
    assert check(TARGET, drafter.shape, Flags(tp=tp), drafter_tensors(drafter.shape)) == ()
    assert describe(()) == "the drafter fits the target"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"architecture": "Qwen3ForCausalLM"}, "architecture"),
        ({"hidden_size": 4096}, "hidden_size"),
        ({"vocab_size": 151936}, "vocab_size"),
        ({"mask_token_id": None}, "mask_token_id"),
        ({"mask_token_id": 163840}, "mask_token_id"),
        ({"mask_token_id": -1}, "mask_token_id"),
        ({"target_layer_ids": ()}, "target_layer_ids"),
        ({"target_layer_ids": (1, 12, 24, 35, 47, 60)}, "target_layer_ids"),
        ({"target_layer_ids": (12, 1, 24, 35, 47, 58)}, "target_layer_ids"),
        ({"target_layer_ids": (1, 1, 24, 35, 47, 58)}, "target_layer_ids"),
        ({"target_layers": 60}, "num_target_layers"),
        ({"layer_types": ("full_attention",) * 5}, "layer_types"),
        ({"layer_types": ("mamba",) * 6}, "layer_types"),
        ({"sliding_window": None}, "sliding_window"),
        ({"block_size": 1}, "block_size"),
        ({"intermediate_size": 18433}, "tp"),
        ({"heads": 60}, "tp"),
        ({"kv_heads": 3}, "tp"),
    ],
)
def test_each_broken_rule_is_an_error(change: dict[str, Any], rule: str) -> None:
    assert broken(change).get(rule) == "error"


def test_layer_59_is_the_last_that_can_be_read() -> None:
    assert broken({"target_layer_ids": (1, 12, 24, 35, 47, 59)}) == {}


@pytest.mark.parametrize(
    ("flags", "rule", "level"),
    [
        (Flags(tp=7), "tp", "error"),
        (Flags(tp=8, pp=2), "pp", "error"),
        (Flags(tp=8, block_size=16), "block_size", "error"),
        (Flags(tp=8, block_size=4), "block_size", "warning"),
        (Flags(tp=8, draft_tokens=5), "draft_tokens", "warning"),
        (Flags(tp=8, draft_tokens=5, tree=True), "draft_tokens", "error"),
        (Flags(tp=8, window=1024), "window", "warning"),
        (Flags(tp=8, tree=True, attention="trtllm_mla"), "attention", "error"),
        (Flags(tp=8, tree=True, attention="flashinfer"), "attention", "error"),
        (Flags(tp=8, tree=True, attention="fa3", page_size=64), "attention", "error"),
    ],
)
def test_flags_against_the_drafter(flags: Flags, rule: str, level: str) -> None:
    assert broken(flags=flags) == {rule: level}


@pytest.mark.parametrize(
    "flags",
    [
        Flags(tp=8, block_size=8, draft_tokens=8, window=4096),
        Flags(tp=8, draft_tokens=17, tree=True, attention="triton"),
        Flags(tp=8, draft_tokens=17, tree=True, attention="fa3", page_size=1),
        Flags(tp=8, attention="trtllm_mla"),
    ],
)
def test_flags_that_are_right(flags: Flags) -> None:
    assert broken(flags=flags) == {}


def test_rope_and_reach_are_warnings() -> None:
    assert broken({"rope": Rope(theta=1e6)}) == {"rope": "warning"}
    short = Rope(theta=50000.0, kind="yarn", factor=8.0, original=4096)
    assert broken({"rope": short}) == {"rope": "warning", "context": "warning"}


def test_the_exact_keys_are_69_and_each_fault_is_named() -> None:
    good = drafter_tensors(DRAFTER)
    assert len(good) == len(expected_tensors(DRAFTER)) == 69
    prefixed = {f"model.{name}": value for name, value in good.items()}
    assert check(TARGET, DRAFTER, FLAGS, prefixed) == ()

    def text(tensors: Any) -> str:
        return describe(check(TARGET, DRAFTER, FLAGS, tensors))

    fewer = {name: value for name, value in good.items() if "k_norm" not in name}
    assert "6 weights are missing: layers.0.self_attn.k_norm.weight" in text(fewer)
    assert "random memory" in text(fewer)
    assert "does not have: lm_head.weight" in text({**good, "lm_head.weight": ("BF16", (1, 1))})
    assert "fc.weight [7168, 5] instead of [7168, 43008]" in text({**good, "fc.weight": ("BF16", (7168, 5))})
    assert "weights in F8_E4M3" in text({**good, "fc.weight": ("F8_E4M3", (7168, 43008))})


def test_errors_come_before_warnings() -> None:
    drafter = DRAFTER.model_copy(update={"rope": Rope(theta=1.0), "hidden_size": 1})
    levels = [v.level for v in check(TARGET, drafter, FLAGS)]
    assert levels == sorted(levels) and levels[0] == "error" and levels[-1] == "warning"
