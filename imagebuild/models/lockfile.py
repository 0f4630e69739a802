# SPDX-License-Identifier: Apache-2.0
"""`ModelLock`: the commit of each repo and the size and sha256 of every file; no host names."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from imagebuild.diagnostics import Refused
from imagebuild.errors import IntegrityError
from imagebuild.models.shapes import DrafterShape, Model, TargetShape
from imagebuild.models.source import RepoSource, models_dir

SCHEMA = 1
OURS = ".imagebuild"  # folder inside a model's folder: the stamp and unfinished files
_MAX_PATH = 512


def check_path(path: str) -> str:
    """Return a repo's file path if it can be no trick. Raises Refused (a ValueError)."""
    parts = PurePosixPath(path).parts
    bad = (
        not path or len(path) > _MAX_PATH or path.startswith("/") or str(PurePosixPath(path)) != path
        or ".." in parts or "\\" in path or not path.isprintable() or parts[0] in (OURS, ".git", ".cache")
    )  # fmt: skip
    if bad:
        raise Refused(f"{path[:80]!r} is no path of a file inside a model's folder")
    return path


class LockedFile(Model):
    """One file: `path` below the model's folder, `size` in bytes."""

    path: str
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    @field_validator("path")
    @classmethod
    def _path(cls, path: str) -> str:
        return check_path(path)


class LockedRepo(Model):
    """One repo at one commit.

    `commit` is 40 hex digits, or empty if the lock was made from a folder that does not say.
    `shape` is what its config.json said, `tensors` and `tensor_bytes` how many its
    index or headers name (0: unknown).
    """

    name: str
    repo: str
    commit: Annotated[str, Field(pattern="^([0-9a-f]{40})?$")]
    origin: Literal["hub", "folder"] = "hub"
    shape: TargetShape | DrafterShape | None = None
    quantisation: str = ""
    tensors: Annotated[int, Field(ge=0)] = 0
    tensor_bytes: Annotated[int, Field(ge=0)] = 0
    files: tuple[LockedFile, ...]

    @model_validator(mode="after")
    def _no_twins(self) -> LockedRepo:
        folded = [file.path.casefold() for file in self.files]
        if len(set(folded)) != len(folded):
            raise Refused(f"{self.repo}: two files have the same path, or differ in case only")
        return self

    @property
    def total(self) -> int:
        """All files' bytes."""
        return sum(file.size for file in self.files)


class ModelLock(Model):
    """What images/models/NAME.lock holds. `inputs` is the digest of the source it was made from."""

    schema_version: Literal[1] = Field(alias="schema")
    name: str
    created: str
    inputs: str
    repos: tuple[LockedRepo, ...]

    def repo(self, name: str) -> LockedRepo | None:
        """Return a repo by its name in the source."""
        return next((repo for repo in self.repos if repo.name == name), None)


def lock_path(images: Path, name: str) -> Path:
    """Return where a model's lock is, or would be."""
    return models_dir(images) / f"{name}.lock"


def read_lock(path: Path) -> ModelLock | None:
    """Read a lock; None if there is none. Raises IntegrityError if it is malformed."""
    hint = "python build.py models lock writes it; it is not edited by hand"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: cannot be read: {error}", hint=hint) from None
    try:
        return ModelLock.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise IntegrityError(f"{path}: {where or 'file'}: {first['msg']}", hint=hint) from None


def render_lock(lock: ModelLock) -> str:
    """Return a lock's text: one file per line, so that a diff reads well."""
    head = {"schema": SCHEMA, "name": lock.name, "created": lock.created, "inputs": lock.inputs}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    blocks = []
    for repo in lock.repos:
        rows = [f"    {json.dumps(f.model_dump(), ensure_ascii=False)}" for f in _sorted(repo)]
        fields = [
            f"   {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)},"
            for key, value in repo.model_dump(mode="json", exclude={"files"}, exclude_none=True).items()
        ]
        blocks.append("  {\n" + "\n".join(fields) + '\n   "files": [\n' + ",\n".join(rows) + "\n   ]\n  }")
    return "{\n" + "\n".join(lines) + '\n "repos": [\n' + ",\n".join(blocks) + "\n ]\n}\n"


def _sorted(repo: LockedRepo) -> list[LockedFile]:
    return sorted(repo.files, key=lambda file: file.path)


def changes(old: ModelLock | None, new: ModelLock) -> list[str]:
    """Return one line per repo that moved and per file that changed."""
    lines: list[str] = []
    for repo in new.repos:
        was = old.repo(repo.name) if old else None
        if was is None:
            lines.append(f"+ {repo.repo} {repo.commit[:12] or 'from a folder'}: {len(repo.files)} files")
            continue
        if was.commit != repo.commit:
            lines.append(f"~ {repo.repo} {was.commit[:12] or '?'} -> {repo.commit[:12] or '?'}")
        before = {file.path: file for file in was.files}
        after = {file.path: file for file in repo.files}
        for path in sorted(before.keys() | after.keys()):
            if path not in after:
                lines.append(f"- {repo.name}/{path}")
            elif path not in before:
                lines.append(f"+ {repo.name}/{path}")
            elif before[path] != after[path]:
                lines.append(f"~ {repo.name}/{path} other bytes")
    lines += [f"- {repo.repo}" for repo in (old.repos if old else ()) if new.repo(repo.name) is None]
    return lines


def locked_facts(config: dict[str, Any] | None) -> dict[str, Any]:
    """Return the facts a server needs, from a repo's config.json, as fields of LockedRepo."""
    from imagebuild.errors import CheckFailed
    from imagebuild.models.config import drafter_shape, is_drafter, quantisation, target_shape

    if config is None:
        return {}
    try:
        shape = drafter_shape(config) if is_drafter(config) else target_shape(config)
        found = quantisation(config)
    except CheckFailed:
        return {}
    return {"shape": shape, "quantisation": found.label if found else "none"}


def repo_files(source: RepoSource, locked: LockedRepo | None) -> int:
    """Return the bytes of a repo: the lock's, or about what the source says."""
    return locked.total if locked else source.about_bytes
