# SPDX-License-Identifier: Apache-2.0
"""Loose GPU code: a cubin is an ELF file of machine EM_CUDA, PTX is text.

A cubin's e_flags hold the arch number only (bits 8-15 from ABI version 8 on, bits 0-7 before). The
suffix is in the ptxas command line of .note.nv.tkinfo; where that note is missing, in .nv.compat, a list of
(u8 format, u8 attribute, u16 value): attribute 9 = 1 or 2 = 3 says a, 2 = 2 says f (calibrated with
nvcc 12.9 and 13.0 on all -gencode forms). 2 = 2 on a later number of a family (sm_103) reads as a,
as cuobjdump 13.5 has it for the 60 such files of flashinfer-cubin; a and f load on the same GPUs there.
"""

from __future__ import annotations

import re

from imagebuild.layer.binary import FormatError, Source
from imagebuild.layer.elf import SHT_NOBITS, Elf
from imagebuild.layer.gpucode import Code, Suffix

_NOTE_LIMIT = 1 << 20
_PTX_HEAD = 1 << 16
_PTX_TARGET = re.compile(rb"^[ \t]*\.target[ \t]+sm_([0-9]{2,3})([af]?)", re.MULTILINE)
_PTX_VERSION = re.compile(rb"^[ \t]*\.version[ \t]+[0-9]+\.[0-9]+", re.MULTILINE)


def cubin_code(source: Source, elf: Elf) -> Code:
    """Return what a bare cubin was compiled for. Raises FormatError if its sections lie."""
    number = (elf.flags >> 8) & 0xFF if elf.abi_version >= 8 else elf.flags & 0xFF
    notes = {
        section.name: source.read(section.offset, min(section.size, _NOTE_LIMIT))
        for section in elf.sections
        if section.name in (".nv.compat", ".note.nv.tkinfo") and section.type != SHT_NOBITS
    }
    found = re.search(rb"sm_%d([af]?)" % number, notes.get(".note.nv.tkinfo", b""))
    if found:
        return Code("elf", number, found[1].decode("ascii"))  # type: ignore[arg-type]
    return Code("elf", number, _compat_suffix(notes.get(".nv.compat", b""), number))


def _compat_suffix(items: bytes, number: int) -> Suffix:
    at, suffix = 0, ""
    while at + 4 <= len(items):
        form, attribute, value = items[at], items[at + 1], items[at + 2] | items[at + 3] << 8
        if (attribute, value) in ((9, 1), (2, 3)):
            suffix = "a"
        elif (attribute, value) == (2, 2):
            suffix = "a" if number % 10 else "f"
        at += 4 + (value if form == 4 else 0)
    return suffix  # type: ignore[return-value]


def ptx_code(source: Source) -> Code:
    """Return what a PTX file is for. Raises FormatError if it names no target."""
    head = source.read(0, min(source.size, _PTX_HEAD))
    target = _PTX_TARGET.search(head)
    if target is None or _PTX_VERSION.search(head) is None:
        raise FormatError("no .version and .target in the first 64 KiB: not PTX")
    return Code("ptx", int(target[1]), target[2].decode("ascii"))  # type: ignore[arg-type]
