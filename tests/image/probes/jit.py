# SPDX-License-Identifier: Apache-2.0
"""Build one SGLang JIT kernel and one FlashInfer module for an arch, without a GPU.

argv: compute capability major, minor, suffix. Prints the shared objects that were made and the
GPU code in them: {"sglang": {"file": ..., "sm": [...]}, "flashinfer": {...}}.
"""

import fnmatch
import json
import os
import re
import sys

major, minor, suffix = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
cache = "/tmp/jit"
for name in ("TVM_FFI_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "SGLANG_CACHE_DIR"):
    os.environ[name] = f"{cache}/{name.lower()}"


def gpu_code(path):
    """Return the arch numbers of the cubins in a library, from their ELF headers' flags (bits 8-15)."""
    with open(path, "rb") as file:
        data = file.read()
    numbers = set()
    for match in re.finditer(rb"\x7fELF\x02\x01", data):
        head = data[match.start() : match.start() + 64]
        if int.from_bytes(head[18:20], "little") == 190:  # EM_CUDA
            flags = int.from_bytes(head[48:52], "little")
            numbers.add((flags >> 8) & 0xFF)
    return sorted(numbers)


def newest(pattern):
    found = (os.path.join(folder, n) for folder, _, names in os.walk(cache) for n in names)
    files = [path for path in found if fnmatch.fnmatch(os.path.basename(path), pattern)]
    assert files, f"no {pattern} below {cache}"
    return max(files, key=os.path.getmtime)


from sglang.jit_kernel import utils  # noqa: E402
from sglang.jit_kernel.gptq_marlin_repack import _jit_gptq_marlin_repack_module  # noqa: E402

utils._init_jit_cuda_arch_once = lambda: None
utils._CUDA_ARCH = utils.ArchInfo(major, minor, suffix)
_jit_gptq_marlin_repack_module()
sglang = newest("*.so")

from flashinfer.jit.norm import gen_norm_module  # noqa: E402

gen_norm_module().build(verbose=False)
flashinfer = newest("norm.so")
assert flashinfer != sglang
print(
    json.dumps(
        {
            "sglang": {"file": sglang, "sm": gpu_code(sglang)},
            "flashinfer": {"file": flashinfer, "sm": gpu_code(flashinfer)},
        }
    )
)
