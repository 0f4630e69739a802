# SPDX-License-Identifier: Apache-2.0
"""A wheel's files as entries at their installed paths (PyPA binary distribution format 1.0).

Nothing is read until an entry is opened, so a layer of gigabytes needs little memory.
"""

from __future__ import annotations

import base64
import configparser
import csv
import functools
import hashlib
import io
import posixpath
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from installer.scripts import Script
from installer.utils import parse_entrypoints

from imagebuild.layer.archive import Archive
from imagebuild.layer.entries import Entry, LayerError, file_entry, safe_path

_S_IFMT, _S_IFREG = 0o170000, 0o100000
_NOT_INSTALLED = ("RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER")
_ROW = ("path", "hash", "size")
_DIGEST = re.compile(r"(?:sha256|sha384|sha512)=[A-Za-z0-9_-]+=*")


@dataclass(frozen=True)
class Scheme:
    """Where wheels are installed: `prefix` and `python` ("3.11"), paths relative to the image root."""

    prefix: str
    python: str

    @property
    def site(self) -> str:
        """The site-packages folder."""
        return f"{self.prefix}/lib/python{self.python}/site-packages"

    @property
    def interpreter(self) -> str:
        """The absolute path of the interpreter that scripts start."""
        return f"/{self.prefix}/bin/python"


def _single(names: list[str], suffix: str, origin: str) -> str:
    found = sorted({n.split("/", 1)[0] for n in names if n.split("/", 1)[0].endswith(suffix)})
    if len(found) != 1:
        raise LayerError(f"{origin}: has {len(found)} {suffix} folders, must have one")
    return found[0]


def _installed_path(name: str, data_folder: str, project: str, scheme: Scheme) -> tuple[str, bool]:
    """Map a wheel member to its image path; the flag says whether it is a script."""
    if not name.startswith(data_folder + "/"):
        return f"{scheme.site}/{name}", False
    key, _, rest = name[len(data_folder) + 1 :].partition("/")
    roots = {
        "purelib": scheme.site,
        "platlib": scheme.site,
        "scripts": f"{scheme.prefix}/bin",
        "data": scheme.prefix,
        "headers": f"{scheme.prefix}/include/site/python{scheme.python}/{project}",
    }
    if key not in roots or not rest:
        raise LayerError(f"{name}: unknown part of a wheel's data folder; allowed: {', '.join(roots)}")
    return f"{roots[key]}/{rest}", key == "scripts"


def _member(archive: Archive, info: zipfile.ZipInfo, target: str) -> Entry:
    mode = 0o755 if (info.external_attr >> 16) & 0o111 else 0o644
    opener = functools.partial(archive.open, info.filename)
    return Entry(target, "file", mode, size=info.file_size, open=opener)


def _fix_shebang(entry: Entry, scheme: Scheme) -> Entry:
    """Give a script of the wheel the image's interpreter, as the format's `#!python` asks."""
    content = entry.read()
    if content.startswith(b"#!python"):
        _, _, rest = content.partition(b"\n")
        content = f"#!{scheme.interpreter}\n".encode() + rest
    return file_entry(entry.path, content, 0o755)


def _hash(content: bytes) -> str:
    raw = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={raw.decode()}"


def wheel_entries(path: Path, scheme: Scheme) -> list[Entry]:
    """Return the files that installing the wheel at `path` creates, sorted by path.

    Scripts, data files and console entry points go where the format says; RECORD and INSTALLER
    are written anew. Raises LayerError for a file that is no wheel, an unsafe path, a link or
    device, a member twice, or a RECORD or entry points that cannot be read; a damaged member
    raises it when its entry is read.
    """
    archive = Archive(path)
    infos = [info for info in archive.members.values() if not info.is_dir()]
    dist_info = _single([info.filename for info in infos], ".dist-info", path.name)
    data_folder = dist_info.removesuffix(".dist-info") + ".data"
    project = dist_info.split("-", 1)[0]
    record_path = f"{scheme.site}/{dist_info}/RECORD"
    hashes = _record_hashes(archive, f"{dist_info}/RECORD")
    entries: dict[str, Entry] = {}
    rows: dict[str, tuple[str, str]] = {}
    for info in infos:
        kind = (info.external_attr >> 16) & _S_IFMT
        if kind not in (0, _S_IFREG):
            raise LayerError(f"{path.name}: {info.filename} is not a regular file")
        name = safe_path(info.filename, path.name)
        if name in {f"{dist_info}/{n}" for n in _NOT_INSTALLED}:
            continue
        target, is_script = _installed_path(name, data_folder, project, scheme)
        entry = _member(archive, info, target)
        if is_script:
            entry = _fix_shebang(entry, scheme)
            rows[target] = (_hash(entry.read()), str(entry.size))
        else:
            rows[target] = (hashes.get(info.filename, ""), str(info.file_size))
        if target in entries:
            raise LayerError(f"{path.name}: two members become /{target}")
        entries[target] = entry
    for extra in _generated(archive, dist_info, scheme):
        entries[extra.path] = extra
        rows[extra.path] = (_hash(extra.read()), str(extra.size))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for target in sorted(rows):
        writer.writerow((posixpath.relpath(target, scheme.site), *rows[target]))
    writer.writerow((posixpath.relpath(record_path, scheme.site), "", ""))
    entries[record_path] = file_entry(record_path, text.getvalue().encode())
    return [entries[key] for key in sorted(entries)]


def _record_hashes(archive: Archive, record: str) -> dict[str, str]:
    """Return RECORD's hash of each member; a row that contradicts the archive is an error."""
    hashes: dict[str, str] = {}
    try:
        rows = list(csv.reader(io.StringIO(archive.text(record), newline=""), strict=True))
    except csv.Error as error:
        raise LayerError(f"{archive.origin}: {record}: cannot be read: {error}") from error
    for number, row in enumerate(rows, 1):
        if len(row) != len(_ROW):
            raise LayerError(
                f"{archive.origin}: {record}: row {number} has {len(row)} fields; allowed: {', '.join(_ROW)}"
            )
        name, digest, size = row
        info = archive.members.get(name)
        if digest and not _DIGEST.fullmatch(digest):
            raise LayerError(
                f"{archive.origin}: {record}: {name}: hash {digest!r}; allowed: sha256, sha384 or sha512"
            )
        if info is not None and size and size != str(info.file_size):
            raise LayerError(
                f"{archive.origin}: {record}: {name}: {size!r} bytes, the archive holds {info.file_size}"
            )
        hashes[name] = digest
    return hashes


def _generated(archive: Archive, dist_info: str, scheme: Scheme) -> list[Entry]:
    """Return INSTALLER and the scripts of the wheel's entry points."""
    made = [file_entry(f"{scheme.site}/{dist_info}/INSTALLER", b"imagebuild\n")]
    points = f"{dist_info}/entry_points.txt"
    if points not in archive:
        return made
    try:
        found = list(parse_entrypoints(archive.text(points)))
    except (configparser.Error, AssertionError, ValueError) as error:
        raise LayerError(f"{archive.origin}: {points}: cannot be read: {error!r}") from error
    for name, module, attr, section in found:
        script = Script(name, module, attr, section)
        file_name, content = script.generate(scheme.interpreter, kind="posix")
        target = safe_path(f"{scheme.prefix}/bin/{file_name}", f"{archive.origin}: entry point {name}")
        made.append(file_entry(target, content, 0o755))
    return made
