# SPDX-License-Identifier: Apache-2.0
"""Compare all byte-code below the folders that argv names with the source that it stands for.

Prints {"count": n, "wrong": ["path", ...]}. Byte-code is not compared with the source when it is
loaded (PEP 552, unchecked), so a stale one would run unseen.
"""

import importlib.util
import json
import os
import sys

count, wrong = 0, []
for top in sys.argv[1:]:
    for folder, _, names in os.walk(top):
        if os.path.basename(folder) != "__pycache__":
            continue
        for name in names:
            path = os.path.join(folder, name)
            source = importlib.util.source_from_cache(path)
            count += 1
            with open(path, "rb") as file:
                head = file.read(16)
            if not os.path.exists(source):
                continue  # a file that is missing is another check's
            with open(source, "rb") as file:
                good = head[8:16] == importlib.util.source_hash(file.read())
            wrong += [] if good else [path]
print(json.dumps({"count": count, "wrong": wrong}))
