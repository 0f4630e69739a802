# SPDX-License-Identifier: Apache-2.0
"""The edit receipt and every RECORD are true, and no proprietary file was edited."""

import pytest

# Top folders of wheels under an open-source licence (NCCL among NVIDIA's): only these may be edited.
# sglang by the patch ledger, the others by slimming.
EDITABLE = {
    "torch",
    "torchvision",
    "torchaudio",
    "torchao",
    "sglang-kernel",
    "tokenspeed-mla",
    "nvidia",
    "sglang",
}


@pytest.fixture(scope="module")
def found(probe):
    return probe("edits")


def test_receipt_and_records_are_true(found):
    assert found["errors"] == []


def test_slim_images_are_slim_and_untouched_ones_are_not(found, plan):
    slim = any(t.kind == "slim" for layer in plan.layers for t in layer.transforms)
    assert (found["edits"] > 20) is slim
    assert bool(found["removed"]) is slim


def test_only_open_source_files_are_edited(found):
    tops = {path.split("site-packages/")[1].split("/")[0] for path in found["paths"]}
    assert {top.replace("_", "-").replace("sgl-kernel", "sglang-kernel") for top in tops} <= EDITABLE
    nvidia = [path for path in found["paths"] if "/nvidia/" in path or "libnv" in path]
    assert [path for path in nvidia if not path.endswith("/nvidia/nccl/lib/libnccl.so.2")] == []
