# SPDX-License-Identifier: Apache-2.0
"""SGLang's own argument resolution for this arch, on K2.6-shaped configurations without weights."""

import subprocess
from pathlib import Path

import pytest

from imagebuild.arch import parse_arch

MODELS = Path(__file__).parent / "models"
MEMORY_MIB = {"sm_103": 275040, "sm_120": 97887, "sm_90": 143771}
EXPECTED: dict[str, dict[str, object]] = {
    "sm_103": {"attention_backend": "trtllm_mla", "page_size": 64},
    "sm_120": {"attention_backend": "triton"},
    "sm_90": {"attention_backend": "fa3"},
}
COMMON = ["--trust-remote-code", "--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"]
DFLASH = ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "/tmp/models/drafter"]


@pytest.fixture(scope="module")
def resolve_args(plan, host, probe, stubs):
    """Return a function: SGLang arguments → effective values or why they are refused."""
    name = host.backend.name
    subprocess.run(["docker", "cp", str(MODELS), f"{name}:/tmp/models"], check=True, capture_output=True)
    arch = parse_arch(plan.arch)
    gpu = arch.gpus[0]

    def run(*args):
        capability = [str(part) for part in arch.capability]
        words = [*capability, gpu, str(MEMORY_MIB[plan.arch]), "--model-path", "/tmp/models/k26", *COMMON]
        return probe("server_args", *words, *args, env=stubs)

    return run


def test_tp8_with_dflash(plan, resolve_args):
    found = resolve_args("--tp", "8", *DFLASH)
    assert "refused" not in found, found
    assert found["speculative_algorithm"] == "DFLASH"
    assert found["speculative_num_draft_tokens"] == 8
    expected = EXPECTED[plan.arch]
    assert {key: found[key] for key in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize("layout", [["--tp", "8", "--ep-size", "8"], ["--tp", "8", "--ep-size", "4"]])
def test_expert_parallel_with_dflash(resolve_args, layout):
    found = resolve_args(*layout, *DFLASH)
    assert found.get("ep_size") == int(layout[3]), found


@pytest.mark.slow
def test_pipeline_parallel_is_accepted_without_and_refused_with_dflash(resolve_args):
    assert resolve_args("--pp-size", "8")["pp_size"] == 8
    assert "refused" in resolve_args("--pp-size", "8", *DFLASH)


@pytest.mark.slow
def test_an_unknown_flag_is_refused(resolve_args):
    assert "refused" in resolve_args("--tp", "8", "--no-such-flag")


def test_dflash_says_once_which_flags_are_in_effect(plan, resolve_args):
    (line,) = resolve_args("--tp", "8", *DFLASH)["effective"]
    backend = EXPECTED[plan.arch]["attention_backend"]
    assert f"--decode-attention-backend {backend} " in line
    assert "--speculative-num-draft-tokens 8 " in line
    assert "--max-running-requests 48" in line


def test_mla_backends_without_kernels_are_refused(plan, resolve_args):
    found = resolve_args("--tp", "8", "--attention-backend", "trtllm_mla")
    assert ("refused" in found) == (plan.arch != "sm_103"), found


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost",
    [
        ["--speculative-num-steps", "3"],
        ["--speculative-eagle-topk", "4"],
        ["--speculative-draft-attention-backend", "trtllm_mha"],
        ["--enable-mixed-chunk"],
    ],
    ids=lambda words: words[0],
)
def test_dflash_refuses_a_flag_that_it_would_lose(resolve_args, lost):
    found = resolve_args("--tp", "8", *DFLASH, *lost)
    assert lost[0] in found.get("refused", ""), found


@pytest.mark.slow
def test_dflash_keeps_what_the_user_set(resolve_args):
    words = ["--max-running-requests", "7", "--speculative-draft-attention-backend", "triton"]
    found = resolve_args("--tp", "8", *DFLASH, *words)
    assert (found["max_running_requests"], found["speculative_draft_attention_backend"]) == (7, "triton")


@pytest.mark.slow
def test_dflash_with_trtllm_mla_refuses_a_prefill_graph(plan, resolve_args):
    words = ["--cuda-graph-backend-prefill", "tc_piecewise"]
    found = resolve_args("--tp", "8", *DFLASH, *words)
    assert ("refused" in found) == (plan.arch == "sm_103"), found
