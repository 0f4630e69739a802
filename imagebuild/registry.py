# SPDX-License-Identifier: Apache-2.0
"""Push an image to a registry (OCI distribution specification 1.1): chunked, resumable, checked.

What the registry has is not sent again; what another repository of it has is mounted. The push
counts only when the registry gives back exactly the manifest that was sent.
"""

from __future__ import annotations

import ipaddress
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import requests

from imagebuild.errors import IntegrityError, ManifestError, PreconditionError
from imagebuild.hostconf import HostNetwork
from imagebuild.oci_blob import blob_path
from imagebuild.oci_layout import OciImage
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


def _begin(push: _Push, digest: str, mount_from: str | None) -> str | None:
    """Begin an upload; None if the registry could mount the blob from another repository."""
    url = f"{push.target.url}/blobs/uploads/"
    params = {"mount": digest, "from": mount_from} if mount_from else {}
    response = push.call("POST", url, (201, 202), params=params)
    if response.status_code == requests.codes.created:
        return None
    return urljoin(url, response.headers["Location"])


def _offset(push: _Push, location: str) -> tuple[int, str]:
    """Ask how much of an upload the registry has; return that and where to go on."""
    response = push.call("GET", location, (204, 404))
    if response.status_code == requests.codes.not_found:
        return -1, location
    match = re.fullmatch(r"(?:bytes=)?0-(\d+)", response.headers.get("Range", ""))
    where = urljoin(location, response.headers.get("Location", location))
    return (int(match[1]) + 1 if match and match[1] != "0" else 0), where


def _send(push: _Push, path: Path, size: int, digest: str, location: str, task: Task) -> bool:
    """Send a blob in chunks, going on where the registry is; False if the upload was lost."""
    at, session = 0, push.session()
    with open(path, "rb") as file:
        while at < size:
            file.seek(at)
            data = file.read(CHUNK_BYTES)
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Range": f"{at}-{at + len(data) - 1}",
            }
            try:
                response = session.patch(location, data=data, headers=headers, auth=push.auth)
                accepted = response.status_code in (202, 204)
            except requests.RequestException:
                accepted = False
            if accepted:
                location = urljoin(location, response.headers["Location"])
                at += len(data)
                task.advance(len(data))
                continue
            found, location = _offset(push, location)
            if found < 0:
                task.advance(-at)
                return False
            task.advance(found - at)
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


def push_image(
    image: OciImage,
    target: Target,
    host: HostNetwork,
    progress: Progress,
    *,
    mount_from: str | None = None,
    retry: Retry | None = None,
) -> str:
    """Push and return HOST/REPOSITORY@DIGEST.

    `mount_from` is a repository of the same registry that may have layers already. Raises
    PreconditionError if the registry refuses or cannot be reached, IntegrityError if it does not
    give back what was sent.
    """
    local, reach = threading.local(), Reach()

    def session() -> Session:
        if not hasattr(local, "session"):
            local.session = open_session(host, reach)
        made: Session = local.session
        return made

    push = _Push(target, session, RegistryAuth(find_login(target.host)), retry or Retry())
    total = sum(layer.size for layer in image.layers)
    with progress.task(f"pushing to {target.host}", total) as task, ThreadPoolExecutor(PARALLEL) as pool:
        jobs = [
            pool.submit(
                _push_blob, push, blob_path(image.blobs, b.digest), b.size, b.digest, mount_from, task
            )
            for b in image.layers
        ]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            push.stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    _push_bytes(push, image.config, image.config_digest)
    url = f"{target.url}/manifests/{target.tag}"
    kind = {"Content-Type": "application/vnd.oci.image.manifest.v1+json"}
    push.call("PUT", url, (201,), data=image.manifest, headers=kind)
    back = push.call(
        "GET", f"{target.url}/manifests/{target.tag}", (200,), headers={"Accept": kind["Content-Type"]}
    )
    if back.content != image.manifest:
        raise IntegrityError(
            f"{target.host} gives back another manifest for {target.repository}:{target.tag} than was pushed",
            hint="somebody else may have pushed that tag at the same time; push again",
        )
    return f"{target.host}/{target.repository}@{image.digest}"
