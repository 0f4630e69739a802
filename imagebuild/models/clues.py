# SPDX-License-Identifier: Apache-2.0
"""What a folder says about itself, without a hub: README, config, headers, sizes, hashes and traces."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from imagebuild.errors import CheckFailed
from imagebuild.models.config import drafter_shape, is_drafter, quantisation, read_json, target_shape
from imagebuild.models.hashing import hash_all
from imagebuild.models.lockfile import OURS
from imagebuild.models.pin import git_blob
from imagebuild.models.shapes import DrafterShape, TargetShape
from imagebuild.models.shards import Weights, check_weights
from imagebuild.models.traces import Trace, trace_of
from imagebuild.progress import Progress, Quiet

SMALL = 64 << 20  # bytes; files up to this size are hashed always, larger ones on request
_README_MAX = 1 << 20
_FRONT = re.compile(r"\A\ufeff?---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)
_TITLE = re.compile(r"^#\s+(.+)$|<h1[^>]*>\s*(.*?)\s*</h1>", re.MULTILINE)


@dataclass(frozen=True)
class Clues:
    """All that was found. `front` is the README's front matter, `hashes` sha256 by path.

    `blobs` are git ids of small files by path; `quantisation` is what the config says, `stored` what the
    tensors are.
    """

    folder: Path
    files: dict[str, int]
    front: dict[str, Any]
    title: str
    text: str
    name_or_path: str
    shape: TargetShape | DrafterShape | None
    quantisation: str
    stored: str
    weights: Weights
    trace: Trace
    hashes: dict[str, str]
    blobs: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All files' bytes."""
        return sum(self.files.values())


def collect(folder: Path, *, full: bool = False, progress: Progress | None = None) -> Clues:
    """Read a folder; what cannot be read becomes a note. With `full` every byte is hashed."""
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in (OURS, ".cache", ".git")
    }
    notes: list[str] = []
    readme = _readme(folder, files)
    front = _front(readme)
    found = _TITLE.search(_FRONT.sub("", readme))
    config = _config(folder, notes)
    shape, label = _shape(config, notes)
    weights = check_weights(folder)
    trace = trace_of(folder)
    hashes, blobs = _hashes(folder, files, full, progress or Quiet(), notes)
    name = (config or {}).get("_name_or_path")
    return Clues(
        folder=folder,
        files=files,
        front=front,
        title=(found[1] or found[2] or "").strip() if found else "",
        text=readme,
        name_or_path=name if isinstance(name, str) else "",
        shape=shape,
        quantisation=label,
        stored=stored_as(weights),
        weights=weights,
        trace=trace,
        hashes={**trace.hashes, **hashes} if trace.source.endswith("cache") else hashes,
        blobs=blobs,
        notes=tuple(notes),
    )


def _readme(folder: Path, files: dict[str, int]) -> str:
    name = next((name for name in files if name.lower() == "readme.md"), None)
    if name is None:
        return ""
    with (folder / name).open("rb") as file:
        return file.read(_README_MAX).decode("utf-8", errors="replace")


def _front(readme: str) -> dict[str, Any]:
    """Return a README's front matter; empty if there is none that can be read."""
    found = _FRONT.match(readme)
    try:
        value = yaml.safe_load(found[1]) if found else None
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def _config(folder: Path, notes: list[str]) -> dict[str, Any] | None:
    if not (folder / "config.json").is_file():
        notes.append("there is no config.json")
        return None
    try:
        return read_json(folder / "config.json")
    except CheckFailed as error:
        notes.append(error.message)
        return None


def _shape(config: dict[str, Any] | None, notes: list[str]) -> tuple[TargetShape | DrafterShape | None, str]:
    if config is None:
        return None, ""
    try:
        quant = quantisation(config)
        label = quant.label if quant else "none"
    except CheckFailed as error:
        notes.append(error.message)
        label = ""
    try:
        return (drafter_shape(config) if is_drafter(config) else target_shape(config)), label
    except CheckFailed as error:
        notes.append("config.json is of no kind that this tool knows: " + error.message.partition("\n")[0])
        return None, label


def _hashes(
    folder: Path, files: dict[str, int], full: bool, progress: Progress, notes: list[str]
) -> tuple[dict[str, str], dict[str, str]]:
    todo = [(folder / path, size) for path, size in files.items() if full or size <= SMALL]
    with progress.task("hashing", sum(size for _, size in todo) or None) as task:
        results = hash_all(todo, task.advance)
    hashes: dict[str, str] = {}
    blobs: dict[str, str] = {}
    for path, result in results.items():
        name = path.relative_to(folder).as_posix()
        if isinstance(result, OSError):
            notes.append(f"{name}: cannot be read: {result.strerror or result}")
            continue
        hashes[name] = result
        if files[name] <= SMALL and not name.endswith(".safetensors"):
            blobs[name] = git_blob(path.read_bytes())
    return hashes, blobs


def stored_as(weights: Weights) -> str:
    """Say how the tensors are stored, from their names and dtypes: what a config cannot lie about."""
    names = weights.tensors
    dtypes = {dtype for dtype, _ in names.values()}
    eight = bool(dtypes & {"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ"})
    kinds = [
        ("", not names),
        ("packed integers (compressed-tensors)", any(name.endswith(".weight_packed") for name in names)),
        ("packed integers (GPTQ or AWQ)", any(name.endswith(".qweight") for name in names)),
        ("FP4 in bytes with FP8 scales", eight and "U8" in dtypes),
        ("FP8", eight),
        ("bytes (FP4 or 8 bits)", "U8" in dtypes),
    ]
    plain = ", ".join(sorted(dtypes & {"BF16", "F16", "F32"})) or "other"
    return next((text for text, found in kinds if found), f"not quantised ({plain})")
