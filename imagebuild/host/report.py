# SPDX-License-Identifier: Apache-2.0
"""`Report`: host.json: what was read, what was found, which service is recommended and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from imagebuild.errors import ManifestError
from imagebuild.host.facts import Host

SCHEMA: Literal[1] = 1
Level = Literal["ok", "note", "warning", "fail", "missing"]
LinkKind = Literal["nvlink", "pcie", "partial", "unknown", "single"]
_WIDTH = 9


@dataclass(frozen=True)
class Finding:
    """One finding. `id` stays the same over releases; `next` is what to do, if anything.

    fail: a check says no (exit 1). missing: something that is needed is not there (exit 3).
    """

    id: str
    level: Level
    text: str
    next: str = ""

    def line(self) -> str:
        """Return it as one line."""
        tail = f"; next: {self.next}" if self.next else ""
        return f"{self.level:<{_WIDTH}}{self.id:<20} {self.text}{tail}"


@dataclass(frozen=True)
class Option:
    """One service of the recipes on this host; `against` says why it cannot run here, `others` what could."""

    service: str
    title: str
    fits: bool
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rate:
    """A measured rate of a service: output tokens per second of all `concurrency` requests together."""

    service: str
    arch: str
    link: str
    concurrency: int
    tokens_per_s: float
    source: str


@dataclass(frozen=True)
class Advice:
    """Which service to start. `service` is empty if none can be recommended, and `reason` says why.

    `env` are NCCL's variables for this way of joining GPUs, which the service's compose file sets.
    """

    model: str
    arch: str
    link: LinkKind
    service: str
    reason: str
    measured: tuple[Rate, ...] = ()
    env: dict[str, str] | None = None
    options: tuple[Option, ...] = ()


@dataclass(frozen=True)
class Report:
    """host.json. `created` is RFC 3339, `tool` our version; `ok` whether nothing is failed or missing."""

    schema: Literal[1]
    tool: str
    created: str
    ok: bool
    host: Host
    findings: tuple[Finding, ...]
    advice: Advice


ADAPTER: TypeAdapter[Report] = TypeAdapter(Report)


def to_json(report: Report) -> str:
    """Return host.json's text."""
    return ADAPTER.dump_json(report, indent=1).decode() + "\n"


def read_report(path: Path) -> Report:
    """Read a host.json, of another machine too. Raises ManifestError if it is none."""
    try:
        return ADAPTER.validate_json(path.read_bytes(), strict=False)
    except (OSError, ValidationError) as error:
        raise ManifestError(
            f"{path}: no host.json of schema {SCHEMA}: {error}", hint="scripts/probe --output FILE makes one"
        ) from None
