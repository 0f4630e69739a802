# SPDX-License-Identifier: Apache-2.0
"""Write /var/lib/dpkg as dpkg would after installing the packages, so that dpkg-query and scanners work.

Rules: dpkg 1.21 (lib/dpkg/parse.c for the fields and their order, lib/dpkg/dump.c for their form,
lib/dpkg/triglib.c for triggers). The engine test compares every file with a real dpkg's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from imagebuild.layer.deb import Deb
from imagebuild.layer.entries import Entry, LayerError, dir_entry, file_entry

ROOT = "var/lib/dpkg"
_RELATIONS = (
    "Replaces",
    "Provides",
    "Depends",
    "Pre-Depends",
    "Recommends",
    "Suggests",
    "Breaks",
    "Conflicts",
    "Enhances",
)
_ORDER = (
    "Package",
    "Essential",
    "Protected",
    "Status",
    "Priority",
    "Section",
    "Installed-Size",
    "Origin",
    "Maintainer",
    "Bugs",
    "Architecture",
    "Multi-Arch",
    "Source",
    "Version",
    *_RELATIONS,
    "Conffiles",
    "Description",
)
_SCRIPTS = frozenset({"preinst", "postinst", "prerm", "postrm", "config"})
_RELATION = re.compile(r"(?P<name>[^\s(]+)\s*(?:\(\s*(?P<op>[<=>]+)\s*(?P<version>[^\s)]+)\s*\))?")


def database_entries(
    debs: Sequence[Deb], content: Callable[[str], bytes | None], diversions: Iterable[tuple[str, str, str]]
) -> list[Entry]:
    """Return the files of /var/lib/dpkg for installed `debs`.

    `content` gives a conffile's content by its absolute packaged path, or None if it is excluded.
    `diversions` are (packaged path, path it is diverted to, package) triples. Raises LayerError for a control
    file that cannot be read.
    """
    ordered = sorted(debs, key=lambda deb: deb.fields["Package"])
    entries = [
        dir_entry(f"{ROOT}/triggers"),
        dir_entry(f"{ROOT}/updates"),
        file_entry(f"{ROOT}/info/format", b"1\n"),
        file_entry(f"{ROOT}/status", "".join(_status(deb, content) + "\n" for deb in ordered).encode()),
        file_entry(f"{ROOT}/diversions", "".join(f"{a}\n{b}\n{p}\n" for a, b, p in diversions).encode()),
    ]
    for deb in ordered:
        stem = f"{ROOT}/info/{info_name(deb.fields)}"
        listing = "/.\n" + "".join(f"/{entry.path}\n" for entry in deb.entries)
        entries.append(file_entry(f"{stem}.list", listing.encode()))
        for name, data in sorted(deb.control.items()):
            if name != "control":
                entries.append(file_entry(f"{stem}.{name}", data, 0o755 if name in _SCRIPTS else 0o644))
    return entries + _triggers(ordered)


def info_name(fields: Mapping[str, str]) -> str:
    """Return the name of a package's files in the info directory: `libc6:amd64`, `adduser`."""
    if fields.get("Multi-Arch") == "same":
        return f"{fields['Package']}:{fields['Architecture']}"
    return fields["Package"]


def _status(deb: Deb, content: Callable[[str], bytes | None]) -> str:
    fields = {
        key: value
        for key, value in deb.fields.items()
        if not (key in ("Essential", "Protected", "Multi-Arch") and value == "no")
    }
    fields["Status"] = "install ok installed"
    for key in _RELATIONS:
        if key in fields:
            fields[key] = _relations(fields[key])
    conffiles = _conffiles(deb, content)
    if conffiles:
        fields["Conffiles"] = conffiles
    keys = [*(key for key in _ORDER if key in fields), *(key for key in fields if key not in _ORDER)]
    return "".join(f"{key}:{'' if fields[key].startswith(chr(10)) else ' '}{fields[key]}\n" for key in keys)


def _relations(text: str) -> str:
    """Return a dependency field in dpkg's own spacing."""

    def one(match: re.Match[str]) -> str:
        version = f" ({match['op']} {match['version']})" if match["op"] else ""
        return match["name"] + version

    groups = [group.split("|") for group in text.replace("\n", " ").split(",") if group.strip()]
    return ", ".join(" | ".join(_RELATION.sub(one, part.strip()) for part in group) for group in groups)


def _conffiles(deb: Deb, content: Callable[[str], bytes | None]) -> str:
    lines = []
    for line in deb.control.get("conffiles", b"").decode(errors="replace").splitlines():
        path = line.strip()
        if not path:
            continue
        if not path.startswith("/"):
            raise LayerError(f"{deb.file}: conffiles: {path!r} is not supported; allowed: absolute paths")
        data = content(path)
        digest = "newconffile" if data is None else hashlib.md5(data, usedforsecurity=False).hexdigest()
        lines.append(f"\n {path} {digest}")
    return "".join(lines)


def _triggers(debs: Iterable[Deb]) -> list[Entry]:
    files: list[str] = []
    names: dict[str, list[str]] = {}
    for deb in debs:
        for line in deb.control.get("triggers", b"").decode(errors="replace").splitlines():
            words = line.split("#")[0].split()
            if len(words) != 2 or not words[0].startswith("interest"):
                continue
            who = info_name(deb.fields) + ("/noawait" if words[0] == "interest-noawait" else "")
            if words[1].startswith("/"):
                files.append(f"{words[1]} {who}\n")
            elif not re.fullmatch(r"[A-Za-z0-9][^/]*", words[1]) or words[1] in ("File", "Unincorp", "Lock"):
                raise LayerError(f"{deb.file}: triggers: {words[1]!r} is no trigger name")
            else:
                names.setdefault(words[1], []).append(f"{who}\n")
    entries = [file_entry(f"{ROOT}/triggers/{name}", "".join(who).encode()) for name, who in names.items()]
    entries.append(file_entry(f"{ROOT}/triggers/File", "".join(files).encode()))
    return [*entries, file_entry(f"{ROOT}/triggers/Unincorp", b"")]
