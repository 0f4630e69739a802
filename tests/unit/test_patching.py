# SPDX-License-Identifier: Apache-2.0
"""Unified diffs without tolerance."""

import difflib
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unidiff.patch import PatchSet

from imagebuild.catalog import project_root
from imagebuild.layer.entries import LayerError
from imagebuild.layer.patching import PatchError, apply_checked, apply_file, parse, sha256, split_lines

OLD = "".join(f"line {n}\n" for n in range(1, 21))
NEW = OLD.replace("line 5\n", "line five\n").replace("line 15\n", "line 15\nline 15a\n")
LEDGER = sorted((project_root().resolve() / "images/patches").glob("*/change.patch"))


def diff(old, new, context=3, path="demo/a.py"):
    parts = difflib.unified_diff(
        split_lines(old.encode()), split_lines(new.encode()), f"a/{path}", f"b/{path}", n=context
    )
    return "".join(p if p.endswith("\n") else p + "\n\\ No newline at end of file\n" for p in parts)


def only(text):
    (patch,) = parse(text, "x.patch")
    return patch


def test_applies_exactly():
    patch = only(diff(OLD, NEW))
    assert patch.path == "demo/a.py"
    assert apply_file(OLD.encode(), patch) == NEW.encode()


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), st.data())
def test_undoes_what_difflib_makes(letters, data):
    new = data.draw(st.lists(st.sampled_from("abcd\r"), min_size=1, max_size=12))
    old_text, new_text = ("\n".join(x) + data.draw(st.sampled_from(["", "\n"])) for x in (letters, new))
    text = diff(old_text, new_text)
    if text and all(hunk.old for hunk in _hunks(text)):
        assert apply_file(old_text.encode(), only(text)) == new_text.encode()


def _hunks(text):
    try:
        return only(text).hunks
    except PatchError:
        return ()


def test_one_changed_context_line_is_told_with_what_is_there():
    changed = OLD.replace("line 13\n", "line thirteen\n")
    with pytest.raises(PatchError) as caught:
        apply_checked(
            changed.encode(), only(diff(OLD, NEW)), sha256(OLD.encode()), sha256(NEW.encode()), "fix"
        )
    text = str(caught.value)
    assert "patch fix: demo/a.py is not the file it was made for" in text
    assert "hunk 2, line 13: expected 'line 13', there is instead: 'line thirteen'" in text
    assert "hunk 1" not in text


@pytest.mark.parametrize("moved", ["new first line\n" + OLD, OLD[7:]])
def test_no_offset_is_tolerated(moved):
    with pytest.raises(PatchError, match="hunk 1, line 2"):
        apply_file(moved.encode(), only(diff(OLD, NEW)))


def test_no_fuzz_and_no_whitespace_is_tolerated():
    with pytest.raises(PatchError):
        apply_file(OLD.replace("line 2\n", "line 2 \n").encode(), only(diff(OLD, NEW)))
    with pytest.raises(PatchError):
        apply_file(OLD.replace("\n", "\r\n").encode(), only(diff(OLD, NEW)))


def test_a_change_elsewhere_in_the_file_is_refused_too():
    with pytest.raises(PatchError, match="every hunk fits, but the file differs elsewhere"):
        apply_checked((OLD + "more\n").encode(), only(diff(OLD, NEW)), sha256(OLD.encode()), "0" * 64, "fix")


def test_the_result_must_be_the_ledgers():
    with pytest.raises(PatchError, match="the ledger says 0000"):
        apply_checked(OLD.encode(), only(diff(OLD, NEW)), sha256(OLD.encode()), "0" * 64, "fix")


def test_a_file_that_ends_early():
    with pytest.raises(PatchError, match="there is instead: the file ends"):
        apply_file(b"line 1\nline 2\nline 3\n", only(diff(OLD, NEW)))


HEAD = "--- a/x.py\n+++ b/x.py\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no change"),
        (HEAD, "a file without a hunk"),
        ("@@ -1 +1 @@\n-a\n+b\n", "belongs to no file"),
        ("--- /dev/null\n+++ b/x.py\n@@ -0,0 +1 @@\n+a\n", "existing files only"),
        ("--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "existing files only"),
        ("--- a/x.py\n+++ b/y.py\n@@ -1 +1 @@\n-a\n+b\n", "existing files only"),
        ("--- a/../x.py\n+++ b/../x.py\n@@ -1 +1 @@\n-a\n+b\n", "leaves the image root"),
        (HEAD + "@@ -1,2 +1 @@\n-a\n+b\n", "cut off"),
        (HEAD + "@@ -1 +1,2 @@\n-a\n b\n", "more lines than"),
        (HEAD + "@@ -3 +3 @@\n-a\n+b\n@@ -1 +1 @@\n-a\n+b\n", "out of order"),
        (HEAD + "@@ -3 +4 @@\n-a\n+b\n", "new line number 4, must be 3"),
        (HEAD + "@@ -0,0 +1 @@\n+b\n", "without context"),
        ((HEAD + "@@ -1 +1 @@\n-a\n+b\n") * 2, "a second part"),
    ],
)
def test_what_a_patch_must_not_be(text, message):
    with pytest.raises(LayerError, match=message):
        parse(text, "x.patch")


@pytest.mark.parametrize("path", LEDGER, ids=lambda path: path.parent.name)
def test_unidiff_reads_the_ledger_as_we_do(path):
    ours = parse(path.read_text(), path.name)
    theirs = PatchSet(path.read_text())
    assert [part.path for part in ours] == [file.path for file in theirs]
    for part, file in zip(ours, theirs, strict=True):
        assert [h.start for h in part.hunks] == [h.source_start for h in file]
        assert [list(h.lines) for h in part.hunks] == [[str(line) for line in h] for h in file]


@pytest.mark.subprocess
def test_git_applies_it_to_the_same_bytes(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/a.py").write_text(OLD)
    (tmp_path / "x.patch").write_text(diff(OLD, NEW))
    subprocess.run(["git", "apply", "--unsafe-paths", "x.patch"], cwd=tmp_path, check=True)
    assert (tmp_path / "demo/a.py").read_text() == NEW
