# SPDX-License-Identifier: Apache-2.0
"""Build one SGLang JIT kernel and one FlashInfer module for an arch, without a GPU.

argv: compute capability major, minor, suffix. Prints the shared objects that were made and the
GPU code in them: {"sglang": {"file": ..., "sm": [...]}, "flashinfer": {...}}.
"""

import fnmatch
import json
import os
import struct
import sys

major, minor, suffix = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
cache = "/tmp/jit"
MAGIC = struct.pack("<I", 0xBA55ED50)
for name in ("TVM_FFI_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "SGLANG_CACHE_DIR"):
    os.environ[name] = f"{cache}/{name.lower()}"


def gpu_code(path):
    """Return the arch numbers of the machine code in a library's fatbin containers.

    A container is magic, version, header size, size; an entry begins with its kind (2: machine
    code) and has its own header's and payload's size at 4 and 8 and its arch at 28.
    """
    with open(path, "rb") as file:
        data = file.read()
    numbers, start = set(), data.find(MAGIC)
    while start >= 0:
        header, size = struct.unpack_from("<HQ", data, start + 6)
        at, end = start + header, start + header + size
        while at + 64 <= end:
            kind, length, payload = struct.unpack_from("<HxxIQ", data, at)
            if kind == 2:
                numbers.add(struct.unpack_from("<I", data, at + 28)[0])
            at += length + payload
        start = data.find(MAGIC, max(end, start + 4))
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
