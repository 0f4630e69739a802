# SPDX-License-Identifier: Apache-2.0
"""Checks of the model folders: whole, as locked, of one another. A server's start hashes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from imagebuild.errors import CheckFailed, ImageBuildError
from imagebuild.models import contract
from imagebuild.models.config import drafter_shape, read_json, target_shape
from imagebuild.models.lockfile import LockedRepo, ModelLock, lock_path, read_lock
from imagebuild.models.shapes import DrafterShape, TargetShape
from imagebuild.models.shards import Weights, check_weights
from imagebuild.models.source import ModelSource, RepoSource, model_names, read_source, source_inputs
from imagebuild.models.verify import Finding as FileFinding
from imagebuild.models.verify import examine, glance
from imagebuild.preflight.findings import Finding
from imagebuild.preflight.flags import Flags

S = TypeVar("S")
_SHOWN = 5
LOCK_NEXT = "in the checkout: python build.py models lock {name}; or IMAGEBUILD_ACCEPT=weights-lock"
FETCH_NEXT = "./scripts/prefetch {name} --dir DIR gets what is missing or wrong, and only that"


@dataclass(frozen=True)
class Known:
    """A folder's repo in images/models, and what its lock says, if there is one."""

    source: ModelSource
    repo: RepoSource
    locked: LockedRepo | None


@dataclass(frozen=True)
class Models:
    """What was read of the folders; None where it could not be."""

    findings: tuple[Finding, ...]
    target: TargetShape | None = None
    drafter: DrafterShape | None = None


def find_known(locks: Path, folder: Path) -> Known | None:
    """Return the repo whose folder this is, by the folder's name.

    Raises ManifestError or IntegrityError for files below `locks`/models that cannot be used.
    """
    for name in model_names(locks):
        source = read_source(locks, name)
        for key, repo in source.repos().items():
            if repo.place == folder.name:
                return Known(source, repo, usable_lock(locks, source, key))
    return None


def usable_lock(locks: Path, source: ModelSource, key: str) -> LockedRepo | None:
    """Return a repo as locked; a lock that was made from another source counts as none."""
    lock: ModelLock | None = read_lock(lock_path(locks, source.name))
    return lock.repo(key) if lock is not None and lock.inputs == source_inputs(source) else None


def check_models(flags: Flags, locks: Path, *, full: bool = False) -> Models:
    """Check target, locks, drafter and contract. With `full` every byte is hashed."""
    if flags.model_path is None:
        finding = Finding("target", "failed", "no --model-path", "say which model to serve")
        return Models((finding,))
    folder = Path(flags.model_path)
    found = [_folder("target", folder)]
    if found[0].state == "missing":
        return Models(tuple(found))
    target = _shape(folder, target_shape)
    folders = [folder, *([Path(flags.drafter_path)] if flags.drafter_path else [])]
    found.append(_worst([_lock(place, locks, full) for place in folders if place.is_dir()]))
    if flags.drafter_path is None:
        found += [Finding(name, "ok", "no drafter, no speculation") for name in ("drafter", "contract")]
        return Models(tuple(found), target)
    place = Path(flags.drafter_path)
    found.append(_folder("drafter", place))
    drafter = _shape(place, drafter_shape) if flags.dflash else None
    if found[-1].state in ("ok", "warning"):
        found += _contract(flags, target, drafter, check_weights(place))
    return Models(tuple(found), target, drafter)


def _folder(name: str, folder: Path) -> Finding:
    if not (folder / "config.json").is_file():
        why = "has no config.json" if folder.is_dir() else "no such folder"
        help_text = "is the models folder mounted there? IMAGEBUILD_MODELS_DIR in .env"
        if name == "drafter":
            help_text = "docker compose up drafter puts it there"
        return Finding(name, "missing", f"{folder}: {why}", help_text)
    weights = check_weights(folder)
    problems = [f"{file}: {text}" for file, texts in weights.problems.items() for text in texts]
    if not weights.files:
        problems.append("no *.safetensors")
    if problems:
        return Finding(name, "failed", f"{folder}: {_few(problems)}", FETCH_NEXT.format(name="MODEL"))
    size = f"{len(weights.tensors)} tensors in {weights.files} files"
    return Finding(name, "ok", f"{folder}: {size}")


def _few(texts: list[str]) -> str:
    more = len(texts) - _SHOWN
    return "; ".join(texts[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _shape(folder: Path, read: Callable[[dict[str, Any], str], S]) -> S | None:
    path = folder / "config.json"
    try:
        return read(read_json(path), str(path))
    except CheckFailed:
        return None


def _lock(folder: Path, locks: Path, full: bool) -> Finding:
    try:
        known = find_known(locks, folder)
    except ImageBuildError as error:
        return Finding("weights-lock", "failed", str(error.message), error.hint or "")
    if known is None:
        text = f"{folder.name} is none of the models in {locks}/models: nothing says which bytes are right"
        return Finding("weights-lock", "warning", text)
    name = known.source.name
    if known.locked is None:
        text = f"no lock for {known.repo.repo}: nothing says which bytes are right"
        return Finding("weights-lock", "missing", text, LOCK_NEXT.format(name=name))
    files = examine(folder, known.locked, full=True)[0] if full else glance(folder, known.locked)
    return lock_finding(files, name)


def _worst(found: list[Finding]) -> Finding:
    """Return one finding for all folders: the worst state, and what led to it."""
    order = ("ok", "warning", "missing", "failed")
    worst = max(found, key=lambda finding: order.index(finding.state))
    same = [finding for finding in found if finding.state == worst.state]
    return Finding("weights-lock", worst.state, "; ".join(finding.text for finding in same), worst.next)


def lock_finding(files: list[FileFinding], name: str) -> Finding:
    """Return what a comparison with the lock adds up to."""
    bad = [f"{file.path}: {file.text}" for file in files if file.state not in ("ok", "unread")]
    if bad:
        return Finding("weights-lock", "failed", _few(bad), FETCH_NEXT.format(name=name))
    unread = sum(file.state == "unread" for file in files)
    text = f"{name}: {len(files)} files of the locked sizes, {len(files) - unread} hashed now or before"
    return Finding("weights-lock", "ok", text)


def _contract(
    flags: Flags, target: TargetShape | None, drafter: DrafterShape | None, weights: Weights
) -> Iterator[Finding]:
    if target is None or drafter is None:
        yield Finding("contract", "skipped", "no DFlash drafter, or a config that is not understood")
        return
    given = contract.Flags(
        tp=flags.tp, pp=flags.pp, block_size=flags.block_size, window=flags.window,
        draft_tokens=flags.draft_tokens, tree=flags.tree, attention=flags.attention,
        page_size=flags.page_size,
    )  # fmt: skip
    found = contract.check(target, drafter, given, weights.tensors)
    errors = [v for v in found if v.level == "error"]
    if errors:
        text = _few([f"{v.rule}: {v.text} ({v.then})" for v in errors])
        yield Finding(
            "contract", "failed", text, "another drafter, or other flags: docs/models.md has the rules"
        )
    elif found:
        yield Finding("contract", "warning", _few([f"{v.rule}: {v.text} ({v.then})" for v in found]))
    else:
        yield Finding("contract", "ok", "the drafter fits the target")
