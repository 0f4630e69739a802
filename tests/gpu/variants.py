# SPDX-License-Identifier: Apache-2.0
"""Copies of a site-packages folder: as it is, with foreign GPU code blank, and with it cut out.

Every licence is slimmed here, since nothing leaves the machine: a proof for NVIDIA's libraries too.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from imagebuild.layer.binary import FileSource, FormatError
from imagebuild.layer.proof import NotProven, prove
from imagebuild.layer.scan import FileCode, scan
from imagebuild.layer.slim_file import slim_file

VARIANTS = ("orig", "blank", "small")
PACKAGES = (
    "torch", "nvidia", "functorch", "torchgen", "torchvision", "torchvision.libs", "torchaudio", "sgl_kernel",
)  # fmt: skip


def code_of(path: Path) -> FileCode | None:
    """Return a library's GPU code; None for any other file."""
    if path.is_symlink() or not path.is_file():
        return None
    with open(path, "rb") as file:
        if file.read(4) != b"\x7fELF":
            return None
        try:
            found = scan(FileSource.of(file.fileno()), path.name)
        except FormatError:
            return None
    return found if found is not None and found.kind == "elf" and found.found else None


def make(site: Path, work: Path, gpu: int) -> dict[str, dict[str, object]]:
    """Make the three copies below `work`; return what each took. Files without GPU code are links."""
    report: dict[str, dict[str, object]] = {
        name: {"files": 0, "bytes": 0, "cut": 0, "bad": []} for name in VARIANTS
    }
    start = time.monotonic()
    for package in PACKAGES:
        for folder, _, names in os.walk(site / package):
            below = Path(folder).relative_to(site)
            for name in names:
                for variant in VARIANTS:
                    (work / variant / below).mkdir(parents=True, exist_ok=True)
                _one(Path(folder) / name, work, below / name, gpu, report)
    report["orig"]["seconds"] = round(time.monotonic() - start, 1)
    return report


def _one(path: Path, work: Path, name: Path, gpu: int, report: dict[str, dict[str, object]]) -> None:
    code = code_of(path)
    for variant in VARIANTS:
        target = work / variant / name
        if target.exists() or target.is_symlink():
            continue
        if path.is_symlink():
            target.symlink_to(os.readlink(path))
            continue
        if code is None or variant == "orig":
            _link(path, target)
            continue
        row = report[variant]
        with open(path, "rb") as file:
            source = FileSource.of(file.fileno())
            if not slim_file(source, target, gpu, compact=variant == "small"):
                _link(path, target)
                continue
            target.chmod(0o755)
            try:
                with open(target, "rb") as edited:
                    proof = prove(source, FileSource.of(edited.fileno()), gpu)
            except (NotProven, FormatError) as error:
                row["bad"].append(f"{name}: {error}")  # type: ignore[attr-defined]
                continue
        row["files"] += 1  # type: ignore[operator]
        row["bytes"] += proof.blanked_bytes  # type: ignore[operator]
        row["cut"] += proof.cut  # type: ignore[operator]


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:
        shutil.copy2(path, target)
