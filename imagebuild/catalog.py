# SPDX-License-Identifier: Apache-2.0
"""Find and read the data under images/: which archs and stacks there are, and their files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from imagebuild.arch import GpuArch, parse_arch
from imagebuild.errors import ManifestError
from imagebuild.lock import Lock, base_inputs, python_inputs, read_lock
from imagebuild.manifest import BaseManifest, ImageManifest, StackManifest, ToolsManifest
from imagebuild.yamlfile import Positions, load, load_with_positions


def project_root() -> Path:
    """Return the project's folder, relative to the current one where that is shorter."""
    root = Path(__file__).resolve().parent.parent
    try:
        relative = Path(os.path.relpath(root))
    except ValueError:
        return root
    return relative if not relative.is_relative_to("..") else root


@dataclass(frozen=True)
class LockFile:
    """One lock on disk and the digest that its inputs have now; `name` is how users call it."""

    name: str
    path: Path
    expected_inputs: str

    def read(self) -> Lock:
        """Return the lock. Raises IntegrityError if it is missing or malformed."""
        return read_lock(self.path)

    @property
    def stale(self) -> bool:
        """Whether the lock was made from other inputs than the manifest has now."""
        return self.read().inputs != self.expected_inputs


@dataclass(frozen=True)
class Recipe:
    """All manifests of one image, as written, and where their values stand."""

    arch: GpuArch
    image: ImageManifest
    image_at: Positions
    stack: StackManifest
    stack_at: Positions
    base: BaseManifest
    base_lock: LockFile
    python_lock: LockFile


def arch_names(images: Path) -> list[str]:
    """Return the archs that have an image, sorted by number."""
    found = [p.parent.name for p in images.glob("*/image.yaml")]
    return sorted(found, key=lambda name: int(name.removeprefix("sm_")))


def stack_names(images: Path) -> list[str]:
    """Return the stacks there are, sorted."""
    return sorted(p.parent.name for p in images.glob("stacks/*/stack.yaml"))


def read_stack(images: Path, name: str) -> tuple[StackManifest, Positions]:
    """Read a stack. Raises Diagnostics for any error in it, a name unlike its folder among them."""
    stack, at = load_with_positions(images / "stacks" / name / "stack.yaml", StackManifest)
    if stack.name != name:
        raise ManifestError(at.diagnostic(("name",), "differs from its folder", allowed=[name]).render())
    return stack, at


def stack_lock(images: Path, stack: StackManifest) -> LockFile:
    """Return a stack's Python lock."""
    path = images / "stacks" / stack.name / "python.lock"
    return LockFile(stack.name, path, python_inputs(stack.source))


def read_base(images: Path, name: str) -> tuple[BaseManifest, LockFile]:
    """Read a Debian base and its lock's place."""
    manifest = load(images / "base" / name / "base.yaml", BaseManifest)
    return manifest, LockFile(name, images / "base" / name / "debian.lock", base_inputs(manifest))


def read_tools(images: Path) -> tuple[ToolsManifest, LockFile]:
    """Read the tools of the build containers and their lock's place."""
    manifest = load(images / "tools" / "tools.yaml", ToolsManifest)
    return manifest, LockFile("tools", images / "tools" / "python.lock", python_inputs(manifest.source))


def read_recipe(images: Path, arch_text: str) -> Recipe:
    """Read everything that one arch's image is made from.

    Raises ManifestError for an arch without an image and for any error in the files.
    """
    arch = parse_arch(arch_text)
    known = arch_names(images)
    if arch.name not in known:
        raise ManifestError(
            f"no image for {arch.name}; images/ has {', '.join(known)}",
            hint=f"write {images}/{arch.name}/image.yaml (docs/new-arch.md)",
        )
    image, image_at = load_with_positions(images / arch.name / "image.yaml", ImageManifest)
    if image.arch != arch.name:
        raise ManifestError(
            image_at.diagnostic(("arch",), "differs from its folder", allowed=[arch.name]).render()
        )
    stacks = stack_names(images)
    if image.stack not in stacks:
        raise ManifestError(image_at.diagnostic(("stack",), "no such stack", allowed=stacks).render())
    stack, stack_at = read_stack(images, image.stack)
    if not (images / "base" / stack.base / "base.yaml").is_file():
        bases = sorted(p.parent.name for p in images.glob("base/*/base.yaml"))
        raise ManifestError(stack_at.diagnostic(("base",), "no such base", allowed=bases).render())
    base, base_lock = read_base(images, stack.base)
    return Recipe(arch, image, image_at, stack, stack_at, base, base_lock, stack_lock(images, stack))
