# SPDX-License-Identifier: Apache-2.0
"""Blobs + Plan → an OCI image: configuration, manifest, layout folder, single-file archive.

Formats: OCI image specification 1.1 (config.md, manifest.md, image-layout.md), and manifest.json of
`docker save`, without which a Docker Engine on its default store does not load an archive.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from imagebuild.digest import canonical_json
from imagebuild.oci_blob import Blob, blob_path
from imagebuild.plan import LABEL_PREFIX, Plan

_CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True)
class OciImage:
    """One image: `config` and `manifest` are exact bytes, `layers` in order, `blobs` where they lie."""

    reference: str
    config: bytes
    manifest: bytes
    layers: tuple[Blob, ...]
    blobs: Path

    @property
    def digest(self) -> str:
        """The manifest's digest: what a registry calls the image."""
        return _digest(self.manifest)

    @property
    def config_digest(self) -> str:
        """The configuration's digest: what a Docker Engine calls the image's id."""
        return _digest(self.config)

    @property
    def size(self) -> int:
        """Bytes to pull: manifest, configuration and layers."""
        return len(self.manifest) + len(self.config) + sum(layer.size for layer in self.layers)

    def index(self, containerd_name: str = "") -> bytes:
        """Return the layout's index.json; a containerd image store takes the name from it."""
        annotations = {"org.opencontainers.image.ref.name": self.reference.rpartition(":")[2]}
        if containerd_name:
            annotations["io.containerd.image.name"] = containerd_name
        entry = {"mediaType": MANIFEST, "digest": self.digest, "size": len(self.manifest)}
        platform = {"architecture": "amd64", "os": "linux"}
        manifests = [{**entry, "platform": platform, "annotations": annotations}]
        return canonical_json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests})


def make_image(plan: Plan, layers: list[tuple[str, Blob]], blobs: Path) -> OciImage:
    """Return the image of a Plan from its layers, named and in order."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": plan.created,
        "config": {
            "User": plan.config.user,
            "Env": [f"{name}={value}" for name, value in plan.config.env.items()],
            "Entrypoint": list(plan.config.entrypoint),
            "WorkingDir": plan.config.workdir,
            "Volumes": {volume: {} for volume in plan.config.volumes},
            "ExposedPorts": {f"{port}/tcp": {} for port in plan.config.ports},
            "Labels": plan.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [blob.diff_id for _, blob in layers]},
        "history": [{"created": plan.created, "created_by": f"imagebuild layer {n}"} for n, _ in layers],
    }
    packed = canonical_json(config)
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": _CONFIG, "digest": _digest(packed), "size": len(packed)},
        "layers": [
            {
                "mediaType": blob.media_type,
                "digest": blob.digest,
                "size": blob.size,
                "annotations": {f"{LABEL_PREFIX}.layer": name},
            }
            for name, blob in layers
        ],
        "annotations": {f"{LABEL_PREFIX}.plan": plan.digest},
    }
    return OciImage(plan.reference, packed, canonical_json(manifest), tuple(b for _, b in layers), blobs)


def _small_files(image: OciImage, containerd_name: str = "") -> dict[str, bytes]:
    """Return the files of a layout but for the layers, by path."""
    return {
        "oci-layout": canonical_json({"imageLayoutVersion": "1.0.0"}),
        "index.json": image.index(containerd_name),
        f"blobs/sha256/{image.digest[7:]}": image.manifest,
        f"blobs/sha256/{image.config_digest[7:]}": image.config,
    }


def write_layout(image: OciImage, target: Path) -> None:
    """Write an OCI layout folder in one step; layers are hard links where the disk allows.

    Raises FileExistsError if `target` is there and is not an empty folder.
    """
    if target.exists() and any(target.iterdir()):
        raise FileExistsError(17, "exists and is not empty", str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        (temporary / "blobs" / "sha256").mkdir(parents=True)
        for name, content in _small_files(image).items():
            (temporary / name).write_bytes(content)
        for layer in image.layers:
            source, copy = blob_path(image.blobs, layer.digest), blob_path(temporary / "blobs", layer.digest)
            try:
                os.link(source, copy)
            except OSError:
                shutil.copyfile(source, copy)
        temporary.chmod(0o755)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def archive_files(image: OciImage, containerd_name: str) -> dict[str, bytes]:
    """Return the small files of an archive, by path: those of a layout and `docker save`'s manifest.json.

    `containerd_name` is the fully qualified name that Docker's containerd store gives the image.
    """
    names = [f"blobs/sha256/{layer.digest[7:]}" for layer in image.layers]
    docker = [{
        "Config": f"blobs/sha256/{image.config_digest[7:]}", "RepoTags": [image.reference], "Layers": names,
    }]  # fmt: skip
    return {**_small_files(image, containerd_name), "manifest.json": canonical_json(docker)}


def write_archive(image: OciImage, out: IO[bytes], containerd_name: str) -> None:
    """Write the image as one tar that `docker load`, `podman load` and `skopeo` (oci-archive) read."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20) as tar:
        for name, content in archive_files(image, containerd_name).items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
        for layer in image.layers:
            info = tarfile.TarInfo(f"blobs/sha256/{layer.digest[7:]}")
            info.size, info.mode = layer.size, 0o644
            with open(blob_path(image.blobs, layer.digest), "rb") as blob:
                tar.addfile(info, blob)
