# SPDX-License-Identifier: Apache-2.0
"""Print the sha256 of every regular file below the folders that argv names, as JSON."""

import concurrent.futures
import hashlib
import json
import os
import stat
import sys


def sha256(path: str) -> tuple[str, str]:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return path, digest.hexdigest()


found = []
for top in sys.argv[1:]:
    for folder, _, names in os.walk(top):
        paths = (os.path.join(folder, name) for name in names)
        found += [path for path in paths if stat.S_ISREG(os.lstat(path).st_mode)]
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    print(json.dumps(dict(pool.map(sha256, sorted(found)))))
