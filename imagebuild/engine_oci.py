# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: build contexts → an OCI image, with no daemon and no root.

The same Plan gives the same digest on any machine. Layers are kept by content below the cache,
so a second arch or a rebuild makes only what changed.
"""

from __future__ import annotations

import platform
from pathlib import Path

import zstandard

from imagebuild.engine import Image, Report
from imagebuild.errors import PreconditionError
from imagebuild.oci_blob import Compression, blob_path
from imagebuild.oci_layers import Ready, build_layers
from imagebuild.oci_layout import OciImage, make_image
from imagebuild.plan import Plan


class OciEngine:
    """Builds below `cache`; `compression` is that of the layers."""

    name = "oci"

    def __init__(self, cache: Path, compression: Compression = "zstd", *, use_cache: bool = True) -> None:
        self.cache = cache
        self.compression = compression
        self.use_cache = use_cache

    def require(self) -> str:
        """Return what this engine is. Raises PreconditionError where it cannot build."""
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            found = f"{platform.system()}/{platform.machine()}"
            raise PreconditionError(
                f"the embedded engine runs the image's own Python, so it needs Linux on x86-64, not {found}",
                hint="build on such a host, or use --engine docker with a remote Engine",
            )
        zstd = ".".join(map(str, zstandard.ZSTD_VERSION))
        return f"embedded (no daemon), layers in {self.compression}, libzstd {zstd}"

    @property
    def blobs(self) -> Path:
        """The folder of the layers' blobs."""
        return self.cache / "blobs"

    def image(
        self, plan: Plan, contexts: dict[str, Path], report: Report, ready: Ready = lambda _: None
    ) -> OciImage:
        """Build the layers and return the image with its exact bytes; `ready` gets each layer when whole."""
        blobs = build_layers(
            plan, contexts, self.cache, self.compression, report, use_cache=self.use_cache, ready=ready
        )
        layers = [(layer.name, blobs[layer.name]) for layer in plan.layers]
        return make_image(plan, layers, self.blobs)

    def find(self, plan: Plan) -> Image | None:
        """Always None: with its layer cache, building again is finding."""
        return None

    def build(self, plan: Plan, dockerfile: Path, contexts: dict[str, Path], report: Report) -> Image:
        """Build the image; `digest` is the manifest's."""
        made = self.image(plan, contexts, report)
        assert all(blob_path(made.blobs, layer.digest).is_file() for layer in made.layers)
        return Image(plan.reference, made.digest, made.size)
