# SPDX-License-Identifier: Apache-2.0
"""`Lock`: names, versions, hashes and sizes of the files one source resolved to; no host names."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from imagebuild.digest import digest
from imagebuild.errors import IntegrityError
from imagebuild.layer.spec import Artifact
from imagebuild.manifest import BaseManifest, PythonSource, as_json

SCHEMA = 1


class Lock(BaseModel):
    """What a lock file holds.

    `inputs` is the digest of the source it was made from; `created` an RFC 3339 time, and the
    time that every file of the image gets.
    """

    model_config = ConfigDict(strict=False, extra="forbid", frozen=True)

    created: str
    inputs: str
    artifacts: tuple[Artifact, ...]


def python_inputs(source: PythonSource) -> str:
    """Return the digest of what a Python lock depends on."""
    return digest(as_json(source))


def base_inputs(manifest: BaseManifest) -> str:
    """Return the digest of what a Debian lock depends on: release, architecture, package names."""
    return digest(
        {
            "release": manifest.release,
            "architecture": manifest.architecture,
            "packages": sorted(manifest.packages),
        }
    )


def read_lock(path: Path) -> Lock:
    """Read a lock file.

    Raises IntegrityError if it is missing or malformed; a lock is written by a program only.
    """
    hint = "python build.py lock writes it"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IntegrityError(f"{path}: no such lock", hint=hint) from None
    except ValueError as error:
        raise IntegrityError(f"{path}: not JSON: {error}", hint=hint) from None
    if not isinstance(raw, dict) or raw.pop("schema", None) != SCHEMA:
        raise IntegrityError(f"{path}: not a lock of schema {SCHEMA}", hint=hint)
    try:
        lock = Lock.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise IntegrityError(f"{path}: {where}: {first['msg']}", hint=hint) from None
    return lock


def render_lock(lock: Lock) -> str:
    """Return a lock's text: one artifact per line, so that a diff reads well."""
    head = {"schema": SCHEMA, "created": lock.created, "inputs": lock.inputs}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    artifacts = sorted(lock.artifacts, key=lambda a: a.name)
    rows = [
        "  " + json.dumps({k: v for k, v in asdict(a).items() if v != ""}, ensure_ascii=False)
        for a in artifacts
    ]
    return "{\n" + "\n".join(lines) + '\n "artifacts": [\n' + ",\n".join(rows) + "\n ]\n}\n"


def changes(old: Lock | None, new: Lock) -> list[str]:
    """Return one line per artifact that was added, removed, moved or rebuilt, sorted by name."""
    before = {a.name: a for a in old.artifacts} if old else {}
    after = {a.name: a for a in new.artifacts}
    lines = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was is None and now is not None:
            lines.append(f"+ {name} {now.version}")
        elif now is None and was is not None:
            lines.append(f"- {name} {was.version}")
        elif was is not None and now is not None and was != now:
            what = (
                f"{was.version} -> {now.version}"
                if was.version != now.version
                else f"{now.version} other file"
            )
            lines.append(f"~ {name} {what}")
    return lines
