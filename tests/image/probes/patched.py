# SPDX-License-Identifier: Apache-2.0
"""What the real, patched modules do for a GPU that is not there: argv: compute capability.

CuTe DSL is hidden, as on a machine where it is missing or broken: a DeepSeek model must be
importable all the same.
"""

import json
import sys
import types

import torch

for name in ("cutlass", "cutlass.cute"):
    sys.modules[name] = None  # type: ignore[assignment]
major, minor = int(sys.argv[1]), int(sys.argv[2])
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_capability = lambda device=None: (major, minor)
properties = types.SimpleNamespace(major=major, minor=minor, multi_processor_count=148, total_memory=1 << 36)
torch.cuda.get_device_properties = lambda device=None: properties

from sglang.jit_kernel import dsa  # noqa: E402
from sglang.jit_kernel.utils import get_jit_cuda_arch  # noqa: E402

try:
    dsa.pick_dsl_expand(1)
    used = "no error"
except ImportError as error:
    used = str(error)
print(json.dumps({"jit_arch": get_jit_cuda_arch().target_name, "kernel": used}))
