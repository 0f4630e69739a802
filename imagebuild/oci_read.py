# SPDX-License-Identifier: Apache-2.0
"""An OCI layout folder → `OciImage`: what `write_layout` wrote, or another tool, read back and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imagebuild.cache import hash_file
from imagebuild.errors import IntegrityError, ManifestError
from imagebuild.oci_blob import Blob, blob_path
from imagebuild.oci_layout import OciImage

_NAME = "org.opencontainers.image.ref.name"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ManifestError(f"{path}: missing; an OCI layout has it", hint="build.py --output DIR") from None
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise IntegrityError(f"{path}: is not a JSON object")
    return found


def is_layout(path: Path) -> bool:
    """Tell whether a folder is an OCI layout."""
    return (path / "oci-layout").is_file()


def read_blob(blobs: Path, digest: str) -> bytes:
    """Return a small blob. Raises IntegrityError if it is not there or is not what its name says."""
    path = blob_path(blobs, digest)
    try:
        with open(path, "rb") as file:
            found, _ = hash_file(file)
        if f"sha256:{found}" == digest:
            return path.read_bytes()
    except OSError as error:
        raise IntegrityError(f"{path}: {error.strerror}") from None
    raise IntegrityError(f"{path}: holds sha256:{found}", hint="write the layout anew")


def read_layout(folder: Path) -> OciImage:
    """Return the one image of a layout, its manifest and configuration checked; layers are checked by
    `check_layers`, since that reads gigabytes.

    Raises ManifestError if it is no layout of one image, IntegrityError for a damaged one.
    """
    blobs = folder / "blobs"
    manifests = _json(folder / "index.json").get("manifests", [])
    if len(manifests) != 1:
        raise ManifestError(f"{folder}: has {len(manifests)} images; one is needed")
    raw = read_blob(blobs, manifests[0]["digest"])
    manifest = json.loads(raw)
    config = read_blob(blobs, manifest["config"]["digest"])
    diffs = json.loads(config)["rootfs"]["diff_ids"]
    layers = tuple(
        Blob(item["digest"], item["size"], diff, 0, item["mediaType"])
        for item, diff in zip(manifest["layers"], diffs, strict=True)
    )
    tag = (manifests[0].get("annotations") or {}).get(_NAME, "latest")
    return OciImage(f"{folder.name}:{tag}", config, raw, layers, blobs)


def check_layers(image: OciImage) -> None:
    """Read every layer. Raises IntegrityError for one that is missing or damaged."""
    for layer in image.layers:
        path = blob_path(image.blobs, layer.digest)
        try:
            with open(path, "rb") as file:
                found, _ = hash_file(file)
        except OSError as error:
            raise IntegrityError(f"{path}: {error.strerror}") from None
        if f"sha256:{found}" != layer.digest:
            raise IntegrityError(f"{path}: holds sha256:{found}", hint="write the layout anew")
