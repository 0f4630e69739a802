# SPDX-License-Identifier: Apache-2.0
"""`ImageConfig`: an image's configuration, from an OCI configuration or a container engine, and its check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagebuild.checks.findings import Finding
from imagebuild.checks.secrets import secret_in, variable_check
from imagebuild.plan import LABEL_PREFIX, Plan


@dataclass(frozen=True)
class ImageConfig:
    """`ports` are like 30000/tcp, `created` as the image has it, `history` the commands that it shows."""

    env: Mapping[str, str]
    user: str
    workdir: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    volumes: frozenset[str]
    ports: frozenset[str]
    labels: Mapping[str, str]
    created: str
    history: tuple[str, ...] = ()


def read_config(raw: Mapping[str, Any], created: str, history: tuple[str, ...]) -> ImageConfig:
    """Read the `config` object that OCI configurations and `docker image inspect` share."""
    return ImageConfig(
        env=dict(line.split("=", 1) for line in raw.get("Env") or ()),
        user=raw.get("User") or "",
        workdir=raw.get("WorkingDir") or "",
        entrypoint=tuple(raw.get("Entrypoint") or ()),
        command=tuple(raw.get("Cmd") or ()),
        volumes=frozenset(raw.get("Volumes") or ()),
        ports=frozenset(raw.get("ExposedPorts") or ()),
        labels=dict(raw.get("Labels") or {}),
        created=created,
        history=history,
    )


def oci_config(config: Mapping[str, Any]) -> ImageConfig:
    """Read an OCI image configuration."""
    history = tuple(str(item.get("created_by", "")) for item in config.get("history", ()))
    return read_config(config.get("config", {}), str(config.get("created", "")), history)


def judge_config(config: ImageConfig, plan: Plan) -> list[Finding]:
    """Return what differs from the Plan, each thing by the check that says most about it."""
    found = [*_variables(config, plan), *_labels(config, plan)]
    ports = frozenset(f"{port}/tcp" for port in plan.config.ports)
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("user", config.user, plan.config.user),
        ("entry point", config.entrypoint, plan.config.entrypoint),
        ("command", config.command, ()),
        ("working directory", config.workdir, plan.config.workdir),
        ("volumes", sorted(config.volumes), sorted(plan.config.volumes)),
        ("ports", sorted(config.ports), sorted(ports)),
        ("created", config.created[:19], plan.created[:19]),
    )
    found += [
        Finding("configuration", name, f"is {have!r}, not {want!r}")
        for name, have, want in pairs
        if have != want
    ]
    for number, line in enumerate(config.history, 1):
        if secret_in(line.encode()):
            found.append(Finding("secrets", f"history line {number}", secret_in(line.encode())))
    return found


def _variables(config: ImageConfig, plan: Plan) -> list[Finding]:
    found = []
    for name in sorted(config.env.keys() | plan.config.env.keys()):
        have, want = config.env.get(name), plan.config.env.get(name)
        if want is None and have is not None:
            found.append(Finding(variable_check(name, have), f"variable {name}", "the Plan does not have it"))
        elif have is None:
            found.append(Finding("configuration", f"variable {name}", "missing"))
        elif have != want:
            check = "secrets" if secret_in(have.encode()) else "configuration"
            found.append(Finding(check, f"variable {name}", "another value than the Plan's"))
    return found


def _labels(config: ImageConfig, plan: Plan) -> list[Finding]:
    found = []
    for name in sorted(config.labels.keys() | plan.labels.keys()):
        have, want = config.labels.get(name), plan.labels.get(name)
        if have == want:
            continue
        check = "labels"
        if name == f"{LABEL_PREFIX}.plan":
            check = "plan"
        elif have is not None and secret_in(have.encode()):
            check = "secrets"
        what = f"is {have!r}, not {want!r}" if check != "secrets" else "holds a secret"
        found.append(Finding(check, f"label {name}", what))
    return found
