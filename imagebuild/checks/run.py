# SPDX-License-Identifier: Apache-2.0
"""Run tests/image on a built image and read what each check came to."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from imagebuild import process
from imagebuild.catalog import project_root
from imagebuild.errors import CheckFailed
from imagebuild.oci_layout import OciImage, write_layout
from imagebuild.plan import Plan

Report = Callable[[str], None]


def can_unpack() -> bool:
    """Whether this user can check an image without a container engine: its files have owners."""
    return os.geteuid() == 0


@contextmanager
def as_layout(image: OciImage, scratch: Path) -> Iterator[Path]:
    """Yield the image as a layout folder below `scratch`; it is unpacked beside it, and both go away."""
    with tempfile.TemporaryDirectory(prefix="check-", dir=scratch) as folder:
        layout = Path(folder) / "layout"
        write_layout(image, layout)
        yield layout


def check_image(image: str, plan: Plan, report: Report) -> dict[str, Any]:
    """Run every check on an image (name, id or layout folder) and return the results.

    Raises CheckFailed if one fails; `report` has had pytest's output.
    """
    root = project_root().resolve()
    with tempfile.TemporaryDirectory(prefix="imagebuild-") as folder:
        results = Path(folder) / "results.json"
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--results", str(results)]
        argv += [str(root / "tests" / "image"), "--image", image, "--arch", plan.arch]
        status = process.stream(argv, report, cwd=root)
        if status != 0 or not results.is_file():
            raise CheckFailed(
                f"{plan.reference} was built, but its checks failed (output above)",
                hint=f"python build.py --arch {plan.arch} --stop-after build --output DIR; "
                "then python -m pytest tests/image --image DIR",
            )
        found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
        return found
