# SPDX-License-Identifier: Apache-2.0
"""File trees of images, layer by layer and without unpacking: path → what stands there."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path
from typing import IO, Any

from imagebuild.layer.entries import Entry
from imagebuild.unpack import layer_members

Tree = dict[str, tuple[Any, ...]]


def _row(entry: Entry, tree: Tree) -> tuple[Any, ...]:
    owner = (oct(entry.mode), entry.uid, entry.gid)
    if entry.kind == "hardlink":  # the same file under a second name
        return tree[entry.target]
    if entry.kind == "file":
        digest = hashlib.sha256()
        assert entry.open is not None
        with entry.open() as stream:
            while data := stream.read(1 << 20):
                digest.update(data)
        return ("file", *owner, digest.hexdigest())
    if entry.kind == "dir":
        return ("dir", *owner)
    return ("symlink", entry.uid, entry.gid, entry.target)


def layout_tree(layout: Path) -> Tree:
    """Return the tree of the image in an OCI layout folder."""
    blobs = layout / "blobs" / "sha256"
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_text())
    tree: Tree = {}
    for layer in manifest["layers"]:
        for entry in layer_members(blobs / layer["digest"][7:], layer["mediaType"]):
            if entry.path:
                tree[entry.path] = _row(entry, tree)
    return tree


def _member(info: tarfile.TarInfo, tar: tarfile.TarFile) -> Entry:
    kinds: dict[bytes, Any] = {
        tarfile.REGTYPE: "file",
        tarfile.DIRTYPE: "dir",
        tarfile.SYMTYPE: "symlink",
        tarfile.LNKTYPE: "hardlink",
    }

    def content() -> IO[bytes]:
        stream = tar.extractfile(info)
        assert stream is not None
        return stream

    name = info.name.rstrip("/")
    return Entry(
        name, kinds[info.type], info.mode & 0o7777, info.uid, info.gid, info.size, info.linkname, content
    )


def docker_tree(reference: str) -> Tree:
    """Return the tree of an image in the Docker Engine, read from `docker save` as it streams.

    The layers of an archive come in no set order, so each is kept by itself until the manifest
    says how they follow. `docker export` would need a container and leaks mounts in Engine 26.
    """
    layers: dict[str, Tree] = {}
    manifest: list[dict[str, Any]] = []
    with subprocess.Popen(["docker", "save", reference], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as outer:
            for info in outer:
                stream = outer.extractfile(info)
                if stream is None:
                    continue
                if info.name == "manifest.json":
                    manifest = json.load(stream)
                    continue
                try:
                    with tarfile.open(fileobj=stream, mode="r|") as tar:
                        tree: Tree = {}
                        for member in tar:
                            entry = _member(member, tar)
                            tree[entry.path] = _row(entry, tree)
                    layers[info.name] = tree
                except tarfile.ReadError:
                    continue  # a JSON file
    whole: Tree = {}
    for name in manifest[0]["Layers"]:
        whole |= layers[name]
    whole.pop("", None)
    return whole
