# SPDX-License-Identifier: Apache-2.0
"""Files and configuration are what the Plan means; each difference is a finding of one check."""

import base64
import csv
import json
import posixpath
from collections import Counter

import pytest

from imagebuild.checks.findings import after_edits
from imagebuild.checks.tree import DEBIAN
from imagebuild.digest import digest
from imagebuild.layer.edits import FOLDER
from imagebuild.plan import LABEL_PREFIX

FOUND = (
    "plan", "configuration", "labels", "python-packages", "debian-packages", "files", "permissions", "setuid",
    "world-writable", "secrets", "traces", "licences", "proprietary", "patches", "edit-receipt", "bytecode",
    "libraries",
)  # fmt: skip
LARGE = 1 << 20  # bytes


@pytest.mark.parametrize("check", [pytest.param(name, marks=pytest.mark.check(name)) for name in FOUND])
def test_findings(check, findings):
    assert findings[check] == []


@pytest.mark.check("plan")
def test_the_image_is_of_the_plan_of_this_checkout(plan, target):
    label = target.config.labels.get(f"{LABEL_PREFIX}.plan")
    assert label == plan.digest, "check an image with the checkout that it was built from"
    assert digest(plan.model_dump(mode="json")) == plan.digest


@pytest.mark.check("times")
def test_files_have_the_plans_time(plan, tree, wanted):
    ours = [path for path, item in wanted.items() if item.owner != DEBIAN and item.node.kind != "dir"]
    wrong = [path for path in ours if path in tree and tree[path].mtime != plan.mtime]
    assert wrong == []


@pytest.mark.check("bytecode")
def test_byte_code_is_that_of_its_source(bytecode, wanted):
    ours = {f"/{path}" for path, item in wanted.items() if item.written == "bytecode"}
    assert [path for path in bytecode["wrong"] if path in ours] == []
    assert bytecode["count"] > 0


@pytest.mark.check("layers")
def test_no_large_file_is_in_two_layers(tree, target):
    """What the layers hold is what the image shows: nothing is hidden below a later layer."""
    own = {(node.link or path): node.size for path, node in tree.items()}
    assert target.layer_bytes - sum(own.values()) < LARGE


@pytest.mark.check("licences")
def test_every_debian_package_has_its_copyright_file(plan, host):
    names = " ".join(artifact.name for artifact in plan.layers[0].artifacts)
    done = host.run(f"for name in {names}; do test -s /usr/share/doc/$name/copyright || echo $name; done")
    assert done.stdout.split() == []


@pytest.mark.check("edit-receipt")
def test_slim_images_are_slim_and_untouched_ones_are_not(plan, edits):
    slimmed = [t for layer in plan.layers for t in layer.transforms if t.kind == "slim"]
    ids = {f"patch {item['id']}" for item in plan.ledger}
    others = [path for path, rows in edits.items() if any(row["reason"] not in ids for row in rows)]
    assert bool(others) is bool(slimmed)


@pytest.mark.check("records")
def test_every_record_tells_the_truth(records, wanted, edits):
    """It names the files of its wheel as they are to be, patches and slimming included."""
    tree = after_edits(wanted, edits)
    rows = [row for path in records.keys() & wanted.keys() for row in _rows(path, records[path])]
    times = Counter(path for path, _ in rows)
    wrong = [path for path, _ in rows if path not in tree]
    single = [(path, hashed) for path, hashed in rows if path in tree and times[path] == 1]
    plain = [(path, hashed) for path, hashed in single if not tree[path].written]
    wrong += [path for path, hashed in plain if hashed != as_record(tree[path].node.sha256)]
    owners = {tree[path].owner for path in records.keys() & tree.keys()}
    unnamed = [p for p, item in tree.items() if item.shipped and item.owner in owners and p not in times]
    assert (wrong, unnamed) == ([], [])
    assert len(times) > 10


def _rows(record, text):
    site = posixpath.dirname(posixpath.dirname(record))
    return [(posixpath.normpath(f"{site}/{row[0]}"), row[1]) for row in csv.reader(text.splitlines())]


def as_record(hex_digest):
    raw = base64.urlsafe_b64encode(bytes.fromhex(hex_digest))
    return f"sha256={raw.rstrip(b'=').decode()}"


@pytest.mark.check("edit-receipt")
def test_each_receipt_names_its_layer(plan, target):
    for layer in plan.layers:
        file = target.root.file(f"/{FOLDER}/{layer.name}.json")
        if file.exists:
            assert json.loads(file.content_string)["layer"] == layer.name
