# SPDX-License-Identifier: Apache-2.0
"""A libcuda.so to link against where no NVIDIA driver is installed.

The CUDA toolkit on the Python index has no stub library, and JIT builds link with -lcuda. The
stub is a minimal x86-64 shared object (System V gABI): every driver function declared in cuda.h,
all at one piece of code that returns CUDA_ERROR_STUB_LIBRARY (34). It lies in lib/stubs, off the
loader's path, so that it never shadows the driver's own library.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

SONAME = "libcuda.so.1"
_DECLARED = re.compile(r"CUresult\s+CUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_ALIAS = re.compile(r"#\s*define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_PT[SD][SZ]\()?(cu[A-Z]\w*)")
_CODE = b"\xb8\x22\x00\x00\x00\xc3"  # mov eax, 34; ret
_PAGE = 0x1000
_EM_X86_64, _ET_DYN = 62, 3
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14


def declared_functions(header: str) -> list[str]:
    """Return the driver functions that cuda.h declares or renames, sorted."""
    names = set(_DECLARED.findall(header))
    for alias, real in _ALIAS.findall(header):
        names |= {alias, real}
    return sorted(names)


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    data: bytes
    align: int
    link: int = 0
    info: int = 0
    entry_size: int = 0


def _sysv_hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def _hash_table(names: list[str]) -> bytes:
    buckets = max(1, len(names) // 2)
    heads, chains = [0] * buckets, [0] * (len(names) + 1)
    for index, name in enumerate(names, 1):
        slot = _sysv_hash(name) % buckets
        chains[index], heads[slot] = heads[slot], index
    words = [buckets, len(chains), *heads, *chains]
    return struct.pack(f"<{len(words)}I", *words)


def _align(value: int, to: int) -> int:
    return -(-value // to) * to


def build_stub(names: list[str]) -> bytes:
    """Return the bytes of a shared object with SONAME libcuda.so.1 that defines `names`.

    The same names give the same bytes. Raises ValueError for an empty list.
    """
    if not names:
        raise ValueError("no functions to define")
    strings = b"\0" + SONAME.encode() + b"\0"
    offsets = []
    for name in names:
        offsets.append(len(strings))
        strings += name.encode() + b"\0"
    headers = 64 + 4 * 56
    layout: dict[str, int] = {}
    position = _align(headers, 16)
    sizes = {
        ".hash": 4 * (2 + max(1, len(names) // 2) + len(names) + 1),
        ".dynsym": 24 * (len(names) + 1),
        ".dynstr": len(strings),
        ".text": len(_CODE),
    }
    for name, size in sizes.items():
        position = _align(position, 16)
        layout[name] = position
        position += size
    text_end = position
    layout[".dynamic"] = _align(position, _PAGE)
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", offset, 0x12, 0, 4, layout[".text"], len(_CODE)) for offset in offsets
    )
    dynamic = b"".join(
        struct.pack("<qQ", tag, value)
        for tag, value in (
            (_DT_SONAME, 1),
            (_DT_HASH, layout[".hash"]),
            (_DT_STRTAB, layout[".dynstr"]),
            (_DT_SYMTAB, layout[".dynsym"]),
            (_DT_STRSZ, len(strings)),
            (_DT_SYMENT, 24),
            (0, 0),
        )
    )
    sections = [
        _Section(".hash", 5, 2, _hash_table(names), 8, link=2, entry_size=4),
        _Section(".dynsym", 11, 2, symbols, 8, link=3, info=1, entry_size=24),
        _Section(".dynstr", 3, 2, strings, 1),
        _Section(".text", 1, 6, _CODE, 16),
        _Section(".dynamic", 6, 3, dynamic, 8, link=3, entry_size=16),
    ]
    return _write(sections, layout, text_end, len(dynamic))


def _write(sections: list[_Section], layout: dict[str, int], text_end: int, dynamic_size: int) -> bytes:
    """Lay out file header, program headers, sections and section headers."""
    dynamic_at = layout[".dynamic"]
    names = b"\0"
    name_at = []
    for section in [*sections, _Section(".shstrtab", 3, 0, b"", 1)]:
        name_at.append(len(names))
        names += section.name.encode() + b"\0"
    names_at = dynamic_at + dynamic_size
    table_at = _align(names_at + len(names), 8)

    def program(kind: int, flags: int, at: int, size: int, align: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)

    def header(name: int, section: _Section, at: int, size: int, address: int) -> bytes:
        return struct.pack(
            "<IIQQQQIIQQ",
            name,
            section.kind,
            section.flags,
            address,
            at,
            size,
            section.link,
            section.info,
            section.align,
            section.entry_size,
        )

    out = bytearray(table_at)
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    count = len(sections) + 2
    out[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH",
        ident,
        _ET_DYN,
        _EM_X86_64,
        1,
        0,
        64,
        table_at,
        0,
        64,
        56,
        4,
        64,
        count,
        count - 1,
    )
    out[64 : 64 + 4 * 56] = (
        program(_PT_LOAD, 5, 0, text_end, _PAGE)
        + program(_PT_LOAD, 6, dynamic_at, dynamic_size, _PAGE)
        + program(_PT_DYNAMIC, 6, dynamic_at, dynamic_size, 8)
        + program(_PT_GNU_STACK, 6, 0, 0, 16)
    )
    table = bytes(64)
    for section, name in zip(sections, name_at, strict=False):
        at = layout[section.name]
        out[at : at + len(section.data)] = section.data
        table += header(name, section, at, len(section.data), at)
    out[names_at : names_at + len(names)] = names
    table += header(name_at[-1], _Section("", 3, 0, b"", 1), names_at, len(names), 0)
    return bytes(out) + table
