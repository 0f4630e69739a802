# SPDX-License-Identifier: Apache-2.0
"""`Known`: a repo that a folder can be compared with, by its files, its shape, or both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from imagebuild.models.hub import Snapshot
from imagebuild.models.lockfile import ModelLock
from imagebuild.models.shapes import DrafterShape, TargetShape
from imagebuild.models.source import ModelSource, RepoSource


@dataclass(frozen=True)
class KnownFile:
    """One file of a known repo: hash by sha256, or by git's id if the hub gives only that."""

    size: int
    sha256: str = ""
    blob: str = ""


@dataclass(frozen=True)
class Known:
    """A repo to compare with: by files (from a lock or the hub), by shape (from a source), or both."""

    repo: str
    commit: str = ""
    files: dict[str, KnownFile] = field(default_factory=dict)
    shape: TargetShape | DrafterShape | None = None
    quantisation: str = ""
    tensors: int = 0
    tensor_bytes: int = 0
    about_bytes: int = 0
    lookalikes: tuple[str, ...] = ()
    origin: str = ""


def known_repos(sources: Iterable[ModelSource], locks: Iterable[ModelLock]) -> list[Known]:
    """Return all repos of sources, with the files of their locks."""
    locked = {(lock.name, repo.name): repo for lock in locks for repo in lock.repos}
    out = []
    for source in sources:
        for name, repo in source.repos().items():
            lock = locked.get((source.name, name))
            files = {f.path: KnownFile(f.size, f.sha256) for f in lock.files} if lock else {}
            out.append(
                Known(
                    repo=repo.repo,
                    commit=lock.commit if lock else "",
                    files=files,
                    shape=_shape(repo),
                    quantisation=lock.quantisation if lock else "",
                    tensors=lock.tensors if lock else 0,
                    tensor_bytes=lock.tensor_bytes if lock else 0,
                    about_bytes=lock.total if lock else repo.about_bytes,
                    lookalikes=repo.lookalikes,
                    origin="lock" if lock else "source",
                )
            )
    return out


def _shape(repo: RepoSource) -> TargetShape | DrafterShape | None:
    return getattr(repo, "shape", None)


def from_hub(found: Snapshot, base: Known | None) -> Known:
    """Return a repo as the hub has it now."""
    files = {f.path: KnownFile(f.size, f.sha256 or "", "" if f.sha256 else f.blob) for f in found.files}
    return Known(
        repo=found.repo,
        commit=found.commit,
        files=files,
        shape=base.shape if base else None,
        about_bytes=sum(f.size for f in found.files),
        lookalikes=base.lookalikes if base else (),
        origin="hub",
    )
