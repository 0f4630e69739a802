# SPDX-License-Identifier: Apache-2.0
"""The file tree that a Plan means, path by path, without building it.

Wheels say by their RECORD what they install, Debian packages are unpacked, and the transforms run
but for the two that are slow: what slimming did is in the image's own edit receipt, which is
checked against what the Plan allows, and byte-code is checked against its source.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from imagebuild.context import input_path
from imagebuild.layer import transforms
from imagebuild.layer.bytecode import pyc_path
from imagebuild.layer.edits import FOLDER, installed_wheels
from imagebuild.layer.entries import Entry, file_entry, merge
from imagebuild.layer.slim import Rule, may_edit
from imagebuild.layer.spec import Artifact, LayerSpec
from imagebuild.layer.tarball import tar_entries
from imagebuild.layer.wheel import Scheme, wheel_entries
from imagebuild.plan import Plan, to_text

Kind = Literal["file", "dir", "symlink"]
Written = Literal["", "record", "receipt", "bytecode"]
DEBIAN = "debian"
OURS = "imagebuild"
_SLOW = ("slim", "bytecompile", "embed")


@dataclass(frozen=True)
class Node:
    """What stands at a path. `mode` is permission bits, `size` bytes, `mtime` whole seconds since 1970.

    `sha256` is hex of a file's content (empty: not known), `target` the text of a link, `link` a
    number that all names of one file share (0: it has one name).
    """

    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    size: int = 0
    sha256: str = ""
    target: str = ""
    mtime: int = 0
    link: int = 0


@dataclass(frozen=True)
class Wanted:
    """What the Plan wants at a path, and from whom.

    `owner` is a wheel's package name, DEBIAN or OURS. `shipped` is the hash of what the wheel ships,
    `node.sha256` the one after the patches in `patches`. `editable` and `removable` tell what slimming
    may do. `written` marks files whose content is checked in another way than by its hash.
    """

    node: Node
    owner: str
    shipped: str = ""
    patches: tuple[str, ...] = ()
    editable: bool = False
    removable: bool = False
    written: Written = ""


Locate = Callable[[Artifact], Path]


def expected_tree(plan: Plan, images: Path, base_tar: Path, locate: Locate) -> dict[str, Wanted]:
    """Return the whole tree by path (relative to the root). `base_tar` is the unpacked base of the Plan.

    Raises LayerError for a damaged artifact, OSError for one that is not there.
    """
    base = tar_entries(base_tar)
    tree = {e.path: Wanted(_node(e), DEBIAN) for e in base if e.kind != "hardlink"}
    for entry in base:
        if entry.kind == "hardlink":  # a second name of the same file
            tree[entry.path] = tree[entry.target]
        elif entry.kind == "file":
            node = replace(tree[entry.path].node, sha256=_sha256(entry))
            tree[entry.path] = replace(tree[entry.path], node=node)
    directories = {e.path: e for e in base if e.kind == "dir"}
    listed = _listed(plan, images)
    tag = f"cpython-{plan.python.replace('.', '')}"
    _add_bytecode(tree, base, listed, tag)
    for layer in plan.layers[1:]:
        entries = _layer(plan, layer, images, locate, tree)
        for entry in entries:
            if entry.kind == "dir" and entry.path not in tree:
                tree[entry.path] = Wanted(_node(directories.get(entry.path, entry)), OURS)
            elif entry.kind == "dir" and not entry.implied:
                tree[entry.path] = Wanted(_node(entry), OURS)
        _add_bytecode(tree, entries, listed, tag)
    return tree


def _listed(plan: Plan, images: Path) -> set[str]:
    lists = {t.files[0].source for layer in plan.layers for t in layer.transforms if t.kind == "bytecompile"}
    return {line for source in lists for line in (images / source).read_text("utf-8").splitlines() if line}


def _layer(
    plan: Plan, layer: LayerSpec, images: Path, locate: Locate, tree: dict[str, Wanted]
) -> list[Entry]:
    """Add the files and links of a layer to the tree; return all its entries, folders among them."""
    scheme = Scheme(plan.prefix.lstrip("/"), plan.python)
    entries: list[Entry] = []
    shipped: dict[str, tuple[Entry, str, str]] = {}
    for artifact in layer.artifacts:
        made = wheel_entries(locate(artifact), scheme)
        hashes = {path: row[0] for wheel in installed_wheels(made) for path, row in wheel.rows.items()}
        shipped |= {e.path: (e, artifact.name, _hex(hashes[e.path])) for e in made}
        entries += made
    entries += [
        file_entry(item.target.lstrip("/"), input_path(item, images).read_bytes(), item.mode)
        for item in layer.files
    ]
    files = [item for transform in layer.transforms for item in transform.files]
    context = transforms.Context({item.source: input_path(item, images) for item in files}, 1)
    quick = tuple(t for t in layer.transforms if t.kind not in _SLOW)
    before = merge(entries)
    entries = transforms.apply(entries, quick, context)
    for transform in layer.transforms:
        if transform.kind == "embed":
            entries.append(file_entry(transform.args["target"].lstrip("/"), to_text(plan).encode()))
    merged = merge(entries)
    patched = _patched(layer)
    editable, patterns = _editable(layer, before)
    for entry in merged:
        if entry.kind == "dir":
            continue
        original = shipped.get(entry.path)
        same = original is not None and original[0] is entry
        sha256 = original[2] if same and original is not None else ""
        if entry.kind == "file" and not sha256:
            sha256 = _sha256(entry)
        owner = original[1] if original is not None else OURS
        name = entry.path.removeprefix(f"{scheme.site}/")
        tree[entry.path] = Wanted(
            replace(_node(entry), sha256=sha256),
            owner,
            original[2] if original is not None else "",
            patched.get(entry.path, ()),
            owner in editable and not _matches(name, patterns["untouched"]),
            name.endswith(".cubin") or _matches(name, patterns["ballast"]),
            _written(entry.path),
        )
    if patterns["ballast"] or editable:
        fragment = f"{FOLDER}/{layer.name}.json"
        tree.setdefault(fragment, Wanted(Node("file", 0o644), OURS, written="receipt"))
        merged = merge([*merged, file_entry(fragment, b"")])
    return merged


def _editable(layer: LayerSpec, entries: Iterable[Entry]) -> tuple[set[str], dict[str, list[str]]]:
    """Return the wheels that slimming may edit by their licence, and the patterns of its arguments."""
    slim: dict[str, Any] | None = next((t.args for t in layer.transforms if t.kind == "slim"), None)
    if slim is None:
        return set(), {"untouched": [], "ballast": []}
    rule = Rule.of(slim)
    files = {entry.path: entry for entry in entries if entry.kind == "file"}
    names = {wheel.name for wheel in installed_wheels(files.values()) if may_edit(wheel, files, rule)}
    return names, {"untouched": list(rule.untouched), "ballast": list(rule.ballast)}


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _patched(layer: LayerSpec) -> dict[str, tuple[str, ...]]:
    """Return path → ids of the patches that change it, in order."""
    found: dict[str, tuple[str, ...]] = {}
    for transform in layer.transforms:
        if transform.kind == "patch":
            for item in transform.args["ledger"]:
                for path in item.get("files", {}):
                    full = f"{transform.args['site']}/{path}"
                    found[full] = (*found.get(full, ()), item["id"])
    return found


def _written(path: str) -> Written:
    if path.endswith(".dist-info/RECORD"):
        return "record"
    return "receipt" if path.startswith(f"{FOLDER}/") else ""


def _add_bytecode(tree: dict[str, Wanted], entries: Iterable[Entry], listed: set[str], tag: str) -> None:
    """Add what byte-compiling may make: a listed module that does not compile is left without."""
    for entry in entries:
        if entry.kind == "file" and entry.path in listed:
            path = pyc_path(entry.path, tag)
            folder = path.rpartition("/")[0]
            tree.setdefault(folder, Wanted(Node("dir", 0o755), OURS, written="bytecode"))
            tree[path] = Wanted(Node("file", 0o644), OURS, written="bytecode")


def _node(entry: Entry) -> Node:
    kind: Kind = "file" if entry.kind == "hardlink" else entry.kind
    return Node(kind, entry.mode, entry.uid, entry.gid, entry.size, "", entry.target)


def _hex(record: str) -> str:
    """Return a RECORD hash as hex; empty if it is none of sha256."""
    algorithm, _, value = record.partition("=")
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex() if algorithm == "sha256" else ""


def _sha256(entry: Entry) -> str:
    digest = hashlib.sha256()
    assert entry.open is not None
    with entry.open() as stream:
        _feed(stream, digest.update)
    return digest.hexdigest()


def _feed(stream: IO[bytes], update: Callable[[bytes], None]) -> None:
    while data := stream.read(1 << 20):
        update(data)
