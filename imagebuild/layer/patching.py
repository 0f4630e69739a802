# SPDX-License-Identifier: Apache-2.0
"""Unified diffs, applied without any tolerance: a patch meets exactly the bytes it was made for.

A hunk fits at its own line number with its own context or not at all. Patches change existing
UTF-8 files; a new module belongs into a plugin wheel, and nothing here deletes files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from imagebuild.layer.entries import LayerError, safe_path

_RANGE = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*")
_NO_NEWLINE = "\\ No newline at end of file"


class PatchError(LayerError):
    """A patch is malformed or does not meet the file it was made for."""


@dataclass(frozen=True)
class Hunk:
    """One hunk: `start` is the first line (from 1) of the old text; lines keep their line ends."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class FilePatch:
    """All hunks of one file, in file order; `path` is relative to site-packages."""

    path: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Mismatch:
    """The first line where a hunk does not fit.

    `hunk` counts from 1, `line` is the line of the file (from 1); `found` is None past its end.
    """

    hunk: int
    line: int
    expected: str
    found: str | None

    def __str__(self) -> str:
        there = "the file ends" if self.found is None else repr(self.found.rstrip("\n"))
        return (
            f"hunk {self.hunk}, line {self.line}: expected {self.expected.rstrip(chr(10))!r}, "
            f"there is instead: {there}"
        )


def sha256(content: bytes) -> str:
    """Return the sha256 of bytes: 64 hex digits."""
    return hashlib.sha256(content).hexdigest()


def parse(text: str, origin: str) -> tuple[FilePatch, ...]:
    """Read a unified diff; `origin` names it in errors.

    Text before a `---` line is ignored. Raises PatchError for anything that is not a change of an
    existing file, for counts that disagree with the hunk, and for hunks out of order.
    """
    lines = split_lines(text.encode())
    files: list[FilePatch] = []
    at = 0
    while at < len(lines):
        if not (lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")):
            if lines[at].startswith("@@ "):
                raise PatchError(f"{origin}:{at + 1}: a hunk that belongs to no file")
            at += 1
            continue
        old, new = (_name(lines[i], prefix) for i, prefix in ((at, "a/"), (at + 1, "b/")))
        if old != new or old is None:
            raise PatchError(f"{origin}:{at + 1}: changes existing files only, not {lines[at][4:].strip()!r}")
        path = safe_path(old, origin)
        hunks, at = _hunks(lines, at + 2, origin)
        if path in {file.path for file in files}:
            raise PatchError(f"{origin}: a second part for {path}")
        files.append(FilePatch(path, hunks))
    if not files:
        raise PatchError(f"{origin}: holds no change")
    return tuple(files)


def _name(line: str, prefix: str) -> str | None:
    name = line[4:].split("\t", 1)[0].strip()
    return name[len(prefix) :] if name.startswith(prefix) else None


def _hunks(lines: list[str], at: int, origin: str) -> tuple[tuple[Hunk, ...], int]:
    hunks: list[Hunk] = []
    shift = 0
    while at < len(lines) and (match := _RANGE.fullmatch(lines[at].rstrip("\n"))):
        where = f"{origin}:{at + 1}"
        start, old_count, new_start, new_count = (int(g) if g is not None else 1 for g in match.groups())
        body, at = _body(lines, at + 1, old_count, new_count, where)
        old = tuple(text for sign, text in body if sign in " -")
        new = tuple(text for sign, text in body if sign in " +")
        previous = hunks[-1] if hunks else None
        if not old or start < 1 or (previous and start < previous.start + len(previous.old)):
            raise PatchError(f"{where}: a hunk without context, or out of order")
        if new_start != start + shift:
            raise PatchError(f"{where}: new line number {new_start}, must be {start + shift}")
        shift += new_count - old_count
        hunks.append(Hunk(start, old, new, tuple(sign + text for sign, text in body)))
    if not hunks:
        raise PatchError(f"{origin}:{at + 1}: a file without a hunk")
    return tuple(hunks), at


def _body(
    lines: list[str], at: int, old_count: int, new_count: int, where: str
) -> tuple[list[tuple[str, str]], int]:
    body: list[tuple[str, str]] = []
    while old_count or new_count:
        line = lines[at] if at < len(lines) else ""
        sign = line[:1]
        if sign not in (" ", "-", "+") or not line.endswith("\n"):
            raise PatchError(f"{where}: the hunk is cut off, or has a line without sign")
        old_count -= sign in " -"
        new_count -= sign in " +"
        if min(old_count, new_count) < 0:
            raise PatchError(f"{where}: more lines than the hunk's head says")
        body.append((sign, line[1:]))
        at += 1
        if at < len(lines) and lines[at].rstrip("\n") == _NO_NEWLINE:
            body[-1] = (sign, line[1:].removesuffix("\n"))
            at += 1
    return body, at


def mismatch(lines: list[str], hunk: Hunk, number: int, start: int) -> Mismatch | None:
    """Return where hunk `number` does not fit at line `start` (from 1); None if it does."""
    for offset, expected in enumerate(hunk.old):
        index = start - 1 + offset
        found = lines[index] if index < len(lines) else None
        if found != expected:
            return Mismatch(number, index + 1, expected, found)
    return None


def split_lines(content: bytes) -> list[str]:
    """Return a file's lines with their ends, split at newlines only. Raises PatchError unless UTF-8."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PatchError(f"is not UTF-8 text: {error}") from None
    parts = text.split("\n")
    lines = [part + "\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def mismatches(content: bytes, patch: FilePatch) -> list[Mismatch]:
    """Return the first wrong line of every hunk that does not fit."""
    lines = split_lines(content)
    found = (mismatch(lines, hunk, n, hunk.start) for n, hunk in enumerate(patch.hunks, 1))
    return [problem for problem in found if problem is not None]


def apply_file(content: bytes, patch: FilePatch) -> bytes:
    """Return a file's content with all hunks applied. Raises PatchError for the first that does not fit."""
    problems = mismatches(content, patch)
    if problems:
        raise PatchError(f"{patch.path}: {problems[0]}")
    lines = split_lines(content)
    for hunk in reversed(patch.hunks):
        lines[hunk.start - 1 : hunk.start - 1 + len(hunk.old)] = hunk.new
    return "".join(lines).encode()


def apply_checked(content: bytes, patch: FilePatch, before: str, after: str, name: str) -> bytes:
    """Apply one file's patch between two known states; `name` is the patch's id.

    Raises PatchError if the file is not exactly the one with sha256 `before`, saying which hunk
    does not fit and what is there instead, or if the result is not the one with sha256 `after`.
    """
    have = sha256(content)
    if have != before:
        problems = mismatches(content, patch)
        detail = "".join(f"\n    {problem}" for problem in problems)
        detail = detail or "\n    every hunk fits, but the file differs elsewhere"
        raise PatchError(
            f"patch {name}: {patch.path} is not the file it was made for: sha256 {have}, "
            f"expected {before}{detail}"
        )
    problems = mismatches(content, patch)
    if problems:
        raise PatchError(f"patch {name}: {patch.path}: {problems[0]}")
    result = apply_file(content, patch)
    if sha256(result) != after:
        raise PatchError(
            f"patch {name}: {patch.path} becomes sha256 {sha256(result)}, the ledger says {after}"
        )
    return result


def apply_all(
    contents: Mapping[str, bytes],
    patches: tuple[FilePatch, ...],
    states: Mapping[str, Mapping[str, str]],
    name: str,
) -> dict[str, bytes]:
    """Return path → new content of every file that one patch changes.

    `states` maps each path to its sha256 `before` and `after`. Raises PatchError if the patch
    changes other files than these, a file is missing, or `apply_checked` refuses one.
    """
    changed = {patch.path for patch in patches}
    if changed != set(states):
        odd = ", ".join(sorted(changed ^ set(states)))
        raise PatchError(f"patch {name}: change.patch and patch.yaml name different files: {odd}")
    result = {}
    for patch in patches:
        if patch.path not in contents:
            raise PatchError(f"patch {name}: there is no {patch.path}")
        state = states[patch.path]
        result[patch.path] = apply_checked(contents[patch.path], patch, state["before"], state["after"], name)
    return result
