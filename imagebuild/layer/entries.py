# SPDX-License-Identifier: Apache-2.0
"""`Entry`: one path of a layer, and the two places entries go: a canonical tar or a directory.

A stream of entries is the only form in which files travel between a source (.deb, wheel,
generated file), the transforms and a sink.
"""

from __future__ import annotations

import functools
import io
import os
import posixpath
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

Kind = Literal["file", "dir", "symlink", "hardlink"]


class LayerError(Exception):
    """An artifact cannot become part of a layer; the message names the artifact and the path."""


@dataclass(frozen=True)
class Entry:
    """One path of a layer.

    `path` is relative to the image root, normalised, without a leading slash. `mode` holds
    permission bits only (0 to 0o7777). `target` is the text of a symlink, or for a hard link the
    image path (same form as `path`) of the file it shares. `size` and `open` describe a file's
    content; `open` may be called more than once and returns a new stream each time. An `implied`
    directory is only somebody's parent: it is made if missing and otherwise left as it is.
    """

    path: str
    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    size: int = 0
    target: str = ""
    open: Callable[[], IO[bytes]] | None = None
    implied: bool = False

    def read(self) -> bytes:
        """Return the whole content of a file entry.

        Raises LayerError if the entry is not a file.
        """
        if self.open is None:
            raise LayerError(f"{self.path}: a {self.kind} has no content")
        with self.open() as stream:
            return stream.read()


def file_entry(path: str, content: bytes, mode: int = 0o644, uid: int = 0, gid: int = 0) -> Entry:
    """Return a file entry whose content is in memory."""
    return Entry(path, "file", mode, uid, gid, len(content), open=lambda: io.BytesIO(content))


def dir_entry(path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Entry:
    """Return a directory entry."""
    return Entry(path, "dir", mode, uid, gid)


def symlink_entry(path: str, target: str) -> Entry:
    """Return a symbolic link entry with the link text `target`."""
    return Entry(path, "symlink", 0o777, target=target)


def safe_path(name: str, origin: str) -> str:
    """Return `name` in `Entry.path` form.

    `origin` names the archive in errors. Raises LayerError for a path that is absolute, leaves
    the tree, or holds a NUL or backslash (the ways in which hostile archives escape).
    """
    if not name or "\0" in name or "\\" in name or name.startswith("/"):
        raise LayerError(f"{origin}: refused path {name!r}")
    path = posixpath.normpath(name)
    if path == ".":
        return ""
    if path == ".." or path.startswith("../"):
        raise LayerError(f"{origin}: path {name!r} leaves the image root")
    return path


def merge(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries sorted by path, the last of each path, with every missing parent directory.

    Added parents are root-owned with mode 0755. Raises LayerError where a path is needed both as
    a directory and as something else.
    """
    by_path: dict[str, Entry] = {}
    for entry in entries:
        if entry.path:
            by_path[entry.path] = entry
    for path in list(by_path):
        parent = posixpath.dirname(path)
        while parent:
            found = by_path.get(parent)
            if found is None:
                by_path[parent] = Entry(parent, "dir", 0o755, implied=True)
            elif found.kind != "dir":
                raise LayerError(f"{path}: its parent {parent} is a {found.kind}")
            parent = posixpath.dirname(parent)
    return [by_path[path] for path in sorted(by_path, key=lambda p: p.split("/"))]


def _make_parents(root: Path, path: str, mtime: int) -> Path:
    """Create the missing parents of `path` below `root`, following links inside the image only."""
    current = root
    for part in path.split("/")[:-1]:
        current = current / part
        if current.is_symlink():
            text = os.readlink(current)
            base = root if text.startswith("/") else current.parent
            resolved = (base / text.lstrip("/")).resolve()
            if root.resolve() not in [resolved, *resolved.parents]:
                raise LayerError(f"{path}: {current} is a link that leaves the image root")
            current = resolved
        if not current.exists():
            current.mkdir(mode=0o755)
            os.utime(current, (mtime, mtime))
    return current


def write_directory(entry: Entry, root: Path, mtime: int) -> None:
    """Write one entry below `root` with its mode, owner (when root) and time.

    An existing file is replaced, never written through. Raises LayerError where a directory
    stands in the way, or a parent is a link that leaves `root`.
    """
    target = _make_parents(root, entry.path, mtime) / posixpath.basename(entry.path)
    if entry.kind == "dir":
        existed = target.is_dir()
        if not existed:
            target.mkdir()
        if existed and entry.implied:
            os.utime(target, (mtime, mtime))
            return
        os.chmod(target, entry.mode)
    else:
        if target.is_symlink() or target.exists():
            if target.is_dir() and not target.is_symlink():
                raise LayerError(f"{entry.path}: a directory stands where a {entry.kind} must go")
            target.unlink()
        if entry.kind == "symlink":
            os.symlink(entry.target, target)
        elif entry.kind == "hardlink":
            os.link(root / entry.target, target, follow_symlinks=False)
        else:
            assert entry.open is not None
            with entry.open() as source, open(target, "xb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
            os.chmod(target, entry.mode)
    if os.geteuid() == 0:
        os.chown(target, entry.uid, entry.gid, follow_symlinks=False)
        if entry.kind == "file" and entry.mode & 0o6000:
            os.chmod(target, entry.mode)
    os.utime(target, (mtime, mtime), follow_symlinks=False)


def _open(path: Path) -> IO[bytes]:
    return open(path, "rb")


def read_directory(root: Path, top: str = "") -> Iterator[Entry]:
    """Yield an entry for everything below `root`/`top`, in sorted order; devices are skipped."""
    base = root / top if top else root
    for name in sorted(os.listdir(base)):
        path = f"{top}/{name}" if top else name
        full = root / path
        status = full.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            yield Entry(path, "dir", mode, status.st_uid, status.st_gid)
            yield from read_directory(root, path)
        elif stat.S_ISLNK(status.st_mode):
            link = os.readlink(full)
            yield Entry(path, "symlink", 0o777, status.st_uid, status.st_gid, target=link)
        elif stat.S_ISREG(status.st_mode):
            yield Entry(
                path,
                "file",
                mode,
                status.st_uid,
                status.st_gid,
                status.st_size,
                open=functools.partial(_open, full),
            )
