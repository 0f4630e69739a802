# SPDX-License-Identifier: Apache-2.0
"""Plan + fetched files → build contexts on disk, one folder per layer.

A folder is named by the digest of what it holds, made under a temporary name and renamed, so an
interrupted run leaves nothing that a later one would take for whole. Files of the cache are hard
links, so a context costs no disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from imagebuild.digest import digest
from imagebuild.errors import IntegrityError
from imagebuild.layer.archive import Archive
from imagebuild.layer.base import base_entries
from imagebuild.layer.deb import Spool
from imagebuild.layer.spec import Artifact, FileInput, LayerSpec, layer_to_json
from imagebuild.layer.tarball import write_tar
from imagebuild.plan import Plan, to_text
from imagebuild.toolbox import PACKAGE, code_files

Locate = Callable[[Artifact], Path]
TOOLS = "tools"


@contextmanager
def _folder(target: Path) -> Iterator[Path | None]:
    """Yield a new folder that becomes `target` when the block ends well; None if `target` is there."""
    if target.is_dir():
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        try:
            os.rename(temporary, target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    """Give a file of the cache a second name; replaces another file of that name.

    A reused context may still hold a file that the cache has found damaged and dropped since.
    """
    if target.exists():
        if target.samefile(source):
            return
        target.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def input_path(item: FileInput, images: Path) -> Path:
    """Return where an input of ours lies: below images/, or a module of this package."""
    return (PACKAGE.parent if item.source.startswith(f"{PACKAGE.name}/") else images) / item.source


def _copy_input(item: FileInput, images: Path, folder: Path) -> None:
    """Copy a file of images/, or a module of ours, whose content is still what the Plan says."""
    source = input_path(item, images)
    content = source.read_bytes()
    if hashlib.sha256(content).hexdigest() != item.sha256:
        raise IntegrityError(f"{source}: changed since the plan was made", hint="run again")
    target = folder / "files" / item.source
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def _layer_folder(plan: Plan, layer: LayerSpec, images: Path, parent: Path, locate: Locate) -> Path:
    embedded = any(t.kind == "embed" for t in layer.transforms)
    key = digest([asdict(layer), plan.digest if embedded else ""])
    target = parent / f"{layer.name}-{key[:16]}"
    with _folder(target) as folder:
        if folder is not None:
            (folder / "layer.json").write_text(layer_to_json(layer), encoding="utf-8")
            for item in [*layer.files, *(f for t in layer.transforms for f in t.files)]:
                _copy_input(item, images, folder)
            for transform in layer.transforms:
                if transform.kind == "embed":
                    (folder / "files").mkdir(exist_ok=True)
                    (folder / "files" / transform.args["name"]).write_text(to_text(plan), encoding="utf-8")
    for artifact in layer.artifacts:
        if artifact.kind == "wheel":
            _link(locate(artifact), target / "artifacts" / artifact.file)
    return target


def base_tar_key(plan: Plan) -> str:
    """Return the digest of everything that the base's tar depends on."""
    base = plan.layers[0]
    return digest([[asdict(a) for a in base.artifacts], asdict(plan.base), plan.mtime, plan.base_code])


def _base_tar(plan: Plan, parent: Path, locate: Locate) -> Path:
    """Return the tar of the unpacked Debian packages, made once per set of packages."""
    target = parent / f"base-tar-{base_tar_key(plan)[:16]}"
    with _folder(target) as folder:
        if folder is not None:
            debs = [locate(a) for a in plan.layers[0].artifacts]
            with Spool(folder) as spool, open(folder / "base.tar", "wb") as out:
                write_tar(base_entries(debs, plan.base, spool), out, plan.mtime)
    return target / "base.tar"


def unpacked_base(plan: Plan, parent: Path, scratch: Path, locate: Locate) -> Path:
    """Return the base's tar from the contexts below `parent`, or made in `scratch` if it is not there."""
    kept = parent / f"base-tar-{base_tar_key(plan)[:16]}" / "base.tar"
    return kept if kept.is_file() else _base_tar(plan, scratch, locate)


def _tools_folder(plan: Plan, parent: Path, locate: Locate) -> Path:
    target = parent / f"{TOOLS}-{digest([plan.tool_code, [asdict(a) for a in plan.tools]])[:16]}"
    with _folder(target) as folder:
        if folder is not None:
            for path, content in code_files().items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
            for artifact in plan.tools:
                Archive(locate(artifact), artifact.file).unpack(folder)
    return target


def write_contexts(
    plan: Plan, images: Path, parent: Path, locate: Locate, report: Callable[[str], None]
) -> dict[str, Path]:
    """Return the build context of each layer by name, and of the tools, made below `parent`.

    The first layer's context also has the base as `base.tar`. `report` gets a line per step.
    Raises IntegrityError where a file of images/ changed under us, LayerError for a bad artifact.
    """
    contexts: dict[str, Path] = {}
    for layer in plan.layers:
        contexts[layer.name] = _layer_folder(plan, layer, images, parent, locate)
    report(f"base: {len(plan.layers[0].artifacts)} Debian packages")
    tar = _base_tar(plan, parent, locate)
    _link(tar, contexts[plan.layers[0].name] / "base.tar")
    contexts[TOOLS] = _tools_folder(plan, parent, locate)
    return contexts


def remove_contexts(parent: Path, *, dry_run: bool) -> int:
    """Remove all build contexts; return the bytes (to be) freed.

    They are derived and cheap to make again. Files that are links into the cache free nothing.
    """
    freed = 0
    for path in sorted(parent.rglob("*")):
        status = path.lstat()
        if path.is_file() and status.st_nlink == 1:
            freed += status.st_size
    if not dry_run:
        shutil.rmtree(parent, ignore_errors=True)
    return freed
