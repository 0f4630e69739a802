# SPDX-License-Identifier: Apache-2.0
"""Bring one locked file into its `.part`: from a local copy, over Xet, or over HTTP; its sha256 decides.

`hf download` 2.x starts a killed file over and compares sizes only; here a file goes on from where it
was, and a wrong byte is never kept.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from imagebuild.cache import blocks, write_all
from imagebuild.crew import Stopped
from imagebuild.errors import ImageBuildError, IntegrityError, PreconditionError
from imagebuild.layer.spec import Artifact
from imagebuild.models import xet
from imagebuild.models.hub import Hub, Remote, locate
from imagebuild.models.lockfile import LockedFile, LockedRepo
from imagebuild.session import LoginRefused, Session
from imagebuild.transfer import NotThere, Retry, download

log = logging.getLogger(__name__)

Advance = Callable[[int], None]

_SIGNATURES = 3  # signed URLs to ask for; they last for an hour, and a queue or a wrong clock outlives them


class Bearer:
    """Puts the token on requests to the hub; `requests` takes it off where a redirect leaves the host.

    As the session's auth it also keeps a ~/.netrc entry from replacing the token.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: Any) -> Any:
        """Sign one request."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def receive(
    hub: Hub,
    repo: LockedRepo,
    file: LockedFile,
    part: BinaryIO,
    session: Session,
    *,
    advance: Advance,
    retry: Retry,
    stop: threading.Event,
) -> None:
    """Complete `part` from the hub.

    Raises IntegrityError for wrong bytes (and empties the part) or if the hub's file is another one
    than the lock's, PreconditionError for other trouble, Stopped.
    """
    remote = locate(hub, repo.repo, repo.commit, file.path)
    _same(repo, file, remote)
    if xet.usable(remote) and _over_xet(hub, file, remote, part, advance, stop):
        return
    artifact = Artifact("wheel", file.path, "", file.path, file.sha256, file.size)
    for attempt in range(_SIGNATURES):
        part.seek(0)
        try:
            download(artifact, remote.url, part, session, advance=advance, retry=retry, stop=stop)
            return
        except ImageBuildError as error:
            refused = "HTTP 403" in error.message and hub.endpoint not in error.message
            if not refused or attempt == _SIGNATURES - 1:
                raise _rehinted(error, repo, file, signed=refused) from error
            log.debug("%s: the store refuses the signed URL; asking the hub for another", file.path)


def copy(file: LockedFile, source: Path, part: BinaryIO, *, advance: Advance, stop: threading.Event) -> bool:
    """Complete `part` from a local file; False if that has other bytes. Raises PreconditionError, Stopped."""
    artifact = Artifact("wheel", file.path, "", file.path, file.sha256, file.size)
    uri = source.absolute().as_uri()
    try:
        download(artifact, uri, part, None, advance=advance, retry=Retry(), stop=stop)  # type: ignore[arg-type]
    except (IntegrityError, NotThere) as error:
        log.debug("%s: %s", source, error.message)
        return False
    return True


def _same(repo: LockedRepo, file: LockedFile, remote: Remote) -> None:
    """Raise IntegrityError if the hub would send another file than the lock's, before it is fetched."""
    where = f"{repo.repo}/{file.path}"
    hint = "is the mirror (HF_ENDPOINT) out of date? `python build.py models lock` takes what is there now"
    if remote.commit and remote.commit != repo.commit:
        raise IntegrityError(
            f"{where}: asked for commit {repo.commit}, the hub answers with {remote.commit}", hint=hint
        )
    if len(remote.etag) == 64 and remote.etag != file.sha256:
        raise IntegrityError(
            f"{where}: the hub has sha256 {remote.etag}, the lock {file.sha256}", hint=hint
        )  # fmt: skip
    if remote.size is not None and remote.size != file.size:
        raise IntegrityError(f"{where}: the hub has {remote.size} bytes, the lock {file.size}", hint=hint)


def _over_xet(
    hub: Hub, file: LockedFile, remote: Remote, part: BinaryIO, advance: Advance, stop: threading.Event
) -> bool:
    """Complete `part` over Xet; False if plain HTTP shall go on with what is there then."""
    digest, begin = hashlib.sha256(), 0
    part.seek(0)
    for block in blocks(part):
        digest.update(block)
        begin += len(block)
    if begin > file.size:
        return False
    try:
        if begin < file.size:
            begin = _append(
                part, xet.chunks(hub, remote, file.size, begin), digest, begin, file, advance, stop
            )
    except (Stopped, ImageBuildError):
        raise
    except Exception as error:  # of hf_xet or the client: they share no base class
        log.warning("%s: Xet failed (%s); going on over HTTP", file.path, type(error).__name__)
        return False
    if begin == file.size and digest.hexdigest() == file.sha256:
        return True
    log.warning("%s: Xet gave wrong bytes; once more over HTTP", file.path)
    part.seek(0)
    part.truncate()
    advance(-begin)
    return False


def _append(
    part: BinaryIO,
    chunks: Iterable[bytes],
    digest: Any,
    begin: int,
    file: LockedFile,
    advance: Advance,
    stop: threading.Event,
) -> int:
    for chunk in chunks:
        if stop.is_set():
            raise Stopped
        data = memoryview(chunk)[: file.size - begin]
        write_all(part, data)
        digest.update(data)
        begin += len(data)
        advance(len(data))
    return begin


def _rehinted(
    error: ImageBuildError, repo: LockedRepo, file: LockedFile, *, signed: bool = False
) -> ImageBuildError:
    """Return a transfer's error with the next step that helps here."""
    where = f"{repo.repo}/{file.path}"
    message = f"{where}: {error.message.removeprefix(f'{file.path}: ')}"
    if signed:
        return PreconditionError(
            message, hint="the hub's store refuses what the hub signed: check this machine's clock and proxy"
        )
    if isinstance(error, NotThere):
        return PreconditionError(
            message, hint="the hub lists the file, but its store does not have it: run again later"
        )
    if isinstance(error, IntegrityError):
        return IntegrityError(
            message,
            hint="a proxy or mirror in between sent other bytes: run again, if need be without HF_ENDPOINT",
        )
    if isinstance(error, LoginRefused) or "HTTP 403" in error.message:
        return LoginRefused(message, hint="log in with `hf auth login`, or set HF_TOKEN or --token-file")
    return type(error)(message, hint=error.hint) if type(error) is PreconditionError else error
