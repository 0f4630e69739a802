# SPDX-License-Identifier: Apache-2.0
"""A wheel's files as entries at their installed paths (PyPA binary distribution format 1.0).

Nothing is read until an entry is opened, so a layer of gigabytes needs little memory.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import posixpath
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from installer.scripts import Script
from installer.utils import parse_entrypoints

from imagebuild.layer.entries import Entry, LayerError, file_entry, safe_path

_handles = threading.local()
_S_IFMT, _S_IFREG = 0o170000, 0o100000


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


def _archive(path: Path) -> zipfile.ZipFile:
    """Return this thread's handle of a wheel (a shared handle would make threads take turns)."""
    cache: dict[Path, zipfile.ZipFile] = _handles.__dict__.setdefault("archives", {})
    if path not in cache:
        try:
            cache[path] = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise LayerError(f"{path.name}: not a wheel: {error}") from error
    return cache[path]


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


def _member(path: Path, info: zipfile.ZipInfo, target: str) -> Entry:
    def open_member() -> IO[bytes]:
        return _archive(path).open(info.filename)

    mode = 0o755 if (info.external_attr >> 16) & 0o111 else 0o644
    return Entry(target, "file", mode, size=info.file_size, open=open_member)


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
    device, or a member twice.
    """
    archive = _archive(path)
    infos = [info for info in archive.infolist() if not info.is_dir()]
    names = [info.filename for info in infos]
    if len(set(names)) != len(names):
        raise LayerError(f"{path.name}: holds the same member twice")
    dist_info = _single(names, ".dist-info", path.name)
    data_folder = dist_info.removesuffix(".dist-info") + ".data"
    project = dist_info.split("-", 1)[0]
    record_path = f"{scheme.site}/{dist_info}/RECORD"
    hashes = _record_hashes(archive, dist_info)
    entries: dict[str, Entry] = {}
    rows: dict[str, tuple[str, str]] = {}
    for info in infos:
        kind = (info.external_attr >> 16) & _S_IFMT
        if kind not in (0, _S_IFREG):
            raise LayerError(f"{path.name}: {info.filename} is not a regular file")
        name = safe_path(info.filename, path.name)
        if name in {f"{dist_info}/{n}" for n in ("RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER")}:
            continue
        target, is_script = _installed_path(name, data_folder, project, scheme)
        entry = _member(path, info, target)
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


def _record_hashes(archive: zipfile.ZipFile, dist_info: str) -> dict[str, str]:
    try:
        text = archive.read(f"{dist_info}/RECORD").decode("utf-8")
    except KeyError:
        raise LayerError(f"{archive.filename}: has no RECORD") from None
    return {row[0]: row[1] for row in csv.reader(io.StringIO(text)) if len(row) == 3}


def _generated(archive: zipfile.ZipFile, dist_info: str, scheme: Scheme) -> list[Entry]:
    """Return INSTALLER and the scripts of the wheel's entry points."""
    made = [file_entry(f"{scheme.site}/{dist_info}/INSTALLER", b"imagebuild\n")]
    try:
        text = archive.read(f"{dist_info}/entry_points.txt").decode("utf-8")
    except KeyError:
        return made
    for name, module, attr, section in parse_entrypoints(text):
        script = Script(name, module, attr, section)
        file_name, content = script.generate(scheme.interpreter, kind="posix")
        target = safe_path(f"{scheme.prefix}/bin/{file_name}", f"{dist_info} entry point {name}")
        made.append(file_entry(target, content, 0o755))
    return made
