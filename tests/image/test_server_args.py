# SPDX-License-Identifier: Apache-2.0
"""SGLang's own argument resolution: every service of the arch, and what it refuses.

The effective flags of all services are golden files: UPDATE_SNAPSHOTS=1 writes them, read the diff then.
"""

import json
import os
from pathlib import Path

import pytest

from tests.image.server_lines import LOST

pytestmark = pytest.mark.check("server-arguments")
GOLDEN = Path(__file__).parent / "golden"
ATTENTION = {"sm_103": "trtllm_mla", "sm_120": "triton", "sm_90": "fa3"}


def test_every_service_has_the_golden_effective_flags(plan, answers):
    named = {n.removeprefix("service "): a for n, a in answers.items() if n.startswith("service ")}
    assert {name: answer["refused"] for name, answer in named.items() if "refused" in answer} == {}
    found = {name: answer["effective"] for name, answer in named.items()}
    path = GOLDEN / f"{plan.arch}.json"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert found == json.loads(path.read_text(encoding="utf-8"))


def test_every_service_is_taken_on_a_second_node(answers):
    named = {name: answer for name, answer in answers.items() if name.startswith("nodes ")}
    assert {name: answer["refused"] for name, answer in named.items() if "refused" in answer} == {}
    for name, answer in named.items():
        found = answer["effective"]
        assert (found["nnodes"], found["node_rank"]) == (2, 1), name
        assert found["dist_init_addr"] == "10.0.0.1:20000"
    assert named


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
