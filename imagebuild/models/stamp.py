# SPDX-License-Identifier: Apache-2.0
"""`Stamp`: what a full verification saw of each file, so that the next one can be quick.

It lies in the model's folder (`.imagebuild/verified.json`). A file whose size, time of change or inode
differs from its stamp is hashed anew; one that is unchanged must still have the same sampled blocks.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from imagebuild.files import write_text
from imagebuild.models.hashing import sample
from imagebuild.models.lockfile import OURS

_NAME = "verified.json"


@dataclass(frozen=True)
class Mark:
    """One file as it was when its sha256 was computed: size in bytes, mtime in ns."""

    size: int
    mtime: int
    inode: int
    sha256: str
    sample: str


Stamp = dict[str, Mark]


def read_stamp(folder: Path) -> Stamp:
    """Return a folder's stamp; empty if there is none that can be read."""
    try:
        raw = json.loads((folder / OURS / _NAME).read_text(encoding="utf-8"))
        return {path: Mark(**mark) for path, mark in raw["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def write_stamp(folder: Path, stamp: Stamp) -> bool:
    """Write a folder's stamp; False if the folder cannot be written (a read-only mount)."""
    rows = [f"  {json.dumps(path)}: {json.dumps(asdict(mark))}" for path, mark in sorted(stamp.items())]
    try:
        (folder / OURS).mkdir(exist_ok=True)
        write_text(folder / OURS / _NAME, '{\n "files": {\n' + ",\n".join(rows) + "\n }\n}\n")
    except OSError:
        return False
    return True


def mark(path: Path, sha256: str) -> Mark:
    """Return the mark of a file whose sha256 was just computed. Raises OSError."""
    info = path.stat()
    return Mark(info.st_size, info.st_mtime_ns, info.st_ino, sha256, sample(path, info.st_size))


def unchanged(path: Path, known: Mark) -> bool:
    """Tell whether a file looks as it did: size, time of change and inode. Raises OSError."""
    info = os.stat(path)
    return (info.st_size, info.st_mtime_ns, info.st_ino) == (known.size, known.mtime, known.inode)
