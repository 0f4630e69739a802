# SPDX-License-Identifier: Apache-2.0
"""The commands `diff` (two images) and `explain` (what a build would do and why)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from pydantic import ValidationError

from imagebuild.cache import Store
from imagebuild.catalog import arch_names
from imagebuild.compare import Layer, Side, compare, comparison_json, comparison_text
from imagebuild.engine_docker import DockerEngine
from imagebuild.errors import ManifestError
from imagebuild.explain import explain as explain_plan
from imagebuild.explain import explanation_json, explanation_text
from imagebuild.hostconf import host_network
from imagebuild.layer.spec import LayerSpec, layer_from_json
from imagebuild.oci_blob import Blob, blob_path
from imagebuild.oci_layers import layer_key
from imagebuild.oci_read import is_layout, read_layout
from imagebuild.options import (
    arch_option,
    images_dir,
    network_options,
    output_options,
    print_result,
    slim_option,
)
from imagebuild.plan import Plan, from_json
from imagebuild.plugin import is_local
from imagebuild.referrers import layer_file, open_remote, require_manifest
from imagebuild.resolve import resolve
from imagebuild.settings import Settings
from imagebuild.unpack import layer_members

PLAN_FILE = "etc/imagebuild/plan.json"


def _read_plan(text: str | bytes, origin: str) -> Plan:
    try:
        return from_json(text if isinstance(text, str) else text.decode())
    except (ValidationError, UnicodeDecodeError) as error:
        lines = str(error).splitlines()
        raise ManifestError(f"{origin}: no plan that this version reads: {lines[0]}") from None


def _of_layout(path: Path) -> Side:
    image = read_layout(path)
    last = image.layers[-1]
    for entry in layer_members(blob_path(image.blobs, last.digest), last.media_type):
        if entry.path == PLAN_FILE:
            plan = _read_plan(entry.read(), str(path))
            return Side(str(path), plan, tuple(Layer(b.digest, b.size) for b in image.layers))
    raise ManifestError(f"{path}: its last layer has no {PLAN_FILE}", hint="was it built by this tool?")


def _of_registry(text: str, settings: Settings) -> Side:
    remote = open_remote(text, host_network(settings))
    stored = require_manifest(remote.registry, remote.reference)
    layers = json.loads(stored.content)["layers"]
    plan = _read_plan(layer_file(remote.registry, layers[-1], PLAN_FILE), text)
    return Side(text, plan, tuple(Layer(item["digest"], item["size"]) for item in layers))


def _of_arch(name: str, settings: Settings) -> Side:
    plan = resolve(images_dir(), name)
    cached = _cached(plan, settings.cache_dir)
    blobs = [cached.get(layer.name) for layer in plan.layers]
    layers = tuple(Layer(blob.digest, blob.size) for blob in blobs if blob is not None)
    return Side(name, plan, layers if len(layers) == len(plan.layers) else ())


def _side(text: str, settings: Settings) -> Side:
    """Return what a command-line word means: an arch, a layout, a plan, a registry's or an engine's image."""
    path = Path(text)
    if path.is_dir() and is_layout(path):
        return _of_layout(path)
    if path.is_file():
        return Side(text, _read_plan(path.read_bytes(), text))
    if text in arch_names(images_dir()):
        return _of_arch(text, settings)
    if "/" in text:
        return _of_registry(text, settings)
    return Side(text, _read_plan(DockerEngine().read_file(text, f"/{PLAN_FILE}"), text))


def _cached(plan: Plan, cache: Path) -> dict[str, Blob]:
    """Return the layers of a Plan that the cache has, by name."""
    found = {}
    for layer in plan.layers:
        blob = _record(cache / "layers" / layer_key(plan, layer, "zstd"))
        if blob is not None and blob_path(cache / "blobs", blob.digest).is_file():
            found[layer.name] = blob
    return found


def _record(path: Path) -> Blob | None:
    try:
        return Blob(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _last_specs(plan: Plan, cache: Path) -> dict[str, LayerSpec]:
    """Return what the last build context of each layer was made for, this Plan's own left out."""
    found = {}
    for layer in plan.layers:
        folders = sorted(
            (cache / "contexts").glob(f"{layer.name}-*/layer.json"), key=lambda p: -p.stat().st_mtime
        )
        specs = (layer_from_json(path.read_text(encoding="utf-8")) for path in folders)
        other = next((spec for spec in specs if spec != layer), None)
        if other is not None or folders:
            found[layer.name] = other or layer
    return found


@click.command()
@click.argument("before")
@click.argument("after")
@network_options
@output_options
def diff(before: str, after: str, settings: Settings, as_json: bool, verbose: int, quiet: bool) -> None:
    """Compare two images: packages, patches, archs, settings, layers, sizes, bytes to pull again.

    Each is an arch of this checkout (sm_103), an OCI layout, a file of `plan --json`,
    HOST/REPOSITORY[:TAG|@DIGEST] in a registry, or an image in the Docker Engine.
    """
    found = compare(_side(before, settings), _side(after, settings))
    print_result(as_json, comparison_json(found), comparison_text(found))


@click.command()
@arch_option
@slim_option
@network_options
@output_options
def explain(arch: str, no_slim: bool, settings: Settings, as_json: bool, verbose: int, quiet: bool) -> None:
    """Say which layers a build by the embedded engine reuses or makes anew, why, and what it costs."""
    plan = resolve(images_dir(), arch, slim=not no_slim)
    cache, store = settings.cache_dir, Store(settings.cache_dir)
    fetch = sum(a.size for a in plan.artifacts if not store.has(a) and not is_local(a))
    found = explain_plan(plan, _cached(plan, cache), _last_specs(plan, cache), {}, fetch, os.cpu_count() or 1)
    print_result(as_json, explanation_json(found), explanation_text(found))
