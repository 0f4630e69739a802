# SPDX-License-Identifier: Apache-2.0
"""JIT builds work in the image for its arch, with no GPU and no driver."""

import pytest

from imagebuild.arch import parse_arch


@pytest.fixture(scope="session")
def arch(plan):
    return parse_arch(plan.arch)


def test_nvcc_compiles_and_links_for_the_arch(probe, arch):
    assert probe("toolchain", f"sm_{arch.nvcc}") == {"shared object": "", "shared runtime": "", "program": ""}


def test_the_toolchain_is_of_one_cuda_release(plan, host):
    home = plan.config.env["CUDA_HOME"]
    assert "release 13.0, V13.0.88" in host.run(f"{home}/bin/nvcc --version").stdout
    header = host.file(f"{home}/include/cuda.h").content_string
    assert "#define CUDA_VERSION 13000" in header


def test_the_stub_never_shadows_the_drivers_library(plan, host):
    home = plan.config.env["CUDA_HOME"]
    assert host.file(f"{home}/lib/stubs/libcuda.so").exists
    assert "libcuda.so" not in host.run("/sbin/ldconfig -p").stdout
    assert "stubs" not in str(plan.config.env.get("LD_LIBRARY_PATH", ""))


@pytest.mark.slow
def test_sglang_and_flashinfer_jit_kernels_compile_and_link(probe, arch, stubs):
    major, minor = arch.capability
    found = probe("jit", str(major), str(minor), arch.nvcc.lstrip("0123456789"), env=stubs)
    assert found["sglang"]["sm"] == [arch.number]
    assert found["flashinfer"]["sm"] == [arch.number]
