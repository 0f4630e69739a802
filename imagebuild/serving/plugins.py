# SPDX-License-Identifier: Apache-2.0
"""Which plugins of ours are in the image of an arch, by the stack's list of patches."""

from __future__ import annotations

from pathlib import Path

from imagebuild.catalog import read_recipe
from imagebuild.ledger import read_patch
from imagebuild.manifest import Patches


def stack_plugins(images: Path, arch: str) -> frozenset[str]:
    """Return the plugins (folders of plugins/) that an arch's image has. Raises ManifestError."""
    stack = read_recipe(images, arch).stack
    lists = [t.patches for layer in stack.layers for t in layer.transforms if isinstance(t, Patches)]
    found = (read_patch(images, name).manifest.plugin for names in lists for name in names)
    return frozenset(plugin for plugin in found if plugin is not None)
