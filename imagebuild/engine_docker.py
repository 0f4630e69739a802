# SPDX-License-Identifier: Apache-2.0
"""The docker engine: `docker buildx build` for the build, the Docker SDK for everything else.

The SDK has no BuildKit, so it cannot mount contexts into RUN steps; the command line can.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import docker
import docker.auth
import requests
from docker.errors import DockerException, ImageNotFound

from imagebuild import process
from imagebuild.buildkit import StepLog
from imagebuild.cache import check_space
from imagebuild.engine import Image, Report
from imagebuild.engine_docker_files import image_file, image_tar
from imagebuild.errors import BuildError, ImageBuildError, PreconditionError
from imagebuild.plan import LABEL_PREFIX, Plan

# The first Engine whose BuildKit takes several named contexts (Docker Engine 23.0 release notes).
MINIMUM_SERVER = (23, 0)
# Measured on sm_103: 4.7 GB of wheels and .debs, once as build context and 11.2 GB unpacked.
_SPACE_FACTOR = 3.5
_INSTALL = "install Docker Engine 23 or newer with buildx; on Debian as root: ./scripts/install-docker"
_NO_ATTESTATION = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "DOCKER_CLI_HINTS": "false"}


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


class DockerEngine:
    """Builds with the Docker Engine that the `docker` command line talks to."""

    name = "docker"

    def _client(self) -> docker.DockerClient:
        """Connect where the docker command line would: DOCKER_HOST, else its current context."""
        try:
            host = process.output(
                ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"], timeout=60
            ).strip()
            return docker.DockerClient(base_url=host, timeout=600)
        except PreconditionError:
            raise PreconditionError("the docker command was not found", hint=_INSTALL) from None
        except (DockerException, ImageBuildError, requests.RequestException) as error:
            raise PreconditionError(f"no Docker Engine answers: {error}", hint=_INSTALL) from error

    def require(self) -> str:
        """Return the server's version. Raises PreconditionError if Docker or buildx cannot build this."""
        client = self._client()
        try:
            found: dict[str, Any] = client.version()
        except (DockerException, requests.RequestException) as error:
            raise PreconditionError(f"no Docker Engine answers: {error}", hint=_INSTALL) from error
        server = str(found.get("Version", "unknown"))
        if _version(server) < MINIMUM_SERVER:
            wanted = ".".join(map(str, MINIMUM_SERVER))
            raise PreconditionError(
                f"the Docker server is {server}; it must be {wanted} or newer", hint=_INSTALL
            )
        if found.get("Os") != "linux" or found.get("Arch") != "amd64":
            raise PreconditionError(
                f"the Docker server runs {found.get('Os')}/{found.get('Arch')}; images are linux/amd64",
                hint="build on an x86-64 Linux host",
            )
        try:
            buildx = process.output(["docker", "buildx", "version"], timeout=60).split()[1]
        except (ImageBuildError, IndexError) as error:
            raise PreconditionError(f"docker has no buildx: {error}", hint=_INSTALL) from error
        return f"Docker Engine {server}, buildx {buildx}"

    def find(self, plan: Plan) -> Image | None:
        """Return the image with this Plan's tag and digest label, if the engine has it."""
        try:
            image = self._client().images.get(plan.reference)
        except ImageNotFound:
            return None
        except (DockerException, requests.RequestException) as error:
            raise PreconditionError(f"no Docker Engine answers: {error}", hint=_INSTALL) from error
        if image.labels.get(f"{LABEL_PREFIX}.plan") != plan.digest:
            return None
        return Image(plan.reference, str(image.id), int(image.attrs["Size"]))

    def _check_space(self, plan: Plan) -> None:
        """Refuse to start a build that the server's disk cannot hold (a server elsewhere is not asked)."""
        folder = Path(str(self._client().info().get("DockerRootDir", "")))
        if folder.is_dir():
            need = int(_SPACE_FACTOR * sum(a.size for a in plan.artifacts))
            check_space(folder, need, "free space there; docker builder prune removes old build caches")

    def build(self, plan: Plan, dockerfile: Path, contexts: dict[str, Path], report: Report) -> Image:
        """Build with no network; the tag appears only when everything succeeded."""
        self._check_space(plan)
        base = plan.layers[0].name
        argv = ["docker", "buildx", "build", "--network=none", "--load", "--progress=rawjson"]
        argv += ["--file", str(dockerfile), "--tag", plan.reference]
        argv += ["--label", f"{LABEL_PREFIX}.plan={plan.digest}"]
        argv += ["--build-arg", f"SOURCE_DATE_EPOCH={plan.mtime}"]
        for name, path in sorted(contexts.items()):
            if name != base:
                argv += ["--build-context", f"{name}={path}"]
        log = StepLog(report)
        with tempfile.TemporaryDirectory(prefix="imagebuild-") as folder:
            status = process.stream(
                [*argv, str(contexts[base])], log.line, cwd=Path(folder), env=_NO_ATTESTATION
            )
        if status != 0:
            raise BuildError(f"docker buildx build exited {status}\n{log.failure()}")
        image = self.find(plan)
        if image is None:
            raise BuildError(f"docker built {plan.reference} but does not have it with label {plan.digest}")
        return image

    def read_file(self, reference: str, path: str) -> bytes:
        """Return a small file of an image. Raises PreconditionError if the image or the file is not there."""
        return image_file(self._client(), reference, path)

    def files(self, reference: str) -> AbstractContextManager[IO[bytes]]:
        """Open the tar stream of an image's files. Raises PreconditionError if it is not there."""
        return image_tar(self._client(), reference)


def qualified_name(reference: str) -> str:
    """Return a local image's name as Docker's containerd store spells it."""
    return f"{docker.auth.INDEX_NAME}/library/{reference}"


def load_archive(write: Callable[[IO[bytes]], None], reference: str) -> str:
    """Load an image archive, written by `write`, into the Docker Engine; return the image's id.

    The archive is streamed through a pipe, so it takes no disk of its own. Raises
    PreconditionError if no Engine answers, BuildError if it does not take the archive.
    """
    engine = DockerEngine()
    engine.require()
    client = engine._client()
    read_end, write_end = os.pipe()
    trouble: list[BaseException] = []

    def produce() -> None:
        try:
            with os.fdopen(write_end, "wb") as out:
                write(out)
        except BrokenPipeError:
            pass  # the Engine has said why
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        with os.fdopen(read_end, "rb") as source:
            client.images.load(source)
    except (DockerException, requests.RequestException) as error:
        raise BuildError(f"the Docker Engine did not take the image: {error}") from error
    finally:
        thread.join()
    if trouble:
        raise trouble[0]
    try:
        return str(client.images.get(reference).id)
    except ImageNotFound:
        raise BuildError(f"the Docker Engine loaded an archive but has no {reference}") from None
