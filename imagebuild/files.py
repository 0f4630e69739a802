# SPDX-License-Identifier: Apache-2.0
"""Write files so that an interrupted run leaves the old one or the new one, never half."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step. One that is there keeps its mode and, where we may set it, its owner."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    old = path.stat() if path.exists() else None
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode)
    try:
        # Never more readable than the old file, not even for a moment: it may hold a secret.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            if old is not None:
                with contextlib.suppress(PermissionError):
                    os.fchown(handle, old.st_uid, old.st_gid)
                os.fchmod(handle, mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
