# SPDX-License-Identifier: Apache-2.0
"""The committed manifests of deploy/kubernetes: which services, on which nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from imagebuild.serving.kubernetes import Site, manifests, nodes_of, to_yaml
from imagebuild.serving.service import ModelRecipes, Serving, services_of

IMAGE = "registry.example.org/{model}-sglang:{arch}"
_GIB = 1 << 30


def models_gib(recipes: ModelRecipes) -> int:
    """Return the size of a volume for the target and all drafters: a twentieth more, in full 50 GiB."""
    size = sum(repo.about_bytes for repo in recipes.source.repos().values())
    return math.ceil(size * 1.05 / _GIB / 50) * 50


def head(serving: Serving, site: Site) -> str:
    """Return the comment at the top: what it is, how it was made, and what must be there."""
    nodes, model = nodes_of(serving, site), serving.model
    each, path = serving.parallel.gpus // nodes, f"images/models/{model}"
    lines = [
        f"{serving.service} on {nodes} x {each} {serving.gpu.name}: {serving.title}.",
        f"Made by `build.py kubernetes show {serving.service} --arch {serving.arch}`; docs/kubernetes.md.",
        "Needs: NVIDIA's GPU operator (its labels, its device plugin), a claim that holds the weights,",
        f"  kubectl create configmap {model}-locks --from-file={path}.yaml --from-file={path}.lock",
        f"  kubectl create secret generic {model}-api-key --from-file=api_key=FILE",
    ]
    if nodes > 1:
        lines.append("and LeaderWorkerSet (lws.sigs.k8s.io), API leaderworkerset.x-k8s.io/v1.")
    return "\n".join(lines)


def render(serving: Serving, site: Site) -> str:
    """Return one service's manifests as YAML."""
    return to_yaml(head(serving, site), manifests(serving, site))


def render_examples(folder: Path, recipes: Sequence[ModelRecipes], archs: Sequence[str]) -> dict[Path, str]:
    """Return the committed files: each arch's preferred service on one node, and over two nodes."""
    files: dict[Path, str] = {}
    for recipe in recipes:
        for arch in archs:
            if arch not in recipe.file.archs:
                continue
            servings = {serving.service: serving for serving in services_of(recipe, arch)}
            link = next(iter(servings.values())).gpu.link
            serving = servings[recipe.file.links[link].prefer]
            image = IMAGE.format(model=recipe.file.name, arch=arch.replace("_", ""))
            for nodes in (1, 2):
                site = Site(image, serving.parallel.gpus // nodes, models_gib(recipe))
                name = f"{serving.service}-{arch}" + (f"-{nodes}-nodes" if nodes > 1 else "")
                files[folder / f"{name}.yaml"] = render(serving, site)
    return files
