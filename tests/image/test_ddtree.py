# SPDX-License-Identifier: Apache-2.0
"""The DDTREE plugin in the image: it loads, its guard is content, its kernels do what the oracle says."""

import pytest

pytestmark = pytest.mark.check("patches")
CASES = "/mnt/tests/gpu/spec/kernel_cases.py"


def test_sglang_knows_the_algorithm_and_is_the_one_it_was_made_for(image, plan):
    if not any(item["id"] == "ddtree" for item in plan.ledger):
        return
    found = image.probe("ddtree", env=image.stubs)
    assert found == {
        "algorithm": "DDTreeAlgorithm",
        "hook": True,
        "different": [],
        "worker": ["DDTreeWorker", "DFlashWorkerV2"],
    }


def test_kernels_equal_the_oracle_in_tritons_interpreter(image, plan, host):
    if not any(item["id"] == "ddtree" for item in plan.ledger):
        return
    env = f"{image.stubs} TRITON_INTERPRET=1 PYTHONPATH=/mnt/tests"
    done = host.run(f"cd /tmp && {env} python -B -W ignore {CASES} --cases 150 --seed 7")
    assert done.rc == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "trees as the heap makes them" in done.stdout
    assert "walks and compactions as in plain Python" in done.stdout
