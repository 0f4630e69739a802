# SPDX-License-Identifier: Apache-2.0
"""What differs between two bundles, from their manifests alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imagebuild.bundle.format import Manifest

_SHOWN = 20


@dataclass(frozen=True)
class Difference:
    """`about`: key → (old, new); the files by path."""

    about: dict[str, tuple[Any, Any]]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether both hold the same."""
        return not (self.about or self.added or self.removed or self.changed)


def difference(old: Manifest, new: Manifest) -> Difference:
    """Compare two manifests."""
    before = {listed.path: (listed.sha256, listed.executable) for listed in old.files}
    after = {listed.path: (listed.sha256, listed.executable) for listed in new.files}
    keys = sorted(old.about.keys() | new.about.keys())
    about = {k: (old.about.get(k), new.about.get(k)) for k in keys if old.about.get(k) != new.about.get(k)}
    return Difference(
        about,
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(before.keys() - after.keys())),
        tuple(sorted(path for path in before.keys() & after.keys() if before[path] != after[path])),
    )


def difference_text(found: Difference) -> str:
    """Return it for people."""
    if found.same:
        return "both bundles hold the same"
    lines = [f"{key}: {old} -> {new}" for key, (old, new) in found.about.items()]
    for mark, paths in (("+", found.added), ("-", found.removed), ("~", found.changed)):
        lines += [f"{mark} {path}" for path in paths[:_SHOWN]]
        if len(paths) > _SHOWN:
            lines.append(f"{mark} and {len(paths) - _SHOWN} more")
    return "\n".join(lines)
