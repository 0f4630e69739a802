# SPDX-License-Identifier: Apache-2.0
"""For each module that argv names: whether its byte-code is that of its source; null: it has none.

Byte-code is not compared with the source when it is loaded (PEP 552, unchecked), so a stale one
would run unseen.
"""

import importlib.util
import json
import os
import sys

answers: dict[str, bool | None] = {}
for path in sys.argv[1:]:
    cached = importlib.util.cache_from_source(path)
    if not os.path.exists(cached):
        answers[path] = None
        continue
    with open(cached, "rb") as file:
        head = file.read(16)
    with open(path, "rb") as file:
        answers[path] = head[8:16] == importlib.util.source_hash(file.read())
print(json.dumps(answers))
