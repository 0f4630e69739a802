# SPDX-License-Identifier: Apache-2.0
"""Where an image of the embedded engine goes: a layout folder, a file, a registry, a Docker Engine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from imagebuild.engine_docker import load_archive, qualified_name
from imagebuild.hostconf import host_network
from imagebuild.oci_layout import OciImage, write_archive, write_layout
from imagebuild.progress import open_progress
from imagebuild.registry import Pusher, parse_target
from imagebuild.settings import Settings

_ARCHIVE_SUFFIX = ".tar"


@dataclass(frozen=True)
class Wanted:
    """What a user asked for. `output` that ends in .tar is a single file, else a layout folder."""

    output: Path | None = None
    push: str | None = None
    load: bool = False
    mount_from: str | None = None

    @property
    def anything(self) -> bool:
        """Whether the image goes anywhere but into the cache."""
        return self.output is not None or self.push is not None or self.load


def _archive(image: OciImage, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary, "wb") as out:
            write_archive(image, out, qualified_name(image.reference))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_wanted(wanted: Wanted) -> None:
    """Refuse what cannot be done, before anything is built.

    Raises ManifestError for a push target that is none.
    """
    if wanted.push is not None:
        parse_target(wanted.push, "x")


@contextlib.contextmanager
def open_pusher(wanted: Wanted, reference: str, blobs: Path, settings: Settings) -> Iterator[Pusher | None]:
    """Return what pushes layers while others are built; None if nothing is pushed.

    Raises PreconditionError if docker's credentials cannot be read.
    """
    if wanted.push is None:
        yield None
        return
    target = parse_target(wanted.push, reference.rpartition(":")[2])
    with Pusher(target, host_network(settings), blobs, mount_from=wanted.mount_from) as pusher:
        yield pusher


def deliver(
    image: OciImage, wanted: Wanted, pusher: Pusher | None, quiet: bool, report: Callable[[str], None]
) -> dict[str, str]:
    """Put the image where the user wants it; return what it is called there.

    Raises PreconditionError, IntegrityError or OSError as the destination does.
    """
    done: dict[str, str] = {}
    if wanted.output is not None:
        if wanted.output.suffix == _ARCHIVE_SUFFIX:
            _archive(image, wanted.output)
        else:
            write_layout(image, wanted.output)
        report(f"written {wanted.output}")
        done["output"] = str(wanted.output)
    if wanted.load:
        name = qualified_name(image.reference)
        done["loaded"] = load_archive(lambda out: write_archive(image, out, name), image.reference)
        report(f"loaded {image.reference} into Docker")
    if pusher is not None:
        with open_progress(quiet=quiet) as progress:
            done["pushed"] = pusher.finish(image, progress)
        report(f"pushed {done['pushed']}")
    return done
