# SPDX-License-Identifier: Apache-2.0
"""A plugin's source folder → wheel, the same bytes on any machine; and put into the cache.

plugins/<name>/pyproject.toml says what [project] needs (name, version, dependencies, entry
points); the folder plugins/<name>/src/ holds the packages. The wheel is a zip without compression
and with fixed times, because what deflate writes differs between releases of zlib.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from imagebuild.cache import Store
from imagebuild.errors import IntegrityError, ManifestError
from imagebuild.layer.spec import Artifact

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TIME = (1980, 1, 1, 0, 0, 0)
_KEYS = ("name", "version", "description", "dependencies", "entry-points", "requires-python", "license")
_SKIP = ("__pycache__",)
LOCAL = "plugins"  # the first part of Artifact.path of a wheel that is built here


@dataclass(frozen=True)
class Built:
    """A plugin's wheel: what a Plan says of it, and its bytes."""

    artifact: Artifact
    content: bytes


def build_plugin(folder: Path) -> Built:
    """Return the wheel of a plugin's source folder.

    Raises ManifestError for a pyproject.toml that says more or less than a plugin may, and for a
    folder without modules.
    """
    project = _project(folder / "pyproject.toml")
    stem = f"{canonicalize_name(project['name']).replace('-', '_')}-{Version(project['version'])}"
    files = _sources(folder / "src")
    info = f"{stem}.dist-info"
    files[f"{info}/METADATA"] = _metadata(project)
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: imagebuild\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    if project.get("entry-points"):
        files[f"{info}/entry_points.txt"] = _entry_points(project["entry-points"])
    content = _zip(files, f"{info}/RECORD")
    digest = hashlib.sha256(content).hexdigest()
    name, version = canonicalize_name(project["name"]), str(Version(project["version"]))
    path = f"{LOCAL}/{folder.name}"
    artifact = Artifact("wheel", name, version, f"{stem}-py3-none-any.whl", digest, len(content), path)
    return Built(artifact, content)


def is_local(artifact: Artifact) -> bool:
    """Tell whether a wheel is built here rather than fetched."""
    return artifact.kind == "wheel" and artifact.path.startswith(f"{LOCAL}/")


def place_plugins(artifacts: Iterable[Artifact], root: Path, store: Store) -> None:
    """Build the local wheels among `artifacts` from `root`/plugins into the cache.

    Raises IntegrityError if a source folder changed since the Plan was made.
    """
    for artifact in artifacts:
        if not is_local(artifact):
            continue
        built = build_plugin(root / artifact.path)
        if built.artifact != artifact:
            raise IntegrityError(f"{root / artifact.path}: changed since the plan was made", hint="run again")
        target = store.path(artifact.sha256)
        if not store.has(artifact):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
            temporary.write_bytes(built.content)
            os.replace(temporary, target)


def _project(path: Path) -> dict[str, Any]:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: cannot read: {error}") from None
    project = raw.get("project", {})
    unknown = sorted(set(project) - set(_KEYS))
    if unknown or not {"name", "version"} <= set(project):
        raise ManifestError(
            f"{path}: [project] needs name and version; allowed: {', '.join(_KEYS)}"
            + (f"; found {', '.join(unknown)}" if unknown else "")
        )
    try:
        Version(project["version"])
        for text in project.get("dependencies", []):
            Requirement(text)
    except (InvalidVersion, InvalidRequirement, TypeError) as error:
        raise ManifestError(f"{path}: [project]: {error}") from None
    return dict(project)


def _sources(folder: Path) -> dict[str, bytes]:
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(path.relative_to(folder).parts) & set(_SKIP)
    }
    links = [path for path in folder.rglob("*") if path.is_symlink()]
    if links or not any(name.endswith(".py") for name in files):
        raise ManifestError(f"{folder}: " + (f"{links[0]} is a link" if links else "holds no module"))
    return files


def _metadata(project: dict[str, Any]) -> bytes:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {Version(project['version'])}"]
    for key, field in (("description", "Summary"), ("license", "License"), ("requires-python", None)):
        if key in project:
            lines.append(f"{field or 'Requires-Python'}: {project[key]}")
    lines += [f"Requires-Dist: {Requirement(text)}" for text in project.get("dependencies", [])]
    return ("\n".join(lines) + "\n").encode()


def _entry_points(groups: dict[str, dict[str, str]]) -> bytes:
    parts = []
    for group in sorted(groups):
        parts.append(f"[{group}]")
        parts += [f"{name} = {value}" for name, value in sorted(groups[group].items())] + [""]
    return "\n".join(parts).encode()


def _zip(files: dict[str, bytes], record: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(files[name])))
    rows.writerow((record, "", ""))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in [*sorted(files.items()), (record, text.getvalue().encode())]:
            info = zipfile.ZipInfo(name, _TIME)
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, content)
    return out.getvalue()
