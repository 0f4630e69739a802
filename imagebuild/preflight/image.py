# SPDX-License-Identifier: Apache-2.0
"""`Image` and `Wishes`: which image this is, by its own plan, and what the operator asked of it."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from imagebuild.diagnostics import Refused, closest
from imagebuild.digest import digest
from imagebuild.errors import PreconditionError
from imagebuild.preflight.findings import IDS

PLAN = Path("/etc/imagebuild/plan.json")
LOCKS = Path("/etc/imagebuild")  # models/ below it has the models' sources and locks
KEY_FILE = Path("/run/secrets/api_key")


@dataclass(frozen=True)
class Image:
    """`plan` is the digest of the Plan that it was built from, `cuda` its CUDA release."""

    arch: str
    cuda: str
    plan: str
    cache: Path


def read_image(path: Path = PLAN) -> Image:
    """Read the plan in the image. Raises PreconditionError if there is none: not one of our images."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PreconditionError(f"{path}: {error}", hint="run this in an image that build.py made") from None
    cuda = plan["config"]["labels"]["io.imagebuild.cuda"]
    return Image(plan["arch"], cuda, digest(plan), Path(plan["config"]["volumes"][0]))


@dataclass(frozen=True)
class Wishes:
    """`bind` is the host's address that the port is published on (empty: nobody said)."""

    action: str
    accepted: tuple[str, ...]
    bind: str
    without_nvlink: str
    gpu: str
    as_json: bool

    @property
    def exposed(self) -> bool:
        """Whether others than this machine can reach the port."""
        try:
            return bool(self.bind) and not ipaddress.ip_address(self.bind.strip("[]")).is_loopback
        except ValueError:
            return self.bind != "localhost"


def read_wishes(action: str, as_json: bool, env: Mapping[str, str]) -> Wishes:
    """Read IMAGEBUILD_*. Raises Refused for an unknown id or action."""
    accepted = tuple(env.get("IMAGEBUILD_ACCEPT", "").replace(",", " ").split())
    for name in accepted:
        if name not in IDS:
            raise Refused(f'IMAGEBUILD_ACCEPT: no check "{name}"', allowed=IDS, suggestion=closest(name, IDS))
    asked = env.get("IMAGEBUILD_ACTION", "") or "serve"
    if asked not in ("serve", "check", "plan"):
        raise Refused(f'IMAGEBUILD_ACTION: "{asked}"', allowed=["serve", "check", "plan"])
    return Wishes(
        action=asked if action == "serve" else action,
        accepted=accepted,
        bind=env.get("IMAGEBUILD_BIND", ""),
        without_nvlink=env.get("IMAGEBUILD_WITHOUT_NVLINK", ""),
        gpu=env.get("IMAGEBUILD_GPU", ""),
        as_json=as_json or env.get("IMAGEBUILD_JSON", "") not in ("", "0"),
    )


def api_key(path: Path = KEY_FILE) -> str:
    """Return the API key of the secret's file; empty without one. Raises PreconditionError if unreadable."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise PreconditionError(
            f"{path}: cannot be read: {error}",
            hint="the file of IMAGEBUILD_API_KEY_FILE must be readable for uid 1000",
        ) from None
