# SPDX-License-Identifier: Apache-2.0
import io
import os
import tarfile

import pytest

from imagebuild.layer.entries import (
    Entry,
    LayerError,
    dir_entry,
    file_entry,
    merge,
    read_directory,
    safe_path,
    symlink_entry,
    write_directory,
)
from imagebuild.layer.tarball import write_tar


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "", "a\0b", "a\\b"])
def test_unsafe_paths_are_refused(name):
    with pytest.raises(LayerError, match=r"evil\.whl"):
        safe_path(name, "evil.whl")


@pytest.mark.parametrize(("name", "path"), [("./a/b", "a/b"), ("a//b/", "a/b"), ("./", ""), ("a/./b", "a/b")])
def test_paths_are_normalised(name, path):
    assert safe_path(name, "x") == path


def test_merge_adds_parents_and_keeps_the_last_of_a_path():
    merged = merge([file_entry("a/b/c", b"1"), file_entry("a/b/c", b"22"), dir_entry("a", 0o700)])
    assert [(e.path, e.kind, e.implied) for e in merged] == [
        ("a", "dir", False),
        ("a/b", "dir", True),
        ("a/b/c", "file", False),
    ]
    assert merged[2].read() == b"22"


def test_merge_sorts_children_directly_after_their_folder():
    merged = merge([file_entry("a.b", b""), file_entry("a/z", b"")])
    assert [e.path for e in merged] == ["a", "a/z", "a.b"]


def test_merge_refuses_a_file_below_a_link():
    with pytest.raises(LayerError, match="its parent a is a symlink"):
        merge([symlink_entry("a", "/etc"), file_entry("a/passwd", b"")])


def test_reading_a_directory_entry_is_an_error():
    with pytest.raises(LayerError, match="a dir has no content"):
        dir_entry("a").read()


def test_tar_is_the_same_whenever_it_is_written():
    entries = merge([file_entry("a/b", b"x" * 600, 0o755, 1000, 5), symlink_entry("l", "a/b")])
    first, second = io.BytesIO(), io.BytesIO()
    write_tar(entries, first, 1000)
    write_tar(entries, second, 1000)
    assert first.getvalue() == second.getvalue()
    first.seek(0)
    with tarfile.open(fileobj=first) as tar:
        member = tar.getmember("a/b")
        assert (member.mode, member.uid, member.gid, member.mtime, member.uname) == (0o755, 1000, 5, 1000, "")
        assert tar.getmember("l").linkname == "a/b"


def test_directory_sink_round_trip(tmp_path):
    entries = merge(
        [file_entry("a/run", b"#!", 0o755), symlink_entry("a/link", "run"), dir_entry("empty", 0o711)]
    )
    for entry in entries:
        write_directory(entry, tmp_path, 1234)
    back = {e.path: e for e in read_directory(tmp_path)}
    assert {p: (e.kind, e.mode) for p, e in back.items()} == {
        "a": ("dir", 0o755),
        "a/link": ("symlink", 0o777),
        "a/run": ("file", 0o755),
        "empty": ("dir", 0o711),
    }
    assert back["a/run"].read() == b"#!"
    assert (tmp_path / "a/run").stat().st_mtime == 1234


def test_a_file_replaces_a_link_and_is_not_written_through_it(tmp_path):
    (tmp_path / "victim").write_text("keep")
    os.symlink("victim", tmp_path / "x")
    write_directory(file_entry("x", b"new"), tmp_path, 0)
    assert (tmp_path / "victim").read_text() == "keep"
    assert not (tmp_path / "x").is_symlink()


def test_a_parent_link_inside_the_root_is_followed(tmp_path):
    (tmp_path / "usr/lib").mkdir(parents=True)
    os.symlink("usr/lib", tmp_path / "lib")
    write_directory(file_entry("lib/x/y", b"1"), tmp_path, 0)
    assert (tmp_path / "usr/lib/x/y").read_bytes() == b"1"


def test_a_parent_link_out_of_the_root_is_refused(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    os.symlink("../..", root / "up")
    with pytest.raises(LayerError, match="leaves the image root"):
        write_directory(file_entry("up/x", b""), root, 0)


def test_an_implied_directory_leaves_the_mode_of_one_that_is_there(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    write_directory(Entry("tmp", "dir", 0o755, implied=True), tmp_path, 7)
    assert (tmp_path / "tmp").stat().st_mode & 0o7777 == 0o1777


def test_a_file_over_a_directory_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(LayerError, match="a directory stands where"):
        write_directory(file_entry("a", b""), tmp_path, 0)
