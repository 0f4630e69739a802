# SPDX-License-Identifier: Apache-2.0
"""Tree in the image + tree of the Plan → findings, each of exactly one check.

What differs goes to the check that says most about it: a set-uid file that nobody knows is a finding
of `setuid`, not of `files` too. A difference that no other check claims is one of `files`.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from imagebuild.checks.secrets import secret_in_file
from imagebuild.checks.tree import DEBIAN, OURS, Node, Wanted
from imagebuild.layer.edits import FOLDER
from imagebuild.layer.patchset import LEDGER_TARGET

SPECIAL = 0o6000
Edits = Mapping[str, list[dict[str, Any]]]
_DIST_INFO = re.compile(r"site-packages/([^/]+\.dist-info)(/|$)")
_LICENCE = re.compile(
    r"(^usr/share/doc/[^/]+/copyright$)|\.dist-info/(licenses/|(LICEN[CS]E|COPYING|NOTICE)[^/]*$)", re.I
)
_LIBRARY = re.compile(r"\.so(\.[0-9]+)*$")
# Where programs of a host keep proxies, certificates, indexes and caches, and builds leave things.
_TRACES = re.compile(
    r"^(usr/local/share/ca-certificates/.|etc/ssl/certs/|etc/apt/|etc/pip\.conf$|etc/(hosts|hostname|resolv\.conf)$"
    r"|etc/environment$|etc/profile\.d/[^/]*proxy|(root|home/[^/]+)/\.(cache|config|pip|docker|ssh)(/|$)"
    r"|run/imagebuild|tools(/|$)|base\.tar$|(var/)?tmp/.)"
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: by which check, where (an image path or a name), and what."""

    check: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True)
class Difference:
    """A path where the image and the Plan differ. `found` None: missing; `wanted` None: unexpected."""

    path: str
    found: Node | None
    wanted: Wanted | None


def after_edits(wanted: Mapping[str, Wanted], edits: Edits) -> dict[str, Wanted]:
    """Return the wanted tree with what the image's edit receipt says that slimming did.

    Link names and folders go with the last file that they were there for.
    """
    tree = dict(wanted)
    gone = set()
    for path, rows in edits.items():
        last, item = rows[-1]["after"], tree.get(path)
        if item is None:
            continue
        if last is None:
            gone.add(path)
            del tree[path]
        else:
            node = replace(item.node, size=last["size"], sha256=last["sha256"])
            tree[path] = replace(item, node=node, written="")
    for path, item in wanted.items():
        if item.owner == OURS and item.node.kind == "symlink":
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), item.node.target))
            if target in gone:
                gone.add(path)
                del tree[path]
    return _without_empty(tree, gone)


def _without_empty(tree: dict[str, Wanted], gone: Iterable[str]) -> dict[str, Wanted]:
    """Drop the folders in which nothing is left since `gone` went."""
    children = Counter(posixpath.dirname(path) for path in tree)
    for path in gone:
        folder = posixpath.dirname(path)
        while folder in tree and not children[folder]:
            del tree[folder]
            folder = posixpath.dirname(folder)
            children[folder] -= 1
    return tree


def judge_edits(wanted: Mapping[str, Wanted], edits: Edits, patch_ids: Collection[str]) -> list[Finding]:
    """Check the edit receipt against what the Plan allows, and that it holds every patch."""
    found = []
    for path, rows in edits.items():
        item = wanted.get(path)
        if item is None or item.owner in (DEBIAN, OURS):
            found.append(Finding("edit-receipt", path, "has an edit and is no file of a wheel"))
            continue
        chain = [(a["after"], b["before"]) for a, b in pairwise(rows)]
        if rows[0]["before"]["sha256"] != item.shipped or any(a != b for a, b in chain):
            found.append(Finding("edit-receipt", path, "its edits are no chain from the wheel's file"))
        named = tuple(row["reason"].removeprefix("patch ") for row in rows)
        patches = tuple(name for name in named if name in patch_ids)
        if patches != item.patches:
            expected = ", ".join(item.patches) or "none"
            what = f"the receipt has patches {', '.join(patches) or 'none'}; the Plan {expected}"
            found.append(Finding("patches", path, what))
        others = len(rows) - len(patches)
        if others and rows[-1]["after"] is None and not item.removable:
            found.append(Finding("edit-receipt", path, "was left out, and no rule of the Plan says so"))
        elif others and rows[-1]["after"] is not None and not item.editable:
            found.append(Finding("proprietary", path, f"was edited; the licence of {item.owner} forbids it"))
    lost = [(p, item) for p, item in wanted.items() if item.patches and p not in edits]
    found += [Finding("patches", path, f"no edit in the receipt: {', '.join(i.patches)}") for path, i in lost]
    return found


def differences(
    found: Mapping[str, Node], wanted: Mapping[str, Wanted], own: Iterable[re.Pattern[str]] = ()
) -> list[Difference]:
    """Return where the trees differ. `own` matches paths that the container engine makes."""
    patterns = tuple(own)
    result = []
    for path in sorted(found.keys() | wanted.keys()):
        if any(pattern.match(path) for pattern in patterns):
            continue
        node, item = found.get(path), wanted.get(path)
        if item is not None and item.written == "bytecode" and node is None:
            continue  # a module that does not compile has none
        if node is None or item is None or not _same(node, item):
            result.append(Difference(path, node, item))
    return result


def _same(node: Node, item: Wanted) -> bool:
    want = item.node
    if (node.kind, node.target) != (want.kind, want.target):
        return False
    if node.kind != "symlink" and node.mode != want.mode:
        return False
    if (node.uid, node.gid) != (want.uid, want.gid):
        return False
    return node.kind != "file" or bool(item.written) or node.sha256 == want.sha256


def judge_tree(
    different: Iterable[Difference],
    contents: Mapping[str, bytes],
    wanted: Mapping[str, Wanted],
    edits: Edits,
) -> list[Finding]:
    """Return a finding for each difference. `contents` has the small files among them."""
    items = _told_once(different)
    strangers, gone = _strangers(items, wanted), _gone(items)
    found = []
    for item in items:
        if item.found is None:
            found.append(_missing(item, gone))
        elif item.wanted is None:
            found.append(_unexpected(item, item.found, contents.get(item.path), strangers))
        else:
            found.append(_changed(item.path, item.found, item.wanted, contents.get(item.path), edits))
    return found


def _told_once(different: Iterable[Difference]) -> list[Difference]:
    """Leave out folders that are missing with what was in them: the files tell it."""
    items = list(different)
    missing = {item.path for item in items if item.found is None}
    parents = {posixpath.dirname(path) for path in missing}
    return [item for item in items if item.path not in missing or item.path not in parents]


def _strangers(items: Iterable[Difference], wanted: Mapping[str, Wanted]) -> set[str]:
    """Return the top folders in site-packages of distributions that the Plan does not have."""
    extra = [item.path for item in items if item.wanted is None]
    if not any(_DIST_INFO.search(path) for path in extra):
        return set()
    tops = {top for path in extra if (top := _top(path)) is not None}
    return tops - {top for path in wanted if (top := _top(path)) is not None}


def _top(path: str) -> str | None:
    head, site, rest = path.partition("site-packages/")
    return f"{head}{site}{rest.partition('/')[0]}" if site else None


def _gone(items: Iterable[Difference]) -> set[str]:
    """Return the wheels that are not there at all: their METADATA is missing."""
    return {
        item.wanted.owner
        for item in items
        if item.found is None and item.wanted is not None and item.path.endswith(".dist-info/METADATA")
    }


def _missing(item: Difference, gone: set[str]) -> Finding:
    assert item.wanted is not None
    name = posixpath.basename(item.path)
    if item.wanted.owner in gone:
        return Finding("python-packages", item.path, f"missing, with all of {item.wanted.owner}")
    if _LICENCE.search(item.path):
        return Finding("licences", item.path, "missing")
    if _LIBRARY.search(name):
        return Finding("libraries", item.path, "missing")
    return Finding("files", item.path, "missing")


def _unexpected(item: Difference, node: Node, content: bytes | None, strangers: set[str]) -> Finding:
    path, mode = item.path, f"unexpected, mode {node.mode:o}"
    secret = secret_in_file(path, content)
    claims = (
        (node.kind == "file" and node.mode & SPECIAL, "setuid", mode),
        (_open_to_all(node), "world-writable", mode),
        (secret, "secrets", secret),
        (_TRACES.match(path), "traces", "left by the build or its host"),
        (path.startswith(f"{FOLDER}/"), "edit-receipt", "a receipt of no layer of the Plan"),
        (_top(path) in strangers, "python-packages", "of a distribution that the Plan does not have"),
        (path.endswith(".pyc"), "bytecode", "of a module that is not compiled by the Plan"),
    )
    check, what = next(((c, w) for holds, c, w in claims if holds), ("files", f"unexpected {node.kind}"))
    return Finding(check, path, what)


def _open_to_all(node: Node) -> bool:
    return bool(node.kind != "symlink" and node.mode & 0o002 and not node.mode & 0o1000)


def _changed(path: str, node: Node, item: Wanted, content: bytes | None, edits: Edits) -> Finding:
    want = item.node
    if node.kind == want.kind and node.kind != "symlink" and node.mode != want.mode:
        what = f"mode {node.mode:o}, not {want.mode:o}"
        if node.kind == "file" and node.mode & SPECIAL & ~want.mode:
            return Finding("setuid", path, what)
        if _open_to_all(node) and not _open_to_all(want):
            return Finding("world-writable", path, what)
        return Finding("permissions", path, what)
    if (node.uid, node.gid) != (want.uid, want.gid):
        what = f"owner {node.uid}:{node.gid}, not {want.uid}:{want.gid}"
        return Finding("permissions", path, what)
    return Finding(_claimed(path, item, content, edits), path, "another content than the Plan's")


def _claimed(path: str, item: Wanted, content: bytes | None, edits: Edits) -> str:
    """Return the check that a changed content belongs to."""
    claims = (
        (secret_in_file(path, content), "secrets"),
        (_TRACES.match(path), "traces"),
        (path == "etc/imagebuild/plan.json", "plan"),
        (path == LEDGER_TARGET or item.patches, "patches"),
        (path in edits, "edit-receipt"),
        (path.endswith(".dist-info/METADATA"), "python-packages"),
        (path.startswith("var/lib/dpkg/status"), "debian-packages"),
        (_LICENCE.search(path), "licences"),
        (item.owner not in (DEBIAN, OURS) and not item.editable, "proprietary"),
    )
    return next((check for holds, check in claims if holds), "files")
