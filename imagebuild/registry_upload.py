# SPDX-License-Identifier: Apache-2.0
"""Send one blob, or the manifest, to a registry: in chunks, going on where it broke, checked.

OCI distribution specification 1.1, "Pushing a blob in chunks" and "Pushing manifests".
"""

from __future__ import annotations

import ipaddress
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import requests

from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.oci_layout import MANIFEST, OciImage
from imagebuild.progress import Task
from imagebuild.redact import without_credentials
from imagebuild.registry_auth import RegistryAuth
from imagebuild.session import Session
from imagebuild.transfer import Retry, Transient, patiently

CHUNK_BYTES = 16 << 20
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


@dataclass
class Upload:
    """What the threads that push one image share."""

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


def _location(response: requests.Response, push: Upload) -> str:
    """Return where an upload goes on. Raises PreconditionError if the registry does not say."""
    found = response.headers.get("Location")
    if not found:
        raise PreconditionError(
            f"{push.target.host} answered {response.status_code} to {response.request.method} without saying "
            "where the upload goes on (no Location header)",
            hint="is that a registry, or a proxy that drops headers?",
        )
    return urljoin(response.url, found)


def _begin(push: Upload, digest: str, mount_from: str | None) -> str | None:
    """Begin an upload; None if the registry could mount the blob from another repository."""
    url = f"{push.target.url}/blobs/uploads/"
    params = {"mount": digest, "from": mount_from} if mount_from else {}
    response = push.call("POST", url, (201, 202), params=params)
    return None if response.status_code == requests.codes.created else _location(response, push)


def _offset(push: Upload, location: str) -> tuple[int, str]:
    """Ask how much of an upload the registry has; return that (-1: it forgot it) and where to go on."""
    response = push.call("GET", location, (204, 404))
    if response.status_code == requests.codes.not_found:
        return -1, location
    match = re.fullmatch(r"(?:bytes=)?0-(\d+)", response.headers.get("Range", ""))
    where = urljoin(location, response.headers.get("Location", location))
    return (int(match[1]) + 1 if match and match[1] != "0" else 0), where


def _chunk(push: Upload, data: bytes, at: int, location: str) -> tuple[str | None, str]:
    """Send one chunk; return where the upload goes on, or None and what went wrong."""
    headers = {"Content-Type": "application/octet-stream", "Content-Range": f"{at}-{at + len(data) - 1}"}
    try:
        response = push.session().patch(location, data=data, headers=headers, auth=push.auth)
    except requests.RequestException as error:
        return None, without_credentials(str(error))
    if response.status_code in (202, 204):
        return _location(response, push), ""
    return None, f"answered {response.status_code}: {response.text[:300]}"


def _send(push: Upload, path: Path, size: int, digest: str, location: str, task: Task) -> bool:
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


def push_blob(push: Upload, path: Path, size: int, digest: str, mount_from: str | None, task: Task) -> None:
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


def push_bytes(push: Upload, content: bytes, digest: str) -> None:
    if not push.has(digest):
        location = _begin(push, digest, None)
        assert location is not None
        push.call("PUT", location, (201,), params={"digest": digest}, data=content)


def push_manifest(push: Upload, image: OciImage) -> None:
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
