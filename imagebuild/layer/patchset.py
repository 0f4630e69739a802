# SPDX-License-Identifier: Apache-2.0
"""The `patch` transform: a layer's ledger of patches, applied in its order, and what it leaves.

The image gets /etc/imagebuild/patches.json (the ledger), the edit receipt, and a RECORD that
still tells the truth.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild.layer.edits import Edit, FileState, installed_wheels, with_edits
from imagebuild.layer.entries import Entry, file_entry
from imagebuild.layer.patching import PatchError, apply_all, parse, sha256

LEDGER_TARGET = "etc/imagebuild/patches.json"


@dataclass(frozen=True)
class Step:
    """What one patch made of one file; `path` is below site-packages."""

    patch: str
    path: str
    before: bytes
    after: bytes


def steps(contents: dict[str, bytes], ledger: list[dict[str, Any]], texts: dict[str, str]) -> list[Step]:
    """Apply the ledger's patches in order to files by their path below site-packages.

    `texts` holds each change by its source path. A ledger item without a `change` is a plugin
    wheel and changes nothing. Raises PatchError as `patching.apply_all` does.
    """
    current = dict(contents)
    found = []
    for item in ledger:
        if "change" in item:
            parts = parse(texts[item["change"]], item["change"])
            made = apply_all(current, parts, item["files"], item["id"])
            found += [Step(item["id"], path, current[path], made[path]) for path in sorted(made)]
            current |= made
    return found


def touched(ledger: list[dict[str, Any]]) -> list[str]:
    """Return the paths below site-packages that the ledger's patches change, sorted."""
    return sorted({path for item in ledger for path in item.get("files", {})})


def apply_ledger(entries: list[Entry], args: dict[str, Any], files: dict[str, Path]) -> list[Entry]:
    """Return the layer's entries with the ledger applied.

    Args: layer (its name), site (relative to the image root), ledger (a list of patches), tool.
    Raises PatchError for a patch that does not meet its file, or whose file another layer has.
    """
    site, ledger = args["site"], args["ledger"]
    by_path = {entry.path: entry for entry in entries if entry.kind == "file"}
    there = {path: by_path[f"{site}/{path}"] for path in touched(ledger) if f"{site}/{path}" in by_path}
    contents = {path: entry.read() for path, entry in there.items()}
    texts = {item["change"]: files[item["change"]].read_text("utf-8") for item in ledger if "change" in item}
    done = steps(contents, ledger, texts)
    owner = {path: wheel.name for wheel in installed_wheels(entries) for path in wheel.rows}
    edits, new = [], {}
    for step in done:
        path = f"{site}/{step.path}"
        if path not in owner:
            raise PatchError(f"patch {step.patch}: {step.path} is in no wheel's RECORD")
        before, after = _state(step.before), _state(step.after)
        edits.append(Edit(path, owner[path], f"patch {step.patch}", args["tool"], before, after))
        new[path] = file_entry(path, step.after, there[step.path].mode)
    text = json.dumps({"schema": 1, "patches": ledger}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    changed = [new.get(entry.path, entry) for entry in entries]
    return [*with_edits(changed, edits, args["layer"]), file_entry(LEDGER_TARGET, text.encode())]


def _state(content: bytes) -> FileState:
    return FileState(sha256(content), len(content))
