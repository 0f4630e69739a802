# SPDX-License-Identifier: Apache-2.0
"""Every shared library that something in the image needs is there, or is listed with a reason."""

import yaml

from imagebuild.catalog import project_root

STUBBED = ["sgl_kernel", "deep_gemm", "cuda.tile", "flashinfer.comm"]
PLAIN = ["torch", "torchvision", "torchaudio", "triton", "transformers", "flashinfer", "xgrammar", "tvm_ffi"]


def test_needed_libraries_resolve_or_are_listed(plan, probe):
    path = project_root() / "images" / "stacks" / plan.stack / "unresolved.yaml"
    listed = yaml.safe_load(path.read_text())
    found = probe("needed")
    assert found["count"] > 500
    unlisted = {name: files for name, files in found["missing"].items() if name not in listed}
    assert not unlisted
    unused = set(listed) - set(found["missing"])
    assert not unused, f"listed in {path} but not missing"


def test_loaded_first_libraries_really_exist(plan, host):
    """A library that is listed as loaded by another package must be in the image."""
    path = project_root() / "images" / "stacks" / plan.stack / "unresolved.yaml"
    listed = yaml.safe_load(path.read_text())
    names = [name for name, entry in listed.items() if entry["from"] == "image"]
    found = host.run("find /opt /usr/lib -name '*.so*' -printf '%f\\n'").stdout.split()
    assert set(names) <= set(found)


def test_packages_import(probe, stubs):
    found = probe("imports", *PLAIN, *STUBBED, "sglang.srt.server_args", env=stubs)
    assert {name: error for name, error in found.items() if error} == {}
