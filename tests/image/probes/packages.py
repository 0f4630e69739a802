# SPDX-License-Identifier: Apache-2.0
"""Print {"name": "version"} of every installed Python distribution."""

import importlib.metadata
import json
import re

found = {}
for dist in importlib.metadata.distributions():
    name = re.sub(r"[-_.]+", "-", dist.metadata["Name"]).lower()
    assert name not in found, f"{name} is installed twice"
    found[name] = dist.version
print(json.dumps(found))
