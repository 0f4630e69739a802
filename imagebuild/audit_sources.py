# SPDX-License-Identifier: Apache-2.0
"""Where an audit finds files: a plan's wheels, one wheel, a folder, or an image's file system."""

from __future__ import annotations

import csv
import re
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from imagebuild.errors import ManifestError, PreconditionError
from imagebuild.gpufacts import FileFacts, folder_facts, joined, read_stream, wheel_facts, worth_opening
from imagebuild.layer.entries import LayerError

_SITE = re.compile(r"^(?:.*/)?site-packages/")
_RECORD = re.compile(r"([^/]+)-[^/-]+\.dist-info/RECORD")
NO_WHEEL = "-"
Facts = dict[str, tuple[FileFacts, ...]]


def path_facts(path: Path, workers: int) -> Facts:
    """Read one wheel, or every file of a folder. Raises ManifestError if there is neither."""
    if path.is_file() and path.suffix == ".whl":
        try:
            name = parse_wheel_filename(path.name)[0]
            return {name: wheel_facts([path], path.parent, workers).get(path, ())}
        except (InvalidWheelFilename, LayerError) as error:
            raise ManifestError(f"{path}: not a wheel: {error}") from error
    if not path.exists():
        raise ManifestError(f"{path}: no such wheel, file or folder")
    records = {p.relative_to(path).as_posix(): p.read_text("utf-8") for p in path.rglob("*.dist-info/RECORD")}
    return by_wheel(folder_facts(path), owners(records))


def tar_facts(stream: IO[bytes], folder: Path | None) -> Facts:
    """Read an image's file system from a tar stream."""
    found: list[FileFacts] = []
    records: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isreg() else None
                if file is None:
                    continue
                if member.name.endswith(".dist-info/RECORD"):
                    records[member.name] = file.read().decode("utf-8", "replace")
                elif worth_opening(member.name):
                    facts = read_stream(file, member.size, member.name, folder)
                    found += [facts] if facts is not None else []
    except tarfile.TarError as error:
        raise PreconditionError(f"the image's files cannot be read: {error}") from error
    return by_wheel(found, owners(records))


def owners(records: dict[str, str]) -> dict[str, str]:
    """Return the package that owns each path below site-packages, from the RECORD files."""
    found: dict[str, str] = {}
    for path, text in records.items():
        match = _RECORD.fullmatch(_SITE.sub("", path))
        if match:
            name = canonicalize_name(match[1])
            found |= {row[0]: name for row in csv.reader(text.splitlines()) if row}
    return found


def by_wheel(facts: Iterable[FileFacts], owner: dict[str, str]) -> Facts:
    """Group files by the package that owns them; paths become relative to site-packages."""
    groups: dict[str, list[FileFacts]] = {}
    tops = {path.partition("/")[0]: name for path, name in owner.items() if not path.startswith("..")}
    for item in facts:
        path = _SITE.sub("", item.path)
        name = owner.get(path) or (tops.get(path.partition("/")[0]) if "**" in path else None) or NO_WHEEL
        groups.setdefault(name, []).append(replace(item, path=path))
    return {name: joined(items) for name, items in groups.items()}
