# SPDX-License-Identifier: Apache-2.0
"""Print {"path relative to the root": "text"} of every RECORD in the site-packages that argv[1] names."""

import glob
import json
import sys

found = {}
for path in sorted(glob.glob(f"{sys.argv[1]}/*.dist-info/RECORD")):
    with open(path, encoding="utf-8") as file:
        found[path.lstrip("/")] = file.read()
print(json.dumps(found))
