# SPDX-License-Identifier: Apache-2.0
"""Repos → a lock: at the hub, or from a folder that somebody trusts. Files in git are read and hashed."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from imagebuild.errors import CheckFailed, IntegrityError, PreconditionError
from imagebuild.hostconf import host_network
from imagebuild.models.config import read_json
from imagebuild.models.hashing import hash_all
from imagebuild.models.hub import Hub, HubFile, Snapshot, file_url, locate, snapshot
from imagebuild.models.lockfile import OURS, LockedFile, LockedRepo, check_path, locked_facts
from imagebuild.models.receive import Bearer
from imagebuild.models.shards import INDEX, check_weights
from imagebuild.models.source import RepoSource
from imagebuild.models.traces import trace_of
from imagebuild.progress import Progress, Quiet
from imagebuild.session import Reach, open_session
from imagebuild.settings import Settings
from imagebuild.transfer import Retry, Transient, patiently

MAX_SMALL = 64 << 20  # bytes; what is not in LFS must be read to be hashed
_CONFIG = "config.json"


def pin_at_hub(
    name: str,
    source: RepoSource,
    hub: Hub,
    settings: Settings,
    *,
    progress: Progress | None = None,
    retry: Retry | None = None,
) -> LockedRepo:
    """Resolve a repo's revision and lock all its files.

    Raises PreconditionError (network, access), IntegrityError (the hub contradicts itself).
    """
    found = snapshot(hub, source.repo, source.revision)
    for file in found.files:
        _check_name(found, file)
    read = [file for file in found.files if file.sha256 is None or file.path in (_CONFIG, INDEX)]
    big = [f"{file.path} ({file.size} bytes)" for file in read if file.size > MAX_SMALL]
    if big:
        raise PreconditionError(f"{found.repo}: too large to be read for its hash: {', '.join(big)}")
    with (progress or Quiet()).task(f"reading {found.repo}", sum(f.size for f in read) or None) as task:
        bodies = _read_all(found, read, hub, settings, retry or Retry(), task.advance)
    files = tuple(
        LockedFile(path=f.path, size=f.size, sha256=f.sha256 or hashlib.sha256(bodies[f.path]).hexdigest())
        for f in found.files
    )
    tensors, size = _tensors(bodies.get(INDEX))
    return LockedRepo(
        name=name,
        repo=found.repo,
        commit=found.commit,
        files=files,
        tensors=tensors,
        tensor_bytes=size,
        **locked_facts(_object(bodies.get(_CONFIG))),
    )


def _check_name(found: Snapshot, file: HubFile) -> None:
    try:
        check_path(file.path)
    except ValueError as error:
        raise IntegrityError(
            f"{found.repo} at {found.commit[:12]}: {error}", hint="do not trust this repo or mirror"
        ) from None


def _read_all(
    found: Snapshot, files: list[HubFile], hub: Hub, settings: Settings, retry: Retry, advance: Any
) -> dict[str, bytes]:
    host, reach, stop = host_network(settings), Reach(), threading.Event()

    def read(file: HubFile) -> bytes:
        remote = locate(hub, found.repo, found.commit, file.path)
        url = file_url(hub, found.repo, found.commit, file.path)
        with open_session(host, reach) as session:
            if hub.token:
                session.auth = Bearer(hub.token)

            def ask() -> bytes:
                with session.get(url) as response:
                    if response.status_code in (408, 425, 429, 500, 502, 503, 504):
                        raise Transient(f"HTTP {response.status_code}", url)
                    if response.status_code != 200:
                        raise PreconditionError(
                            f"{found.repo}/{file.path}: HTTP {response.status_code}",
                            hint="is your token allowed to read it? HF_TOKEN or --token-file",
                        )
                    return response.content

            data = patiently(ask, session, retry, stop)
        if remote.commit and remote.commit != found.commit:
            raise IntegrityError(f"{found.repo}: the hub answers with commit {remote.commit}", hint=_MOVED)
        _check_body(found, file, data)
        advance(len(data))
        return data

    with ThreadPoolExecutor(min(settings.jobs, max(1, len(files)))) as pool:
        try:
            return dict(zip((f.path for f in files), pool.map(read, files), strict=True))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_MOVED = "run again; if it stays, the mirror (HF_ENDPOINT) is not to be trusted"


def _check_body(found: Snapshot, file: HubFile, data: bytes) -> None:
    """Raise IntegrityError unless the bytes have the hash that the hub's list gives: sha256 or git's."""
    if file.sha256 is not None:
        right = hashlib.sha256(data).hexdigest() == file.sha256
    else:
        right = git_blob(data) == file.blob
    if len(data) != file.size or not right:
        raise IntegrityError(
            f"{found.repo}/{file.path}: {len(data)} bytes, not those of the hub's own list ({file.size})",
            hint=_MOVED,
        )


def git_blob(data: bytes) -> str:
    """Return git's id of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def pin_folder(
    name: str, source: RepoSource, folder: Path, *, progress: Progress | None = None
) -> LockedRepo:
    """Lock the files of a folder as they are, if its weights are whole.

    The commit is taken from the traces that `hf download` leaves, if they agree; a file whose bytes
    differ from its trace is refused.

    Raises PreconditionError (no folder, unreadable), CheckFailed (weights not whole), IntegrityError.
    """
    progress = progress or Quiet()
    if not folder.is_dir():
        raise PreconditionError(f"{folder}: no such folder")
    weights = check_weights(folder)
    if weights.problems:
        lines = [f"{folder}/{file}: {text}" for file, texts in weights.problems.items() for text in texts]
        raise CheckFailed("\n".join(lines), hint="a damaged folder is not locked; fetch these files anew")
    paths = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in (OURS, ".cache", ".git")
    }
    with progress.task(f"hashing {folder}", sum(paths.values()) or None) as task:
        digests = hash_all(((folder / path, size) for path, size in paths.items()), task.advance)
    files = []
    for path, size in paths.items():
        digest = digests[folder / path]
        if isinstance(digest, OSError):
            raise PreconditionError(f"{folder / path}: cannot be read: {digest.strerror or digest}")
        files.append(LockedFile(path=path, size=size, sha256=digest))
    trace = trace_of(folder)
    wrong = [f.path for f in files if trace.hashes.get(f.path, f.sha256) != f.sha256]
    if wrong:
        raise IntegrityError(
            f"{folder}: changed since it was downloaded: {', '.join(wrong[:5])}",
            hint="fetch these files anew, or remove .cache/huggingface to lock them as they are",
        )
    config = read_json(folder / _CONFIG) if _CONFIG in paths else None
    return LockedRepo(
        name=name,
        repo=source.repo,
        commit=trace.commit,
        origin="folder",
        files=tuple(files),
        tensors=len(weights.tensors),
        tensor_bytes=weights.total,
        **locked_facts(config),
    )


def _object(data: bytes | None) -> dict[str, Any] | None:
    try:
        value = json.loads(data or b"null")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _tensors(data: bytes | None) -> tuple[int, int]:
    """Return how many tensors an index names and how many bytes they have; 0 for unknown."""
    index: Mapping[str, Any] = _object(data) or {}
    weight_map, metadata = index.get("weight_map"), index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    count = len(weight_map) if isinstance(weight_map, dict) else 0
    return count, size if isinstance(size, int) and size > 0 else 0
