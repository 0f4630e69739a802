# SPDX-License-Identifier: Apache-2.0
"""The bundle file: equal bytes, every flipped bit found and named, nothing outside the folder."""

import io
import tarfile

import pytest

from imagebuild.bundle.contents import tree
from imagebuild.bundle.difference import difference, difference_text
from imagebuild.bundle.format import make_manifest, member_of, read_bundle, read_manifest, write_bundle
from imagebuild.errors import ImageBuildError, IntegrityError, ManifestError

FILES = {
    "README.md": b"read me\n",
    "image/" + "a/" * 60 + "deep": b"a name too long for a plain header",
    "image/layer": bytes(range(256)) * 5,
    "project/empty": b"",
    "project/run": b"#!/bin/sh\n",
}


def members(files=FILES):
    return [member_of(path, data, executable=path.endswith("/run")) for path, data in files.items()]


def written(path, files=FILES, about=None):
    manifest = make_manifest(about or {"arch": "sm_120"}, 1700000000, members(files))
    with path.open("wb") as out:
        write_bundle(manifest, members(files), out, lambda _: None)
    return manifest


def test_a_bundle_is_a_tar_and_opens_to_what_went_in(tmp_path):
    made = written(tmp_path / "b.tar")
    found, wrong = read_bundle(tmp_path / "b.tar", tmp_path / "out")
    assert wrong == []
    assert found.digest == made.digest
    for path, data in FILES.items():
        assert (tmp_path / "out" / path).read_bytes() == data
    assert (tmp_path / "out" / "project" / "run").stat().st_mode & 0o111
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert tar.getnames() == ["bundle.json", *sorted(FILES), "bundle.sha256"]


def test_equal_content_gives_equal_bytes_whatever_its_order(tmp_path):
    written(tmp_path / "one.tar")
    written(tmp_path / "two.tar", dict(reversed(FILES.items())))
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def owners(path):
    """The member that each byte of the file belongs to: its headers, its data and its padding."""
    found = []
    with tarfile.open(path) as tar:
        for info in tar:
            end = info.offset_data + -(-info.size // 512) * 512
            found += [info.name] * (end - len(found))
    return found + ["bundle.sha256"] * (path.stat().st_size - len(found))


def test_one_flipped_bit_anywhere_is_found_and_named(tmp_path):
    path = tmp_path / "b.tar"
    written(path)
    sound, belongs = path.read_bytes(), owners(path)
    assert len(belongs) == len(sound)
    for place in range(0, len(sound), 7):  # 7 and 512 have no common factor: all places of a block
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            said = "\n".join(read_bundle(path, None)[1])
        except ImageBuildError as error:
            said = error.message
        assert belongs[place] in said, (place, belongs[place], said)


@pytest.mark.parametrize("cut", [1, 600, 3000])
def test_a_file_that_was_cut_off_is_found(tmp_path, cut):
    written(tmp_path / "b.tar")
    data = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(data[:-cut])
    with pytest.raises(IntegrityError, match=r"bundle\.json"):
        read_bundle(tmp_path / "b.tar", None)


def test_a_file_that_got_longer_is_found(tmp_path):
    written(tmp_path / "b.tar")
    with (tmp_path / "b.tar").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(IntegrityError, match="seal"):
        read_bundle(tmp_path / "b.tar", None)


def test_other_files_are_no_bundle(tmp_path):
    (tmp_path / "x").write_bytes(b"PK" * 3000)
    with pytest.raises(ManifestError, match="not a bundle"):
        read_manifest(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(ManifestError, match="not a bundle"):
        read_manifest(tmp_path / "x")


def test_a_path_that_leaves_the_folder_is_refused(tmp_path):
    written(tmp_path / "b.tar", {"../out": b"x"})
    (tmp_path / "in").mkdir()
    with pytest.raises(IntegrityError, match="leave the folder"):
        read_bundle(tmp_path / "b.tar", tmp_path / "in")
    assert not (tmp_path / "out").exists()


def test_two_files_of_one_name_are_refused():
    twice = [member_of("a", b"1"), member_of("a", b"2")]
    with pytest.raises(ManifestError, match="two files"):
        make_manifest({}, 0, twice)


def test_a_source_that_changes_while_it_is_written_is_an_error(tmp_path):
    (tmp_path / "f").write_bytes(b"before")
    given = [member_of("f", tmp_path / "f")]
    (tmp_path / "f").write_bytes(b"after!")
    with pytest.raises(IntegrityError, match="changed while"):
        write_bundle(make_manifest({}, 0, given), given, io.BytesIO(), lambda _: None)


def test_a_difference_names_files_and_facts(tmp_path):
    old = written(tmp_path / "one.tar")
    changed = {**FILES, "README.md": b"other", "new": b""}
    changed.pop("project/empty")
    new = written(tmp_path / "two.tar", changed, {"arch": "sm_103"})
    found = difference(old, new)
    assert (found.added, found.removed, found.changed) == (("new",), ("project/empty",), ("README.md",))
    assert difference_text(found).splitlines()[0] == "arch: sm_120 -> sm_103"
    assert difference(old, old).same


def test_caches_stay_out_and_links_are_refused(tmp_path):
    (tmp_path / "p" / "__pycache__").mkdir(parents=True)
    (tmp_path / "p" / "__pycache__" / "x.pyc").touch()
    (tmp_path / "p" / "x.py").touch()
    assert [member.path for member in tree(tmp_path / "p", "project")] == ["project/x.py"]
    (tmp_path / "p" / "link").symlink_to("/etc/passwd")
    with pytest.raises(ManifestError, match="symbolic link"):
        tree(tmp_path / "p", "project")
