# SPDX-License-Identifier: Apache-2.0
"""Import each module named, in a process of its own, and print {"module": "error or empty"}.

One process for all would not do: some packages pick up what another has loaded before.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor


def attempt(module):
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False
    )
    return module, "" if done.returncode == 0 else done.stderr[-1500:] or f"exit {done.returncode}"


with ThreadPoolExecutor(os.cpu_count()) as pool:
    print(json.dumps(dict(pool.map(attempt, sys.argv[1:]))))
