# SPDX-License-Identifier: Apache-2.0
"""Made GPU files: fat binaries and shared objects whose every byte a test decides."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from imagebuild.layer.binary import BytesSource
from imagebuild.layer.gpucode import Code
from imagebuild.layer.scan import FileCode, scan

PAGE = 4096
MAGIC = 0xBA55ED50
FLAGS = {"": 0, "a": 0x100000, "f": 0x200000}
KINDS = {"ptx": 1, "elf": 2, "other": 8}


def fat_entry(code: Code, payload: bytes, header: int = 64) -> bytes:
    payload += bytes(-len(payload) % 8)
    head = struct.pack(
        "<HHIQIIHHIIIQQQ", KINDS[code.kind], 0x101, header, len(payload), 0, 0, 0, 1, code.arch, 0, 0,
        FLAGS[code.suffix], 0, 0,
    )  # fmt: skip
    return head + bytes(header - 64) + payload


def fat_container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


def payload(code: Code, size: int) -> bytes:
    """Bytes that are never zero, differ per code, and begin like a cubin."""
    text = f"{code}|".encode()
    return (b"\x7fELF" + text * (size // len(text) + 1))[:size]


def fat(*items: tuple[Code, int]) -> bytes:
    """One container with an entry of `size` payload bytes for each code."""
    return fat_container(*(fat_entry(code, payload(code, size)) for code, size in items))


@dataclass
class Made:
    """A shared object under construction: named sections, each in a segment of its own."""

    sections: list[tuple[str, bytes]]
    machine: int = 62

    def build(self) -> bytes:
        """ELF64 with one PT_LOAD for the headers and one per section, page aligned; addr = offset + base."""
        base = 0x10000
        names = b"\0"
        offsets, where = [], PAGE
        for name, data in self.sections:
            offsets.append((len(names), where, len(data)))
            names += name.encode() + b"\0"
            where += len(data) + (-len(data) % PAGE)
        strtab_name = len(names)
        names += b".shstrtab\0"
        body = bytearray(where)
        for (_, at, size), (_, data) in zip(offsets, self.sections, strict=True):
            body[at : at + size] = data
        names_at = len(body)
        body += names + bytes(-len(names) % 8)
        table = bytes(64)
        for name_at, at, size in offsets:
            table += struct.pack("<IIQQQQIIQQ", name_at, 1, 2, base + at, at, size, 0, 0, 8, 0)
        table += struct.pack("<IIQQQQIIQQ", strtab_name, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
        shoff = len(body)
        body += table
        segments = struct.pack("<IIQQQQQQ", 1, 4, 0, base, base, PAGE, PAGE, PAGE)
        for _, at, size in offsets:
            segments += struct.pack("<IIQQQQQQ", 1, 4, at, base + at, base + at, size, size, PAGE)
        segments += struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
        count = len(segments) // 56
        header = struct.pack(
            "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 3, self.machine, 1, 0, 64, shoff, 0,
            64, 56, count, 64, len(self.sections) + 2, len(self.sections) + 1,
        )  # fmt: skip
        body[: len(header)] = header
        body[64 : 64 + len(segments)] = segments
        return bytes(body)


def library(*containers: bytes, text: bytes = b"host code") -> bytes:
    """A shared object with these containers in .nv_fatbin, and some other bytes."""
    return Made([(".text", text), (".nv_fatbin", b"".join(containers)), (".data", b"data" * 100)]).build()


def read(data: bytes, name: str = "") -> FileCode:
    found = scan(BytesSource(data), name)
    assert found is not None
    return found


def codes(data: bytes, name: str = "") -> list[str]:
    return [str(entry.code) for f in read(data, name).found for entry in f.container.entries]
