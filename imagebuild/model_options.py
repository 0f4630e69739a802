# SPDX-License-Identifier: Apache-2.0
"""Options and small steps that the `models` commands share."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagebuild.errors import IntegrityError
from imagebuild.options import images_dir
from imagebuild.settings import Settings, load_settings

if TYPE_CHECKING:
    from imagebuild.models.lockfile import ModelLock
    from imagebuild.models.source import ModelSource

dir_option = click.option(
    "--dir", "root", type=click.Path(path_type=Path), envvar="IMAGEBUILD_MODELS_DIR",
    help="The models folder, one folder per repo below it. Default: $IMAGEBUILD_MODELS_DIR, then "
    "$XDG_DATA_HOME/imagebuild/models.",
)  # fmt: skip
from_option = click.option(
    "--from", "source_dir", type=click.Path(path_type=Path),
    help="Take the files from this folder instead of the hub; every byte is checked all the same.",
)  # fmt: skip
token_option = click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="A file that holds the hub's token; default: HF_TOKEN.",
)
drafter_option = click.option(
    "--drafter", help='Which drafter; "none" for none. Default: the first of the model.'
)
jobs_option = click.option("--jobs", type=int, help="Connections at the same time.")


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from imagebuild.models.source import model_names

    return [name for name in model_names(images_dir()) if name.startswith(incomplete)]


name_argument = click.argument("name", shell_complete=_names)


def models_root(root: Path | None) -> Path:
    """Return the models folder."""
    base = os.environ.get("XDG_DATA_HOME", "")
    fallback = Path(base) if base.startswith("/") else Path("~/.local/share").expanduser()
    return root.expanduser() if root else fallback / "imagebuild" / "models"


def chosen(source: ModelSource, drafter: str | None) -> list[str]:
    """Return the names of the repos that a command is about: the target and one drafter."""
    found = source.drafter(drafter)
    return ["target", *([found.name] if found else [])]


def settings_with(jobs: int | None) -> Settings:
    """Return the host's settings, with --jobs."""
    return load_settings({"jobs": jobs})


def now() -> str:
    """Return the time as RFC 3339."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_both(name: str) -> tuple[ModelSource, ModelLock | None]:
    """Return a model's source and lock. Raises IntegrityError if the lock was made from another source."""
    from imagebuild.models.lockfile import lock_path, read_lock
    from imagebuild.models.source import read_source, source_inputs

    source = read_source(images_dir(), name)
    path = lock_path(images_dir(), name)
    lock = read_lock(path)
    if lock is not None and lock.inputs != source_inputs(source):
        raise IntegrityError(
            f"{path}: made from another {name}.yaml: repos or revisions differ",
            hint=f"python build.py models lock {name}",
        )
    return source, lock


def share_network(settings: Settings) -> None:
    """Give the hub's client the CA and proxy of the host's pip, where the environment names none."""
    from imagebuild.hostconf import host_network

    host = host_network(settings)
    if host.ca_file is not None:
        os.environ.setdefault("SSL_CERT_FILE", str(host.ca_file))
    if host.proxy and not any(name.upper() == "HTTPS_PROXY" for name in os.environ):
        os.environ["HTTPS_PROXY"] = host.proxy
