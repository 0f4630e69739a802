# SPDX-License-Identifier: Apache-2.0
"""The slim transform on made wheels: what it edits, leaves out and leaves alone, and its receipt."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest

from imagebuild.layer.binary import BytesSource
from imagebuild.layer.edits import Edit, FileState, with_edits
from imagebuild.layer.entries import Entry, LayerError, file_entry, merge
from imagebuild.layer.gpucode import Code
from imagebuild.layer.proof import prove
from imagebuild.layer.spec import Transform
from imagebuild.layer.transforms import Context, apply
from imagebuild.layer.wheel import Scheme, wheel_entries
from tests.gpufiles import fat, library

SCHEME = Scheme("opt/venv", "3.11")
SITE = SCHEME.site
CUBINS = Path(__file__).parents[1] / "data" / "gpucode"
LIB = library(fat((Code("elf", 90), 200_000), (Code("elf", 103), 1000)))
FINE = library(fat((Code("elf", 103), 1000)))
FOREIGN = library(fat((Code("elf", 90), 200_000)))
MIT = "License-Expression: MIT\n"
EULA = "License-Expression: LicenseRef-NVIDIA-Proprietary\n"


def wheel(folder: Path, name: str, files: dict[str, bytes], licence: str = MIT) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{licence}"
    files = {**files, f"{info}/METADATA": head.encode(), f"{info}/WHEEL": b"Wheel-Version: 1.0\n"}
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for file, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow((file, f"sha256={digest}", len(content)))
    writer.writerow((f"{info}/RECORD", "", ""))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/RECORD", rows.getvalue())
    return path


def args(**changed):
    return {
        "layer": "kernels", "tool": "test 1", "gpu": 103, "licences": ["MIT"], "declared": {},
        "untouched": [], "ballast": {}, **changed,
    }  # fmt: skip


def run(tmp_path, *wheels: Path, **changed) -> dict[str, Entry]:
    entries = [entry for path in wheels for entry in wheel_entries(path, SCHEME)]
    context = Context({}, 2, tmp_path)
    done = apply(entries, (Transform("slim", args(**changed)),), context)
    return {entry.path: entry for entry in merge(done) if entry.kind == "file"}


def receipt(tree):
    value = json.loads(tree["etc/imagebuild/edits/kernels.json"].read())
    assert (value["schema"], value["layer"]) == (1, "kernels")
    return {edit["path"].removeprefix(f"{SITE}/"): edit for edit in value["edits"]}


def check_record(tree, name: str) -> None:
    """Every row is a file with that hash and size, and every file of the wheel has a row."""
    text = tree[f"{SITE}/{name}-1.0.dist-info/RECORD"].read().decode()
    rows = {row[0]: row for row in csv.reader(io.StringIO(text))}
    assert {
        p.removeprefix(f"{SITE}/") for p in tree if p.startswith((f"{SITE}/{name}/", f"{SITE}/{name}-"))
    } == set(rows)
    for path, digest, size in rows.values():
        if digest:
            content = tree[f"{SITE}/{path}"].read()
            found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={found}", str(len(content))), path


def test_a_library_is_slimmed_with_receipt_and_record(tmp_path):
    tree = run(
        tmp_path,
        wheel(tmp_path, "k", {"k/a.so": LIB, "k/b.so.1.2": LIB, "k/fine.so": FINE, "k/a.py": b"x = 1"}),
    )
    after = tree[f"{SITE}/k/a.so"].read()
    assert len(after) == tree[f"{SITE}/k/a.so"].size < 30_000
    prove(BytesSource(LIB), BytesSource(after), 103)
    edits = receipt(tree)
    assert set(edits) == {"k/a.so", "k/b.so.1.2"}
    edit = edits["k/a.so"]
    assert edit["before"] == {"sha256": hashlib.sha256(LIB).hexdigest(), "size": len(LIB)}
    assert edit["after"] == {"sha256": hashlib.sha256(after).hexdigest(), "size": len(after)}
    assert (edit["wheel"], edit["tool"]) == ("k", "test 1")
    assert "sm_103 cannot load" in edit["reason"]
    assert (edit["detail"]["blanked"], edit["detail"]["kept"]) == (1, 1)
    assert tree[f"{SITE}/k/fine.so"].read() == FINE
    check_record(tree, "k")


def test_content_can_be_read_again_and_in_pieces(tmp_path):
    entry = run(tmp_path, wheel(tmp_path, "k", {"k/a.so": LIB}))[f"{SITE}/k/a.so"]
    whole = entry.read()
    assert entry.open is not None
    with entry.open() as one, entry.open() as two:
        assert one.read(1000) + one.read() == whole == two.read()


@pytest.mark.parametrize(
    "licence", [EULA, "", "License: BSD\n", "License-Expression: MIT AND GPL-3.0-only\n"]
)
def test_what_the_licence_does_not_cover_is_byte_identical(tmp_path, licence):
    path = wheel(tmp_path, "k", {"k/a.so": LIB}, licence)
    tree = run(tmp_path, path)
    assert tree[f"{SITE}/k/a.so"].read() == LIB
    assert "etc/imagebuild/edits/kernels.json" not in tree


def test_a_user_may_widen_the_licences(tmp_path):
    path = wheel(tmp_path, "k", {"k/a.so": LIB}, EULA)
    tree = run(tmp_path, path, licences=["MIT", "LicenseRef-NVIDIA-Proprietary"])
    assert set(receipt(tree)) == {"k/a.so"}


def test_files_of_others_in_an_allowed_wheel_stay(tmp_path):
    path = wheel(tmp_path, "k", {"k/a.so": LIB, "k.libs/libnvjpeg.so.1": LIB})
    tree = run(tmp_path, path, untouched=["k.libs/libnv*"])
    assert set(receipt(tree)) == {"k/a.so"}
    assert tree[f"{SITE}/k.libs/libnvjpeg.so.1"].read() == LIB


def test_declared_licences(tmp_path):
    path = wheel(tmp_path, "k", {"k/a.so": LIB, "k-1.0.dist-info/LICENSE": b"text"}, "License: BSD\n")
    good = {
        "licence": "MIT",
        "instead_of": "",
        "file": "k-1.0.dist-info/LICENSE",
        "sha256": hashlib.sha256(b"text").hexdigest(),
    }
    assert set(receipt(run(tmp_path, path, declared={"k": good}))) == {"k/a.so"}
    with pytest.raises(LayerError, match="is not the text declared MIT"):
        run(tmp_path, path, declared={"k": {**good, "sha256": "0" * 64}})
    with pytest.raises(LayerError, match="has no gone"):
        run(tmp_path, path, declared={"gone": good})
    named = wheel(tmp_path, "n", {"n/a.so": LIB, "n-1.0.dist-info/LICENSE": b"text"}, EULA)
    file = "n-1.0.dist-info/LICENSE"
    with pytest.raises(LayerError, match="names LicenseRef-NVIDIA-Proprietary, not nothing exact"):
        run(tmp_path, named, declared={"n": {**good, "file": file}})
    instead = {**good, "file": file, "instead_of": "LicenseRef-NVIDIA-Proprietary"}
    assert set(receipt(run(tmp_path, named, declared={"n": instead}))) == {"n/a.so"}
    with pytest.raises(LayerError, match="names nothing exact, not LicenseRef"):
        run(tmp_path, path, declared={"k": {**instead, "file": good["file"]}})


def test_cubins_are_left_out_whole_or_stay(tmp_path):
    files = {f"k/{path.name}": path.read_bytes() for path in sorted(CUBINS.glob("*.cubin"))}
    tree = run(tmp_path, wheel(tmp_path, "k", files))
    left = {path.rpartition("/")[2] for path in tree if path.endswith(".cubin")}
    assert left == {"one.sm_100.cubin", "one.sm_100f.cubin", "one.sm_103a.cubin"}
    assert all(tree[f"{SITE}/k/{name}"].read() == files[f"k/{name}"] for name in left)
    edits = receipt(tree)
    assert edits["k/one.sm_100a.cubin"]["after"] is None
    assert edits["k/one.sm_100a.cubin"]["reason"] == "sm_100a code, which sm_103 cannot load"
    check_record(tree, "k")


def test_ballast(tmp_path):
    path = wheel(tmp_path, "k", {"k/a.py": b"", "k/lib/x.a": b"!<arch>\n", "k/lib/y.a": b"z"}, EULA)
    tree = run(tmp_path, path, ballast={"k/lib/*.a": "nothing links it"})
    assert not any(p.endswith(".a") for p in tree)
    edit = receipt(tree)["k/lib/y.a"]
    assert (edit["reason"], edit["after"]) == ("nothing links it", None)
    assert edit["before"] == {"sha256": hashlib.sha256(b"z").hexdigest(), "size": 1}
    check_record(tree, "k")
    with pytest.raises(LayerError, match="no file matches the ballast k/gone"):
        run(tmp_path, path, ballast={"k/gone": "was there once"})


def test_a_file_that_two_wheels_ship_is_the_later_ones(tmp_path):
    first = wheel(tmp_path, "a", {"shared/x.so": FINE}, EULA)
    second = wheel(tmp_path, "b", {"shared/x.so": LIB})
    tree = run(tmp_path, first, second)
    assert receipt(tree)["shared/x.so"]["wheel"] == "b"
    assert tree[f"{SITE}/shared/x.so"].size < 30_000


def test_a_damaged_library_stops_the_layer(tmp_path):
    bad = LIB.replace(b"\x50\xed\x55\xba\x01", b"\x50\xed\x55\xba\x02")
    with pytest.raises(LayerError, match=r"k/a\.so: no GPU-code container at"):
        run(tmp_path, wheel(tmp_path, "k", {"k/a.so": bad}))


def test_foreign_code_only_stays_as_an_importable_file(tmp_path):
    tree = run(tmp_path, wheel(tmp_path, "k", {"k/a.so": FOREIGN}))
    assert 4096 < tree[f"{SITE}/k/a.so"].size < 30_000


def test_equal_inputs_give_equal_layers(tmp_path):
    path = wheel(tmp_path, "k", {"k/a.so": LIB, "k/b.so": LIB})
    one, two = run(tmp_path, path), run(tmp_path, path)
    assert {p: e.read() for p, e in one.items()} == {p: e.read() for p, e in two.items()}


def test_two_transforms_share_a_fragment_and_edits_chain(tmp_path):
    entries = wheel_entries(wheel(tmp_path, "k", {"k/a.py": b"x = 2"}), SCHEME)
    path = f"{SITE}/k/a.py"
    states = [FileState(hashlib.sha256(c).hexdigest(), len(c)) for c in (b"x = 2", b"x = 33", b"x = 444")]
    for before, after, content in ((0, 1, b"x = 33"), (1, 2, b"x = 444")):
        entries = [file_entry(path, content) if e.path == path else e for e in entries]
        edit = Edit(path, "k", f"patch {before}", "patch 1", states[before], states[after])
        entries = with_edits(entries, [edit], "kernels")
    tree = {e.path: e for e in entries}
    value = json.loads(tree["etc/imagebuild/edits/kernels.json"].read())
    assert [e["reason"] for e in value["edits"]] == ["patch 0", "patch 1"]
    assert value["edits"][0]["after"] == value["edits"][1]["before"]
    check_record(tree, "k")
