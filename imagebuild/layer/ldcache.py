# SPDX-License-Identifier: Apache-2.0
"""Write /etc/ld.so.cache as the image's own ldconfig would, without running it.

Format and rules are glibc 2.36's (elf/ldconfig.c, elf/cache.c, elf/stringtable.c, dl-cache.h): a header,
entries sorted from the greatest name down, one string table with shared suffixes, one extension that names
the generator. The engine test compares the bytes with those of the real ldconfig.
"""

from __future__ import annotations

import fnmatch
import functools
import posixpath
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from imagebuild.layer.entries import Entry, LayerError, file_entry, symlink_entry
from imagebuild.layer.tree import children, follow

CONF = "etc/ld.so.conf"
LDCONFIG = "usr/sbin/ldconfig"
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_EXTENSION_MAGIC = 0xEAA42174
# ELF machine -> cache flags of a 64-bit library for libc.so.6 (sysdeps/generic/ldconfig.h)
_FLAGS = {62: 0x0303}


@dataclass(frozen=True)
class Library:
    """One line of `ldconfig -p`: the name programs ask for, its path in the image, its flags."""

    soname: str
    path: str
    flags: int


@dataclass(frozen=True)
class _Candidate:
    name: str
    soname: str
    is_link: bool
    flags: int


def cache_entries(tree: Mapping[str, Entry]) -> list[Entry]:
    """Return what `ldconfig` adds to an image: missing soname links and etc/ld.so.cache.

    Raises LayerError if the image has no ldconfig, or a library or directory this writer does not know.
    """
    libraries: list[Library] = []
    links: list[Entry] = []
    names = children(tree)
    for folder, real in _folders(tree):
        for found in sorted(_scan(tree, real, names.get(real, [])).values(), key=lambda c: c.name):
            path = f"{real}/{found.soname}"
            if not found.is_link and path not in tree:
                links.append(symlink_entry(path, found.name))
            libraries.append(Library(found.soname, f"{folder}/{found.soname}", found.flags))
    program = follow(tree, LDCONFIG)
    if program is None:
        raise LayerError(f"{LDCONFIG}: missing, so nothing says which glibc the loader cache is for")
    cache = encode(libraries, _generator(tree[program].read()))
    return [*links, file_entry("etc/ld.so.cache", cache)]


def encode(libraries: Iterable[Library], generator: str) -> bytes:
    """Return the cache file for `libraries` (any order; of equal names, the first stays first)."""
    ordered = sorted(libraries, key=functools.cmp_to_key(_compare))
    strings, offsets = _string_table([name for lib in ordered for name in (lib.soname, lib.path)])
    base = _HEADER.size + _ENTRY.size * len(ordered)
    extension = base + len(strings)
    extension += -extension % 4
    text = generator.encode()
    parts = [_HEADER.pack(b"glibc-ld.so.cache1.1", len(ordered), len(strings), 2, extension)]
    parts += [
        _ENTRY.pack(lib.flags, base + offsets[lib.soname], base + offsets[lib.path], 0, 0) for lib in ordered
    ]
    parts.append(strings + b"\0" * (extension - base - len(strings)))
    parts.append(struct.pack("<II", _EXTENSION_MAGIC, 1))
    parts.append(struct.pack("<IIII", 0, 0, extension + 24, len(text)))
    return b"".join(parts) + text


def decode(data: bytes) -> list[Library]:
    """Read a cache file back (the part programs use).

    Raises LayerError if it is not one of this format.
    """
    if len(data) < _HEADER.size or not data.startswith(b"glibc-ld.so.cache1.1"):
        raise LayerError("etc/ld.so.cache: not a glibc-ld.so.cache1.1 file")
    count = _HEADER.unpack_from(data)[1]

    def text(offset: int) -> str:
        return data[offset : data.index(b"\0", offset)].decode()

    found = []
    for index in range(count):
        flags, key, value, _, _ = _ENTRY.unpack_from(data, _HEADER.size + index * _ENTRY.size)
        found.append(Library(text(key), text(value), flags))
    return found


def soname(data: bytes) -> tuple[str | None, int] | None:
    """Return (DT_SONAME or None, cache flags) of a shared library, or None if `data` is not one.

    Raises LayerError for a shared library of a machine this writer does not know.
    """
    if len(data) < 64 or data[:4] != b"\x7fELF":
        return None
    kind, machine = struct.unpack_from("<HH", data, 16)
    if kind != 3:
        return None
    if data[4:6] != b"\x02\x01" or machine not in _FLAGS:
        raise LayerError(f"ELF machine {machine}: the loader cache is written for amd64 only")
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", data, start + i * size) for i in range(count)]
    dynamic = next((s for s in segments if s[0] == 2), None)
    if dynamic is None:
        return None
    name = table = None
    for position in range(dynamic[2], dynamic[2] + dynamic[5], 16):
        tag, value = struct.unpack_from("<qQ", data, position)
        if tag == 0:
            break
        if tag == 14:
            name = value
        elif tag == 5:
            table = value
    if name is None or table is None:
        return None, _FLAGS[machine]
    for segment in segments:
        if segment[0] == 1 and segment[3] <= table < segment[3] + segment[5]:
            begin = table - segment[3] + segment[2] + name
            return data[begin : data.index(b"\0", begin)].decode(), _FLAGS[machine]
    return None, _FLAGS[machine]


def _folders(tree: Mapping[str, Entry]) -> list[tuple[str, str]]:
    """Return (path as configured, real path) of each directory ldconfig searches, each once."""
    # Debian's glibc adds its multiarch directories to the two standard ones; ld.so.conf.d names them first.
    wanted = [*_configured(tree, CONF), "/lib", "/usr/lib"]
    found: dict[str, str] = {}
    for folder in wanted:
        real = follow(tree, folder)
        if real is not None and tree[real].kind == "dir":
            found.setdefault(real, "/" + folder.strip("/"))
    for real in found:
        if f"{real}/glibc-hwcaps" in tree:
            raise LayerError(f"{real}/glibc-hwcaps: per-processor libraries are not supported in the base")
    return [(folder, real) for real, folder in found.items()]


def _configured(tree: Mapping[str, Entry], conf: str) -> list[str]:
    if conf not in tree:
        return []
    folders: list[str] = []
    for raw in tree[conf].read().decode().splitlines():
        line = raw.split("#", 1)[0].strip()
        if line.startswith("include "):
            pattern = posixpath.join(posixpath.dirname("/" + conf), line.split(None, 1)[1]).lstrip("/")
            for path in sorted(p for p in tree if fnmatch.fnmatchcase(p, pattern)):
                if posixpath.dirname(path) == posixpath.dirname(pattern):
                    folders += _configured(tree, path)
        elif line:
            folders.append(line)
    return folders


def _scan(tree: Mapping[str, Entry], real: str, names: Iterable[str]) -> dict[str, _Candidate]:
    """Return the library chosen for each soname in one directory (ldconfig's search_dir)."""
    chosen: dict[str, _Candidate] = {}
    for name in names:
        if not name.startswith(("lib", "ld-")) or ".so" not in name:
            continue
        path = f"{real}/{name}"
        is_link = tree[path].kind == "symlink"
        file = follow(tree, path)
        if file is None or tree[file].kind not in ("file", "hardlink"):
            continue
        entry = tree[file]
        shared = tree[entry.target] if entry.kind == "hardlink" else entry
        try:
            found = soname(shared.read())
        except (LayerError, struct.error, ValueError) as error:
            raise LayerError(f"{file}: damaged or unknown library: {error}") from error
        if found is None:
            continue
        wanted = found[0] or name
        # A link called like the soname, or the linker's `.so` link, is listed under its own name.
        if is_link and (name == wanted or (name.endswith(".so") and wanted.startswith(name))):
            wanted = name
        else:
            is_link = False
        new = _Candidate(name, wanted, is_link, found[1])
        old = chosen.get(wanted)
        if (
            old is None
            or (not is_link and old.is_link)
            or (is_link == old.is_link and _name_order(old.name, name) < 0)
        ):
            chosen[wanted] = new
    return chosen


def _generator(program: bytes) -> str:
    match = re.search(rb"ldconfig \([^)\0]*\) [a-z]+ release version [0-9.]+", program)
    if match is None:
        raise LayerError(f"{LDCONFIG}: does not name its glibc version, so it is no glibc ldconfig")
    return match.group().decode()


def _compare(left: Library, right: Library) -> int:
    return _name_order(right.soname, left.soname) or right.flags - left.flags


def _name_order(left: str, right: str) -> int:
    """_dl_cache_libcmp: bytes in order, runs of digits as numbers, digits after everything else."""
    parts = [re.findall(r"\d+|\D", text) for text in (left, right)]
    for one, two in zip(*parts, strict=False):
        if one.isdigit() and two.isdigit():
            if int(one) != int(two):
                return int(one) - int(two)
        elif one.isdigit() or two.isdigit():
            return 1 if one.isdigit() else -1
        elif one != two:
            return ord(one) - ord(two)
    if len(parts[0]) == len(parts[1]):
        return 0
    longer, sign = (parts[0], 1) if len(parts[0]) > len(parts[1]) else (parts[1], -1)
    return sign * ord(longer[min(len(parts[0]), len(parts[1]))][0])


def _string_table(names: Iterable[str]) -> tuple[bytes, dict[str, int]]:
    """Return the string table and each string's offset; a suffix of a string shares its bytes."""
    # Greatest last byte first, then the one before it ...; a string comes after those it is a suffix of.
    ordered = sorted({n.encode() for n in names}, key=lambda s: [*(-byte for byte in reversed(s)), 1])
    table = bytearray()
    offsets: dict[str, int] = {}
    previous, start = b"", 0
    for text in ordered:
        if previous.endswith(text) and previous:
            start += len(previous) - len(text)
        else:
            start = len(table)
            table += text + b"\0"
        offsets[text.decode()] = start
        previous = text
    return bytes(table), offsets
