# SPDX-License-Identifier: Apache-2.0
"""Compile and link a CUDA program as JIT builds do: argv[1] is the arch, like sm_103a.

Prints {"kind": "error or empty"} for a shared object, one with the shared runtime and no
undefined symbols, and a program; the program is not run.
"""

import json
import os
import subprocess
import sys
import tempfile

SOURCE = """
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cub/cub.cuh>
#include <nv/target>
__global__ void twice(__nv_bfloat16 *x) { x[threadIdx.x] = x[threadIdx.x] * __nv_bfloat16(2.f); }
extern "C" int launch(void *x) {
  CUdevice device;
  twice<<<1, 32>>>(static_cast<__nv_bfloat16 *>(x));
  return cuDeviceGet(&device, 0) + cudaDeviceSynchronize();
}
#ifdef PROGRAM
int main() { return launch(nullptr); }
#endif
"""
HOME = os.environ["CUDA_HOME"]
LINK = [f"-L{HOME}/lib64", f"-L{HOME}/lib64/stubs", "-lcuda"]
KINDS = {
    "shared object": ["-shared", "-Xcompiler", "-fPIC"],
    "shared runtime": [
        "-shared",
        "-Xcompiler",
        "-fPIC",
        "-cudart=shared",
        "-Xlinker",
        "--no-undefined",
    ],
    "program": ["-DPROGRAM"],
}

found = {}
with tempfile.TemporaryDirectory() as folder:
    source = os.path.join(folder, "t.cu")
    with open(source, "w") as out:
        out.write(SOURCE)
    for kind, options in KINDS.items():
        target = os.path.join(folder, "t.out")
        argv = [f"{HOME}/bin/nvcc", "-std=c++17", f"-arch={sys.argv[1]}", source, "-o", target]
        done = subprocess.run([*argv, *options, *LINK], capture_output=True, text=True, check=False)
        found[kind] = "" if done.returncode == 0 and os.path.getsize(target) else done.stderr[-2000:]
print(json.dumps(found))
