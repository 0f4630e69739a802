# SPDX-License-Identifier: Apache-2.0
"""Print what the edit receipt says of the image's files, and where it or a RECORD is not true.

{"edits": n, "removed": n, "wheels": [...], "paths": [...], "errors": [...]}
"""

import base64
import csv
import glob
import hashlib
import json
import os


def state(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return {"sha256": digest.hexdigest(), "size": os.path.getsize(path)}


def hex_of(record):
    raw = record.removeprefix("sha256=")
    return base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)).hex()


edits, errors = [], []
for fragment in sorted(glob.glob("/etc/imagebuild/edits/*.json")):
    with open(fragment) as file:
        edits += json.load(file)["edits"]
last = {}
for edit in edits:
    if edit["path"] in last and last[edit["path"]] != edit["before"]:
        errors.append(f"{edit['path']}: its edits are no chain")
    last[edit["path"]] = edit["after"]
for path, after in last.items():
    found = state(f"/{path}") if os.path.lexists(f"/{path}") else None
    if found != after:
        errors.append(f"{path}: the receipt says {after}, it is {found}")
wheels = {edit["wheel"] for edit in edits}
rows = 0
for record in glob.glob("/opt/venv/lib/python3*/site-packages/*.dist-info/RECORD"):
    site = os.path.dirname(os.path.dirname(record))
    with open(record, newline="") as file:
        listed = {os.path.normpath(os.path.join(site, row[0])).lstrip("/"): row for row in csv.reader(file)}
    for path, (_, digest, size) in listed.items():
        if path in last:
            rows += 1
            after = last[path]
            if after is None or (hex_of(digest), int(size)) != (after["sha256"], after["size"]):
                errors.append(f"{record}: wrong about {path}")
        elif not os.path.lexists(f"/{path}"):
            errors.append(f"{record}: {path} is missing")
removed = sum(after is None for after in last.values())
print(
    json.dumps(
        {
            "edits": len(edits), "removed": removed, "rows": rows, "wheels": sorted(wheels),
            "paths": sorted(path for path, after in last.items() if after), "errors": errors[:20],
        }
    )
)  # fmt: skip
