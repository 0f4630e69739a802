# SPDX-License-Identifier: Apache-2.0
"""Are a folder's weights whole: index ↔ shards ↔ headers, each complete and of one another."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from imagebuild.errors import CheckFailed
from imagebuild.models.config import read_json
from imagebuild.models.tensors import Header, read_header

INDEX = "model.safetensors.index.json"
MAX_INDEX = 128 << 20  # bytes; that of Kimi K2.6 has 208,000 tensors in 22 MB
_SHARD = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5,})-of-(?P<total>\d{5,})\.safetensors$")
_SHOWN = 5


@dataclass(frozen=True)
class Weights:
    """What a folder's weights are: tensor -> shape and dtype, total bytes, and what is wrong by file."""

    tensors: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    total: int = 0
    files: int = 0
    problems: dict[str, tuple[str, ...]] = field(default_factory=dict)


def check_weights(folder: Path, done: Callable[[int], None] = lambda _: None) -> Weights:
    """Read the headers of all safetensors files at the top of a folder; `done` gets 1 per file.

    One header is in memory at a time, so that any number of shards fits.
    """
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    place: dict[str, str] = {}
    problems: dict[str, list[str]] = {}
    total = 0
    for name in names:
        header = read_header(folder / name)
        if header.problems:
            problems.setdefault(name, []).extend(_shorten(header.problems))
        twice = [tensor for tensor in header.tensors if tensor in place]
        if twice:
            where = place[twice[0]]
            problems.setdefault(name, []).append(f"has {len(twice)} tensors that {where} has too: {twice[0]}")
        _note(header, name, tensors, place)
        total += header.total
        done(1)
    for name, lines in (*_numbering(names), *_index(folder, names, place, total)):
        problems.setdefault(name, []).extend(lines)
    return Weights(tensors, total, len(names), {k: tuple(v) for k, v in problems.items()})


def _note(
    header: Header, name: str, tensors: dict[str, tuple[str, tuple[int, ...]]], place: dict[str, str]
) -> None:
    for tensor, value in header.tensors.items():
        tensors[tensor] = (value.dtype, value.shape)
        place[tensor] = name


def _shorten(lines: tuple[str, ...]) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _numbering(names: list[str]) -> list[tuple[str, list[str]]]:
    """Return what `-00003-of-00064` says is missing."""
    groups: dict[tuple[str, str], set[int]] = {}
    for name in names:
        found = _SHARD.match(name)
        if found:
            groups.setdefault((found["stem"], found["total"]), set()).add(int(found["number"]))
    out = []
    for (stem, total), have in groups.items():
        for number in range(1, min(int(total), 100_000) + 1):
            if number not in have:
                name = f"{stem}-{number:0{len(total)}}-of-{total}.safetensors"
                out.append((name, ["is missing"]))
    if len(groups) > 1:
        kinds = ", ".join(f"{stem}-*-of-{total}" for stem, total in sorted(groups))
        out.append((names[0], [f"two sets of shards in one folder: {kinds}"]))
    return out


def _index(folder: Path, names: list[str], place: dict[str, str], total: int) -> list[tuple[str, list[str]]]:
    """Return what differs between model.safetensors.index.json and the shards."""
    path = folder / INDEX
    if not path.is_file():
        missing = len(names) > 1
        return [(INDEX, ["is missing: nothing says which shard holds which tensor"])] if missing else []
    try:
        raw = read_json(path, MAX_INDEX)
    except CheckFailed as error:
        return [(INDEX, [error.message])]
    weight_map = raw.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        return [(INDEX, ["has no weight_map of names"])]
    out: dict[str, list[str]] = {}
    for name in sorted(set(weight_map.values()) - set(names)):
        out.setdefault(name, []).append("is missing, but the index names it")
    for name in names if weight_map else []:
        if name not in set(weight_map.values()):
            out.setdefault(name, []).append("is not in the index: of another model, or the index is old")
    lost: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        if name in names and place.get(tensor) != name:
            lost.setdefault(name, []).append(tensor)
    for name, tensors in lost.items():
        out.setdefault(name, []).append(f"lacks {len(tensors)} tensors of the index: {tensors[0]}")
    extra = [tensor for tensor in place if tensor not in weight_map]
    if extra:
        out.setdefault(INDEX, []).append(f"lacks {len(extra)} tensors of the shards: {extra[0]}")
    metadata = raw.get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(stated, int) and not out and stated != total:
        out[INDEX] = [f"says {stated} bytes of tensors, the shards hold {total}"]
    return list(out.items())
