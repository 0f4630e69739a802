# SPDX-License-Identifier: Apache-2.0
"""`Plan`: everything that decides an image's bytes, in one frozen value with one JSON form.

Nothing to the right of `resolve` reads a manifest, the clock, the environment or the host: the
same Plan gives the same build context anywhere, and its digest names the image.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from imagebuild.digest import digest
from imagebuild.layer.base import BaseSettings
from imagebuild.layer.spec import Artifact, FileInput, LayerSpec

SCHEMA = 1
LABEL_PREFIX = "io.imagebuild"


class Config(BaseModel):
    """The image configuration. `user` is uid:gid, `volumes` absolute paths, `ports` TCP ports."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    env: dict[str, str]
    user: str
    workdir: str
    volumes: tuple[str, ...]
    entrypoint: tuple[str, ...]
    ports: tuple[int, ...]
    labels: dict[str, str]


class Plan(BaseModel):
    """One image, resolved.

    `layers` go slow-changing first; the first is the Debian base. `overlaps` are the pairs of
    wheels (before, after) that may ship the same path. `tools` are wheels for the build
    containers, `tool_code` the sha256 of our own code in them and `base_code` that of the code that
    unpacks the base. `prefix` is the virtual
    environment's absolute path, `python` its minor version, `mtime` (s since 1970) the time of
    every file, `created` the same as text.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    schema_version: int
    arch: str
    stack: str
    repository: str
    tag_stem: str
    created: str
    mtime: int
    prefix: str
    python: str
    base: BaseSettings
    layers: tuple[LayerSpec, ...]
    overlaps: tuple[tuple[str, str], ...]
    tools: tuple[Artifact, ...]
    tool_code: str
    base_code: str
    config: Config

    @cached_property
    def digest(self) -> str:
        """The sha256 of the canonical JSON: 64 hex digits."""
        return digest(to_json(self))

    @property
    def tag(self) -> str:
        """The immutable tag: versions, arch, lock day and the head of the digest."""
        return f"{self.tag_stem}-{self.digest[:12]}"

    @property
    def reference(self) -> str:
        """The image's name and tag."""
        return f"{self.repository}:{self.tag}"

    @property
    def labels(self) -> dict[str, str]:
        """The image's labels, the Plan's own digest among them."""
        return {**self.config.labels, f"{LABEL_PREFIX}.plan": self.digest}

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """Every file that must be fetched, in layer order, tools last."""
        return tuple(a for layer in self.layers for a in layer.artifacts) + self.tools

    @property
    def packages(self) -> frozenset[str]:
        """The names of all packages in the image, Debian's and Python's."""
        return frozenset(a.name for layer in self.layers for a in layer.artifacts)

    @property
    def ledger(self) -> tuple[dict[str, Any], ...]:
        """Every patch, in the order in which they are applied (see `Patch.item`)."""
        transforms = [t for layer in self.layers for t in layer.transforms if t.kind == "patch"]
        return tuple(item for transform in transforms for item in transform.args["ledger"])

    @property
    def files(self) -> tuple[FileInput, ...]:
        """Every file of images/ that the build reads."""
        found = [item for layer in self.layers for item in layer.files]
        found += [item for layer in self.layers for t in layer.transforms for item in t.files]
        return tuple(found)


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the Plan's JSON form."""
    return plan.model_dump(mode="json")


def to_text(plan: Plan) -> str:
    """Return the Plan as the JSON text that users and images see; equal Plans give equal text."""
    return json.dumps(to_json(plan), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def from_json(text: str) -> Plan:
    """Read a Plan back. Raises pydantic.ValidationError if it is not one."""
    return TypeAdapter(Plan).validate_json(text)
