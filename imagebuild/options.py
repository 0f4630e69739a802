# SPDX-License-Identifier: Apache-2.0
"""Command-line options that several commands share, and what they turn into."""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from imagebuild.catalog import arch_names, project_root
from imagebuild.redact import redact
from imagebuild.settings import Settings, load_settings

F = TypeVar("F", bound=Callable[..., Any])
_NETWORK = (
    click.option("--cache-dir", type=click.Path(path_type=Path), help="Where downloads are kept."),
    click.option("--jobs", type=int, help="Connections at the same time."),
    click.option("--index-url", help="Python index; default: the host's own pip or uv configuration."),
    click.option("--debian-mirror", help="Debian mirror; default: the host's own apt sources."),
    click.option("--debian-security-mirror", help="Debian security mirror; default: like the mirror."),
    click.option("--debian-snapshot", help="Base URL of a Debian snapshot service, for superseded versions."),
)
_SETTING_NAMES = (
    "cache_dir", "jobs", "index_url", "debian_mirror", "debian_security_mirror", "debian_snapshot",
)  # fmt: skip


class _Redacting(logging.Formatter):
    """Keeps credentials in addresses out of logs, our libraries' own messages included."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def images_dir() -> Path:
    """Return the project's images/ folder."""
    return project_root() / "images"


def _complete_arch(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in arch_names(images_dir()) if name.startswith(incomplete)]


def arch_option(function: F) -> F:
    """Add --arch."""
    text = "GPU architecture: sm_103, sm103, 103, 10.3 and 10.3a all mean sm_103."
    return click.option("--arch", required=True, help=text, shell_complete=_complete_arch)(function)


def slim_option(function: F) -> F:
    """Add --no-slim."""
    text = "Leave every file as its wheel shipped it: another plan, larger image."
    return click.option("--no-slim", is_flag=True, help=text)(function)


def output_options(function: F) -> F:
    """Add --json, -v and -q; sets up logging before the command runs."""

    @functools.wraps(function)
    def wrapped(*args: Any, verbose: int, quiet: bool, **kwargs: Any) -> Any:
        level = logging.DEBUG if verbose else logging.WARNING
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Redacting("%(name)s: %(message)s"))
        logging.basicConfig(handlers=[handler], level=level)
        if not verbose or verbose < 2:
            for noisy in ("urllib3", "docker", "filelock"):
                logging.getLogger(noisy).setLevel(logging.WARNING)
        return function(*args, verbose=verbose, quiet=quiet, **kwargs)

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        click.option("-v", "--verbose", count=True, help="Say more; -vv: libraries too."),
        click.option("-q", "--quiet", is_flag=True, help="Print errors and the result only."),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def network_options(function: F) -> F:
    """Add the options about cache, index and mirrors; the command gets them as `settings`."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in _SETTING_NAMES}
        return function(*args, settings=load_settings(given), **kwargs)

    for option in reversed(_NETWORK):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


class Reporter:
    """Prints progress lines on stderr; `quiet` prints none."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def __call__(self, line: str) -> None:
        """Print one line."""
        if not self.quiet:
            click.echo(line, err=True)


def print_result(as_json: bool, value: dict[str, Any], text: str) -> None:
    """Print a command's result on stdout."""
    click.echo(json.dumps(value, indent=1, ensure_ascii=False) if as_json else text)


__all__ = [
    "Reporter",
    "Settings",
    "arch_option",
    "images_dir",
    "network_options",
    "output_options",
    "print_result",
    "slim_option",
]
