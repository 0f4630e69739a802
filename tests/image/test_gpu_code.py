# SPDX-License-Identifier: Apache-2.0
"""The GPU code in the image fits the arch, kernels can be built for it, and a GPU runs it."""

import json

import pytest

from imagebuild.arch import parse_arch
from imagebuild.audit_text import violations


@pytest.fixture(scope="module")
def arch(plan):
    return parse_arch(plan.arch)


@pytest.mark.check("gpu-code")
def test_gpu_code_in_the_image_fits_the_policy(audit):
    assert audit.ok, violations(audit)


@pytest.mark.check("toolchain")
def test_nvcc_compiles_and_links_for_the_arch(toolchain):
    assert toolchain == {"shared object": "", "shared runtime": "", "program": ""}


@pytest.mark.check("toolchain")
def test_the_toolchain_is_of_one_cuda_release(plan, host):
    home, cuda = plan.config.env["CUDA_HOME"], plan.config.labels["io.imagebuild.cuda"]
    nvcc = next(a.version for layer in plan.layers for a in layer.artifacts if a.name == "nvidia-cuda-nvcc")
    assert f"release {cuda}, V{nvcc}" in host.run(f"{home}/bin/nvcc --version").stdout
    major, minor = cuda.split(".")
    header = host.file(f"{home}/include/cuda.h").content_string
    assert f"#define CUDA_VERSION {int(major) * 1000 + int(minor) * 10}" in header


@pytest.mark.check("toolchain")
def test_the_stub_never_shadows_the_drivers_library(plan, host):
    home = plan.config.env["CUDA_HOME"]
    assert host.file(f"{home}/lib/stubs/libcuda.so").exists
    assert "libcuda.so" not in host.run("/sbin/ldconfig -p").stdout
    assert "stubs" not in str(plan.config.env.get("LD_LIBRARY_PATH", ""))


@pytest.mark.check("jit")
def test_sglang_and_flashinfer_jit_kernels_compile_and_link(jit, arch):
    assert jit["sglang"]["sm"] == [arch.number]
    assert jit["flashinfer"]["sm"] == [arch.number]


@pytest.mark.check("gpu")
def test_torch_computes_on_a_gpu(target, arch, gpu_options):
    script = (
        "import json, torch; a = torch.ones(64, 64, device='cuda', dtype=torch.bfloat16); "
        "print(json.dumps([list(torch.cuda.get_device_capability()), float((a @ a).sum())]))"
    )
    done = target.start("python", "-c", script, options=gpu_options)
    assert done.rc == 0, done.err[-3000:]
    assert json.loads(done.out.splitlines()[-1]) == [list(arch.capability), 64.0**3]
