# SPDX-License-Identifier: Apache-2.0
"""Bring one file over: continue where it stopped, try again after trouble, and check the hash.

Whatever a server or an earlier run did, the lock's sha256 decides at the end. Bytes that fail it
are not kept.
"""

from __future__ import annotations

import datetime
import email.utils
import hashlib
import logging
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests
import urllib3

from imagebuild.cache import blocks, write_all
from imagebuild.crew import Stopped
from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.layer.spec import Artifact
from imagebuild.redact import redact, without_credentials
from imagebuild.session import HostDown, LoginRefused, Session

log = logging.getLogger(__name__)
T = TypeVar("T")

_CHUNK = 256 << 10
_PROGRESS = 1 << 20  # bytes that make an attempt count as progress, not as a failure
_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_MAX_RETRY_AFTER_S = 120


@dataclass(frozen=True)
class Retry:
    """How often to try again without progress: `attempts` in all, pauses of `base_s` seconds, doubling.

    A host that never answered gets `first_attempts`, so that being offline is noticed soon.
    """

    attempts: int = 6
    first_attempts: int = 3
    base_s: float = 0.5
    longest_s: float = 30.0


class NotThere(PreconditionError):
    """The server has no such file (404 or 410)."""


class Transient(Exception):
    """Trouble that may pass. `after_s` is what the server asked to wait."""

    def __init__(self, message: str, url: str, *, after_s: float = 0, progress: bool = False) -> None:
        super().__init__(message)
        self.url, self.after_s, self.progress = url, after_s, progress


class Unreachable(PreconditionError):
    """A server does not answer, or only with trouble.

    `known` tells whether it answered in this run; `server` is its scheme, host and port.
    """

    def __init__(self, trouble: Transient, *, known: bool) -> None:
        hint = "check the network and the host's proxy settings, then run again"
        if known:
            hint = "run again later; what was downloaded is kept, and the download goes on from there"
        super().__init__(f"{without_credentials(trouble.url)}: {trouble}", hint=hint)
        self.known = known
        self.server = "/".join(without_credentials(trouble.url).split("/")[:3])
        self.reason = str(trouble)


def patiently(action: Callable[[], T], session: Session, retry: Retry, stop: threading.Event) -> T:
    """Run `action`, again after trouble that may pass.

    Raises Unreachable when the trouble stays, Stopped when `stop` is set; other errors of the action pass.
    """
    failures, failing_since = 0, 0.0
    while True:
        if stop.is_set():
            raise Stopped
        begun = time.monotonic()
        try:
            return action()
        except (Transient, requests.RequestException, urllib3.exceptions.HTTPError) as error:
            trouble = error if isinstance(error, Transient) else _transient(error)
        failures = 0 if trouble.progress else failures + 1
        if failures == 1:
            failing_since = begun
        known = session.reach.answered_since(trouble.url, 0)
        down = isinstance(trouble.__cause__, HostDown)
        if down or failures >= (retry.attempts if known else retry.first_attempts):
            session.reach.give_up(trouble.url, str(trouble), failing_since)
            raise Unreachable(trouble, known=known) from trouble
        pause = min(retry.base_s * 2 ** max(0, failures - 1), retry.longest_s) * random.uniform(0.75, 1.25)
        pause = max(pause, min(trouble.after_s, _MAX_RETRY_AFTER_S))
        log.debug("%s: %s; again in %.1f s", without_credentials(trouble.url), trouble, pause)
        stop.wait(pause)


def download(
    artifact: Artifact,
    url: str,
    file: BinaryIO,
    session: Session,
    *,
    advance: Callable[[int], None],
    retry: Retry,
    stop: threading.Event,
) -> None:
    """Complete `file`, the artifact's locked `.part`, from `url` (http, https or file).

    `advance` gets the bytes as they come, and negative numbers for bytes thrown away.

    Raises IntegrityError for wrong bytes (and empties the file), NotThere, Unreachable,
    PreconditionError for other answers and disk trouble, Stopped.
    """
    state = _Part(artifact, url, file, advance)
    resumed = state.resume()
    while True:
        if url.startswith("file:"):
            _copy(state, stop)
        else:
            patiently(lambda: _receive(state, session, stop), session, retry, stop)
        found = state.digest.hexdigest()
        if found == artifact.sha256:
            return
        state.restart()
        if not resumed:
            break
        log.debug("%s: continued from %d bytes, wrong hash; once more from the start", artifact.file, resumed)
        resumed = 0
    raise IntegrityError(
        f"{artifact.file}: wrong bytes from {without_credentials(url)}: expected sha256 {artifact.sha256}, "
        f"found {found}; the file was not kept",
        hint="try another index or mirror; if the file was replaced upstream: python build.py lock",
    )


class _Part:
    """The `.part` file with the hash of what is in it."""

    def __init__(self, artifact: Artifact, url: str, file: BinaryIO, advance: Callable[[int], None]) -> None:
        self.artifact, self.url, self.file, self.advance = artifact, url, file, advance
        self.digest = hashlib.sha256()
        self.size = 0

    def resume(self) -> int:
        """Hash what an earlier run left, which `advance` knows of already; return its size."""
        for block in blocks(self.file):
            self.digest.update(block)
            self.size += len(block)
        if 0 < self.artifact.size < self.size:
            self.restart()
        return self.size

    def restart(self) -> None:
        """Throw all bytes away."""
        self.advance(-self.size)
        self.file.seek(0)
        self.file.truncate()
        self.digest, self.size = hashlib.sha256(), 0

    def add(self, data: bytes | memoryview) -> None:
        """Write, hash and count; raises IntegrityError when there is more than the lock says."""
        if 0 < self.artifact.size < self.size + len(data):
            self.restart()
            raise self.wrong_size(f"more than {self.artifact.size} bytes")
        write_all(self.file, data)
        self.digest.update(data)
        self.size += len(data)
        self.advance(len(data))

    def wrong_size(self, found: str) -> IntegrityError:
        return IntegrityError(
            f"{self.artifact.file}: wrong size at {without_credentials(self.url)}: expected "
            f"{self.artifact.size} bytes, found {found}; the file was not kept",
            hint="try another index or mirror; if the file was replaced upstream: python build.py lock",
        )


def _receive(part: _Part, session: Session, stop: threading.Event) -> None:
    """Make one request for what is missing; raises Transient if the part is not complete after it."""
    size, begun = part.artifact.size, part.size
    if size > 0 and begun == size:
        return
    headers = {"Range": f"bytes={begun}-"} if begun else {}
    with session.get(part.url, headers=headers, stream=True) as response:
        _check_status(part, response)
        try:
            while data := response.raw.read(_CHUNK, decode_content=False):
                part.add(data)
                if stop.is_set():
                    raise Stopped
        except (urllib3.exceptions.HTTPError, OSError) as error:
            enough = part.size - begun >= _PROGRESS
            raise Transient(redact(str(error)), part.url, progress=enough) from error
    if size > 0 and part.size < size:
        enough = part.size - begun >= _PROGRESS
        raise Transient(f"connection closed after {part.size} of {size} bytes", part.url, progress=enough)


def _check_status(part: _Part, response: requests.Response) -> None:
    """Judge an answer before its body is read, and set the part to where the body begins."""
    status, shown = response.status_code, without_credentials(response.url)
    if status in (404, 410):
        raise NotThere(f"{part.artifact.file}: HTTP {status} at {shown}")
    if status in _AGAIN:
        wait = _retry_after(response.headers.get("Retry-After", ""))
        raise Transient(f"HTTP {status} {response.reason}", part.url, after_s=wait)
    if status == 416:
        part.restart()
        raise Transient("the server does not continue this file", part.url)
    if status in (401, 403, 407):
        raise (PreconditionError if status == 403 else LoginRefused)(
            f"{part.artifact.file}: HTTP {status} at {shown}",
            hint="give the user name and password in ~/.netrc or in the URL of the index or mirror",
        )
    if status not in (200, 206):
        raise PreconditionError(
            f"{part.artifact.file}: HTTP {status} {response.reason} at {shown}",
            hint="check the URL of the index or mirror, and the proxy",
        )
    if status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {part.size}-"):
        part.restart()
        raise Transient("the server sent another range than asked for", part.url)
    if status == 200 and part.size:
        part.restart()
    length = response.headers.get("Content-Length", "")
    if part.artifact.size > 0 and length.isdigit() and part.size + int(length) != part.artifact.size:
        found = part.size + int(length)
        if response.headers.get("Content-Type", "").startswith("text/html"):
            raise PreconditionError(
                f"{part.artifact.file}: {shown} answers with a web page instead of the file",
                hint="a proxy or a login page may stand between; check the proxy settings",
            )
        part.restart()
        raise part.wrong_size(f"{found} bytes")


def _copy(part: _Part, stop: threading.Event) -> None:
    part.restart()
    path = Path(url2pathname(urlsplit(part.url).path))
    try:
        with path.open("rb") as source:
            for block in blocks(source):
                part.add(block)
                if stop.is_set():
                    raise Stopped
    except FileNotFoundError:
        raise NotThere(f"{part.artifact.file}: no such file: {path}") from None
    except OSError as error:
        raise PreconditionError(f"{path}: {error.strerror or error}", hint="make it readable") from error


def _transient(error: Exception) -> Transient:
    """Wrap a library's error. Raises PreconditionError for one that another try cannot cure."""
    request = getattr(error, "request", None)
    response = getattr(error, "response", None)
    url = str(getattr(request, "url", "") or "")
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        raise PreconditionError(
            f"{without_credentials(url)}: its certificate is not trusted: {_reason(error)}",
            hint="name your CA by PIP_CERT, SSL_CERT_FILE or IMAGEBUILD_CA_FILE, or add it to the system",
        ) from error
    after = _retry_after(response.headers.get("Retry-After", "")) if response is not None else 0
    trouble = Transient(_reason(error), url, after_s=after)
    trouble.__cause__ = error
    return trouble


def _reason(error: BaseException) -> str:
    """Return the innermost reason of a chain of wrapped errors, without object names and secrets."""
    inner = error
    while True:
        reason = getattr(inner, "reason", None)
        nested = [*([reason] if isinstance(reason, BaseException) else []), *getattr(inner, "args", ())]
        below = next((x for x in nested if isinstance(x, BaseException)), None)
        if below is None:
            break
        inner = below
    text = re.sub(r"^(?:HTTPS?Connection\([^)]*\)|<[^>]*>): ", "", str(inner)) or type(inner).__name__
    return redact(text)


def _retry_after(value: str) -> float:
    """Return the seconds of a Retry-After header, which may also be a date (RFC 9110, 10.2.3)."""
    if value.isdigit():
        return float(value)
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return 0
    now = datetime.datetime.now(datetime.timezone.utc)
    return max(0.0, (when - (now if when.tzinfo else now.replace(tzinfo=None))).total_seconds())
