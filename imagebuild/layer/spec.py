# SPDX-License-Identifier: Apache-2.0
"""What one layer is made of: the part of a Plan that a build container gets to read.

Plain frozen dataclasses, so that the same types serve the Plan (pydantic validates them) and
the container, which has no pydantic.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

ArtifactKind = Literal["wheel", "deb"]


@dataclass(frozen=True)
class Artifact:
    """One locked file from the Python index or a Debian mirror, or a plugin's wheel that we build.

    `file` is its name; `size` is in bytes; `path` is the pool path below a Debian mirror, the
    source folder of a plugin's wheel, and empty for other wheels; `suite` is the Debian suite it
    was locked from (empty for wheels).
    """

    kind: ArtifactKind
    name: str
    version: str
    file: str
    sha256: str
    size: int
    path: str = ""
    suite: str = ""


@dataclass(frozen=True)
class FileInput:
    """A file of ours that goes into the image as it is.

    `source` is relative to images/, `target` an absolute image path, `mode` permission bits.
    """

    source: str
    target: str
    mode: int
    sha256: str


@dataclass(frozen=True)
class Transform:
    """One pure file transform: `kind` names it in `transforms.TRANSFORMS`, `args` are its own.

    `files` are inputs of ours that it reads (patches, lists).
    """

    kind: str
    args: dict[str, Any] = field(default_factory=dict)
    files: tuple[FileInput, ...] = ()


@dataclass(frozen=True)
class LayerSpec:
    """One layer: artifacts in install order, files of ours, then transforms in order."""

    name: str
    artifacts: tuple[Artifact, ...] = ()
    files: tuple[FileInput, ...] = ()
    transforms: tuple[Transform, ...] = ()


def layer_from_json(text: str) -> LayerSpec:
    """Read the `layer.json` of a build context."""
    raw = json.loads(text)

    def inputs(items: list[dict[str, Any]]) -> tuple[FileInput, ...]:
        return tuple(FileInput(**item) for item in items)

    return LayerSpec(
        name=raw["name"],
        artifacts=tuple(Artifact(**item) for item in raw["artifacts"]),
        files=inputs(raw["files"]),
        transforms=tuple(
            Transform(item["kind"], item["args"], inputs(item["files"])) for item in raw["transforms"]
        ),
    )


def layer_to_json(layer: LayerSpec) -> str:
    """Write the `layer.json` of a build context; equal layers give equal text."""
    return json.dumps(asdict(layer), sort_keys=True, indent=1) + "\n"
