# SPDX-License-Identifier: Apache-2.0
"""Check that nothing which stays in an image needs what is left out as ballast.

Two checks: no remaining library is linked against a removed one (from the facts; part of every
build), and no remaining file names one (reads every wheel; `build.py audit --ballast`).
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from imagebuild.gpufacts import FileFacts
from imagebuild.layer.archive import Archive
from imagebuild.layer.spec import Artifact
from imagebuild.manifest import BallastItem

_LIBRARY = re.compile(r"(lib[^/*]+?)(\.so|\.a\b|\*|$)")
# Where a name would be code or a link: libraries, scripts and build files. Not headers of other
# projects, documentation, or the wheels' own lists of files.
_READ = (".py", ".so", ".json", ".toml", ".cmake", ".sh", ".pc", ".pth", ".cfg", ".jinja")
_OVERLAP = 256
_CHUNK = 4 << 20


def is_removed(items: Iterable[BallastItem], package: str, path: str) -> bool:
    """Tell whether a wheel's file (path in the wheel) is ballast."""
    return any(
        item.package == package and any(fnmatch.fnmatchcase(path, pattern) for pattern in item.paths)
        for item in items
    )


def broken_links(facts: Mapping[str, tuple[FileFacts, ...]], items: tuple[BallastItem, ...]) -> list[str]:
    """Return an error for each remaining library that is linked against a removed one."""
    gone: set[str] = set()
    stays: list[tuple[str, FileFacts]] = []
    for package, files in facts.items():
        for file in files:
            if is_removed(items, package, file.path):
                gone |= {file.name, posixpath.basename(file.path)}
            else:
                stays.append((package, file))
    gone -= {name for _, file in stays for name in (file.name, posixpath.basename(file.path))} | {""}
    return [
        f"{package}: {file.path} is linked against {name}, which is left out as ballast"
        for package, file in stays
        for name in file.needs
        if name in gone
    ]


def token(pattern: str) -> str:
    """Return the text by which a file would name what a ballast pattern removes.

    A library by its name without ending, anything else by its last two path parts.
    """
    parts = pattern.removesuffix("/*").split("/")
    library = _LIBRARY.match(parts[-1])
    if library:
        return library[1]
    return "/".join(part for part in parts[-2:] if part.strip("*")).rstrip("*")


def _search(job: tuple[Path, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Return (member, token) for each token that a wheel's members hold."""
    wheel, tokens = job
    found = []
    needles = [text.encode() for text in tokens]
    archive = Archive(wheel)
    for name, info in archive.members.items():
        if info.is_dir() or not (name.endswith(_READ) or ".so." in name):
            continue
        left = set(needles)
        tail = b""
        with archive.open(name) as stream:
            while left and (chunk := stream.read(_CHUNK)):
                data = tail + chunk
                hits = {needle for needle in left if needle in data}
                found += [(name, needle.decode()) for needle in sorted(hits)]
                left -= hits
                tail = data[-_OVERLAP:]
    return found


def named_by_others(
    wheels: list[Artifact],
    locate: Callable[[Artifact], Path],
    items: tuple[BallastItem, ...],
    workers: int,
) -> list[str]:
    """Return an error for each remaining file that names ballast without a declared reason."""
    by_token: dict[str, list[BallastItem]] = {}
    for item in items:
        for pattern in item.paths:
            by_token.setdefault(token(pattern), []).append(item)
    tokens = tuple(sorted(by_token))
    ordered = sorted(wheels, key=lambda wheel: -wheel.size)
    jobs = [(locate(wheel), tokens) for wheel in ordered]
    if workers > 1:
        with ProcessPoolExecutor(workers) as pool:
            done = list(pool.map(_search, jobs))
    else:
        done = [_search(job) for job in jobs]
    problems = []
    for wheel, hits in zip(ordered, done, strict=True):
        for path, text in hits:
            if is_removed(items, wheel.name, path):
                continue
            named = [pattern for item in by_token[text] for pattern in item.named_by]
            if not any(fnmatch.fnmatchcase(path, pattern) for pattern in named):
                problems.append(f"{wheel.name}: {path} names {text}, which is left out as ballast")
    return problems
