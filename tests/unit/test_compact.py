# SPDX-License-Identifier: Apache-2.0
"""Blanking and compaction, each proven by the independent comparison of the two files."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuild.layer.binary import BytesSource, FormatError
from imagebuild.layer.blank import blankable, blanked
from imagebuild.layer.compact import MAX_HOLES, compacted, layout
from imagebuild.layer.elf import SHT_NOBITS, MemoryImage, read_elf
from imagebuild.layer.gpucode import Code, loadable
from imagebuild.layer.proof import NotProven, prove
from imagebuild.layer.scan import scan
from tests.gpufiles import PAGE, fat, library, payload, read

DATA = Path(__file__).parents[1] / "data" / "gpucode"
OLD, NEW, PTX = Code("elf", 90), Code("elf", 103, "a"), Code("ptx", 90)


def blank_of(data: bytes, gpu: int) -> bytes:
    source = BytesSource(data)
    code = scan(source)
    assert code is not None
    return b"".join(blanked(source, blankable(code, gpu), 0, len(data)))


def compact_of(data: bytes, gpu: int) -> bytes:
    source = BytesSource(data)
    code = scan(source)
    assert code is not None
    spans = blankable(code, gpu)
    elf = read_elf(source)
    plan = layout(source, elf, spans)
    assert plan is not None
    made = b"".join(compacted(source, elf, spans, plan))
    assert len(made) == plan.size
    return made


BIG = library(fat((OLD, 300_000), (NEW, 200_000), (PTX, 5000)), fat((OLD, 90_000)), fat((NEW, 70_000)))


def test_blanking_changes_payloads_that_cannot_load_and_nothing_else():
    made = blank_of(BIG, 103)
    assert len(made) == len(BIG)
    proof = prove(BytesSource(BIG), BytesSource(made), 103)
    assert (proof.kept, proof.blanked, proof.cut) == (3, 2, 0)
    changed = [i for i in range(0, len(BIG), 64) if BIG[i : i + 64] != made[i : i + 64]]
    assert len(changed) * 64 <= 390_064 + 256


def test_compaction_cuts_the_file_and_keeps_the_memory():
    made = compact_of(BIG, 103)
    assert len(BIG) - len(made) > 370_000
    proof = prove(BytesSource(BIG), BytesSource(made), 103)
    assert (proof.kept, proof.blanked) == (3, 2)
    assert proof.cut == len(BIG) - len(made)


def test_a_compacted_file_reads_alike():
    before, after = read(blank_of(BIG, 103)), read(compact_of(BIG, 103))
    assert (before.read_by, after.read_by) == ("sections", "segments")
    shape = [[(e.code, e.size, e.blank) for e in f.container.entries] for f in before.found]
    assert [[(e.code, e.size, e.blank) for e in f.container.entries] for f in after.found] == shape
    assert [e.blank for f in after.found for e in f.container.entries] == [True, False, False, True, False]


def test_a_compacted_file_without_section_table_reads_alike():
    made = bytearray(compact_of(BIG, 103))
    made[40:48] = bytes(8)
    assert [f.container for f in read(bytes(made)).found] == [
        f.container for f in read(compact_of(BIG, 103)).found
    ]


def test_a_compacted_file_is_not_edited_again():
    made = compact_of(BIG, 103)
    assert blankable(read(made), 120) == []
    with pytest.raises(NotProven, match="compacted"):
        prove(BytesSource(made), BytesSource(made), 103)


def test_layout_of_a_compacted_file():
    made = compact_of(BIG, 103)
    elf = read_elf(BytesSource(made))
    assert any(s.name == ".nv_fatbin" and s.type == SHT_NOBITS for s in elf.sections)
    for load in elf.loads:
        assert (load.vaddr - load.offset) % PAGE == 0
        assert (load.vaddr - load.offset) % load.align == 0
        # the program headers lie on no page that a segment maps: its zeroed tail would erase them
        assert load.offset + load.filesz <= elf.phoff // PAGE * PAGE
    assert elf.phoff % 8 == 0 and elf.shoff % 8 == 0
    assert [load.vaddr for load in elf.loads] == sorted(load.vaddr for load in elf.loads)


def test_holes_are_limited_to_the_largest():
    many = library(*(fat((OLD, 70_000 + 8 * i), (NEW, 64)) for i in range(3)))
    assert MAX_HOLES > 3
    assert compact_of(many, 103)
    assert layout(BytesSource(many), read_elf(BytesSource(many)), []) is None


def test_small_payloads_are_only_blanked():
    small = library(fat((OLD, 9000)))
    code = read(small)
    assert layout(BytesSource(small), read_elf(BytesSource(small)), blankable(code, 103)) is None


TAMPERED = [
    ("a kept payload", lambda d: d.replace(payload(NEW, 40), bytes(40)), "differ"),
    ("host code", lambda d: d.replace(b"host code", b"evil code"), "differ"),
    ("data", lambda d: d.replace(b"data" * 100, b"date" * 100), "differ"),
    ("an entry header", lambda d: d.replace(struct.pack("<I", 103), struct.pack("<I", 100)), "differ"),
    ("shorter", lambda d: d[:-2000], "differ|lie within|runs past|sections"),
]


@pytest.mark.parametrize(("what", "change", "message"), TAMPERED, ids=[t[0] for t in TAMPERED])
@pytest.mark.parametrize("make", [blank_of, compact_of])
def test_any_other_change_is_not_proven(make, what, change, message):
    made = make(BIG, 103)
    changed = change(made)
    assert changed != made
    with pytest.raises((NotProven, FormatError), match=message):
        prove(BytesSource(BIG), BytesSource(changed), 103)


def test_a_payload_left_in_is_not_proven():
    with pytest.raises(NotProven, match="is not blank"):
        prove(BytesSource(BIG), BytesSource(BIG), 103)


def test_blanking_for_another_gpu_is_not_proven():
    with pytest.raises(NotProven):
        prove(BytesSource(BIG), BytesSource(blank_of(BIG, 90)), 103)


def test_moved_or_added_segments_are_not_proven():
    made = bytearray(compact_of(BIG, 103))
    phoff = struct.unpack_from("<Q", made, 32)[0]
    count = struct.unpack_from("<H", made, 56)[0]
    for index in range(count):
        for field, size in ((4, 4), (16, 8), (40, 8)):  # flags, vaddr, memsz
            changed = bytearray(made)
            at = phoff + 56 * index + field
            value = int.from_bytes(changed[at : at + size], "little")
            changed[at : at + size] = (value + 1).to_bytes(size, "little")
            with pytest.raises((NotProven, FormatError)):
                prove(BytesSource(BIG), BytesSource(bytes(changed)), 103)


CODES = [
    Code(k, n, s) for k in ("elf", "ptx", "other") for n in (80, 90, 100, 103, 120) for s in ("", "a", "f")
]

SIZES = [1, 700, 65_536, 70_000, 200_001]


@settings(max_examples=60, deadline=None)
@given(
    containers=st.lists(
        st.lists(st.tuples(st.sampled_from(CODES), st.sampled_from(SIZES)), min_size=1, max_size=4),
        min_size=1, max_size=4,
    ),
    gpu=st.sampled_from([90, 100, 103, 120, 121]),
)  # fmt: skip
def test_any_library_survives(containers, gpu):
    """Blanked and compacted files are proven; every entry that could load is byte for byte there."""
    data = library(*(fat(*items) for items in containers))
    source = BytesSource(data)
    code = read(data)
    spans = blankable(code, gpu)
    elf = read_elf(source)
    plan = layout(source, elf, spans)
    files = [b"".join(blanked(source, spans, 0, len(data)))]
    if plan is not None:
        files.append(b"".join(compacted(source, elf, spans, plan)))
    for made in files:
        prove(source, BytesSource(made), gpu)
        image = MemoryImage(BytesSource(made), read_elf(BytesSource(made)).loads)
        for entry in (e for f in code.found for e in f.container.entries):
            want = data[entry.at : entry.at + entry.size]
            got = image.read(0x10000 + entry.at, entry.size)
            assert got == (want if loadable(entry.code, gpu) else bytes(len(want)))


@pytest.mark.subprocess
def test_the_loader_maps_what_the_proof_says(tmp_path):
    """A real library with 1 MB of GPU code, compacted, loaded by ld.so, read back; it can still throw."""
    fatbin = fat((OLD, 500_000), (NEW, 300_000), (Code("elf", 80), 400_000))
    (tmp_path / "code.bin").write_bytes(fatbin)
    (tmp_path / "lib.cpp").write_text(
        '__asm__(".section .nv_fatbin,\\"a\\"\\n.align 8\\n.globl code\\n'
        'code: .incbin \\"code.bin\\"\\n.previous\\n");\n'
        "extern const unsigned char code[];\n"
        "static int counters[5000]; int start = 7;\n"
        'extern "C" const unsigned char *where() { return code; }\n'
        'extern "C" int bump(int i) { return ++counters[i] + start; }\n'
        'extern "C" int thrown() { try { throw 5; } catch (int x) { return x; } }\n'
    )
    plain, small = tmp_path / "libplain.so", tmp_path / "libsmall.so"
    command = ["g++", "-shared", "-fPIC", "-O1", "-o", str(plain), "lib.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)
    data = plain.read_bytes()
    made = compact_of(data, 103)
    prove(BytesSource(data), BytesSource(made), 103)
    assert len(data) - len(made) > 850_000
    small.write_bytes(made)
    lib = ctypes.CDLL(str(small))
    lib.where.restype = ctypes.c_void_p
    seen = ctypes.string_at(lib.where(), len(fatbin))
    assert lib.bump(4999) == 8 and lib.bump(4999) == 9 and lib.bump(0) == 8
    assert lib.thrown() == 5
    at = 16
    for code, size in ((OLD, 500_000), (NEW, 300_000), (Code("elf", 80), 400_000)):
        assert seen[at : at + 64] == fatbin[at : at + 64]
        want = payload(code, size) if loadable(code, 103) else bytes(size)
        assert seen[at + 64 : at + 64 + size] == want
        at += 64 + size


def test_real_nvcc_output_is_blanked_for_each_gpu():
    data = (DATA / "libtiny.so").read_bytes()
    for gpu, kept in ((80, 1), (90, 1), (100, 1), (103, 2), (120, 2), (75, 0)):
        proof = prove(BytesSource(data), BytesSource(blank_of(data, gpu)), gpu)
        assert proof.kept == 2 * kept, gpu
