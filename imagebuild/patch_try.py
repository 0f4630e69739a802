# SPDX-License-Identifier: Apache-2.0
"""Would the ledger's patches fit another release? Test-apply them and ask their probes.

Here, and only here, a hunk may be found at another line; its context must still be exact.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from imagebuild.catalog import read_stack, stack_names
from imagebuild.errors import PreconditionError
from imagebuild.fetch import fetch
from imagebuild.hostconf import host_network
from imagebuild.layer.patching import FilePatch, Hunk, Mismatch, mismatch, split_lines
from imagebuild.layer.spec import Artifact
from imagebuild.ledger import Patch
from imagebuild.patch_probe import Probed, run_probe
from imagebuild.patch_tree import stack_wheel, unpack
from imagebuild.python_packages import wheel_tags
from imagebuild.session import Reach, open_session
from imagebuild.settings import Settings

Status = Literal["clean", "already merged", "not needed", "conflict"]


@dataclass(frozen=True)
class Tried:
    """What became of one patch; `details` are lines for people."""

    patch: str
    status: Status
    details: tuple[str, ...]

    def __str__(self) -> str:
        return "\n    ".join([f"{self.patch}: {self.status}", *self.details])


@dataclass(frozen=True)
class _Fit:
    """One file with a patch test-applied: new lines, notes, hunks that are there already, conflicts."""

    lines: list[str]
    moved: tuple[str, ...]
    merged: int
    conflicts: tuple[str, ...]


def other_wheels(
    images: Path, stack: str, patches: list[Patch], release: str, settings: Settings
) -> dict[str, Path]:
    """Fetch the wheels of another release, or of another stack's lock, of all packages that are patched.

    Raises PreconditionError if no index has such a wheel for the stack's Python and platform.
    """
    packages = sorted({p.manifest.package for p in patches if p.manifest.package})
    if release in stack_names(images):
        found = [stack_wheel(images, release, package) for package in packages]
    else:
        found = [_released(images, stack, package, release, settings) for package in packages]
    store = fetch(found, settings)
    return {artifact.name: store.path(artifact.sha256) for artifact in found}


def _released(images: Path, stack: str, package: str, release: str, settings: Settings) -> Artifact:
    from imagebuild.index import offered_wheels  # pypi-simple is slow to import

    source = read_stack(images, stack)[0].source
    rank = {tag: number for number, tag in enumerate(wheel_tags(source))}
    host = host_network(settings)
    best: tuple[int, Artifact] | None = None
    with open_session(host, Reach()) as session:
        for offer in offered_wheels(package, release, host, session):
            try:
                tags = parse_wheel_filename(offer.file)[3]
            except InvalidWheelFilename:
                continue
            number = min((rank[tag] for tag in tags if tag in rank), default=None)
            if number is None or offer.sha256 is None or (best is not None and best[0] <= number):
                continue
            best = number, Artifact("wheel", package, release, offer.file, offer.sha256, 0)
    if best is None:
        raise PreconditionError(
            f"{package} {release}: no index has a wheel for Python {source.python} on {source.platform}",
            hint=f"allowed: a released version, or a stack: {', '.join(stack_names(images))}",
        )
    return best[1]


def try_stack(patches: list[Patch], wheels: dict[str, Path], root: Path) -> list[Tried]:
    """Test-apply patches in order to unpacked wheels; one that fits is applied for those after it."""
    with tempfile.TemporaryDirectory(prefix="imagebuild-patches-") as folder:
        tree = Path(folder)
        for path in sorted(set(wheels.values())):
            unpack(path, tree)
        return [_try(patch, tree, root) for patch in patches]


def _try(patch: Patch, tree: Path, root: Path) -> Tried:
    before = run_probe(patch, tree)
    if patch.manifest.plugin is not None:
        status: Status = "not needed" if before.answer == "fixed" else "clean"
        return Tried(patch.id, status, (f"a plugin; probe without it: {_told(before)}",))
    fits = {part.path: _fit(tree, part) for part in patch.parts}
    conflicts = [text for fit in fits.values() for text in fit.conflicts]
    hunks = sum(len(part.hunks) for part in patch.parts)
    if sum(fit.merged for fit in fits.values()) == hunks:
        return Tried(patch.id, "already merged", (f"all {hunks} hunks are there; probe: {_told(before)}",))
    if before.answer == "fixed":
        more = f"{len(conflicts)} of {hunks} hunks do not fit" if conflicts else "it would still apply"
        return Tried(patch.id, "not needed", (f"the probe passes without it; {more}",))
    if conflicts:
        return Tried(patch.id, "conflict", (*conflicts, f"probe without it: {_told(before)}"))
    for path, fit in fits.items():
        (tree / path).write_text("".join(fit.lines), encoding="utf-8", newline="")
    after = run_probe(patch, tree)
    moved = tuple(text for fit in fits.values() for text in fit.moved)
    if (before.answer, after.answer) == ("fault", "fixed"):
        return Tried(patch.id, "clean", (*moved, "probe: fault without, fixed with it"))
    told = f"all hunks fit, but the probe says {_told(before)} without and {_told(after)} with it"
    return Tried(patch.id, "conflict", (*moved, told))


def _told(probed: Probed) -> str:
    return probed.answer if probed.answer != "unknown" else f"unknown ({probed.text})"


def _fit(tree: Path, part: FilePatch) -> _Fit:
    """Find every hunk of one file, in order, the nearest place first."""
    path = tree / part.path
    if not path.is_file():
        near = sorted(p.relative_to(tree).as_posix() for p in tree.rglob(path.name))
        where = f"; that name is at {', '.join(near[:3])}" if near and path.name != "__init__.py" else ""
        return _Fit([], (), 0, (f"{part.path}: no such file{where}",))
    lines, shift = split_lines(path.read_bytes()), 0
    moved, conflicts, merged, least = [], [], 0, 1
    for number, hunk in enumerate(part.hunks, 1):
        place = _nearest(lines, hunk.old, hunk.start + shift, least)
        if place is None:
            if _nearest(lines, hunk.new, hunk.start + shift, 1) is not None:
                merged += 1
            else:
                conflicts.append(f"{part.path}: {_closest(lines, hunk, number)}")
            continue
        if place != hunk.start + shift:
            moved.append(f"{part.path}: hunk {number} fits at line {place} (was {hunk.start})")
        lines[place - 1 : place - 1 + len(hunk.old)] = hunk.new
        least = place + len(hunk.new)
        shift = place - hunk.start + len(hunk.new) - len(hunk.old)
    return _Fit(lines, tuple(moved), merged, tuple(conflicts))


def _nearest(lines: list[str], block: tuple[str, ...], wanted: int, least: int) -> int | None:
    """Return the line (from 1) nearest to `wanted`, and not before `least`, where a block stands."""
    size = len(block)
    places = [
        at + 1 for at in range(least - 1, len(lines) - size + 1) if tuple(lines[at : at + size]) == block
    ]
    return min(places, key=lambda place: abs(place - wanted), default=None)


def _closest(lines: list[str], hunk: Hunk, number: int) -> str:
    """Say where a hunk that fits nowhere comes nearest, and what differs there."""
    size = len(hunk.old)

    def same(at: int) -> int:
        return sum(a == b and a.strip() != "" for a, b in zip(lines[at : at + size], hunk.old, strict=False))

    best = max(range(max(1, len(lines))), key=same, default=0)
    if not same(best):
        return f"hunk {number} (line {hunk.start}): nothing like it is there"
    problem: Mismatch | None = mismatch(lines, hunk, number, best + 1)
    return f"{problem} ({same(best)} of its {size} lines stand at line {best + 1})"
