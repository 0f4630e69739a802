# SPDX-License-Identifier: Apache-2.0
"""Every shared library that something in the image needs is there, or is listed with a reason."""

from fnmatch import fnmatchcase

import pytest
import yaml

from imagebuild.catalog import project_root

STUBBED = ["sgl_kernel", "deep_gemm", "cuda.tile", "flashinfer.comm", "sglang.srt.server_args"]
PLAIN = ["torch", "torchvision", "torchaudio", "triton", "transformers", "flashinfer", "xgrammar", "tvm_ffi"]


@pytest.fixture(scope="module")
def listed(plan):
    path = project_root() / "images" / "stacks" / plan.stack / "unresolved.yaml"
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def needed(probe):
    return probe("needed")


def test_needed_libraries_resolve_or_are_listed(listed, needed):
    assert needed["count"] > 500
    unlisted = {
        name: files
        for name, files in needed["missing"].items()
        if not any(fnmatchcase(name, pattern) for pattern in listed)
    }
    assert unlisted == {}


def test_nothing_is_listed_that_is_not_missing(listed, needed, plan):
    slim = any(t.kind == "slim" for layer in plan.layers for t in layer.transforms)
    wanted = [pattern for pattern, entry in listed.items() if entry.get("slim", True) or not slim]
    unused = [p for p in wanted if not any(fnmatchcase(name, p) for name in needed["missing"])]
    assert unused == []


def test_libraries_listed_as_in_the_image_are_there_and_the_others_are_not(listed, needed, host):
    found = set(
        host.run("find /opt /usr/lib ! -path '*/stubs/*' -name '*.so*' -printf '%f\\n'").stdout.split()
    )
    wrong = {}
    for name in needed["missing"]:
        place = next(entry["from"] for pattern, entry in listed.items() if fnmatchcase(name, pattern))
        if (name in found) != (place == "image"):
            wrong[name] = place
    assert wrong == {}


def test_packages_import(probe, stubs):
    found = probe("imports", *PLAIN, *STUBBED, env=stubs)
    assert {name: error for name, error in found.items() if error} == {}
