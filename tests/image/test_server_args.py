# SPDX-License-Identifier: Apache-2.0
"""SGLang's own argument resolution: every service on every arch, and what it refuses.

The effective flags of all services are golden files: UPDATE_SNAPSHOTS=1 writes them, read the diff then.
"""

import json
import os
from pathlib import Path

import pytest

from imagebuild.catalog import arch_names, project_root
from imagebuild.serving.service import read_model_recipes, services_of

ROOT = project_root()
GOLDEN = Path(__file__).parent / "golden"
RECIPES = read_model_recipes(ROOT / "compose", ROOT / "images", "k26")
MODEL = ["--model-path", "/models/Kimi-K2.6", "--trust-remote-code"]
DFLASH = [
    *MODEL, "--speculative-algorithm", "DFLASH",
    "--speculative-draft-model-path", "/drafter/Kimi-K2.6-DFlash-tmp-long",
]  # fmt: skip
ATTENTION = {"sm_103": "trtllm_mla", "sm_120": "triton", "sm_90": "fa3"}
LOST = {
    "steps": ["--speculative-num-steps", "3"],
    "topk": ["--speculative-eagle-topk", "4"],
    "draft backend": ["--speculative-draft-attention-backend", "trtllm_mha"],
    "mixed chunk": ["--enable-mixed-chunk"],
}
CASES = {
    "bare": [*DFLASH, "--tp", "8"],
    "pp with dflash": [*DFLASH, "--pp-size", "8"],
    "dp attention with dflash": [*DFLASH, "--tp", "8", "--dp-size", "8", "--enable-dp-attention"],
    "unknown flag": [*MODEL, "--tp", "8", "--no-such-flag"],
    "trtllm_mla": [*MODEL, "--tp", "8", "--attention-backend", "trtllm_mla"],
    "kept": [
        *DFLASH, "--tp", "8", "--max-running-requests", "7",
        "--speculative-draft-attention-backend", "triton",
    ],
    "prefill graph": [*DFLASH, "--tp", "8", "--cuda-graph-backend-prefill", "tc_piecewise"],
    "no such tree": [*MODEL, "--tp", "8", "--speculative-algorithm", "NOSUCHTREE"],
    "key": [*MODEL, "--tp", "8", "--api-key", "topsecret"],
    **{name: [*DFLASH, "--tp", "8", *words] for name, words in LOST.items()},
}  # fmt: skip


@pytest.mark.parametrize(
    "arch", [pytest.param(arch, marks=pytest.mark.slow) for arch in arch_names(ROOT / "images")]
)
def test_every_service_has_the_golden_effective_flags(sglang, arch):
    servings = services_of(RECIPES, arch)
    answers = sglang(arch, *(serving.flags for serving in servings))
    named = {serving.service: answer for serving, answer in zip(servings, answers, strict=True)}
    assert {name: answer["refused"] for name, answer in named.items() if "refused" in answer} == {}
    found = {name: answer["effective"] for name, answer in named.items()}
    path = GOLDEN / f"{arch}.json"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert found == json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def answers(plan, sglang):
    return dict(zip(CASES, sglang(plan.arch, *CASES.values()), strict=True))


def test_sglangs_own_choices_with_dflash(plan, answers):
    found = answers["bare"]["effective"]
    assert found["speculative_num_draft_tokens"] == 8
    assert found["attention_backend"] == ATTENTION[plan.arch]
    (line,) = [line for line in answers["bare"]["said"] if "effective flags" in line]
    assert f"--decode-attention-backend {ATTENTION[plan.arch]} " in line
    assert "--speculative-num-draft-tokens 8 " in line
    assert "--max-running-requests 48" in line


@pytest.mark.parametrize(
    "case", ["pp with dflash", "dp attention with dflash", "unknown flag", "no such tree"]
)
def test_what_sglang_refuses(answers, case):
    assert "refused" in answers[case]


def test_a_refusal_says_why(answers):
    assert "--no-such-flag" in answers["unknown flag"]["refused"]
    assert "pp_size == 1" in answers["pp with dflash"]["refused"]


def test_mla_backends_without_kernels_are_refused(plan, answers):
    assert ("refused" in answers["trtllm_mla"]) == (plan.arch != "sm_103"), answers["trtllm_mla"]


@pytest.mark.parametrize("case", LOST)
def test_dflash_refuses_a_flag_that_it_would_lose(answers, case):
    assert LOST[case][0] in answers[case].get("refused", ""), answers[case]


def test_dflash_keeps_what_the_user_set(answers):
    found = answers["kept"]["effective"]
    assert (found["max_running_requests"], found["speculative_draft_attention_backend"]) == (7, "triton")


def test_dflash_with_trtllm_mla_refuses_a_prefill_graph(plan, answers):
    assert ("refused" in answers["prefill graph"]) == (plan.arch == "sm_103"), answers["prefill graph"]


def test_no_key_is_told(answers):
    assert answers["key"]["effective"]["api_key"] == "***"
    assert "topsecret" not in json.dumps(answers["key"])
