# SPDX-License-Identifier: Apache-2.0
"""A checkout's data in another folder, for tests that change it."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def copy_images(folder: Path) -> Path:
    """Copy `images` into a folder, and the plugins that its patches name beside it; return the copy."""
    shutil.copytree(ROOT / "plugins", folder / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    return Path(shutil.copytree(ROOT / "images", folder / "images"))
