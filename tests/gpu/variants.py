# SPDX-License-Identifier: Apache-2.0
"""Copies of a site-packages folder: as it is, with foreign GPU code blank, and with it cut out.

Every licence is slimmed here, since nothing leaves the machine: a proof for NVIDIA's libraries too.
"""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Made:
    """What became of one file in one variant: payload bytes blanked, bytes cut, and what is wrong."""

    variant: str
    blanked: int = 0
    cut: int = 0
    bad: str = ""


def make(site: Path, work: Path, gpu: int) -> dict[str, dict[str, object]]:
    """Make the three copies below `work`; return totals by variant. Files without GPU code are links."""
    start = time.monotonic()
    jobs = []
    for package in PACKAGES:
        for folder, _, names in os.walk(site / package):
            below = Path(folder).relative_to(site)
            for variant in VARIANTS:
                (work / variant / below).mkdir(parents=True, exist_ok=True)
            jobs += [(Path(folder) / name, work, below / name, gpu) for name in names]
    jobs.sort(key=lambda job: -job[0].lstat().st_size)
    with ProcessPoolExecutor() as pool:
        made = [item for items in pool.map(_one, jobs, chunksize=1) for item in items]
    report: dict[str, dict[str, object]] = {}
    for variant in VARIANTS:
        rows = [item for item in made if item.variant == variant]
        report[variant] = {
            "edited": len(rows),
            "blanked": sum(item.blanked for item in rows),
            "cut": sum(item.cut for item in rows),
            "bad": [item.bad for item in rows if item.bad],
        }
    report["orig"]["seconds"] = round(time.monotonic() - start, 1)
    return report


def _one(job: tuple[Path, Path, Path, int]) -> list[Made]:
    """Make one file of each variant; return what was edited."""
    path, work, name, gpu = job
    code = code_of(path)
    found = []
    for variant in VARIANTS:
        target = work / variant / name
        if target.exists() or target.is_symlink():
            continue
        if path.is_symlink():
            target.symlink_to(os.readlink(path))
        elif code is None or variant == "orig":
            _link(path, target)
        else:
            item = _edited(path, target, gpu, variant)
            found += [item] if item is not None else []
    return found


def _edited(path: Path, target: Path, gpu: int, variant: str) -> Made | None:
    """Write a library's slim form and prove it; None if nothing of it is foreign."""
    with open(path, "rb") as file:
        source = FileSource.of(file.fileno())
        if not slim_file(source, target, gpu, compact=variant == "small"):
            _link(path, target)
            return None
        target.chmod(0o755)
        try:
            with open(target, "rb") as edited:
                proof = prove(source, FileSource.of(edited.fileno()), gpu)
        except (NotProven, FormatError) as error:
            return Made(variant, bad=f"{path.name}: {error}")
    return Made(variant, proof.blanked_bytes, proof.cut)


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:
        shutil.copy2(path, target)
