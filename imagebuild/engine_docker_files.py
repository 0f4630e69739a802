# SPDX-License-Identifier: Apache-2.0
"""An image's file system as a tar stream, without running anything of the image."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

import docker
import requests
from docker.errors import DockerException, ImageNotFound, NotFound

from imagebuild.errors import PreconditionError

_CHUNK = 1 << 21


class _Chunks(io.RawIOBase):
    """A stream over chunks of bytes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


@contextmanager
def image_tar(client: docker.DockerClient, reference: str) -> Iterator[IO[bytes]]:
    """Yield the tar stream of an image's files, from a container that is never started.

    Raises PreconditionError if the engine does not answer or lacks the image.
    """
    try:
        container = client.containers.create(reference, command=["true"], network_disabled=True)
        try:
            chunks = cast("Iterator[bytes]", iter(container.export(chunk_size=_CHUNK)))
            yield io.BufferedReader(_Chunks(chunks), _CHUNK)
        finally:
            container.remove(force=True, v=True)
    except ImageNotFound:
        raise PreconditionError(f"the Docker Engine has no image {reference}") from None
    except (DockerException, requests.RequestException) as error:
        raise PreconditionError(f"the Docker Engine cannot give out {reference}: {error}") from error


def image_file(client: docker.DockerClient, reference: str, path: str) -> bytes:
    """Return a file of an image, from a container that is never started.

    Raises PreconditionError if the engine does not answer, or lacks the image or the file.
    """
    try:
        container = client.containers.create(reference, command=["true"], network_disabled=True)
        try:
            chunks, _ = container.get_archive(path)
            with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
                stream = tar.extractfile(tar.getmembers()[0])
                return stream.read() if stream is not None else b""
        finally:
            container.remove(force=True, v=True)
    except NotFound as error:
        raise PreconditionError(f"{reference}: {error.explanation}", hint="docker images") from None
    except (DockerException, requests.RequestException) as error:
        raise PreconditionError(f"the Docker Engine cannot give out {reference}: {error}") from error
