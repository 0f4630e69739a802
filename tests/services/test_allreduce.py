# SPDX-License-Identifier: Apache-2.0
"""The checked all-reduce in the image, over gloo on CPUs: right numbers pass, each fault is named."""

from __future__ import annotations

import json
import subprocess

import pytest

from imagebuild.host.run_allreduce import SCRIPT


def allreduce(reference, *options):
    """Run it with three ranks and return (exit status, report)."""
    argv = ["docker", "run", "--rm", "--pull=never", "--network=none", "--shm-size=1g"]
    argv += ["--mount", f"type=bind,source={SCRIPT},target=/allreduce.py,readonly"]
    argv += ["--entrypoint=python", reference, "/allreduce.py", "--backend=gloo", "--ranks=3", "--json"]
    done = subprocess.run([*argv, *options], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_right_numbers_pass(reference):
    status, report = allreduce(reference)
    assert (status, report["ok"], [f["id"] for f in report["findings"]]) == (0, True, ["allreduce.ok"]), (
        report
    )
    assert report["torch"] and report["one_token_us"] > 0 and report["bus_gb_per_s"] > 0


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (
            "lie:1",
            [
                (
                    "allreduce.wrong-pair",
                    "rank 1 to rank 0, 2: 1 of 16384 numbers wrong, the first at 5: 49 ",
                ),
                ("allreduce.wrong-sum", "sum of 65536 float32, and 2 more sums, on rank 0, 1, 2: "),
            ],
        ),
        ("lie-sum:2", [("allreduce.wrong-sum", "sum of 65536 float32, and 2 more sums, on rank 0, 1, 2: ")]),
        ("die:0", [("allreduce.died", "rank 0 died in 'pairs 2': ")]),
        (
            "hang:2",
            [("allreduce.hang", "after 30 s rank 2 has not come to 'sum of 65536 float32', where the ")],
        ),
    ],
)
def test_each_fault_is_found_and_named(reference, fault, expected):
    status, report = allreduce(reference, f"--fault={fault}", "--deadline=30")
    found = [(f["id"], f["text"]) for f in report["findings"]]
    assert (status, report["ok"], len(found)) == (1, False, len(expected)), report
    for (name, text), (wanted, begin) in zip(found, expected, strict=True):
        assert name == wanted and text.startswith(begin)
    assert report["seconds"] < 45


def test_nccl_without_gpus_is_a_precondition(reference):
    status, report = allreduce(reference, "--backend=nccl")
    assert (status, report["findings"][0]["id"]) == (3, "allreduce.missing"), report
