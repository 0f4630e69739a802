# SPDX-License-Identifier: Apache-2.0
"""Plan → software bill of materials, CycloneDX 1.6 JSON: Python, Debian and the patches with their origin.

Package URLs as purl-spec defines them for pypi and deb. Nothing in it depends on when it was made.
"""

from __future__ import annotations

import uuid
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from imagebuild import __version__
from imagebuild.layer.licence import licence_of
from imagebuild.layer.spec import Artifact
from imagebuild.plan import LABEL_PREFIX, Plan

SPEC = "1.6"
_NAMESPACE = uuid.UUID("0b2f7c1e-4f0e-5a64-9d38-6f0f5a7f2c11")  # of serial numbers that we make


def package_url(artifact: Artifact) -> str:
    """Return the purl of a locked package; of one that we build ourselves it is a generic one."""
    name, version = quote(artifact.name, safe=""), quote(artifact.version, safe="")
    if artifact.kind == "deb":
        arch = artifact.file.rpartition("_")[2].removesuffix(".deb")
        return f"pkg:deb/debian/{name}@{version}?arch={arch}&distro=debian-12"
    return f"pkg:{'generic' if artifact.path else 'pypi'}/{name}@{version}"


def wheel_licences(plan: Plan, locate: Callable[[Artifact], Path]) -> dict[str, str]:
    """Return what each fetched wheel's METADATA states as its licence, where it states one exactly."""
    found = {}
    for artifact in plan.artifacts:
        if artifact.kind == "wheel":
            with zipfile.ZipFile(locate(artifact)) as archive:
                name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
                found[artifact.name] = licence_of(archive.read(name).decode("utf-8", "replace"))
    return {name: text for name, text in found.items() if text}


def make_sbom(plan: Plan, licences: Mapping[str, str]) -> dict[str, Any]:
    """Return the document; `licences` maps package names to SPDX expressions where they are known."""
    artifacts = [artifact for layer in plan.layers for artifact in layer.artifacts]
    patches: dict[str, list[Mapping[str, Any]]] = {}
    for item in plan.ledger:
        if "package" in item:
            patches.setdefault(item["package"], []).append(item)
    layer_of = {artifact.file: layer.name for layer in plan.layers for artifact in layer.artifacts}
    components = [
        _component(a, layer_of[a.file], licences.get(a.name, ""), patches.get(a.name, [])) for a in artifacts
    ]
    root = {
        "type": "container",
        "bom-ref": plan.reference,
        "name": plan.repository,
        "version": plan.tag,
        "description": plan.labels["org.opencontainers.image.title"],
        "properties": [{"name": f"{LABEL_PREFIX}.plan", "value": plan.digest}],
    }
    refs = [component["bom-ref"] for component in components]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, plan.digest)}",
        "version": 1,
        "metadata": {
            "timestamp": plan.created,
            "tools": {
                "components": [{"type": "application", "name": "imagebuild", "version": __version__}],
            },
            "component": root,
        },
        "components": components,
        "dependencies": [{"ref": plan.reference, "dependsOn": refs}],
    }


def _component(
    artifact: Artifact, layer: str, licence: str, patches: list[Mapping[str, Any]]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"{package_url(artifact)}#{artifact.sha256[:12]}",
        "name": artifact.name,
        "version": artifact.version,
        "purl": package_url(artifact),
        "hashes": [{"alg": "SHA-256", "content": artifact.sha256}],
        "properties": [
            {"name": f"{LABEL_PREFIX}.layer", "value": layer},
            {"name": f"{LABEL_PREFIX}.file", "value": artifact.file},
        ],
    }
    if licence:
        found["licenses"] = [{"expression": licence}]
    if patches:
        found["pedigree"] = {"patches": [_patch(item) for item in patches]}
    return found


def _patch(item: Mapping[str, Any]) -> dict[str, Any]:
    upstream = item["upstream"]
    issue = {
        "type": "defect",
        "id": item["id"],
        "name": item["title"],
        "description": f"upstream: {upstream['reference']}; {upstream['state']}. Until: {item['drop_when']}",
    }
    return {
        "type": "unofficial",
        "diff": {"text": {"content": f"sha256:{item['sha256']}"}},
        "resolves": [issue],
    }
