# SPDX-License-Identifier: Apache-2.0
"""What tools that download leave in a folder: huggingface_hub's metadata and cache, git, and our stamp."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REMOTE = re.compile(r"url\s*=\s*\S+?[/:]([\w.-]+/[\w.-]+?)(?:\.git)?\s*$", re.MULTILINE)
_CACHE = re.compile(r"models--([\w.-]+?)--([\w.-]+)")


@dataclass(frozen=True)
class Trace:
    """`commit` is empty unless all traces agree; `hashes` are sha256 by path; `repo` if a trace names it."""

    commit: str = ""
    repo: str = ""
    hashes: dict[str, str] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    source: str = ""


def trace_of(folder: Path) -> Trace:
    """Return what a folder's traces say.

    `hf download --local-dir` writes `.cache/huggingface/download/PATH.metadata` for each file: commit,
    etag (sha256 for LFS files) and time. The client's own cache is `models--OWNER--NAME/snapshots/COMMIT`.
    """
    commits: Counter[str] = Counter()
    hashes: dict[str, str] = {}
    root = folder / ".cache" / "huggingface" / "download"
    for path in sorted(root.rglob("*.metadata")):
        lines = _text(path).split("\n")
        if len(lines) >= 2 and _COMMIT.fullmatch(lines[0].strip()):
            commits[lines[0].strip()] += 1
            name = path.relative_to(root).as_posix().removesuffix(".metadata")
            if _SHA256.fullmatch(lines[1].strip()):
                hashes[name] = lines[1].strip()
    cached = _cached(folder)
    if cached is not None:
        return cached
    if commits:
        only = next(iter(commits)) if len(commits) == 1 else ""
        return Trace(only, "", hashes, dict(commits), "huggingface_hub's download metadata")
    return _git(folder)


def _cached(folder: Path) -> Trace | None:
    """Return what the path of a snapshot in huggingface_hub's cache says; its blobs are named by hash."""
    real = folder.resolve()
    if real.parent.name != "snapshots" or not _COMMIT.fullmatch(real.name):
        return None
    found = _CACHE.fullmatch(real.parent.parent.name)
    if found is None:
        return None
    hashes = {}
    for path in sorted(folder.rglob("*")):
        blob = path.resolve().name
        if path.is_symlink() and _SHA256.fullmatch(blob):
            hashes[path.relative_to(folder).as_posix()] = blob
    repo = f"{found[1]}/{found[2]}"
    return Trace(real.name, repo, hashes, {real.name: 1}, "huggingface_hub's cache")


def _git(folder: Path) -> Trace:
    """Return what a git clone says: its remote and the commit that is checked out."""
    remote = _REMOTE.search(_text(folder / ".git" / "config"))
    head = _text(folder / ".git" / "HEAD").strip()
    if head.startswith("ref: "):
        head = _text(folder / ".git" / head[5:]).strip()
    if remote is None and not _COMMIT.fullmatch(head):
        return Trace()
    commit = head if _COMMIT.fullmatch(head) else ""
    return Trace(commit, remote[1] if remote else "", {}, {commit: 1} if commit else {}, "git")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[: 1 << 20]
    except OSError:
        return ""
