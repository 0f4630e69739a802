# SPDX-License-Identifier: Apache-2.0
"""A layer's list of patches → the `patch` transform and plugin wheels of a Plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imagebuild import __version__
from imagebuild.catalog import Recipe
from imagebuild.diagnostics import Diagnostics
from imagebuild.digest import digest
from imagebuild.errors import ManifestError
from imagebuild.layer.spec import Artifact, FileInput, LayerSpec, Transform
from imagebuild.ledger import Patch, read_ledger
from imagebuild.manifest import LayerItem, Patches
from imagebuild.plan import LABEL_PREFIX
from imagebuild.plugin import build_plugin

KIND = "patch"


def plugin_wheels(
    images: Path, recipe: Recipe, layer: LayerItem, locked: set[str], loc: tuple[str | int, ...]
) -> list[Artifact]:
    """Return the plugin wheels of a layer's patches, in the list's order; `loc` is the layer's place.

    Raises ManifestError for a plugin that is called like one of the `locked` packages.
    """
    found: list[Artifact] = []
    for number, item in enumerate(layer.transforms):
        if isinstance(item, Patches):
            for patch in _patches(images, recipe, item, (*loc, "transforms", number)):
                if patch.manifest.plugin is not None:
                    wheel = _wheel(images, patch)
                    if wheel.name in locked | {other.name for other in found}:
                        raise ManifestError(
                            f"{wheel.path}/pyproject.toml: another wheel of the image is called {wheel.name}",
                            hint="give the plugin a name of its own",
                        )
                    found.append(wheel)
    return found


def _wheel(images: Path, patch: Patch) -> Artifact:
    return build_plugin(images.parent / "plugins" / str(patch.manifest.plugin)).artifact


def _patches(images: Path, recipe: Recipe, item: Patches, loc: tuple[str | int, ...]) -> list[Patch]:
    where = (*loc, "patches")
    return read_ledger(images, item.patches, recipe.stack.name, recipe.arch.name, recipe.stack_at, where)


def patch_transform(
    images: Path,
    recipe: Recipe,
    item: Patches,
    layer: str,
    artifacts: tuple[Artifact, ...],
    site: str,
    loc: tuple[str | int, ...],
) -> Transform:
    """Return the transform that applies a list of patches in one layer.

    `artifacts` are the layer's. Raises Diagnostics if a patch is for a wheel of another layer.
    """
    names = {artifact.name for artifact in artifacts}
    ledger: list[dict[str, Any]] = []
    files, problems = [], []
    for patch in _patches(images, recipe, item, loc):
        if patch.manifest.plugin is not None:
            wheel = _wheel(images, patch)
            ledger.append(
                {
                    "id": patch.id,
                    "title": patch.manifest.title,
                    "plugin": wheel.path,
                    "wheel": wheel.file,
                    "sha256": wheel.sha256,
                    "upstream": patch.manifest.upstream.model_dump(),
                    "drop_when": patch.manifest.drop_when,
                }
            )
            continue
        if patch.manifest.package not in names:
            message = f"{patch.id} changes {patch.manifest.package}, which is not in layer {layer}"
            index = item.patches.index(patch.id)
            problems.append(recipe.stack_at.diagnostic((*loc, "patches", index), message))
        entry = patch.item()
        ledger.append(entry)
        files.append(FileInput(patch.source, "", 0o644, entry["sha256"]))
    if problems:
        raise Diagnostics(problems)
    args = {"layer": layer, "site": site, "ledger": ledger, "tool": f"imagebuild {__version__}"}
    return Transform(KIND, args, tuple(files))


def patch_labels(layers: tuple[LayerSpec, ...]) -> dict[str, str]:
    """Return the labels that tell which patches an image has: their ids in order, and a digest."""
    ledger = [
        item for layer in layers for t in layer.transforms if t.kind == KIND for item in t.args["ledger"]
    ]
    if not ledger:
        return {}
    ids = " ".join(item["id"] for item in ledger)
    return {f"{LABEL_PREFIX}.patches": ids, f"{LABEL_PREFIX}.patches.digest": digest(ledger)}
