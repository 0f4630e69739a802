# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile wheels: a LayerError that names wheel and member, or exactly what was packed.

The fuzz is seeded: a failure repeats, and its seed is in the test's name.
"""

import functools
import hashlib
import io
import random
import struct
import zipfile
import zlib

import pytest

from imagebuild.errors import IntegrityError
from imagebuild.gpufacts import wheel_facts
from imagebuild.layer.archive import Archive
from imagebuild.layer.entries import LayerError, merge
from imagebuild.layer.wheel import wheel_entries
from imagebuild.oci_blob import write_blob
from imagebuild.overlaps import recorded
from imagebuild.patchcheck import wheel_files
from tests.unit.test_wheel import BASIC, SCHEME, make_wheel

NAME = "demo-1.0-py3-none-any.whl"
NOISE = random.Random(1).randbytes(3000)
MEMBERS = {
    **BASIC,
    "demo/text.py": b"value = 1\n" * 4000,
    "demo/noise.so": NOISE,
    "demo-1.0.data/scripts/tool": b"#!python\nprint()\n",
    "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo.cli:main\n",
}
SEEDS = 400


@pytest.fixture
def good(tmp_path):
    return make_wheel(tmp_path, MEMBERS).read_bytes()


def contents(path):
    return {entry.path: entry.read() for entry in wheel_entries(path, SCHEME)}


def damaged(raw, rng):
    """Flip, overwrite, cut, insert or repeat bytes; zip's own numbers are hit often, being small."""
    raw = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(raw))
        if rng.random() < 0.6:  # somewhere in a header
            starts = [i for mark in (b"PK\1\2", b"PK\3\4", b"PK\5\6") for i in find_all(raw, mark)]
            at = min(rng.choice(starts or [at]) + rng.randrange(46), len(raw) - 1)
        kind = rng.randrange(5)
        if kind == 0:
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            raw[at : at + 4] = rng.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", rng.randbytes(4)])
        elif kind == 2:
            del raw[at : at + rng.randint(1, 200)]
        elif kind == 3:
            raw[at:at] = rng.randbytes(rng.randint(1, 20))
        else:
            del raw[rng.randrange(len(raw)) :]
        if not raw:
            break
    return bytes(raw)


def find_all(raw, mark):
    at = raw.find(mark)
    while at >= 0:
        yield at
        at = raw.find(mark, at + 1)


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_damaged_bytes_give_an_error_or_the_same_files(tmp_path, good, first):
    expected = contents(make_wheel(tmp_path, MEMBERS))
    original = set(expected.values())
    path = tmp_path / NAME
    refused = 0
    for seed in range(first, first + 50):
        path.write_bytes(damaged(good, random.Random(seed)))
        try:
            found = contents(path)
        except LayerError as error:
            assert NAME in str(error) or "dist-info" in str(error), (seed, error)
            refused += 1
            continue
        # A name may change, so that a file moves; what is in a file never does.
        changed = {p for p, c in found.items() if c not in original and not p.endswith("/RECORD")}
        assert not changed, (seed, changed)
    assert refused > 25


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_the_host_s_readers_know_no_other_errors_either(tmp_path, good, first):
    path = tmp_path / NAME
    for seed in range(first, first + 100):
        path.write_bytes(damaged(good, random.Random(seed)))
        for read in (
            lambda: recorded(path, NAME),
            lambda: wheel_facts([path], tmp_path, 1),
            lambda: wheel_files(path, list(MEMBERS)),
            lambda: Archive(path).unpack(tmp_path / "tree"),
        ):
            try:
                read()
            except (LayerError, IntegrityError) as error:
                assert NAME in str(error), (seed, error)
    assert not [p for p in tmp_path.rglob("*") if tmp_path not in p.resolve().parents]


def edit(good, member, change):
    """Change a member's compressed bytes in place."""
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        info = archive.getinfo(member)
    at = info.header_offset + 30 + len(member)
    raw = bytearray(good)
    raw[at : at + info.compress_size] = change(raw[at : at + info.compress_size])
    return bytes(raw)


def central(good, member, offset, value):
    """Overwrite a field of a member's central directory entry (APPNOTE 4.3.12)."""
    raw = bytearray(good)
    name = member.encode()
    at = next(i for i in find_all(raw, b"PK\1\2") if raw[i + 46 : i + 46 + len(name)] == name)
    raw[at + offset : at + offset + len(value)] = value
    return bytes(raw)


def shorter(data):
    inflated = zlib.decompress(bytes(data), -15)[:-1]
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(inflated) + packer.flush()
    return packed + bytes(len(data) - len(packed)) if len(packed) <= len(data) else data


TEXT = "demo/text.py"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda g: edit(g, TEXT, lambda d: b"\xff" * len(d)), "damaged"),
        (lambda g: edit(g, TEXT, lambda d: d[:20] + bytes(len(d) - 20)), "text.py: "),
        (lambda g: edit(g, TEXT, shorter), "text.py: "),
        (lambda g: central(g, TEXT, 16, b"\1\2\3\4"), "checksum"),
        (lambda g: central(g, TEXT, 24, struct.pack("<I", 5)), "'40000' bytes, the archive holds 5"),
        (lambda g: central(g, TEXT, 24, struct.pack("<I", 0x7FFFFFFF)), "zip bomb"),
        (lambda g: central(g, TEXT, 20, struct.pack("<I", 9)), "text.py: "),
        (lambda g: central(g, TEXT, 20, struct.pack("<I", 0x7FFFFFF)), "overlap"),
        (lambda g: central(g, TEXT, 10, struct.pack("<H", 14)), "stored or deflated"),
        (lambda g: central(g, TEXT, 8, struct.pack("<H", 1)), "not encrypted"),
        (lambda g: central(g, TEXT, 42, struct.pack("<I", 1)), "overlap|local header"),
        (lambda g: central(g, TEXT, 46, b"demo/Text"), "another name in its local header"),
        (lambda g: g[:-30], "not a wheel"),
        (lambda g: g[500:], "."),
        (lambda g: b"", "not a wheel"),
    ],
)
def test_damage_is_named_and_leaves_no_layer(tmp_path, good, damage, message):
    path = tmp_path / NAME
    path.write_bytes(damage(good))
    blobs = tmp_path / "blobs"
    with pytest.raises(LayerError, match=message) as caught:
        write_blob(merge(wheel_entries(path, SCHEME)), blobs, 0, "zstd", 1, lambda _: None)
    assert NAME in str(caught.value)
    assert not blobs.exists() or not list((blobs / "sha256").iterdir())


@pytest.mark.parametrize(
    ("size", "message"), [(5, "more than the 5 bytes"), (50_000, "40000 bytes instead of the 50000")]
)
def test_a_member_of_another_size_than_announced(tmp_path, good, size, message):
    path = tmp_path / NAME
    path.write_bytes(central(good, TEXT, 24, struct.pack("<I", size)))
    with pytest.raises(LayerError, match=message):
        Archive(path).read(TEXT)


def test_overlapping_members_are_refused(tmp_path):
    """The bomb whose members share one block of compressed data (Fifield 2019)."""
    path = make_wheel(tmp_path, {**MEMBERS, "demo/b.py": b"value = 1\n" * 4000})
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        shared = archive.getinfo(TEXT).header_offset
    path.write_bytes(central(raw, "demo/b.py", 42, struct.pack("<I", shared)))
    with pytest.raises(LayerError, match="overlap"):
        wheel_entries(path, SCHEME)


def record(*rows):
    return {**BASIC, "demo-1.0.dist-info/RECORD": "\n".join(rows).encode()}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (record("demo/__init__.py,sha256=abc"), "row 1 has 2 fields"),
        (record("demo/__init__.py,md5=abc,6"), "hash 'md5=abc'"),
        (record("demo/__init__.py,,7"), "'7' bytes, the archive holds 6"),
        (record('"demo/__init__.py,,6'), "cannot be read"),
        ({**BASIC, "demo-1.0.dist-info/RECORD": b"\xff\xfe,,"}, "not UTF-8"),
        ({**record(), "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\n???\n"}, "entry_points"),
        ({**record(), "demo-1.0.dist-info/entry_points.txt": b"no section\n"}, "entry_points"),
        ({**record(), "demo-1.0.dist-info/entry_points.txt": b"\xff"}, "not UTF-8"),
        (
            {**record(), "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\n../../../../x = a:b\n"},
            "leaves the image root",
        ),
        ({**record(), "demo-1.0.data/data/../../../../../etc/x": b""}, "unknown part|leaves|become"),
        ({**record(), "demo-1.0.data/scripts/../../../etc/x": b""}, "leaves the image root|unknown part"),
        ({**record(), "demo\\..\\x.py": b""}, "refused path"),
        ({**record(), "C:/x.py": b"", "demo-1.0.data/purelib/C:/x.py": b""}, "two members become"),
    ],
)
def test_hostile_contents(tmp_path, members, message):
    path = make_wheel(tmp_path, members, record=False)
    with pytest.raises(LayerError, match=message) as caught:
        wheel_entries(path, SCHEME)
    assert "demo" in str(caught.value)


def test_a_file_and_a_folder_of_one_name(tmp_path):
    path = make_wheel(tmp_path, {**BASIC, "demo/a": b"", "demo/a/b": b""})
    with pytest.raises(LayerError, match=r"its parent .*demo/a is a file"):
        merge(wheel_entries(path, SCHEME))


def test_reading_in_pieces_gives_the_same_bytes(tmp_path):
    content = bytes(5 << 20) + random.Random(2).randbytes(2 << 20)
    archive = Archive(make_wheel(tmp_path, {**BASIC, "demo/big.bin": content}))
    for size in (1 << 16, 1 << 20, 10 << 20):
        with archive.open("demo/big.bin") as stream:
            assert stream.read(4) == content[:4]
            rest = b"".join(iter(functools.partial(stream.read, size), b""))
        assert hashlib.sha256(content[:4] + rest).digest() == hashlib.sha256(content).digest()
    assert archive.read("demo/big.bin") == content
