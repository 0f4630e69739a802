# SPDX-License-Identifier: Apache-2.0
"""Print {"missing library": ["file that needs it", ...]} over every shared object of the image.

The loader's own answer (ldd) is used; a library that ldd does not find but that another package
of the image loads first is the caller's to judge.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

TOPS = ("/opt", "/usr/lib", "/usr/bin", "/usr/sbin", "/usr/libexec")
LINE = re.compile(r"\s*(\S+) => not found")


def elf_files():
    for top in TOPS:
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                with open(path, "rb") as file:
                    head = file.read(20)
                # ELF, 64 bit, little endian, executable or shared object, x86-64
                if head[:6] == b"\x7fELF\x02\x01" and head[16] in (2, 3) and head[18] == 62:
                    yield path


def missing(path):
    done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    return path, LINE.findall(done.stdout)


found, count = {}, 0
with ThreadPoolExecutor(os.cpu_count()) as pool:
    for path, names in pool.map(missing, elf_files()):
        count += 1
        for name in names:
            found.setdefault(name, []).append(path)
print(f"{count} ELF files", file=sys.stderr)
print(json.dumps({"count": count, "missing": found}))
