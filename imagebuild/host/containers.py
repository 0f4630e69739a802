# SPDX-License-Identifier: Apache-2.0
"""Read what starts containers with GPUs: Docker, Compose, NVIDIA's container toolkit, CDI files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from imagebuild import process
from imagebuild.errors import PreconditionError
from imagebuild.host.facts import Cdi, Containers

CDI_FOLDERS = ("etc/cdi", "var/run/cdi")  # the specification's defaults; a later one wins
_TIMEOUT_S = 30.0
_DRIVER = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d{3,}\.[0-9.]+)$")

Attempt = Callable[[Sequence[str]], process.Ended | None]


def attempt(argv: Sequence[str]) -> process.Ended | None:
    """Run a program; None: it is not there."""
    try:
        return process.attempt(argv, timeout=_TIMEOUT_S)
    except PreconditionError:
        return None


def read_containers(run: Attempt = attempt, root: Path = Path("/")) -> Containers:
    """Return engine, Compose, toolkit and CDI files. Whatever is broken is told in it; nothing is raised."""
    cdi = tuple(read_cdi(path, root) for path in _cdi_files(root))
    toolkit = _version(run(["nvidia-ctk", "--version"]))
    ended = run(["docker", "info", "--format", "{{json .}}"])
    if ended is None:
        return Containers(problem="no program docker", toolkit=toolkit, cdi=cdi)
    info = _json(ended.out)
    errors = [str(text) for text in info.get("ServerErrors") or ()]
    if not info.get("ServerVersion"):
        words = errors or ended.err.strip().splitlines() or ["docker info did not come back"]
        return Containers(problem=words[0], toolkit=toolkit, cdi=cdi)
    return Containers(
        engine=str(info["ServerVersion"]),
        rootless=any("rootless" in str(option) for option in info.get("SecurityOptions") or ()),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        cdi_in_engine=bool(info.get("CDISpecDirs")),
        compose=_version(run(["docker", "compose", "version", "--short"])),
        toolkit=toolkit,
        cdi=cdi,
    )


def _version(ended: process.Ended | None) -> str:
    found = re.search(r"\d+\.\d+(\.\d+)?", ended.out) if ended is not None and ended.status == 0 else None
    return found[0] if found else ""


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _cdi_files(root: Path) -> Iterator[Path]:
    for folder in CDI_FOLDERS:
        for path in sorted((root / folder).glob("*")):
            if path.suffix in (".yaml", ".yml", ".json"):
                yield path


def read_cdi(path: Path, root: Path) -> Cdi:
    """Return what a CDI file offers, and which of the host's files that it names are gone."""
    name = f"/{path.relative_to(root)}"
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
        devices = tuple(str(device["name"]) for device in value.get("devices") or ())
        kind = str(value["kind"])
    except (OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        first = str(error).strip().partition("\n")[0]
        return Cdi(name, problem=f"{type(error).__name__}: {first}")
    hosts = sorted(set(_host_paths(value)))
    versions = sorted({found[1] for host in hosts if (found := _DRIVER.search(host))})
    gone = tuple(host for host in hosts if not os.path.lexists(root / host.lstrip("/")))
    return Cdi(name, kind, devices, " ".join(versions), gone)


def _host_paths(value: Any) -> Iterator[str]:
    """Yield every path of the host that is mounted or made a device."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "hostPath" and isinstance(inner, str):
                yield inner
            else:
                yield from _host_paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _host_paths(inner)
