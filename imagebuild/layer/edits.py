# SPDX-License-Identifier: Apache-2.0
"""The edit receipt: every file that differs from what its wheel shipped, and RECORD kept true.

Each layer with edits has one fragment, /etc/imagebuild/edits/<layer>.json. The image's receipt is
all fragments in the Plan's layer order; edits of one path form a chain, each edit's `before` being
the one before's `after`. A transform that changes files of wheels calls `with_edits`.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from imagebuild.layer.entries import Entry, LayerError, file_entry

FOLDER = "etc/imagebuild/edits"
SCHEMA = 1


@dataclass(frozen=True)
class FileState:
    """A file's content: hex sha256 and bytes. None stands for a file that is not there."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Edit:
    """One changed file: `path` in the image, `tool` with its version, `detail` what was done in figures."""

    path: str
    wheel: str
    reason: str
    tool: str
    before: FileState | None
    after: FileState | None
    detail: dict[str, int] | None = None


@dataclass(frozen=True)
class Wheel:
    """An installed wheel, by its .dist-info folder; `rows` are RECORD's, image path → (hash, size)."""

    name: str
    dist_info: str
    rows: Mapping[str, tuple[str, str]]


def installed_wheels(entries: Iterable[Entry]) -> list[Wheel]:
    """Return the wheels of a layer, from the RECORD files among its entries."""
    found = []
    for entry in entries:
        if entry.kind == "file" and entry.path.endswith(".dist-info/RECORD"):
            dist_info = posixpath.dirname(entry.path)
            site = posixpath.dirname(dist_info)
            rows = {
                posixpath.normpath(f"{site}/{row[0]}"): (row[1], row[2])
                for row in csv.reader(io.StringIO(entry.read().decode("utf-8")))
                if len(row) == 3
            }
            stem = posixpath.basename(dist_info).removesuffix(".dist-info").rpartition("-")[0]
            name = re.sub(r"[-_.]+", "-", stem).lower()
            found.append(Wheel(name, dist_info, rows))
    return found


def recorded(wheel: Wheel, path: str) -> FileState:
    """Return a file's state as its wheel's RECORD has it. Raises LayerError if it has no sha256."""
    text, size = wheel.rows[path]
    algorithm, _, value = text.partition("=")
    if algorithm != "sha256":
        raise LayerError(f"{path}: RECORD of {wheel.name} has no sha256 of it")
    raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    return FileState(raw.hex(), int(size))


def _record_hash(state: FileState) -> tuple[str, str]:
    text = base64.urlsafe_b64encode(bytes.fromhex(state.sha256)).rstrip(b"=").decode()
    return f"sha256={text}", str(state.size)


def with_edits(entries: list[Entry], edits: list[Edit], layer: str) -> list[Entry]:
    """Return the entries with RECORD rewritten and the layer's receipt fragment extended.

    The edited files themselves are the caller's. An earlier fragment of the same layer among the
    entries is continued.
    """
    if not edits:
        return entries
    changed = {edit.path: edit.after for edit in edits}
    wheels = {f"{w.dist_info}/RECORD": w for w in installed_wheels(entries)}
    fragment = f"{FOLDER}/{layer}.json"
    before: list[dict[str, object]] = []
    result = []
    for entry in entries:
        wheel = wheels.get(entry.path)
        if entry.path == fragment:
            before = json.loads(entry.read())["edits"]
        elif wheel is not None and not changed.keys().isdisjoint(wheel.rows):
            result.append(_rewritten(entry, wheel, changed))
        else:
            result.append(entry)
    value = {
        "schema": SCHEMA,
        "layer": layer,
        "edits": before + [asdict(edit) for edit in sorted(edits, key=lambda e: e.path)],
    }
    text = json.dumps(value, indent=1, sort_keys=True) + "\n"
    return [*result, file_entry(fragment, text.encode())]


def _rewritten(entry: Entry, wheel: Wheel, changed: Mapping[str, FileState | None]) -> Entry:
    """Return RECORD with the rows of edited files corrected and those of removed files left out."""
    site = posixpath.dirname(wheel.dist_info)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for path, row in wheel.rows.items():
        state = changed.get(path)
        if path in changed and state is None:
            continue
        writer.writerow((posixpath.relpath(path, site), *(row if state is None else _record_hash(state))))
    content = text.getvalue().encode()
    return replace(file_entry(entry.path, content), mode=entry.mode)
