# SPDX-License-Identifier: Apache-2.0
"""One broken image under construction: a copy of the small one whose files, settings or Plan are changed.

The copy consists of hard links, so every change first gives the file a content and times of its own.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from imagebuild.digest import canonical_json
from imagebuild.layer.entries import Entry, file_entry
from imagebuild.oci_blob import Blob, blob_path, write_blob
from imagebuild.oci_layout import OciImage, write_layout
from imagebuild.oci_read import read_layout
from imagebuild.plan import to_text
from imagebuild.unpack import layer_members
from tests.mutants.base import SITE, Small, plan_of

RECEIPT = "etc/imagebuild/edits/python.json"


class Mutant:
    """A copy of the small image in `folder`; `write_out` makes the layout that is checked."""

    def __init__(self, small: Small, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.plan = folder, small.plan
        self.root, self.project, self.layout = folder / "root", folder / "project", folder / "layout"
        for source, target in ((small.root, self.root), (small.project, self.project)):
            subprocess.run(["cp", "--archive", "--link", str(source), str(target)], check=True)
        self.image = read_layout(small.layout)
        self.config: dict[str, Any] = json.loads(self.image.config)
        self.layers: list[Blob] = list(self.image.layers)

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def write(self, path: str, content: bytes, mode: int | None = None) -> None:
        """Write a file with the Plan's time, as root, with the mode that it had."""
        target = self.root / path
        if mode is None:
            mode = target.stat().st_mode & 0o7777 if target.exists() else 0o644
        made = [p for p in reversed(target.parents) if not p.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
        for changed in (target, *made):
            os.utime(changed, (self.plan.mtime, self.plan.mtime))

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace text in a file; it must be there."""
        text = self.read(path).decode()
        assert old in text, (path, old)
        self.write(path, text.replace(old, new).encode())

    def chmod(self, path: str, mode: int) -> None:
        if (self.root / path).is_dir():
            (self.root / path).chmod(mode)
        else:
            self.write(path, self.read(path), mode)

    def remove(self, path: str) -> None:
        target = self.root / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()

    def drop(self, path: str) -> None:
        """Make the image as if it had never had a file: no layer holds it either."""
        self.remove(path)
        base, *others = self.image.layers
        source = blob_path(self.image.blobs, base.digest)
        entries = (e for e in layer_members(source, base.media_type) if e.path != path)
        made = write_blob(entries, self.folder / "blobs", self.plan.mtime, "zstd", 1, lambda count: None)
        self.layers = [made, *others]

    def edit_receipt(self, change: Any) -> None:
        """Let `change` work on the list of edits in the receipt."""
        value = json.loads(self.read(RECEIPT))
        change(value["edits"])
        self.write(RECEIPT, json.dumps(value).encode())

    def record(self, package: str, path: str) -> None:
        """Make the RECORD of a package true about a file below site-packages."""
        (folder,) = (self.root / SITE).glob(f"{package}-*.dist-info")
        name = f"{SITE}/{folder.name}/RECORD"
        rows = list(csv.reader(io.StringIO(self.read(name).decode())))
        content = self.read(f"{SITE}/{path}")
        raw = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [path, f"sha256={raw}", str(len(content))] if row[0] == path else row for row in rows
        )
        self.write(name, text.getvalue().encode())

    def replan(self, name: str, old: str, new: str) -> None:
        """Change a file of the checkout's images/, and give the image what its new Plan says."""
        path = self.project / "images" / name
        text = path.read_text()
        assert old in text, (name, old)
        path.unlink()
        path.write_text(text.replace(old, new))
        self.plan = plan_of(self.project)
        for item in self.plan.layers[-1].files:
            source = self.project if item.source.startswith("imagebuild/") else self.project / "images"
            self.write(item.target.lstrip("/"), (source / item.source).read_bytes(), item.mode)
        self.write("etc/imagebuild/plan.json", to_text(self.plan).encode())
        self.config["config"]["Labels"] = self.plan.labels
        self.config["config"]["Entrypoint"] = list(self.plan.config.entrypoint)

    def add_layer(self, *entries: Entry) -> None:
        """Put a layer on top."""
        made = write_blob(entries, self.folder / "blobs", self.plan.mtime, "zstd", 1, lambda count: None)
        self.layers.append(made)

    def write_out(self) -> None:
        """Write the layout: the small image's layers, further ones, and the changed configuration."""
        blobs = self.folder / "blobs"
        (blobs / "sha256").mkdir(parents=True, exist_ok=True)
        for layer in self.layers:
            if not blob_path(blobs, layer.digest).exists():
                os.link(blob_path(self.image.blobs, layer.digest), blob_path(blobs, layer.digest))
        layers = tuple(self.layers)
        self.config["rootfs"]["diff_ids"] = [layer.diff_id for layer in layers]
        config = canonical_json(self.config)
        manifest = json.loads(self.image.manifest)
        digest = hashlib.sha256(config).hexdigest()
        manifest["config"] |= {"digest": f"sha256:{digest}", "size": len(config)}
        manifest["layers"] = [{"mediaType": b.media_type, "digest": b.digest, "size": b.size} for b in layers]
        write_layout(
            OciImage(self.image.reference, config, canonical_json(manifest), layers, blobs), self.layout
        )


def copy_of(mutant: Mutant, path: str) -> Entry:
    """Return a file of the image as a layer's entry."""
    return file_entry(path, mutant.read(path), (mutant.root / path).stat().st_mode & 0o7777)
