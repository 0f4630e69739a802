# SPDX-License-Identifier: Apache-2.0
"""Import modules, each in a process of its own, and print {"module": "error or empty"}.

argv: compute capability major and minor, then the modules. sgl_kernel picks its libraries by the GPU
when it is imported, so torch answers for one there.

One process for all would not do: some packages pick up what another has loaded before.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ASKS_FOR_GPU = ("sgl_kernel",)
GPU = """
import torch, types
torch.cuda.is_available = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(major=%s, minor=%s)
"""


def attempt(module):
    script = (GPU % tuple(sys.argv[1:3]) if module in ASKS_FOR_GPU else "") + f"import {module}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return module, "" if done.returncode == 0 else done.stderr[-1500:] or f"exit {done.returncode}"


with ThreadPoolExecutor(os.cpu_count()) as pool:
    print(json.dumps(dict(pool.map(attempt, sys.argv[3:]))))
