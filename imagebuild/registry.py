# SPDX-License-Identifier: Apache-2.0
"""Push an image to a registry (OCI distribution specification 1.1): chunked, resumable, checked.

What the registry has is not sent again; what another repository of it has is mounted. The push
counts only when the registry gives back exactly the manifest that was sent.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from imagebuild.errors import ManifestError
from imagebuild.hostconf import HostNetwork
from imagebuild.oci_blob import Blob, blob_path
from imagebuild.oci_layout import OciImage
from imagebuild.progress import Progress, Task
from imagebuild.registry_auth import RegistryAuth, find_login
from imagebuild.registry_upload import Target, Upload, push_blob, push_bytes, push_manifest
from imagebuild.session import Reach, Session, open_session
from imagebuild.transfer import Retry

__all__ = ["Pusher", "Target", "parse_target", "push_image"]

PARALLEL = 3
_REFERENCE = re.compile(
    r"(?P<host>[a-zA-Z0-9.-]+(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?)/"
    r"(?P<repository>[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[\w][\w.-]{0,127}))?"
)


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


def connect(target: Target, host: HostNetwork, retry: Retry | None = None) -> Upload:
    """Return a connection to a repository, with the host's proxies, CAs and docker's login."""
    local, reach = threading.local(), Reach()

    def session() -> Session:
        if not hasattr(local, "session"):
            local.session = open_session(host, reach)
        made: Session = local.session
        return made

    return Upload(target, session, RegistryAuth(find_login(target.host)), retry or Retry())


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
        self._push = connect(target, host, retry)
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
                push_blob, self._push, path, blob.size, blob.digest, self._mount_from, self._sent
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
        push_bytes(self._push, image.config, image.config_digest)
        push_manifest(self._push, image)
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
