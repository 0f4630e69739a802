# SPDX-License-Identifier: Apache-2.0
"""`build.py patches`: the ledger's life cycle."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from imagebuild.cache import Store
from imagebuild.catalog import project_root, stack_names
from imagebuild.errors import CheckFailed, ManifestError
from imagebuild.fetch import fetch
from imagebuild.layer.spec import Artifact
from imagebuild.ledger import Patch
from imagebuild.options import Reporter, images_dir, network_options, output_options, print_result
from imagebuild.patch_probe import check_stack
from imagebuild.patch_tree import apply_patch, stack_patches, stack_wheel, unpack, write_patch
from imagebuild.patch_try import other_wheels, try_stack
from imagebuild.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


def _stack_option(function: F) -> F:
    text = "Stack whose patches are meant; not needed while there is one."
    return click.option("--stack", help=text)(function)


def _stack(name: str | None) -> str:
    """Return the stack that is meant."""
    known = stack_names(images_dir())
    if name is None and len(known) == 1:
        return known[0]
    if name not in known:
        raise ManifestError(f"--stack: no such stack; allowed: {', '.join(known)}")
    return str(name)


def _wheels(patches: list[Patch], stack: str, settings: Settings) -> tuple[list[Artifact], Store]:
    """Fetch the wheels that patches change; return them and where they are."""
    packages = sorted({p.manifest.package for p in patches if p.manifest.package})
    wheels = [stack_wheel(images_dir(), stack, package) for package in packages]
    return wheels, fetch(wheels, settings)


@click.group()
def patches() -> None:
    """List, check, make and try the patches under images/patches."""


def _row(patch: Patch) -> dict[str, Any]:
    manifest = patch.manifest
    return {
        "id": patch.id,
        "title": manifest.title,
        "archs": list(manifest.archs) or ["all"],
        "package": manifest.package or f"plugin {manifest.plugin}",
        "files": sorted(manifest.files),
        "upstream": manifest.upstream.model_dump(),
        "drop_when": manifest.drop_when,
    }


@patches.command("list")
@_stack_option
@output_options
def list_(stack: str | None, as_json: bool, verbose: int, quiet: bool) -> None:
    """Print a stack's patches in the order in which they are applied."""
    name = _stack(stack)
    rows = [_row(patch) for patch in stack_patches(images_dir(), name)]
    lines = [
        f"{row['id']}: {row['title']}\n    {', '.join(row['archs'])}; drop when {row['drop_when']}\n"
        f"    upstream {row['upstream']['reference']}: {row['upstream']['state']}"
        for row in rows
    ]
    print_result(as_json, {"stack": name, "patches": rows}, "\n".join(lines) or "no patches")


@patches.command()
@_stack_option
@network_options
@output_options
def check(stack: str | None, settings: Settings, as_json: bool, verbose: int, quiet: bool) -> None:
    """Run each probe without and with its patch, on the real wheel; exit 1 if one is not as it must be."""
    name = _stack(stack)
    found = stack_patches(images_dir(), name)
    wheels, store = _wheels(found, name, settings)
    done = check_stack(found, wheels, project_root(), lambda artifact: store.path(artifact.sha256))
    text = "\n".join(str(item) for item in done) or "no patches"
    failed = [item.patch for item in done if not item.ok]
    print_result(as_json, {"stack": name, "ok": not failed, "patches": [asdict(i) for i in done]}, text)
    if failed:
        raise CheckFailed(
            f"{len(failed)} of {len(done)} patches are not as they must be: {', '.join(failed)}"
        )


@patches.command()
@click.argument("name", metavar="ID")
@click.option(
    "--tree",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The edited files, below a folder like site-packages; may be partial.",
)
@click.option("--unpack", "target", type=click.Path(path_type=Path), help="Write the tree to edit there.")
@click.option("--package", default="sglang", show_default=True, help="The wheel whose files change.")
@_stack_option
@network_options
@output_options
def new(name: str, tree: Path | None, target: Path | None, package: str, **given: Any) -> None:
    """Make or remake a patch from an edited tree; or, with --unpack, the tree to edit.

    Both hold the wheel with all patches that the stack lists before ID (all, if it lists no ID).
    """
    images, chosen, as_json = images_dir(), _stack(given["stack"]), given["as_json"]
    if (tree is None) == (target is None):
        raise ManifestError("give either --unpack FOLDER (first) or --tree FOLDER (after editing)")
    before = stack_patches(images, chosen, until=name)
    wheel = stack_wheel(images, chosen, package)
    store = fetch([wheel], given["settings"])
    with tempfile.TemporaryDirectory(prefix="imagebuild-patches-") as folder:
        base = Path(folder) if target is None else target
        unpack(store.path(wheel.sha256), base)
        for patch in before:
            if patch.manifest.package == package:
                apply_patch(base, patch, project_root())
        if tree is None:
            print_result(as_json, {"tree": str(base)}, str(base))
            return
        written = write_patch(images, name, chosen, package, (base, tree))
    Reporter(given["quiet"])(
        f"complete {written.folder}/patch.yaml and probe.py, list {name} in {chosen}'s stack.yaml"
    )
    value = {"folder": str(written.folder), "files": list(written.files)}
    print_result(as_json, value, "\n".join([str(written.folder), *written.files]))


@patches.command("try")
@click.argument("release", metavar="VERSION")
@_stack_option
@click.option(
    "--wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Not from the index."
)
@network_options
@output_options
def try_(
    release: str,
    stack: str | None,
    wheel: Path | None,
    settings: Settings,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Test-apply all patches to another release of their packages (or another stack), from the index.

    Says per patch: clean, already merged, not needed, or conflict with the hunk.
    """
    images, name = images_dir(), _stack(stack)
    found = stack_patches(images, name)
    if wheel is None:
        paths = other_wheels(images, name, found, release, settings)
    else:
        paths = {package: wheel for package in {p.manifest.package or "" for p in found}}
    done = try_stack(found, paths, project_root())
    text = "\n".join(str(item) for item in done) or "no patches"
    print_result(as_json, {"release": release, "patches": [asdict(item) for item in done]}, text)
