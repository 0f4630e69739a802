# SPDX-License-Identifier: Apache-2.0
"""Trees of a wheel's files: unpacked, with a ledger's patches applied one by one; and new patches.

Used by the `patches` commands only; a build patches inside its layer (`layer/patchset.py`).
"""

from __future__ import annotations

import difflib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from imagebuild.catalog import read_stack, stack_lock
from imagebuild.errors import IntegrityError, ManifestError
from imagebuild.files import write_text
from imagebuild.layer.archive import Archive
from imagebuild.layer.entries import LayerError
from imagebuild.layer.patching import PatchError, apply_all, sha256, split_lines
from imagebuild.layer.spec import Artifact
from imagebuild.ledger import CHANGE, MANIFEST, PROBE, Patch, read_patch
from imagebuild.manifest import Patches, StackManifest

_BINARY = (".so", ".a", ".bin", ".pyc")
_FILES = re.compile(r"^files:\n(?:[ ]+.*\n)*", re.MULTILINE)
_SKELETON = """\
schema: 1
id: {name}
title: TODO what it does
why: TODO why this project needs it
stacks: [{stack}]
package: {package}
{files}upstream:
  reference: none
  state: TODO not reported
drop_when: TODO when this can go
"""


def ordered_ids(stack: StackManifest) -> list[str]:
    """Return the ids that a stack lists, over all its layers, in their order."""
    items = [t for layer in stack.layers for t in layer.transforms if isinstance(t, Patches)]
    return [name for item in items for name in item.patches]


def stack_patches(images: Path, name: str, *, until: str | None = None) -> list[Patch]:
    """Return a stack's patches in its order, those for single archs too; only those before `until`."""
    stack, _ = read_stack(images, name)
    ids = ordered_ids(stack)
    return [read_patch(images, patch) for patch in (ids[: ids.index(until)] if until in ids else ids)]


def stack_wheel(images: Path, name: str, package: str) -> Artifact:
    """Return a package's wheel from a stack's lock. Raises ManifestError if it has none."""
    stack, _ = read_stack(images, name)
    for artifact in stack_lock(images, stack).read().artifacts:
        if artifact.name == package:
            return artifact
    raise ManifestError(f"{package} is not in the lock of {name}")


def unpack(wheel: Path, tree: Path) -> None:
    """Unpack the text files of a wheel below `tree`. Raises IntegrityError for a file that is none."""
    try:
        Archive(wheel).unpack(tree, lambda name: not name.endswith(_BINARY))
    except (OSError, LayerError) as error:
        raise IntegrityError(f"{wheel}: not a readable wheel: {error}") from error


def read_tree(tree: Path, names: list[str]) -> dict[str, bytes]:
    """Return the content of those files that the tree has."""
    return {name: (tree / name).read_bytes() for name in names if (tree / name).is_file()}


def apply_patch(tree: Path, patch: Patch, root: Path) -> None:
    """Apply one ledger entry to a tree; a plugin's modules are copied from `root`/plugins.

    Raises IntegrityError where it does not meet its files.
    """
    if patch.manifest.plugin is not None:
        source = root / "plugins" / patch.manifest.plugin / "src"
        shutil.copytree(source, tree, dirs_exist_ok=True)
        return
    states = {path: state.model_dump() for path, state in patch.manifest.files.items()}
    try:
        made = apply_all(read_tree(tree, list(states)), patch.parts, states, patch.id)
    except PatchError as error:
        hint = f"python build.py patches new {patch.id} makes it anew"
        raise IntegrityError(str(error), hint=hint) from None
    for path, content in made.items():
        (tree / path).write_bytes(content)


@dataclass(frozen=True)
class Written:
    """What `write_patch` wrote: the entry's folder and the files that its change touches."""

    folder: Path
    files: tuple[str, ...]


def _diff(path: str, old: bytes, new: bytes) -> str:
    parts = difflib.unified_diff(split_lines(old), split_lines(new), f"a/{path}", f"b/{path}")
    return "".join(p if p.endswith("\n") else p + "\n\\ No newline at end of file\n" for p in parts)


def write_patch(images: Path, name: str, stack: str, package: str, trees: tuple[Path, Path]) -> Written:
    """Write change.patch and patch.yaml of an entry from the tree before and the edited tree.

    The edited tree may be partial. An existing patch.yaml keeps all but its `files`. Raises
    ManifestError if nothing changed, or a file was added (that belongs into a plugin).
    """
    before, edited = trees
    changed: dict[str, tuple[bytes, bytes]] = {}
    for path in sorted(p for p in edited.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        key = path.relative_to(edited).as_posix()
        if key.endswith(_BINARY) or ".dist-info/" in key:
            continue
        if not (before / key).is_file():
            if key.endswith(".py"):
                raise ManifestError(f"{path}: a new module; patches change files, a plugin adds them")
            continue
        old, new = (before / key).read_bytes(), path.read_bytes()
        if old != new:
            changed[key] = (old, new)
    if not changed:
        raise ManifestError(f"{edited}: no file differs from {package} with the patches before {name}")
    folder = images / "patches" / name
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(
        f"  {key}:\n    before: {sha256(old)}\n    after: {sha256(new)}\n"
        for key, (old, new) in changed.items()
    )
    manifest, files = folder / MANIFEST, f"files:\n{rows}"
    if manifest.is_file():
        text = manifest.read_text(encoding="utf-8")
        text = _FILES.sub(lambda _: files, text) if _FILES.search(text) else text + files
    else:
        text = _SKELETON.format(name=name, stack=stack, package=package, files=files)
    write_text(folder / CHANGE, "".join(_diff(key, *contents) for key, contents in changed.items()))
    write_text(manifest, text)
    if not (folder / PROBE).is_file():
        write_text(folder / PROBE, _PROBE)
    return Written(folder, tuple(changed))


_PROBE = '''\
# SPDX-License-Identifier: Apache-2.0
"""TODO: what is true only with the patch."""

from pathlib import Path

from probing import run


def probe(tree: Path) -> bool:
    return False


run(probe)
'''
