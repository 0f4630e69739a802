# SPDX-License-Identifier: Apache-2.0
"""The `patch` transform in a layer: files, receipt, RECORD, ledger; and the pre-check on the host."""

import csv
import io
import json

import pytest

from imagebuild.errors import IntegrityError
from imagebuild.layer.bytecode import compile_source, pyc_path
from imagebuild.layer.patching import PatchError, sha256
from imagebuild.layer.spec import FileInput, Transform
from imagebuild.layer.transforms import Context, apply
from imagebuild.layer.wheel import Scheme, wheel_entries
from imagebuild.patchcheck import check_patches, patched_wheels
from imagebuild.resolve import resolve
from tests.ledgers import BEFORE, PATH, add_patch, list_patches, two_patches
from tests.unit.test_wheel import BASIC, make_wheel

SITE = "opt/venv/lib/python3.11/site-packages"
FIRST = BEFORE.replace("line 5\n", "line = 5\n")
SECOND = FIRST.replace("line 9\n", "line = 9\n")


@pytest.fixture
def images(tmp_path):
    return two_patches(tmp_path, FIRST, SECOND)


@pytest.fixture
def wheel(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    return make_wheel(folder, {**BASIC, PATH: BEFORE.encode()})


def transform(plan):
    (found,) = (t for layer in plan.layers for t in layer.transforms if t.kind == "patch")
    return found


def run(images, wheel, more=()):
    item = transform(resolve(images, "sm_90"))
    files = {file.source: images / file.source for file in item.files}
    entries = wheel_entries(wheel, Scheme("opt/venv", "3.11"))
    return {e.path: e for e in apply(entries, (item, *more), Context(files, 1))}


def test_patches_are_applied_in_order(images, wheel):
    assert run(images, wheel)[f"{SITE}/{PATH}"].read() == SECOND.encode()


def test_the_receipt_has_each_step_from_the_wheels_file_to_the_images(images, wheel):
    receipt = json.loads(run(images, wheel)["etc/imagebuild/edits/sglang.json"].read())
    steps = receipt["edits"]
    assert [step["reason"] for step in steps] == ["patch one", "patch two"]
    assert {step["path"] for step in steps} == {f"{SITE}/{PATH}"}
    assert {step["wheel"] for step in steps} == {"demo"}
    states = [sha256(text.encode()) for text in (BEFORE, FIRST, SECOND)]
    assert [step["before"]["sha256"] for step in steps] == states[:2]
    assert [step["after"]["sha256"] for step in steps] == states[1:]
    assert steps[1]["after"]["size"] == len(SECOND)


def test_record_tells_the_truth(images, wheel):
    entries = run(images, wheel)
    rows = list(csv.reader(io.StringIO(entries[f"{SITE}/demo-1.0.dist-info/RECORD"].read().decode())))
    row = next(row for row in rows if row[0] == PATH)
    before = wheel_entries(wheel, Scheme("opt/venv", "3.11"))
    assert int(row[2]) == len(SECOND)
    assert len(rows) == sum(e.path.startswith(SITE) for e in before)


def test_the_ledger_is_in_the_image(images, wheel):
    ledger = json.loads(run(images, wheel)["etc/imagebuild/patches.json"].read())["patches"]
    assert [item["id"] for item in ledger] == ["one", "two"]
    assert ledger[0]["files"][PATH] == {"before": sha256(BEFORE.encode()), "after": sha256(FIRST.encode())}


def test_byte_code_is_that_of_the_patched_file(images, wheel, tmp_path):
    source = {n: t.replace("line ", "line = ") for n, t in (("old", BEFORE), ("new", BEFORE + "line 31\n"))}
    add_patch(images, "three", source["old"], source["new"])
    list_patches(images, "three")
    good = make_wheel(tmp_path, {**BASIC, PATH: source["old"].encode()})
    names = tmp_path / "list.txt"
    names.write_text(f"{SITE}/{PATH}\n")
    item = transform(resolve(images, "sm_90"))
    files = {file.source: images / file.source for file in item.files} | {"list.txt": names}
    compiled = Transform("bytecompile", {}, (FileInput("list.txt", "", 0o644, ""),))
    entries = apply(wheel_entries(good, Scheme("opt/venv", "3.11")), (item, compiled), Context(files, 1))
    found = {e.path: e for e in entries}[pyc_path(f"{SITE}/{PATH}")]
    assert found.read() == compile_source(source["new"].encode(), f"/{SITE}/{PATH}")


def test_a_file_of_no_wheel_is_refused(images, tmp_path):
    (tmp_path / "w").mkdir()
    with pytest.raises(PatchError, match=f"there is no {PATH}"):
        run(images, make_wheel(tmp_path / "w", BASIC))


def checked(images, path):
    """Run the host's check with `path` in the place of SGLang's wheel."""
    check_patches(resolve(images, "sm_90"), images, lambda artifact: path)


def test_the_host_finds_out_before_the_build(images, wheel, tmp_path):
    checked(images, wheel)
    bad = make_wheel(tmp_path, {**BASIC, PATH: BEFORE.replace("line 7\n", "line seven\n").encode()})
    with pytest.raises(IntegrityError) as caught:
        checked(images, bad)
    assert caught.value.exit_code == 4
    assert "patch one: demo/code.py is not the file it was made for" in str(caught.value)
    assert "hunk 1, line 7: expected 'line 7', there is instead: 'line seven'" in str(caught.value)


def test_the_host_checks_only_wheels_that_are_patched(images):
    assert [a.name for a in patched_wheels(resolve(images, "sm_90"))] == ["sglang"]
    list_patches(images)
    assert patched_wheels(resolve(images, "sm_90")) == []


def test_a_wheel_that_is_none(images, tmp_path):
    bad = tmp_path / "x.whl"
    bad.write_bytes(b"no zip")
    with pytest.raises(IntegrityError, match="not a readable wheel"):
        checked(images, bad)
