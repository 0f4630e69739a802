# SPDX-License-Identifier: Apache-2.0
"""The reader of GPU code: real nvcc output, made files, and files that lie."""

from __future__ import annotations

import struct
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuild.layer.binary import BytesSource, FileSource, FormatError
from imagebuild.layer.gpucode import Code
from imagebuild.layer.scan import scan
from tests.gpufiles import PAGE, Made, codes, fat, fat_container, fat_entry, library, read

DATA = Path(__file__).parents[1] / "data" / "gpucode"
REAL = sorted(path.name for path in DATA.iterdir() if path.suffix != ".md")
ALL_CODES = [
    Code(kind, arch, suffix)
    for kind in ("elf", "ptx", "other")
    for arch in (75, 80, 90, 100, 103, 120)
    for suffix in ("", "a", "f")
]


def real(name):
    return (DATA / name).read_bytes()


# What cuobjdump 13.5 -all prints for these files.
TINY = ["sm_80", "sm_90a", "sm_100f", "sm_103a", "sm_120", "compute_120"]
RELINK = ["sm_90", "compute_90", "sm_100"]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("libtiny.so", "elf", TINY * 2),
        ("librelink.so", "elf", RELINK * 2),
        ("libtiny.a", "archive", RELINK * 2),
        ("one.fatbin", "fatbin", TINY),
        ("one.ptx", "ptx", ["compute_103a"]),
        *((f"one.{arch}.cubin", "cubin", [arch]) for arch in (
            "sm_80", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a", "sm_120f")),
    ],
)  # fmt: skip
def test_what_nvcc_wrote(name, kind, expected):
    assert read(real(name), name).kind == kind
    assert Counter(codes(real(name), name)) == Counter(expected)


def test_places():
    assert {f.place for f in read(real("libtiny.so")).found} == {"fatbin"}
    assert {f.place for f in read(real("librelink.so")).found} == {"relocatable"}
    assert {f.place for f in read(real("one.fatbin")).found} == {"loose"}


def test_offsets_are_the_files():
    for name in ("one.fatbin", "libtiny.so", "libtiny.a"):
        data = real(name)
        for container in (found.container for found in read(data).found):
            assert data[container.at : container.at + 4] == b"\x50\xed\x55\xba"
            assert all(any(data[e.at : e.at + 8]) for e in container.entries)
            last = container.entries[-1]
            assert last.at + last.size == container.at + container.size


def test_needed_libraries_are_read():
    assert "libc.so.6" in read(real("libtiny.so")).needs


@pytest.mark.parametrize("text", [b"", b"x", b"plain text", b"\x7fELF\x01\x01" + bytes(100), b"#!/bin/sh\n"])
def test_other_files_hold_no_gpu_code(text):
    assert scan(BytesSource(text)) is None


def test_a_container_outside_the_usual_sections_is_found():
    code = fat((Code("elf", 100), 200))
    made = Made([(".rodata", b"abc" + bytes(5) + code), (".nv_fatbin", fat((Code("elf", 90), 64)))]).build()
    found = read(made).found
    assert [(f.place, f.where) for f in found] == [("fatbin", ".nv_fatbin"), ("elsewhere", ".rodata")]


def test_what_only_looks_like_a_container_is_passed_over():
    lie = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40)
    made = Made([(".rodata", lie + b"more"), (".nv_fatbin", fat((Code("elf", 90), 64)))]).build()
    assert codes(made) == ["sm_90"]


def test_zeros_between_containers_are_fine_and_anything_else_is_not():
    one, two = fat((Code("elf", 90), 64)), fat((Code("ptx", 90), 64))
    assert codes(library(one, bytes(40), two, bytes(24))) == ["sm_90", "compute_90"]
    for junk in (library(one, b"junk" * 4, two), library(one, b"\0\0\0\1")):
        with pytest.raises(FormatError, match="belong to no GPU-code container"):
            read(junk)


def test_blank_payloads_are_told():
    code = Code("elf", 90)
    made = fat_container(fat_entry(code, bytes(256)), fat_entry(code, b"\x7fELF" + bytes(252)))
    assert [e.blank for e in read(library(made)).found[0].container.entries] == [True, False]


def test_without_section_table_the_segments_are_searched():
    made = bytearray(library(fat((Code("elf", 90), 64), (Code("ptx", 90), 8))))
    made[40:48] = bytes(8)
    found = read(bytes(made))
    assert found.read_by == "segments"
    assert [str(e.code) for e in found.found[0].container.entries] == ["sm_90", "compute_90"]


@given(items=st.lists(st.tuples(st.sampled_from(ALL_CODES), st.integers(1, 300)), min_size=1, max_size=8))
def test_any_entries_are_read_back(items):
    made = library(fat(*items))
    entries = read(made).found[0].container.entries
    assert [entry.code for entry in entries] == [code for code, _ in items]
    assert [entry.size for entry in entries] == [size + -size % 8 for _, size in items]


# --- files that lie ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d[: len(d) // 2], "do not lie within|runs past|cut off"),
        (lambda d: d.replace(b"\x50\xed\x55\xba\x01", b"\x50\xed\x55\xba\x09"), "no GPU-code container"),
        (lambda d: d[:8] + struct.pack("<Q", 1 << 60) + d[16:], "runs past"),
        (lambda d: d[:8] + struct.pack("<Q", 70) + d[16:], "cut off|claims"),
        (lambda d: d[:20] + struct.pack("<I", 0) + d[24:], "claims"),
        (lambda d: d[:24] + struct.pack("<Q", (1 << 64) - 8) + d[32:], "claims"),
    ],
)
def test_a_damaged_fatbin_gives_a_named_error(change, message):
    with pytest.raises(FormatError, match=message):
        read(change(real("one.fatbin")))


@pytest.mark.parametrize(
    ("at", "value", "size"),
    [
        (40, 1 << 63, 8),  # section table far outside
        (32, 1 << 40, 8),  # program headers far outside
        (58, 7, 2),  # section header size
        (54, 9, 2),  # program header size
        (60, 0xFFFF, 2),  # too many sections
        (56, 0xFFFF, 2),  # too many segments
        (62, 0xFFF0, 2),  # names in a section that is not there
    ],
)
def test_a_lying_elf_header_gives_a_named_error(at, value, size):
    data = bytearray(real("libtiny.so"))
    data[at : at + size] = value.to_bytes(size, "little")
    with pytest.raises(FormatError):
        read(bytes(data))


def lying_containers(count: int, size: int | None) -> bytes:
    """`count` container headers in a row; each claims all that follow it, or `size` bytes."""
    body = bytearray()
    for index in range(count):
        body += struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 16 * (count - index - 1) if size is None else size)
    return bytes(body)


@pytest.mark.parametrize("size", [None, 1 << 40, 0, 64])
def test_containers_that_claim_one_another_take_linear_time(size):
    made = Made([(".rodata", lying_containers(50_000, size)), (".data", b"x")]).build()
    start = time.monotonic()
    with pytest.raises(FormatError, match="more GPU-code entries"):
        read(made)
    assert time.monotonic() - start < 5


def test_containers_around_the_same_entries_take_linear_time():
    """Each payload begins a container that holds all later entries and ends in half a one."""
    count = 10_000
    units = []
    for index in range(count):
        inner = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 80 * (count - index - 1) + 8)
        units.append(fat_entry(Code("elf", 90), inner))
    made = Made([(".rodata", b"".join(units) + bytes(64)), (".data", b"x")]).build()
    start = time.monotonic()
    with pytest.raises(FormatError, match="more GPU-code entries"):
        read(made)
    assert time.monotonic() - start < 5


def test_a_hole_of_exabytes_is_not_walked():
    made = bytearray(library(fat((Code("elf", 90), 64))))
    for index in range(4):
        at = 64 + 56 * index
        if struct.unpack_from("<I", made, at)[0] == 1 and index == 3:
            struct.pack_into("<Q", made, at + 40, 1 << 62)
    start = time.monotonic()
    assert codes(bytes(made)) == ["sm_90"]
    made[40:48] = bytes(8)
    assert codes(bytes(made)) == ["sm_90"]
    assert time.monotonic() - start < 2


def check_bounded(data: bytes, name: str) -> None:
    start = time.monotonic()
    try:
        scan(BytesSource(data), name)
    except FormatError as error:
        assert str(error)
    assert time.monotonic() - start < 2


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(REAL),
    edits=st.lists(st.tuples(st.integers(0), st.binary(min_size=1, max_size=9)), max_size=6),
    cut=st.floats(0, 1),
)
def test_mutated_real_files_end_in_an_answer_or_a_named_error(name, edits, cut):
    data = bytearray(real(name))
    for where, new in edits:
        at = where % len(data)
        data[at : at + len(new)] = new
    check_bounded(bytes(data[: int(len(data) * cut) + 1]), name)


HEADER_FIELDS = [(n, size) for n in range(0, 64, 2) for size in (2, 4, 8)]


@settings(max_examples=600, deadline=None)
@given(
    name=st.sampled_from(REAL),
    anchor=st.integers(0, 200),
    field=st.sampled_from(HEADER_FIELDS),
    value=st.sampled_from([0, 1, 7, 0x7FFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1]),
)
def test_mutated_headers_end_in_an_answer_or_a_named_error(name, anchor, field, value):
    """Overwrite one field of the ELF header, a table entry or a GPU-code header with an extreme value."""
    data = bytearray(real(name))
    starts = [0]
    if data[:4] == b"\x7fELF":
        phoff, shoff = struct.unpack_from("<QQ", data, 32)
        phnum, _, shnum = struct.unpack_from("<HHH", data, 56)
        starts += [phoff + 56 * i for i in range(phnum)] + [shoff + 64 * i for i in range(shnum)]
    at = data.find(b"\x50\xed\x55\xba")
    while at >= 0:
        starts += [at, at + 16]
        at = data.find(b"\x50\xed\x55\xba", at + 4)
    where = starts[anchor % len(starts)] + field[0]
    size = min(field[1], len(data) - where)
    if size > 0:
        data[where : where + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    check_bounded(bytes(data), name)


@given(data=st.binary(max_size=400))
def test_random_bytes_behind_every_magic(data):
    for magic in (b"\x7fELF\x02\x01", b"!<arch>\n", b"\x50\xed\x55\xba\x01\0\x10\0", b""):
        check_bounded(magic + data, "x.ptx")


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(real("libtiny.so"))
    with open(path, "rb") as file:
        source = FileSource.of(file.fileno())
        path.write_bytes(real("libtiny.so")[: PAGE * 2])
        with pytest.raises(FormatError, match="got shorter"):
            scan(source)
