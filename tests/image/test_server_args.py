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
