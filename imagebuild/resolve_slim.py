# SPDX-License-Identifier: Apache-2.0
"""The stack's `slim` settings → the arguments of each layer's slim transform, and the image's labels."""

from __future__ import annotations

from dataclasses import replace

from imagebuild import __version__
from imagebuild.arch import GpuArch
from imagebuild.catalog import Recipe
from imagebuild.diagnostics import Diagnostic
from imagebuild.layer.licence import REDISTRIBUTABLE
from imagebuild.layer.spec import Artifact, Transform
from imagebuild.lock import Lock
from imagebuild.manifest import BallastItem, Slim, SlimSettings

TOOL = f"imagebuild {__version__}, slim rule 1"


def without_slim(recipe: Recipe) -> Recipe:
    """Return the recipe of the untouched image."""
    layers = tuple(
        layer.model_copy(update={"transforms": tuple(t for t in layer.transforms if not isinstance(t, Slim))})
        for layer in recipe.stack.layers
    )
    return replace(recipe, stack=recipe.stack.model_copy(update={"layers": layers, "slim": None}))


def check_slim(recipe: Recipe, lock: Lock) -> list[Diagnostic]:
    """Return what is wrong with names in the settings."""
    slim = recipe.stack.slim
    if slim is None:
        return []
    names = {artifact.name for artifact in lock.artifacts}
    items = [(("declared", i), item.package) for i, item in enumerate(slim.declared)]
    items += [(("ballast", i), item.package) for i, item in enumerate(slim.ballast)]
    return [
        recipe.stack_at.diagnostic(
            ("slim", *at, "package"), f"{name} is not in the lock of {recipe.stack.name}"
        )
        for at, name in items
        if name not in names
    ]


def ballast_of(slim: SlimSettings, arch: GpuArch) -> tuple[BallastItem, ...]:
    """Return the ballast of one arch's image."""
    return tuple(item for item in slim.ballast if not item.archs or arch.name in item.archs)


def slim_transform(recipe: Recipe, layer: str, artifacts: tuple[Artifact, ...]) -> Transform:
    """Return the transform of one layer; it is told only what concerns the layer's packages."""
    slim = recipe.stack.slim
    assert slim is not None
    names = {artifact.name for artifact in artifacts}
    declared = {
        item.package: {
            "licence": item.licence,
            "instead_of": item.instead_of,
            "file": item.file,
            "sha256": item.sha256,
        }
        for item in slim.declared
        if item.package in names
    }
    ballast = {
        path: item.reason
        for item in ballast_of(slim, recipe.arch)
        if item.package in names
        for path in item.paths
    }
    args = {
        "layer": layer,
        "tool": TOOL,
        "gpu": recipe.arch.number,
        "licences": sorted(slim.licences),
        "declared": declared,
        "untouched": sorted(path for item in slim.untouched for path in item.paths),
        "ballast": ballast,
    }
    return Transform("slim", args)


def slim_labels(recipe: Recipe, prefix: str) -> dict[str, str]:
    """Return the labels that say what was left out, and whether the image may be passed on."""
    slim = recipe.stack.slim
    if slim is None or not any(
        isinstance(t, Slim) for layer in recipe.stack.layers for t in layer.transforms
    ):
        return {f"{prefix}.slim": "none"}
    labels = {f"{prefix}.slim": f"loadable on {recipe.arch.name}"}
    if not REDISTRIBUTABLE.issuperset(slim.licences):
        labels[f"{prefix}.redistributable"] = "no"
    return labels
