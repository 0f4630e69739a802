# SPDX-License-Identifier: Apache-2.0
"""`patches check`, `new` and `try` on a small wheel: every verdict, with real probes."""

import json

import pytest

from imagebuild.cli import run
from imagebuild.errors import IntegrityError, ManifestError
from imagebuild.layer.spec import Artifact
from imagebuild.patch_probe import check_stack
from imagebuild.patch_tree import stack_patches, write_patch
from imagebuild.patch_try import try_stack
from tests.ledgers import BEFORE, PATH, STACK, add_patch, list_patches, two_patches
from tests.unit.test_plugin import YAML, make_plugin
from tests.unit.test_wheel import BASIC, make_wheel

pytestmark = pytest.mark.subprocess
FIRST = BEFORE.replace("line 5\n", "line five\n").replace("line 25\n", "line twenty-five\n")
SECOND = FIRST.replace("line 9\n", "line nine\n")


@pytest.fixture
def images(tmp_path):
    return two_patches(tmp_path, FIRST, SECOND)


def wheel(folder, text, path=PATH):
    folder.mkdir(exist_ok=True)
    return make_wheel(folder, {**BASIC, path: text.encode()})


def check(images, path):
    artifact = Artifact("wheel", "sglang", "1", "x.whl", "0" * 64, 1)
    return check_stack(stack_patches(images, STACK), [artifact], images.parent, lambda _: path)


def attempt(images, tmp_path, text, path=PATH):
    wheels = {"sglang": wheel(tmp_path / "other", text, path)}
    return try_stack(stack_patches(images, STACK), wheels, images.parent)


def test_check_is_green(images, tmp_path):
    done = check(images, wheel(tmp_path / "w", BEFORE))
    assert all(item.ok for item in done), [str(item) for item in done]
    assert str(done[0]) == "one: ok (without: fault, with: fixed, with all: fixed)"


def test_check_finds_a_probe_that_passes_without_its_patch(images, tmp_path):
    (images / "patches/two/probe.py").write_text("print('all is well')\n")
    done = check(images, wheel(tmp_path / "w", BEFORE))
    assert [item.ok for item in done] == [True, False]
    assert "FAILED (without: fixed" in str(done[1])


def test_check_finds_a_probe_that_cannot_tell(images, tmp_path):
    (images / "patches/two/probe.py").write_text("import sys\nprint('no idea')\nsys.exit(3)\n")
    done = check(images, wheel(tmp_path / "w", BEFORE))
    assert "without: unknown (no idea)" in str(done[1])


def test_check_finds_a_later_patch_that_undoes_an_earlier_one(images, tmp_path):
    add_patch(images, "three", SECOND, SECOND.replace("line five\n", "line 5 again\n"))
    list_patches(images, "one", "two", "three")
    done = check(images, wheel(tmp_path / "w", BEFORE))
    assert [item.ok for item in done] == [False, True, True]
    assert "with all: fault" in str(done[0])


def test_check_stops_at_another_wheel(images, tmp_path):
    with pytest.raises(
        IntegrityError, match="hunk 1, line 4: expected 'line 4', there is instead: 'line four'"
    ):
        check(images, wheel(tmp_path / "w", BEFORE.replace("line 4\n", "line four\n")))


def test_try_clean_and_moved(images, tmp_path):
    done = attempt(images, tmp_path, "new\nnew\n" + BEFORE)
    assert [item.status for item in done] == ["clean", "clean"]
    assert "hunk 1 fits at line 4 (was 2)" in str(done[0])


def test_try_already_merged(images, tmp_path):
    done = attempt(images, tmp_path, "new\n" + FIRST)
    assert [item.status for item in done] == ["already merged", "clean"]


def test_try_not_needed(images, tmp_path):
    text = BEFORE.replace("line 6\n", "six\n") + "line five\n"  # fixed, but another way
    done = attempt(images, tmp_path, text)
    assert done[0].status == "not needed"
    assert "1 of 2 hunks do not fit" in str(done[0])


def test_try_conflict_names_the_hunk_and_what_is_there(images, tmp_path):
    done = attempt(images, tmp_path, BEFORE.replace("line 27\n", "27\n"))
    assert done[0].status == "conflict"
    assert "hunk 2, line 27: expected 'line 27', there is instead: '27'" in str(done[0])
    assert "hunk 1" not in str(done[0])
    assert "probe without it: fault" in str(done[0])


def test_try_hunks_that_are_partly_merged_conflict(images, tmp_path):
    done = attempt(images, tmp_path, FIRST.replace("line twenty-five\n", "25\n"))
    assert done[0].status in ("conflict", "not needed")


def test_try_a_file_that_moved(images, tmp_path):
    done = attempt(images, tmp_path, BEFORE, "demo/sub/code.py")
    assert done[0].status == "conflict"
    assert "demo/code.py: no such file; that name is at demo/sub/code.py" in str(done[0])
    assert "unknown (no demo/code.py)" in str(done[0])


def test_try_a_fit_whose_probe_still_fails(images, tmp_path):
    (images / "patches/one/probe.py").write_text("import sys\nsys.exit(1)\n")
    done = attempt(images, tmp_path, BEFORE)
    assert done[0].status == "conflict"
    assert "all hunks fit, but the probe says fault without and fault with it" in str(done[0])


def test_a_plugin_is_checked_and_tried(images, tmp_path):
    make_plugin(tmp_path)
    folder = images / "patches/demo"
    folder.mkdir()
    (folder / "patch.yaml").write_text(YAML)
    probe = (
        "import sys, pathlib\nsys.exit(not (pathlib.Path(sys.argv[1]) / 'demo_plugin/tree.py').is_file())\n"
    )
    (folder / "probe.py").write_text(probe)
    list_patches(images, "one", "demo")
    assert all(item.ok for item in check(images, wheel(tmp_path / "w", BEFORE)))
    assert [item.status for item in attempt(images, tmp_path, BEFORE)] == ["clean", "clean"]


def test_new_keeps_what_people_wrote(images, tmp_path):
    path = images / "patches/two/patch.yaml"
    path.write_text(path.read_text().replace("title: to do what it does", "title: kept # and this"))
    trees = tmp_path / "a", tmp_path / "b"
    for tree, text in zip(trees, (FIRST, SECOND + "more\n"), strict=True):
        (tree / "demo").mkdir(parents=True)
        (tree / PATH).write_text(text)
    write_patch(images, "two", STACK, "sglang", trees)
    assert "title: kept # and this" in path.read_text()
    assert path.read_text().count("files:") == 1
    list_patches(images, "one", "two")
    assert [item.ok for item in check(images, wheel(tmp_path / "w", BEFORE))] == [True, True]


def test_new_refuses_no_change_and_new_modules(images, tmp_path):
    trees = tmp_path / "a", tmp_path / "b"
    for tree in trees:
        (tree / "demo").mkdir(parents=True)
        (tree / PATH).write_text(FIRST)
    with pytest.raises(ManifestError, match="no file differs"):
        write_patch(images, "two", STACK, "sglang", trees)
    (trees[1] / "demo/more.py").write_text("")
    with pytest.raises(ManifestError, match="a plugin adds them"):
        write_patch(images, "two", STACK, "sglang", trees)


def test_the_commands(images, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("imagebuild.command_patches.images_dir", lambda: images)
    assert run(["patches", "list", "--json"]) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)["patches"]] == ["one", "two"]
    path = wheel(tmp_path / "w", "new\n" + BEFORE)
    assert run(["patches", "try", "9.9", "--wheel", str(path)]) == 0
    assert "one: clean" in capsys.readouterr().out
    assert run(["patches", "list", "--stack", "nope"]) == 2
    assert f"allowed: {STACK}" in capsys.readouterr().err
    assert run(["patches", "new", "x"]) == 2
