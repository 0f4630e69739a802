# SPDX-License-Identifier: Apache-2.0
"""Make small .deb files and ELF libraries for tests."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

CONTROL = "Package: {name}\nVersion: 1.0-1\nArchitecture: amd64\nMaintainer: A <a@example.org>\n"


def member(
    path: str,
    content: bytes = b"",
    kind: bytes = tarfile.REGTYPE,
    *,
    mode: int = 0o644,
    link: str = "",
    owner: tuple[int, int] = (0, 0),
) -> tuple[tarfile.TarInfo, bytes]:
    """Return one tar member; `path` is written as it is."""
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.linkname, info.size = kind, mode, link, len(content)
    info.uid, info.gid = owner
    return info, content


def folder(path: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return member(path, kind=tarfile.DIRTYPE, mode=mode)


def symlink(path: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(path, kind=tarfile.SYMTYPE, mode=0o777, link=target)


def hardlink(path: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(path, kind=tarfile.LNKTYPE, link=target)


def tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def ar(*members: tuple[str, bytes]) -> bytes:
    out = b"!<arch>\n"
    for name, content in members:
        out += b"%-16s%-12d%-6d%-6d%-8s%-10d`\n" % (name.encode(), 0, 0, 0, b"100644", len(content))
        out += content + b"\n" * (len(content) % 2)
    return out


def deb_bytes(
    data: bytes, control: Mapping[str, bytes], *, suffix: str = ".xz", version: bytes = b"2.0\n"
) -> bytes:
    """Return a .deb with the data tar `data`."""
    packers: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.compress, ".gz": gzip.compress, "": bytes}
    pack = packers[suffix]
    meta = tar(folder("./"), *(member(f"./{name}", content) for name, content in control.items()))
    return ar(
        ("debian-binary", version), (f"control.tar{suffix}", pack(meta)), (f"data.tar{suffix}", pack(data))
    )


def make_deb(
    where: Path, name: str, *members: tuple[tarfile.TarInfo, bytes], fields: str = "", **control: bytes
) -> Path:
    """Write `name`_1.0-1_amd64.deb below `where`; `fields` are more control fields, each with a newline."""
    text = CONTROL.format(name=name) + fields
    files = {"control": text.encode(), **control}
    path = where / f"{name}_1.0-1_amd64.deb"
    path.write_bytes(deb_bytes(tar(folder("./"), *members), files))
    return path


def elf(soname: str | None, *, machine: int = 62, kind: int = 3) -> bytes:
    """Return the least ELF file that a loader cache can list: one load and one dynamic segment."""
    names = b"\0" + (soname.encode() + b"\0" if soname else b"")
    dynamic_at, names_at = 64 + 2 * 56, 64 + 2 * 56 + 48
    tags = [(5, names_at)] + ([(14, 1)] if soname else []) + [(0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags).ljust(48, b"\0")
    size = names_at + len(names)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    head += struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    head += struct.pack("<IIQQQQQQ", 2, 4, dynamic_at, dynamic_at, dynamic_at, 48, 48, 8)
    return head + dynamic + names
