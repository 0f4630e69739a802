# SPDX-License-Identifier: Apache-2.0
"""Reading .deb files: what a good one gives, and that no bad one gets through or crashes."""

from __future__ import annotations

import gzip
import lzma
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebuild.layer import deb as deb_module
from imagebuild.layer.deb import Deb, Spool, parse_stanzas, read_control, read_deb
from imagebuild.layer.entries import LayerError
from tests.debs import CONTROL, ar, deb_bytes, folder, hardlink, make_deb, member, symlink, tar

META = {"control": CONTROL.format(name="demo").encode()}


@pytest.fixture
def spool():
    with Spool() as opened:
        yield opened


def read_bytes(raw: bytes, where: Path, spool: Spool, limit: int = 1 << 20) -> Deb:
    path = where / "demo_1.0-1_amd64.deb"
    path.write_bytes(raw)
    return read_deb(path, spool, limit=limit)


def test_reads_control_and_entries(tmp_path, spool):
    path = make_deb(
        tmp_path,
        "demo",
        folder("./usr/"),
        member("./usr/a", b"hello", mode=0o4755, owner=(0, 42)),
        symlink("./usr/b", "a"),
        hardlink("./usr/c", "./usr/a"),
        md5sums=b"x",
        postinst=b"#!/bin/sh\n",
    )
    deb = read_deb(path, spool)
    assert deb.fields["Package"] == "demo"
    assert read_control(path) == deb.control
    assert [e.path for e in deb.entries] == ["usr", "usr/a", "usr/b", "usr/c"]
    usr, a, b, c = deb.entries
    assert (usr.kind, usr.mode) == ("dir", 0o755)
    assert (a.kind, a.mode, a.uid, a.gid, a.size, a.read()) == ("file", 0o4755, 0, 42, 5, b"hello")
    assert (b.kind, b.target) == ("symlink", "a")
    assert (c.kind, c.target) == ("hardlink", "usr/a")


@pytest.mark.parametrize("suffix", [".xz", ".gz", ""])
def test_compressions(suffix, tmp_path, spool):
    deb = read_bytes(deb_bytes(tar(member("./a", b"x" * 700_000)), META, suffix=suffix), tmp_path, spool)
    assert deb.entries[0].read() == b"x" * 700_000


def test_content_can_be_opened_again_and_is_read_in_pieces(tmp_path, spool, monkeypatch):
    monkeypatch.setattr("imagebuild.layer.deb.PIECE", 1000)
    monkeypatch.setattr("imagebuild.layer.spool.PIECE", 1000)
    content = bytes(range(256)) * 40
    entry = read_bytes(deb_bytes(tar(member("./a", content)), META), tmp_path, spool).entries[0]
    assert entry.read() == entry.read() == content
    assert entry.open is not None
    with entry.open() as stream:
        assert stream.read(1500) == content[:1500]
        assert stream.read() == content[1500:]


def test_long_names(tmp_path, spool):
    long, target = "./usr/" + "n" * 300, "t" * 200
    deb = read_bytes(deb_bytes(tar(member(long, b"1"), symlink("./l", target)), META), tmp_path, spool)
    assert deb.entries[0].path == long[2:]
    assert deb.entries[1].target == target


def test_messages_name_the_package_not_the_store_file(tmp_path, spool):
    path = tmp_path / ("0" * 64)
    path.write_bytes(deb_bytes(tar(symlink("./a", "../../x")), META))
    with pytest.raises(LayerError, match=r"demo_1\.0-1_amd64\.deb: a: link to '\.\./\.\./x' leaves"):
        read_deb(path, spool)


BAD_MEMBERS = {
    "absolute path": (member("/etc/passwd", b"x"), "refused path"),
    "path that leaves the tree": (member("./../../etc/passwd", b"x"), "leaves the image root"),
    "link that leaves the tree": (symlink("./usr/a", "../../etc"), "leaves the image root"),
    "link without target": (symlink("./usr/a", ""), "without target"),
    "hard link to nothing": (hardlink("./a", "./nothing"), "no earlier file"),
    "hard link that leaves the tree": (hardlink("./a", "../x"), "leaves the image root"),
    "character device": (member("./dev/null", kind=tarfile.CHRTYPE), "is a character device"),
    "block device": (member("./dev/sda", kind=tarfile.BLKTYPE), "is a block device"),
    "fifo": (member("./run/f", kind=tarfile.FIFOTYPE), "is a FIFO"),
    "contiguous file": (member("./a", kind=tarfile.CONTTYPE), "tar member type b'7'"),
    "file as root": (member("./", b"", kind=b"0"), "its root is a file"),
    "line break": (member("./a\n/b", b""), "refused path"),
    "backslash": (member("./a\\b", b""), "refused path"),
}


@pytest.mark.parametrize("name", BAD_MEMBERS)
def test_refuses_members(name, tmp_path, spool):
    bad, message = BAD_MEMBERS[name]
    data = tar(bad)
    if name == "file as root":
        data = data[:156] + b"0" + data[157:]
        data = _checksum(data)
    with pytest.raises(LayerError, match=message) as error:
        read_bytes(deb_bytes(data, META), tmp_path, spool)
    assert "demo_1.0-1_amd64.deb" in str(error.value)


def _checksum(data: bytes) -> bytes:
    total = sum(data[:512]) - sum(data[148:156]) + 8 * 32
    return data[:148] + b"%06o\0 " % total + data[156:]


def test_refuses_pax_headers(tmp_path, spool):
    data = tar(member("./" + "ü" * 200, b"x"), form=tarfile.PAX_FORMAT)
    with pytest.raises(LayerError, match="is a pax header"):
        read_bytes(deb_bytes(data, META), tmp_path, spool)


def test_refuses_a_bomb(tmp_path, spool):
    raw = deb_bytes(tar(member("./a", bytes(3 << 20))), META)
    assert len(raw) < 10_000
    with pytest.raises(LayerError, match=r"data\.tar\.xz: unpacks to more than the limit of 1048576 bytes"):
        read_bytes(raw, tmp_path, spool)


def test_refuses_a_control_bomb(tmp_path, spool, monkeypatch):
    monkeypatch.setattr(deb_module, "_CONTROL_LIMIT", 100_000)
    raw = deb_bytes(tar(), {**META, "postinst": bytes(1 << 20)})
    with pytest.raises(LayerError, match=r"control\.tar\.xz: unpacks to more"):
        read_bytes(raw, tmp_path, spool)


GOOD_TAR = tar(member("./a", b"x" * 600))


def _deb(data_name: str, data: bytes) -> bytes:
    control = gzip.compress(tar(member("./control", META["control"])))
    return ar(("debian-binary", b"2.0\n"), ("control.tar.gz", control), (data_name, data))


BAD_FILES = {
    "empty file": (b"", "no ar header"),
    "not ar": (b"PK\3\4" * 30, "no ar header"),
    "no members": (b"!<arch>\n", "first member is not debian-binary"),
    "other first member": (ar(("a", b"2.0\n")), "first member is not debian-binary"),
    "format 3": (deb_bytes(GOOD_TAR, META, version=b"3.0\n"), "unknown format version"),
    "lying ar size": (_deb("data.tar", GOOD_TAR)[:-100], "is truncated"),
    "damaged ar header": (_deb("data.tar", GOOD_TAR)[:70] + b"x" * 60, "damaged ar header"),
    "no data": (
        ar(("debian-binary", b"2.0\n"), ("control.tar", tar(member("./control", META["control"])))),
        "has 0 members data.tar",
    ),
    "two data": (_deb("data.tar", GOOD_TAR) + ar(("data.tar", GOOD_TAR))[8:], "has 2 members data.tar"),
    "zstd": (_deb("data.tar.zst", b"(\xb5/\xfd"), "zstd-compressed packages"),
    "unknown compression": (_deb("data.tar.lz", b"LZIP"), "unknown compression"),
    "truncated xz": (_deb("data.tar.xz", lzma.compress(GOOD_TAR)[:-30]), "truncated|damaged"),
    "truncated gz": (_deb("data.tar.gz", gzip.compress(GOOD_TAR)[:-12]), "truncated|damaged"),
    "not xz": (_deb("data.tar.xz", b"nonsense" * 20), "damaged"),
    "data after xz": (_deb("data.tar.xz", lzma.compress(GOOD_TAR) + b"more"), "follows the end"),
    "data after gz": (_deb("data.tar.gz", gzip.compress(GOOD_TAR) + b"x" * 400_000), "follows the end"),
    "data after tar": (_deb("data.tar", GOOD_TAR + b"more"), "follows the end of the tar"),
    "truncated tar": (_deb("data.tar", GOOD_TAR[:900]), "tar is truncated"),
    "tar without end": (_deb("data.tar", GOOD_TAR[:1536]), "tar is truncated"),
    "lying tar size": (
        _deb("data.tar", _checksum(GOOD_TAR[:124] + b"77777777777\0" + GOOD_TAR[136:])),
        "tar is truncated",
    ),
    "wrong checksum": (_deb("data.tar", b"y" + GOOD_TAR[1:]), "checksum"),
    "no control file": (deb_bytes(GOOD_TAR, {"md5sums": b""}), "no readable file called control"),
    "control not UTF-8": (deb_bytes(GOOD_TAR, {"control": b"Package: \xff\n"}), "no readable file"),
    "empty control": (deb_bytes(GOOD_TAR, {"control": b""}), "Package is ''"),
    "name with a path": (
        deb_bytes(GOOD_TAR, {"control": b"Package: ../x\nVersion: 1\nArchitecture: all\n"}),
        "Package is '../x'",
    ),
    "folder in control": (deb_bytes(GOOD_TAR, {**META, "a/b": b""}), "only plain files"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_refuses_files(name, tmp_path, spool):
    raw, message = BAD_FILES[name]
    with pytest.raises(LayerError, match=message) as error:
        read_bytes(raw, tmp_path, spool)
    assert "demo_1.0-1_amd64.deb" in str(error.value)


SEED = deb_bytes(
    tar(folder("./usr/"), member("./usr/a", b"hello"), symlink("./usr/b", "a"), hardlink("./c", "./usr/a")),
    META,
    suffix="",
)


@given(st.lists(st.tuples(st.integers(0, len(SEED) - 1), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes_never_crash(tmp_path, spool, changes):
    raw = bytearray(SEED)
    for position, value in changes:
        raw[position] = value
    try:
        deb = read_bytes(bytes(raw), tmp_path, spool)
    except LayerError:
        return
    for entry in deb.entries:
        assert not entry.path.startswith(("/", "../")) and entry.path
        if entry.kind == "file":
            assert len(entry.read()) == entry.size


@given(st.integers(0, len(SEED)))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_off_files_are_refused(tmp_path, spool, length):
    if length == len(SEED):
        return
    with pytest.raises(LayerError):
        read_bytes(SEED[:length], tmp_path, spool)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0\n"), min_size=1, max_size=150)


@given(st.dictionaries(NAMES.filter(lambda n: n not in (".", "..")), st.binary(max_size=2000), max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reads_what_tar_wrote(tmp_path, spool, files):
    data = tar(*(member(f"./{name}", content) for name, content in files.items()))
    deb = read_bytes(deb_bytes(data, META, suffix=".gz"), tmp_path, spool)
    assert {e.path: e.read() for e in deb.entries} == files


def test_stanzas():
    text = "A: 1\nB:\n x\n y\n\n\n# comment\nA: 2\n"
    assert parse_stanzas(text) == [{"A": "1", "B": "\n x\n y"}, {"A": "2"}]
    assert parse_stanzas("") == []
