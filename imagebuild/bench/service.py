# SPDX-License-Identifier: Apache-2.0
"""Start and stop an arm's compose service; what runs in it; its log."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from imagebuild import process
from imagebuild.catalog import project_root
from imagebuild.errors import BuildError, PreconditionError


@dataclass(frozen=True)
class Identity:
    """The container's image: its name and id, and the Plan it was made from."""

    image: str = ""
    digest: str = ""
    plan: str = ""


class Compose:
    """The services of one compose file (default: the project's own)."""

    def __init__(self, file: Path | None = None, profiles: tuple[str, ...] = ()) -> None:
        self.file = file or project_root() / "compose.yaml"
        options = [text for profile in profiles for text in ("--profile", profile)]
        self.argv = ("docker", "compose", "--file", str(self.file.absolute()), *options)

    def _output(self, *argv: str, timeout: float = 600) -> str:
        return process.output([*self.argv, *argv], timeout=timeout)

    def require(self, services: set[str]) -> None:
        """Raise PreconditionError if compose or one of the services is not there."""
        try:
            known = set(self._output("config", "--services").split())
        except BuildError as error:
            raise PreconditionError(
                f"docker compose cannot read {self.file}\n{error.message}",
                hint="scripts/install-docker, or give --url ARM=URL",
            ) from error
        if missing := sorted(services - known):
            raise PreconditionError(
                f"{self.file} has no service {', '.join(missing)}", hint=f"it has: {', '.join(sorted(known))}"
            )

    @contextlib.contextmanager
    def running(self, service: str) -> Iterator[None]:
        """Start the service and all it needs; stop and remove it at the end, whatever happens."""
        try:
            self._output("up", "--detach", "--no-build", "--pull", "never", service)
            yield
        finally:
            with contextlib.suppress(BuildError):
                self._output("rm", "--stop", "--force", service)

    def is_up(self, service: str) -> bool:
        """Whether its container runs."""
        return bool(self._output("ps", "--quiet", "--status", "running", service).strip())

    def log(self, service: str) -> list[str]:
        """Return all lines of its log so far, each with a time in front."""
        return self._output("logs", "--no-log-prefix", "--timestamps", "--no-color", service).splitlines()

    def identity(self, service: str) -> Identity:
        """Say which image the running container has."""
        container = self._output("ps", "--quiet", service).strip()
        found = json.loads(process.output(["docker", "inspect", container]))[0]
        labels = found["Config"].get("Labels") or {}
        return Identity(found["Config"]["Image"], found["Image"], labels.get("io.imagebuild.plan", ""))
