# SPDX-License-Identifier: Apache-2.0
"""The `slim` transform: a layer without what its GPU can never load, and without ballast.

In wheels whose licence allows it, payloads in shared objects are blanked and then cut out of the
file. Loose cubins that the GPU cannot load and ballast files are left out whole; cubins are
never edited, since FlashInfer checks their hashes. Everything is in the edit receipt.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from imagebuild.layer.binary import BytesSource, FileSource, FormatError, SourceStream
from imagebuild.layer.blank import blankable, blanked
from imagebuild.layer.compact import compacted, layout
from imagebuild.layer.edits import Edit, FileState, Wheel, installed_wheels, recorded, with_edits
from imagebuild.layer.elf import read_elf
from imagebuild.layer.entries import Entry, LayerError
from imagebuild.layer.gpucode import loadable
from imagebuild.layer.licence import allowed, licence_of
from imagebuild.layer.proof import NotProven, prove
from imagebuild.layer.scan import scan
from imagebuild.layer.spec import Transform

_SHARED = re.compile(r"\.so(\.[0-9]+)*$")
_MAGIC = b"\x7fELF"


@dataclass(frozen=True)
class Rule:
    """The transform's arguments.

    `gpu` is the target's number, `licences` the allowed SPDX ids, `declared` maps a package to the
    id of its licence file (`licence`, `file` relative to site-packages, `sha256`) and to what its
    METADATA names (`instead_of`, empty if nothing exact). `untouched`
    are patterns of files that are somebody else's within an allowed wheel. `ballast` maps patterns
    to reasons. All patterns are relative to site-packages.
    """

    layer: str
    tool: str
    gpu: int
    licences: tuple[str, ...]
    declared: dict[str, dict[str, str]]
    untouched: tuple[str, ...]
    ballast: dict[str, str]

    @classmethod
    def of(cls, args: dict[str, Any]) -> Rule:
        """Read the arguments as they are in a Plan."""
        return cls(
            args["layer"], args["tool"], args["gpu"], tuple(args["licences"]), dict(args["declared"]),
            tuple(args["untouched"]), dict(args["ballast"]),
        )  # fmt: skip


def slim(entries: list[Entry], transform: Transform, workers: int, scratch: Path | None) -> list[Entry]:
    """Return the slim layer. `scratch` is where large files may lie meanwhile (default: TMPDIR).

    Raises LayerError for a damaged library, a ballast pattern that matches nothing, a licence file
    unlike its declaration, or an edit that cannot be proven.
    """
    rule = Rule.of(transform.args)
    tree = {entry.path: entry for entry in entries if entry.kind == "file"}
    wheels = installed_wheels(tree.values())
    owner = {path: wheel for wheel in wheels for path in wheel.rows}
    strangers = set(rule.declared) - {wheel.name for wheel in wheels}
    if strangers:
        raise LayerError(f"{rule.layer}: has no {', '.join(sorted(strangers))}, whose licence is declared")
    removed = _ballast(tree, owner, rule)
    editable = {wheel.dist_info for wheel in wheels if may_edit(wheel, tree, rule)}
    jobs = [
        (path, wheel)
        for path, wheel in sorted(owner.items())
        if path in tree and path not in removed and not _is_untouched(path, wheel, rule)
        and (path.endswith(".cubin") or (wheel.dist_info in editable and _SHARED.search(path)))
    ]  # fmt: skip
    jobs.sort(key=lambda job: -tree[job[0]].size)
    with ThreadPoolExecutor(workers) as pool:
        done = list(pool.map(lambda job: _one(tree[job[0]], job[1], rule, scratch), jobs))
    edits = [edit for edit, _ in done if edit is not None] + list(removed.values())
    changed = {entry.path: entry for _, entry in done if entry is not None}
    gone = {edit.path for edit in edits if edit.after is None}
    kept = [changed.get(e.path, e) if e.kind == "file" else e for e in entries if e.path not in gone]
    return with_edits(kept, edits, rule.layer)


def _relative(path: str, wheel: Wheel) -> str:
    site = os.path.dirname(wheel.dist_info)
    return os.path.relpath(path, site)


def _is_untouched(path: str, wheel: Wheel, rule: Rule) -> bool:
    return any(fnmatch.fnmatchcase(_relative(path, wheel), pattern) for pattern in rule.untouched)


def _ballast(tree: dict[str, Entry], owner: dict[str, Wheel], rule: Rule) -> dict[str, Edit]:
    found: dict[str, Edit] = {}
    unused = set(rule.ballast)
    for path, wheel in owner.items():
        if path not in tree:
            continue
        name = _relative(path, wheel)
        pattern = next((p for p in rule.ballast if fnmatch.fnmatchcase(name, p)), None)
        if pattern is not None:
            unused.discard(pattern)
            found[path] = Edit(
                path, wheel.name, rule.ballast[pattern], rule.tool, recorded(wheel, path), None
            )
    if unused:
        raise LayerError(f"{rule.layer}: no file matches the ballast {', '.join(sorted(unused))}")
    return found


def may_edit(wheel: Wheel, tree: dict[str, Entry], rule: Rule) -> bool:
    """Tell whether a wheel's licence is on the list."""
    metadata = tree.get(f"{wheel.dist_info}/METADATA")
    if metadata is None:
        raise LayerError(f"{wheel.dist_info}: has no METADATA")
    stated = licence_of(metadata.read().decode("utf-8", "replace"))
    declared = rule.declared.get(wheel.name)
    if declared is not None:
        entry = tree.get(f"{os.path.dirname(wheel.dist_info)}/{declared['file']}")
        if stated != declared["instead_of"]:
            expected = declared["instead_of"] or "nothing exact"
            raise LayerError(f"{wheel.name}: METADATA names {stated or 'nothing exact'}, not {expected}")
        if entry is None or hashlib.sha256(entry.read()).hexdigest() != declared["sha256"]:
            raise LayerError(
                f"{wheel.name}: {declared['file']} is not the text declared {declared['licence']}"
            )
        stated = declared["licence"]
    return bool(stated) and allowed(stated, rule.licences)


def _one(entry: Entry, wheel: Wheel, rule: Rule, scratch: Path | None) -> tuple[Edit | None, Entry | None]:
    """Return a file's edit and its new entry, if there is anything to edit."""
    try:
        if entry.path.endswith(".cubin"):
            return _cubin(entry, wheel, rule), None
        assert entry.open is not None
        with entry.open() as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                return None, None
        return _library(entry, wheel, rule, scratch)
    except (FormatError, NotProven) as error:
        raise LayerError(f"{entry.path}: {error}") from error


def _cubin(entry: Entry, wheel: Wheel, rule: Rule) -> Edit | None:
    content = entry.read()
    code = scan(BytesSource(content), entry.path)
    if code is None or code.kind != "cubin" or loadable(code.found[0].container.entries[0].code, rule.gpu):
        return None
    reason = f"{code.found[0].container.entries[0].code} code, which sm_{rule.gpu} cannot load"
    return Edit(entry.path, wheel.name, reason, rule.tool, _state(content), None)


def _state(content: bytes) -> FileState:
    return FileState(hashlib.sha256(content).hexdigest(), len(content))


def _library(
    entry: Entry, wheel: Wheel, rule: Rule, scratch: Path | None
) -> tuple[Edit | None, Entry | None]:
    assert entry.open is not None
    # Both files are closed with the process: the entry is read when the layer is written.
    spool = tempfile.TemporaryFile(dir=scratch, prefix="imagebuild-slim-", buffering=0)  # noqa: SIM115
    with entry.open() as stream:
        before = _copy(iter(lambda: stream.read(1 << 20), b""), spool)
    source = FileSource.of(spool.fileno())
    code = scan(source, entry.path)
    spans = blankable(code, rule.gpu) if code is not None else []
    if not spans:
        return None, replace(entry, open=lambda: _open(spool))  # it is not inflated a second time
    with spool:
        elf = read_elf(source)
        plan = layout(source, elf, spans)
        pieces = (
            blanked(source, spans, 0, source.size) if plan is None else compacted(source, elf, spans, plan)
        )
        out = tempfile.TemporaryFile(dir=scratch, prefix="imagebuild-slim-", buffering=0)  # noqa: SIM115
        after = _copy(pieces, out)
        proof = prove(source, FileSource.of(out.fileno()), rule.gpu)
    detail = {
        "blanked": proof.blanked, "blanked_bytes": proof.blanked_bytes, "kept": proof.kept,
        "cut_bytes": proof.cut, "holes": 0 if plan is None else len(plan.holes),
    }  # fmt: skip
    reason = f"GPU code that sm_{rule.gpu} cannot load is blank" + (
        " and cut out of the file" if plan else ""
    )
    edit = Edit(entry.path, wheel.name, reason, rule.tool, before, after, detail)
    return edit, replace(entry, size=after.size, open=lambda: _open(out))


def _copy(pieces: Iterator[bytes], out: IO[bytes]) -> FileState:
    """Write pieces to a file, leaving holes for zero blocks; return what it holds."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        if piece.strip(b"\0"):
            os.pwrite(out.fileno(), piece, size)
        size += len(piece)
    out.truncate(size)
    return FileState(digest.hexdigest(), size)


def _open(file: IO[bytes]) -> IO[bytes]:
    """Return a new stream over an unlinked file."""
    return io.BufferedReader(SourceStream(FileSource.of(file.fileno())), 1 << 20)
