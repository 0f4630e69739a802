# SPDX-License-Identifier: Apache-2.0
"""Every error a user can meet. One class per exit code; docs/cli.md lists the codes.

A message says what went wrong and where; `hint` says the next step. Nothing else in the
package calls `sys.exit`.
"""

from __future__ import annotations


class ImageBuildError(Exception):
    """Base of all errors shown to a user without a traceback.

    `hint` is the next step, shown on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  next: {self.hint}"


class CheckFailed(ImageBuildError):
    """A check of a plan, image or host said no."""

    exit_code = 1


class ManifestError(ImageBuildError):
    """The command line or a file under images/ is wrong."""

    exit_code = 2


class PreconditionError(ImageBuildError):
    """Something the step needs is missing: engine, GPU, disk, network, mirror."""

    exit_code = 3


class IntegrityError(ImageBuildError):
    """Bytes or inputs differ from what a lock, hash or digest says."""

    exit_code = 4


class BuildError(ImageBuildError):
    """The build itself failed."""

    exit_code = 5
