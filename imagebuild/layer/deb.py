# SPDX-License-Identifier: Apache-2.0
"""Read .deb files (deb(5)) without running anything in them: control files and data entries."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from imagebuild.layer.debtar import Head, Member, Unpacked, ar_members, member, tar_headers
from imagebuild.layer.entries import Entry, LayerError, safe_path
from imagebuild.layer.spool import PIECE, Spool

__all__ = ["DEFAULT_LIMIT", "Deb", "Spool", "parse_stanzas", "read_control", "read_deb"]

DEFAULT_LIMIT = 1 << 30
_CONTROL_LIMIT = 16 << 20
# deb-control(5)
_FIELDS = {
    "Package": r"[a-z0-9][a-z0-9+.-]+",
    "Version": r"[A-Za-z0-9.+:~-]+",
    "Architecture": r"[a-z0-9-]+",
}


@dataclass(frozen=True)
class Deb:
    """The content of one .deb.

    `control` holds the control archive's files by name (`control`, `md5sums`, `conffiles`, `triggers`,
    scripts ...), `entries` the data archive in its own order, with paths as packaged (`bin/sh`, not yet
    merged into `usr`).
    """

    file: str
    control: Mapping[str, bytes]
    entries: tuple[Entry, ...]

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the control file."""
        return parse_stanzas(self.control["control"].decode())[0]


def read_deb(path: Path, spool: Spool, *, limit: int = DEFAULT_LIMIT) -> Deb:
    """Read one .deb; its file content goes to `spool`.

    `limit` is the most bytes its data archive may unpack to. Raises LayerError, naming the deb and the
    member, for anything that is not a plain, complete package.
    """
    with open(path, "rb") as stream:
        members = ar_members(stream, path.name)
        control = _control(stream, members, path.name)
        file = _file_name(path, control)
        name, offset, size = member(members, "data.tar", file)
        tar = Unpacked(stream, offset, size, limit, f"{file}: {name}")
        return Deb(file, control, tuple(_entries(tar, spool, file)))


def read_control(path: Path) -> dict[str, bytes]:
    """Return the files of a .deb's control archive by name.

    Raises LayerError as `read_deb` does.
    """
    with open(path, "rb") as stream:
        return _control(stream, ar_members(stream, path.name), path.name)


def parse_stanzas(text: str) -> list[dict[str, str]]:
    """Read deb822 stanzas (deb-control(5)): field name -> value, continuation lines kept with newlines."""
    stanzas: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    key = ""
    for line in text.split("\n"):
        if not line.strip():
            if fields:
                stanzas.append(fields)
            fields, key = {}, ""
        elif line[0] in " \t":
            if key:
                fields[key] += "\n" + line
        elif not line.startswith("#"):
            key, _, value = line.partition(":")
            fields[key] = value.strip()
    if fields:
        stanzas.append(fields)
    return stanzas


def _file_name(path: Path, control: Mapping[str, bytes]) -> str:
    """Return the package's file name for messages; in a store, the file itself is called by its hash."""
    fields = parse_stanzas(control["control"].decode())[0]
    if path.name.startswith(fields["Package"] + "_"):
        return path.name
    return "_".join(fields.get(key, "") for key in ("Package", "Version", "Architecture")) + ".deb"


def _check_fields(control: Mapping[str, bytes], where: str) -> None:
    """Refuse a control file without the fields that become file names below /var/lib/dpkg."""
    try:
        stanzas = parse_stanzas(control["control"].decode())
    except (KeyError, UnicodeDecodeError) as error:
        raise LayerError(f"{where}: has no readable file called control") from error
    fields = stanzas[0] if stanzas else {}
    for key, pattern in _FIELDS.items():
        value = fields.get(key, "")
        if not re.fullmatch(pattern, value):
            raise LayerError(f"{where}: control: {key} is {value!r}; allowed: {pattern}")


def _control(stream: IO[bytes], members: Sequence[Member], origin: str) -> dict[str, bytes]:
    name, offset, size = member(members, "control.tar", origin)
    tar = Unpacked(stream, offset, size, _CONTROL_LIMIT, f"{origin}: {name}")
    control: dict[str, bytes] = {}
    for head in tar_headers(tar, origin):
        if head.kind == "dir":
            continue
        if head.kind != "file" or "/" in head.path:
            raise LayerError(f"{origin}: {name}: {head.path}: only plain files belong there")
        control[head.path] = tar.read(head.size)
        tar.skip(-head.size % 512)
    _check_fields(control, f"{origin}: {name}")
    return control


def _entries(tar: Unpacked, spool: Spool, origin: str) -> Iterator[Entry]:
    files: dict[str, Entry] = {}
    for head in tar_headers(tar, origin):
        if not head.path:
            if head.kind != "dir":
                raise LayerError(f"{origin}: its root is a {head.kind}")
            continue
        if head.kind == "file":
            pieces = tuple(_spooled(tar, spool, head.size))
            tar.skip(-head.size % 512)
            entry = Entry(
                head.path, "file", head.mode, head.uid, head.gid, head.size, open=_opener(spool, pieces)
            )
            files[head.path] = entry
        elif head.kind == "dir":
            entry = Entry(head.path, "dir", head.mode, head.uid, head.gid)
        elif head.kind == "symlink":
            _check_link(head, origin)
            entry = Entry(head.path, "symlink", 0o777, head.uid, head.gid, target=head.target)
        else:
            target = safe_path(head.target, f"{origin}: {head.path}")
            if target not in files or target == head.path:
                raise LayerError(
                    f"{origin}: {head.path}: hard link to {target}, which is no earlier file of the package"
                )
            shared = files[target]
            entry = Entry(head.path, "hardlink", shared.mode, shared.uid, shared.gid, target=target)
        yield entry


def _spooled(tar: Unpacked, spool: Spool, size: int) -> Iterator[tuple[int, int]]:
    while size:
        piece = spool.add(tar.read(min(size, PIECE)))
        size -= piece[1]
        yield piece


def _opener(spool: Spool, pieces: tuple[tuple[int, int], ...]) -> Callable[[], IO[bytes]]:
    return lambda: spool.open(pieces)


def _check_link(head: Head, origin: str) -> None:
    """Refuse a relative symbolic link that climbs above the image root."""
    if not head.target or "\0" in head.target:
        raise LayerError(f"{origin}: {head.path}: a symbolic link without target")
    if not head.target.startswith("/"):
        full = posixpath.normpath(posixpath.join(posixpath.dirname(head.path), head.target))
        if full == ".." or full.startswith("../"):
            raise LayerError(f"{origin}: {head.path}: link to {head.target!r} leaves the image root")
