# SPDX-License-Identifier: Apache-2.0
import datetime
import json

import pytest

from imagebuild.digest import canonical_json
from imagebuild.errors import IntegrityError
from imagebuild.layer.spec import Artifact
from imagebuild.lock import Lock, changes, python_inputs, read_lock, render_lock
from imagebuild.manifest import PythonSource


def wheel(name, version="1.0", sha="0" * 64):
    return Artifact("wheel", name, version, f"{name}-{version}-py3-none-any.whl", sha, 10)


LOCK = Lock(created="2026-12-01T00:00:00Z", inputs="ab", artifacts=(wheel("a"), wheel("b")))


def test_round_trip_and_one_line_per_artifact(tmp_path):
    path = tmp_path / "python.lock"
    path.write_text(render_lock(LOCK))
    assert read_lock(path) == LOCK
    assert render_lock(read_lock(path)) == path.read_text()
    assert sum('"name"' in line for line in path.read_text().splitlines()) == 2


def test_canonical_json_has_one_form():
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such lock"),
        ("{", "not JSON"),
        ("[]", "not a lock of schema 1"),
        ('{"schema": 2}', "not a lock of schema 1"),
        ('{"schema": 1, "created": "x", "inputs": "y", "artifacts": [{"kind": "wheel"}]}', "artifacts.0"),
        ('{"schema": 1, "created": "x", "inputs": "y", "artifacts": [], "host": "z"}', "host"),
    ],
)
def test_a_bad_lock_is_named_and_says_how_to_write_it(tmp_path, text, message):
    path = tmp_path / "python.lock"
    if text is not None:
        path.write_text(text)
    with pytest.raises(IntegrityError, match=message) as caught:
        read_lock(path)
    assert "build.py lock" in str(caught.value)
    assert str(path) in str(caught.value)


def test_changes_name_what_moved():
    new = Lock(created="x", inputs="y", artifacts=(wheel("a", "2.0"), wheel("c"), wheel("b", sha="1" * 64)))
    assert changes(LOCK, new) == ["~ a 1.0 -> 2.0", "~ b 1.0 other file", "+ c 1.0"]
    assert changes(new, LOCK)[-1] == "- c 1.0"
    assert changes(None, LOCK) == ["+ a 1.0", "+ b 1.0"]


def source(**changed):
    values = {
        "python": "3.11",
        "platform": "x86_64-manylinux_2_36",
        "exclude_newer": datetime.date(2026, 12, 1),
        "requirements": ("torch==2.11.0",),
    }
    return PythonSource(**{**values, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"python": "3.12"},
        {"exclude_newer": datetime.date(2026, 12, 2)},
        {"requirements": ("torch==2.11.1",)},
        {"prereleases": ("torch",)},
    ],
)
def test_every_input_of_a_python_lock_counts(changed):
    assert python_inputs(source(**changed)) != python_inputs(source())
    assert python_inputs(source()) == python_inputs(source())


def test_the_committed_locks_name_no_host_and_every_hash():
    from imagebuild.catalog import project_root

    paths = sorted((project_root() / "images").rglob("*.lock"))
    assert len(paths) >= 3
    for path in paths:
        raw = json.loads(path.read_text())
        assert "://" not in path.read_text()
        assert all(len(a["sha256"]) == 64 and a["size"] > 0 for a in raw["artifacts"])
