# SPDX-License-Identifier: Apache-2.0
"""Find paths that two wheels of a Plan both install with other content.

Whichever is installed last wins silently, so each such pair must be declared in the stack's
`order` with a reason; an undeclared pair stops the build.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from pathlib import Path

from imagebuild.errors import IntegrityError, ManifestError
from imagebuild.layer.archive import Archive
from imagebuild.layer.entries import LayerError
from imagebuild.layer.spec import Artifact
from imagebuild.plan import Plan


def recorded(path: Path, name: str) -> dict[str, str]:
    """Return a wheel's RECORD: path as written → hash text.

    Raises IntegrityError for a file without a readable RECORD.
    """
    try:
        archive = Archive(path, name)
        found = [n for n in archive.members if n.endswith(".dist-info/RECORD") and n.count("/") == 1]
        text = archive.text(found[0])
        return {row[0]: row[1] for row in csv.reader(io.StringIO(text)) if len(row) == 3}
    except (LayerError, IndexError, csv.Error) as error:
        raise IntegrityError(f"{name}: not a readable wheel: {error}") from error


def find_overlaps(
    wheels: Iterable[Artifact], locate: Callable[[Artifact], Path]
) -> dict[tuple[str, str], list[str]]:
    """Return (earlier wheel, later wheel) → paths that both ship with different content."""
    owner: dict[str, tuple[str, str]] = {}
    found: dict[tuple[str, str], list[str]] = {}
    for wheel in wheels:
        for path, content in recorded(locate(wheel), wheel.file).items():
            if path in owner and owner[path][1] != content:
                found.setdefault((owner[path][0], wheel.name), []).append(path)
            owner[path] = (wheel.name, content)
    return found


def check_overlaps(plan: Plan, locate: Callable[[Artifact], Path]) -> None:
    """Raise ManifestError naming every undeclared overlap, and every declared one that is none."""
    wheels = [a for layer in plan.layers for a in layer.artifacts if a.kind == "wheel"]
    found = find_overlaps(wheels, locate)
    names = {wheel.name for wheel in wheels}
    lines = [
        f"{before} and {after} both install {len(paths)} paths with other content, first {paths[0]}"
        for (before, after), paths in sorted(found.items())
        if (before, after) not in plan.overlaps
    ]
    lines += [
        f"{before} and {after} are declared to overlap and share no differing path"
        for before, after in plan.overlaps
        if (before, after) not in found and {before, after} <= names
    ]
    if lines:
        raise ManifestError(
            "\n".join(lines), hint=f"correct `order` in images/stacks/{plan.stack}/stack.yaml"
        )
