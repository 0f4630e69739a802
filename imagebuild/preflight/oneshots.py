# SPDX-License-Identifier: Apache-2.0
"""The one-shot services: `models` verifies the weights, `drafter` stages and verifies the drafters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from imagebuild.errors import CheckFailed, IntegrityError, ManifestError, PreconditionError
from imagebuild.models import contract
from imagebuild.models.config import drafter_shape, read_json, target_shape
from imagebuild.models.lockfile import LockedRepo
from imagebuild.models.shards import check_weights
from imagebuild.models.source import TARGET, ModelSource, read_source
from imagebuild.models.verify import describe, require, verify
from imagebuild.preflight.stage import stage
from imagebuild.preflight.weights import LOCK_NEXT, usable_lock
from imagebuild.progress import open_progress

MODELS, DRAFTER = Path("/models"), Path("/drafter")


def run_models(words: Sequence[str], locks: Path, accepted: Collection[str], root: Path = MODELS) -> str:
    """`models NAME [--full]`: compare the target's folder with its lock; return lines for people.

    Raises IntegrityError (exit 4: other bytes, no lock), PreconditionError, CheckFailed (headers).
    """
    full, names = "--full" in words, [word for word in words if word != "--full"]
    if len(names) != 1:
        raise ManifestError("usage: models NAME [--full]")
    source = read_source(locks, names[0])
    folder = root / source.target.place
    locked = _locked(source, TARGET, locks, accepted)
    if locked is None:
        return _headers(folder)
    with open_progress() as progress:
        report = verify(folder, locked, full=full, progress=progress)
    require([report], source.name)
    return describe(report)


def run_drafter(
    words: Sequence[str], locks: Path, accepted: Collection[str], root: Path = MODELS, staged: Path = DRAFTER
) -> str:
    """`drafter NAME DRAFTER...`: copy each drafter into its volume; then check headers and contract."""
    if len(words) < 2:
        raise ManifestError("usage: drafter NAME DRAFTER...")
    source = read_source(locks, words[0])
    lines = []
    for name in words[1:]:
        drafter = source.drafter(name)
        if drafter is None:
            raise ManifestError('"none" is no drafter to stage')
        locked = _locked(source, drafter.name, locks, accepted)
        target = staged / drafter.place
        with open_progress() as progress:
            copied = stage(root / drafter.place, target, locked, progress)
        lines.append(f"{target}: {'staged' if copied else 'staged already'}, {_headers(target)}")
        lines.append(_fits(root / source.target.place, target))
    return "\n".join(lines)


def _locked(source: ModelSource, key: str, locks: Path, accepted: Collection[str]) -> LockedRepo | None:
    """Return a repo as locked. Raises IntegrityError without a lock, unless that is accepted."""
    locked = usable_lock(locks, source, key)
    if locked is None and "weights-lock" not in accepted:
        raise IntegrityError(
            f"no lock for {source.repos()[key].repo}: nothing says which bytes are right",
            hint=LOCK_NEXT.format(name=source.name),
        )
    return locked


def _headers(folder: Path) -> str:
    """Return how many tensors a folder has. Raises PreconditionError or CheckFailed if they are not whole."""
    if not folder.is_dir():
        raise PreconditionError(f"{folder}: no such folder", hint="is the models folder mounted?")
    weights = check_weights(folder)
    problems = [f"{folder / name}: {text}" for name, texts in weights.problems.items() for text in texts]
    if problems or not weights.files:
        raise CheckFailed(
            "\n".join(problems) or f"{folder}: no *.safetensors", hint="./scripts/prefetch NAME"
        )
    return f"{len(weights.tensors)} tensors in {weights.files} files"


def _fits(target_dir: Path, drafter_dir: Path) -> str:
    """Return that the drafter fits. Raises CheckFailed with every broken rule."""
    target = target_shape(read_json(target_dir / "config.json"), str(target_dir))
    drafter = drafter_shape(read_json(drafter_dir / "config.json"), str(drafter_dir))
    found = contract.check(target, drafter, contract.Flags(), check_weights(drafter_dir).tensors)
    text = contract.describe(found)
    if any(violation.level == "error" for violation in found):
        raise CheckFailed(text, hint="choose another drafter; docs/models.md has the rules")
    return text
