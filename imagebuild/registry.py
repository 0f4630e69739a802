# SPDX-License-Identifier: Apache-2.0
"""Push an image to a registry (OCI distribution specification 1.1): chunked, resumable, checked.

What the registry has is not sent again; what another repository of it has is mounted. The push
counts only when the registry gives back exactly the manifest that was sent.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import requests

from imagebuild.errors import IntegrityError, ManifestError, PreconditionError
from imagebuild.hostconf import HostNetwork
from imagebuild.oci_blob import Blob, blob_path
from imagebuild.oci_layout import MANIFEST, OciImage
from imagebuild.progress import Progress, Task
from imagebuild.redact import without_credentials
from imagebuild.registry_auth import RegistryAuth, find_login
from imagebuild.session import Reach, Session, open_session
from imagebuild.transfer import Retry, Transient, patiently

CHUNK_BYTES = 16 << 20
PARALLEL = 3
_REFERENCE = re.compile(
    r"(?P<host>[a-zA-Z0-9.-]+(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?)/"
    r"(?P<repository>[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[\w][\w.-]{0,127}))?"
)
_SERVER_ERROR = 500
_BUSY = 429


@dataclass(frozen=True)
class Target:
    """Where an image goes: registry host (with port), repository, tag."""

    host: str
    repository: str
    tag: str

    @property
    def base(self) -> str:
        """The registry's address; plain HTTP for this machine's own addresses only."""
        name = self.host.rpartition(":")[0] if re.search(r":\d+$", self.host) else self.host
        try:
            local = ipaddress.ip_address(name.strip("[]")).is_loopback
        except ValueError:
            local = name == "localhost"
        return f"{'http' if local else 'https'}://{self.host}"

    @property
    def url(self) -> str:
        """The repository's API address."""
        return f"{self.base}/v2/{self.repository}"


def parse_target(text: str, default_tag: str) -> Target:
    """Return the target that HOST[:PORT]/REPOSITORY[:TAG] means.

    Raises ManifestError for anything else; there is no default registry.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None or not ("." in match["host"] or ":" in match["host"] or match["host"] == "localhost"):
        raise ManifestError(
            f"--push {text}: allowed: HOST[:PORT]/REPOSITORY[:TAG], lower-case repository",
            hint="name the registry's host; there is no default registry",
        )
    return Target(match["host"], match["repository"], match["tag"] or default_tag)


@dataclass
class _Push:
    """What the threads of one push share."""

    target: Target
    session: Callable[[], Session]
    auth: RegistryAuth
    retry: Retry
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, method: str, url: str, ok: tuple[int, ...], **kwargs: Any) -> requests.Response:
        """Send one request, with patience for what may pass.

        Raises PreconditionError for a refusal; the status must be one of `ok`.
        """
        session = self.session()

        def once() -> requests.Response:
            response = session.request(method, url, auth=self.auth, **kwargs)
            if response.status_code == requests.codes.unauthorized:
                with self.lock:
                    again = self.auth.answer(session, response)
                if again:
                    response = session.request(method, url, auth=self.auth, **kwargs)
            if response.status_code >= _SERVER_ERROR or response.status_code == _BUSY:
                raise Transient(f"answered {response.status_code}", url)
            return response

        response = patiently(once, session, self.retry, self.stop)
        if response.status_code not in ok:
            raise PreconditionError(
                f"{self.target.host} answered {response.status_code} to {method} {without_credentials(url)}: "
                f"{response.text[:300]}",
                hint=f"docker login {self.target.host}" if response.status_code in (401, 403) else None,
            )
        return response

    def has(self, digest: str) -> bool:
        """Whether the repository has a blob."""
        return self.call("HEAD", f"{self.target.url}/blobs/{digest}", (200, 404)).status_code == 200


def _location(response: requests.Response, push: _Push) -> str:
    """Return where an upload goes on. Raises PreconditionError if the registry does not say."""
    found = response.headers.get("Location")
    if not found:
        raise PreconditionError(
            f"{push.target.host} answered {response.status_code} to {response.request.method} without saying "
            "where the upload goes on (no Location header)",
            hint="is that a registry, or a proxy that drops headers?",
        )
    return urljoin(response.url, found)


def _begin(push: _Push, digest: str, mount_from: str | None) -> str | None:
    """Begin an upload; None if the registry could mount the blob from another repository."""
    url = f"{push.target.url}/blobs/uploads/"
    params = {"mount": digest, "from": mount_from} if mount_from else {}
    response = push.call("POST", url, (201, 202), params=params)
    return None if response.status_code == requests.codes.created else _location(response, push)


def _offset(push: _Push, location: str) -> tuple[int, str]:
    """Ask how much of an upload the registry has; return that (-1: it forgot it) and where to go on."""
    response = push.call("GET", location, (204, 404))
    if response.status_code == requests.codes.not_found:
        return -1, location
    match = re.fullmatch(r"(?:bytes=)?0-(\d+)", response.headers.get("Range", ""))
    where = urljoin(location, response.headers.get("Location", location))
    return (int(match[1]) + 1 if match and match[1] != "0" else 0), where


def _chunk(push: _Push, data: bytes, at: int, location: str) -> tuple[str | None, str]:
    """Send one chunk; return where the upload goes on, or None and what went wrong."""
    headers = {"Content-Type": "application/octet-stream", "Content-Range": f"{at}-{at + len(data) - 1}"}
    try:
        response = push.session().patch(location, data=data, headers=headers, auth=push.auth)
    except requests.RequestException as error:
        return None, without_credentials(str(error))
    if response.status_code in (202, 204):
        return _location(response, push), ""
    return None, f"answered {response.status_code}: {response.text[:300]}"


def _send(push: _Push, path: Path, size: int, digest: str, location: str, task: Task) -> bool:
    """Send a blob in chunks, going on where the registry is; False if the upload was lost.

    Raises PreconditionError if the same chunk fails as often as `push.retry` allows.
    """
    at = failures = 0
    with open(path, "rb") as file:
        while at < size:
            file.seek(at)
            data = file.read(CHUNK_BYTES)
            following, trouble = _chunk(push, data, at, location)
            if following is not None:
                location = following
                at += len(data)
                failures = 0
                task.advance(len(data))
                continue
            failures += 1
            if failures >= push.retry.attempts:
                raise PreconditionError(
                    f"{push.target.host} does not take bytes {at} to {at + len(data)} of {digest}: {trouble}",
                    hint="push again; a proxy before the registry may limit the size of a request",
                )
            found, location = _offset(push, location)
            if not 0 <= found <= size:
                task.advance(-at)
                return False
            task.advance(found - at)
            failures = 0 if found > at else failures
            at = found
            if push.stop.wait(push.retry.base_s):
                return False
    done = push.call("PUT", location, (201, 204, 400, 404), params={"digest": digest})
    if done.status_code in (400, 404):
        task.advance(-size)
        return False
    told = done.headers.get("Docker-Content-Digest", digest)
    if told != digest:
        raise IntegrityError(f"{push.target.host} stored {told} where {digest} was sent")
    return True


def _push_blob(push: _Push, path: Path, size: int, digest: str, mount_from: str | None, task: Task) -> None:
    if push.has(digest):
        task.advance(size)
        return
    for _ in range(push.retry.attempts):
        location = _begin(push, digest, mount_from)
        if location is None or _send(push, path, size, digest, location, task):
            if location is None:
                task.advance(size)
            if not push.has(digest):
                raise IntegrityError(
                    f"{push.target.host} took blob {digest} and does not have it", hint="push again"
                )
            return
    raise PreconditionError(
        f"{push.target.host} lost the upload of {digest} {push.retry.attempts} times", hint="push again"
    )


def _push_bytes(push: _Push, content: bytes, digest: str) -> None:
    if not push.has(digest):
        location = _begin(push, digest, None)
        assert location is not None
        push.call("PUT", location, (201,), params={"digest": digest}, data=content)


def _push_manifest(push: _Push, image: OciImage) -> None:
    """Name the image by its tag and read it back."""
    target = push.target
    url = f"{target.url}/manifests/{target.tag}"
    push.call("PUT", url, (201,), data=image.manifest, headers={"Content-Type": MANIFEST})
    back = push.call("GET", url, (200,), headers={"Accept": MANIFEST})
    if back.content != image.manifest:
        raise IntegrityError(
            f"{target.host} gives back another manifest for {target.repository}:{target.tag} than was pushed",
            hint="somebody else may have pushed that tag at the same time; push again",
        )


class _Sent:
    """A `Task` that counts, and hands on to the bar that there may be later."""

    def __init__(self) -> None:
        self.done = 0
        self._shown: Task | None = None
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        with self._lock:
            self.done += count
            if self._shown is not None:
                self._shown.advance(count)

    def describe(self, text: str) -> None:
        pass

    @contextlib.contextmanager
    def shown(self, progress: Progress, description: str, total: int) -> Iterator[None]:
        with self._lock:
            opened = progress.task(description, total, done=self.done)
            self._shown = opened.__enter__()
        with contextlib.ExitStack() as stack:
            stack.push(opened)
            yield


class Pusher:
    """Pushes layers as they come and then the image; use as a context manager, which ends its threads.

    `blobs` is where the layers lie. `mount_from` is a repository of the same registry that may have
    layers already.
    """

    def __init__(
        self,
        target: Target,
        host: HostNetwork,
        blobs: Path,
        *,
        mount_from: str | None = None,
        retry: Retry | None = None,
    ) -> None:
        local, reach = threading.local(), Reach()

        def session() -> Session:
            if not hasattr(local, "session"):
                local.session = open_session(host, reach)
            made: Session = local.session
            return made

        self._push = _Push(target, session, RegistryAuth(find_login(target.host)), retry or Retry())
        self._blobs, self._mount_from, self._sent = blobs, mount_from, _Sent()
        self._pool = ThreadPoolExecutor(PARALLEL)
        self._jobs: dict[str, Future[None]] = {}

    def __enter__(self) -> Pusher:
        return self

    def __exit__(self, *_: object) -> None:
        self._push.stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def layer(self, blob: Blob) -> None:
        """Begin to push a layer. Raises what an earlier one ended with."""
        for job in self._jobs.values():
            if job.done():
                job.result()
        if blob.digest not in self._jobs:
            path = blob_path(self._blobs, blob.digest)
            self._jobs[blob.digest] = self._pool.submit(
                _push_blob, self._push, path, blob.size, blob.digest, self._mount_from, self._sent
            )

    def finish(self, image: OciImage, progress: Progress) -> str:
        """Push what is missing of the image and return HOST/REPOSITORY@DIGEST.

        Raises PreconditionError if the registry refuses or cannot be reached, IntegrityError if it
        does not give back what was sent.
        """
        target = self._push.target
        for blob in image.layers:
            self.layer(blob)
        total = sum({layer.digest: layer.size for layer in image.layers}.values())
        with self._sent.shown(progress, f"pushing to {target.host}", total):
            for job in as_completed(self._jobs.values()):
                job.result()
        _push_bytes(self._push, image.config, image.config_digest)
        _push_manifest(self._push, image)
        return f"{target.host}/{target.repository}@{image.digest}"


def push_image(
    image: OciImage,
    target: Target,
    host: HostNetwork,
    progress: Progress,
    *,
    mount_from: str | None = None,
    retry: Retry | None = None,
) -> str:
    """Push an image that is built and return HOST/REPOSITORY@DIGEST. Raises as `Pusher.finish` does."""
    with Pusher(target, host, image.blobs, mount_from=mount_from, retry=retry) as pusher:
        return pusher.finish(image, progress)
