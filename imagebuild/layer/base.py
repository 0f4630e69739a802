# SPDX-License-Identifier: Apache-2.0
"""The Debian base of an image: packages unpacked without their scripts, plus what the scripts would make.

Everything that is a choice (users, alternatives, excluded paths, files) is data in `BaseSettings`; everything
that follows from the packages (dpkg's database, certificates, the loader cache) is computed here. Needs the
standard library only, since both build engines run it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from imagebuild.layer import accounts, certificates, dpkgdb, ldcache
from imagebuild.layer.accounts import User
from imagebuild.layer.deb import DEFAULT_LIMIT, Deb, Spool, read_deb
from imagebuild.layer.entries import Entry, LayerError, dir_entry, file_entry, merge, symlink_entry
from imagebuild.layer.tree import by_path, follow

__all__ = [
    "Alternative",
    "BaseSettings",
    "Copy",
    "Directory",
    "Diversion",
    "TextFile",
    "User",
    "base_entries",
    "excluded",
]


@dataclass(frozen=True)
class Alternative:
    """One choice of update-alternatives(1): `link` leads to `path`, and each slave's link to its path.

    `slaves` is name -> (link, path).
    """

    link: str
    path: str
    priority: int
    slaves: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Diversion:
    """A file that a package owns under another name (dpkg-divert(1)); other packages' file is renamed."""

    path: str
    to: str
    package: str


@dataclass(frozen=True)
class Directory:
    """A directory that no package ships; `mode` is octal text."""

    mode: str = "0755"
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True)
class Copy:
    """A file copied from a packaged one.

    Its line `$name` becomes `values[name]`, or is left out if that is empty.
    """

    source: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TextFile:
    """A small file with fixed content; `mode` is octal text."""

    content: str = ""
    mode: str = "0644"
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True)
class BaseSettings:
    """The choices of a base. Paths that are keys are image paths without a leading slash.

    usr_merge: top-level directories that are links into usr.
    exclude, include: globs on absolute packaged paths with dpkg's meaning (see `excluded`).
    users, groups: added to Debian's; groups is name -> gid.
    alternatives, diversions, directories, files: see the types.
    links: path -> text of a symbolic link.
    copies: path -> packaged file it is made from.
    """

    usr_merge: tuple[str, ...] = ("bin", "lib", "lib64", "sbin")
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    users: tuple[User, ...] = ()
    groups: Mapping[str, int] = field(default_factory=dict)
    alternatives: Mapping[str, Alternative] = field(default_factory=dict)
    diversions: tuple[Diversion, ...] = ()
    directories: Mapping[str, Directory] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, Copy] = field(default_factory=dict)
    files: Mapping[str, TextFile] = field(default_factory=dict)


def base_entries(
    debs: Sequence[Path], settings: BaseSettings, spool: Spool, *, limit: int = DEFAULT_LIMIT
) -> list[Entry]:
    """Return the complete base tree, sorted, with every parent directory; equal inputs give equal entries.

    `spool` holds the content and must stay open while the entries are used. `limit` bounds the bytes each
    .deb may unpack to. Raises LayerError, naming package and path, for a hostile or damaged .deb, for two
    packages that ship one file, and for a setting that names something the packages do not have.
    """
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        packages = list(pool.map(functools.partial(read_deb, spool=spool, limit=limit), sorted(debs)))
    tree = by_path(merge(_unpack(packages, settings).values()))
    for path, directory in settings.directories.items():
        _add(tree, dir_entry(path, int(directory.mode, 8), directory.uid, directory.gid), "directories")
    for path, target in settings.links.items():
        _add(tree, symlink_entry(path, target), "links")
    for path, copy in settings.copies.items():
        _add(tree, _copied(tree, path, copy), "copies")
    for path, text in settings.files.items():
        entry = file_entry(path, text.content.encode(), int(text.mode, 8), text.uid, text.gid)
        _add(tree, entry, "files")
    computed = [
        *accounts.account_entries(
            lambda name: _needed(tree, f"usr/share/base-passwd/{name}.master", "users").decode(),
            settings.users,
            settings.groups,
        ),
        *_alternatives(tree, settings),
        *certificates.certificate_entries(tree),
        *dpkgdb.database_entries(
            packages,
            lambda path: _content(tree, path),
            [(d.path, d.to, d.package) for d in settings.diversions],
        ),
    ]
    for entry in computed:
        _add(tree, entry, "the computed files")
    tree.update(by_path(ldcache.cache_entries(tree)))
    return _ordered_links(merge(tree.values()))


def excluded(path: str, kind: str, exclude: Iterable[str], include: Iterable[str]) -> bool:
    """Tell whether dpkg's path-exclude and path-include would leave out the absolute packaged `path`.

    As in dpkg (src/main/filters.c): `*` also matches `/`; includes come after excludes; an excluded directory
    or link is kept where an include could bring back something below it.
    """
    if not any(_glob(pattern).match(path) for pattern in exclude):
        return False
    for pattern in include:
        if _glob(pattern).match(path):
            return False
        literal = re.split(r"[*?\[\\]", pattern, maxsplit=1)[0].rstrip("/")
        if kind in ("dir", "symlink") and path.startswith(literal):
            return False
    return True


@functools.cache
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))


def _merged(path: str, settings: BaseSettings) -> str:
    return f"usr/{path}" if path.split("/", 1)[0] in settings.usr_merge else path


def _unpack(packages: Iterable[Deb], settings: BaseSettings) -> dict[str, Entry]:
    """Return the packages' own files at their places in the merged tree."""
    tree = {name: symlink_entry(name, f"usr/{name}") for name in settings.usr_merge}
    owner: dict[str, str] = {}
    diverted = {d.path: d for d in settings.diversions}
    for deb in packages:
        package = deb.fields["Package"]
        moved: dict[str, str] = {}
        for entry in deb.entries:
            packaged = f"/{entry.path}"
            if excluded(packaged, entry.kind, settings.exclude, settings.include):
                continue
            if packaged in diverted and diverted[packaged].package != package:
                packaged = diverted[packaged].to
            path = moved[entry.path] = _merged(packaged[1:], settings)
            new = dataclasses.replace(entry, path=path)
            if entry.kind == "hardlink":
                new = _shared(deb, entry, path, tree, moved)
            old = tree.get(path)
            if old is None:
                tree[path] = new
                owner[path] = deb.file
            elif old.kind != "dir" or new.kind != "dir":
                raise LayerError(f"{deb.file}: {packaged}: {owner.get(path, 'the base')} ships it too")
            elif (old.mode, old.uid, old.gid) != (new.mode, new.uid, new.gid):
                raise LayerError(f"{deb.file}: {packaged}: another mode or owner than in {owner[path]}")
    return tree


def _shared(deb: Deb, link: Entry, path: str, tree: Mapping[str, Entry], moved: Mapping[str, str]) -> Entry:
    """Return a hard link at its merged place, or the file itself if the link's target is excluded."""
    if link.target in moved:
        return dataclasses.replace(link, path=path, target=moved[link.target])
    source = next(entry for entry in deb.entries if entry.path == link.target)
    return dataclasses.replace(source, path=path)


def _add(tree: dict[str, Entry], entry: Entry, what: str) -> None:
    old = tree.get(entry.path)
    if old is not None and (old.kind != "dir" or entry.kind not in ("dir", "symlink")):
        raise LayerError(f"{entry.path}: {what} of the base settings would replace a packaged {old.kind}")
    tree[entry.path] = entry


def _content(tree: Mapping[str, Entry], path: str) -> bytes | None:
    """Return the content of the file `path` leads to, or None if there is none."""
    found = follow(tree, path)
    if found is None or tree[found].kind not in ("file", "hardlink"):
        return None
    entry = tree[found]
    return (tree[entry.target] if entry.kind == "hardlink" else entry).read()


def _needed(tree: Mapping[str, Entry], path: str, setting: str) -> bytes:
    data = _content(tree, path)
    if data is None:
        raise LayerError(f"{setting} of the base settings needs {path}, which no package of the base ships")
    return data


def _copied(tree: Mapping[str, Entry], path: str, copy: Copy) -> Entry:
    data = _needed(tree, copy.source, f"copies.{path}")
    for name, value in copy.values.items():
        line = f"${name}\n".encode()
        if data.count(line) != 1:
            raise LayerError(f"copies.{path} of the base settings: {copy.source} has no single line ${name}")
        data = data.replace(line, f"{value}\n".encode() if value else b"")
    source = follow(tree, copy.source)
    assert source is not None
    return file_entry(path, data, tree[source].mode, tree[source].uid, tree[source].gid)


def _alternatives(tree: Mapping[str, Entry], settings: BaseSettings) -> Iterator[Entry]:
    """Yield what `update-alternatives --install` makes: both links of each name, and its record."""
    for name, choice in settings.alternatives.items():
        pairs = {name: (choice.link, choice.path), **choice.slaves}
        for key, (link, path) in pairs.items():
            if follow(tree, path) is None:
                raise LayerError(
                    f"alternatives.{name} of the base settings leads to {path}, which no package ships"
                )
            yield symlink_entry(f"etc/alternatives/{key}", path)
            yield symlink_entry(_merged(link.lstrip("/"), settings), f"/etc/alternatives/{key}")
        slaves = sorted(choice.slaves.items())
        lines = ["auto", choice.link]
        lines += [line for key, (link, _) in slaves for line in (key, link)]
        lines += ["", choice.path, str(choice.priority), *(path for _, (_, path) in slaves), "", ""]
        yield file_entry(f"var/lib/dpkg/alternatives/{name}", "\n".join(lines).encode())


def _ordered_links(entries: Iterable[Entry]) -> list[Entry]:
    """Return the sorted entries with each group's file first and its hard links after it, as tar needs."""
    tree: dict[str, Entry] = {}
    first: dict[str, str] = {}
    originals = by_path(entries)
    for path, entry in originals.items():
        group = entry.target if entry.kind == "hardlink" else path
        if entry.kind not in ("file", "hardlink"):
            tree[path] = entry
        elif group in first:
            tree[path] = dataclasses.replace(
                entry,
                kind="hardlink",
                target=first[group],
                size=0,
                open=None,
            )
        else:
            first[group] = path
            tree[path] = dataclasses.replace(originals[group], path=path)
    return list(tree.values())
