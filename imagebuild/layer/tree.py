# SPDX-License-Identifier: Apache-2.0
"""Look-ups in a tree of entries: follow links as a program inside the image would."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping

from imagebuild.layer.entries import Entry

_MAX_LINKS = 40


def by_path(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return the entries by path; the last of each path wins."""
    return {entry.path: entry for entry in entries}


def follow(tree: Mapping[str, Entry], path: str) -> str | None:
    """Return the path of what `path` names after all symbolic links, or None if there is nothing.

    `path` may be absolute, as inside the image. The root itself is the empty path.
    """
    todo = [part for part in path.split("/") if part]
    done = ""
    links = 0
    while todo:
        part = todo.pop(0)
        if part in (".", ".."):
            done = posixpath.dirname(done) if part == ".." else done
            continue
        current = f"{done}/{part}" if done else part
        entry = tree.get(current)
        if entry is None:
            return None
        if entry.kind == "symlink":
            links += 1
            if links > _MAX_LINKS:
                return None
            todo = [p for p in entry.target.split("/") if p] + todo
            done = "" if entry.target.startswith("/") else done
        elif todo and entry.kind != "dir":
            return None
        else:
            done = current
    return done


def children(tree: Mapping[str, Entry]) -> dict[str, list[str]]:
    """Return the sorted names in each directory of the tree."""
    found: dict[str, list[str]] = {}
    for path in sorted(tree):
        folder, _, name = path.rpartition("/")
        found.setdefault(folder, []).append(name)
    return found
