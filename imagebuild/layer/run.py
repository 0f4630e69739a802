# SPDX-License-Identifier: Apache-2.0
"""Assemble one layer below a root folder: what a build container runs.

INPUTS is the layer's build context: `layer.json`, the artifacts under `artifacts/`, files of
ours under `files/`. Progress goes to standard output, one line every few seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagebuild.layer import transforms
from imagebuild.layer.entries import Entry, LayerError, file_entry, merge, read_directory, write_directory
from imagebuild.layer.spec import LayerSpec, layer_from_json
from imagebuild.layer.transforms import Context
from imagebuild.layer.wheel import Scheme, wheel_entries

_REPORT_SECONDS = 3.0


def context_files(layer: LayerSpec, inputs: Path) -> dict[str, Path]:
    """Return where the layer's input files lie in its build context, by source path."""
    sources = [item.source for item in layer.files]
    sources += [item.source for transform in layer.transforms for item in transform.files]
    sources += [t.args["name"] for t in layer.transforms if t.kind == "embed"]
    return {source: inputs / "files" / source for source in sources}


def layer_entries(
    layer: LayerSpec, inputs: Path, scheme: Scheme, context: Context, below: list[Entry]
) -> list[Entry]:
    """Return every entry that a layer adds, complete and sorted; `inputs` is its build context.

    `below` are entries already unpacked that the transforms see but that are not added again (a
    layer of Debian packages is unpacked from a tar before). Raises LayerError for a bad artifact
    or transform.
    """
    entries = list(below)
    for artifact in layer.artifacts:
        if artifact.kind == "wheel":
            entries += wheel_entries(inputs / "artifacts" / artifact.file, scheme)
    for item in layer.files:
        content = context.files[item.source].read_bytes()
        entries.append(file_entry(item.target.lstrip("/"), content, item.mode))
    entries = transforms.apply(entries, layer.transforms, context)
    unpacked = {id(entry) for entry in below}
    return merge(entry for entry in entries if id(entry) not in unpacked)


def _write_all(entries: list[Entry], root: Path, mtime: int, workers: int) -> None:
    """Write entries below `root`: directories first, files in parallel, links last."""
    total = sum(entry.size for entry in entries)
    files = sorted((e for e in entries if e.kind == "file"), key=lambda e: -e.size)
    for entry in entries:
        if entry.kind == "dir" and not (root / entry.path).is_dir():
            write_directory(entry, root, mtime)
    done, reported = 0, time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        jobs = ((entry, pool.submit(write_directory, entry, root, mtime)) for entry in files)
        for entry, job in list(jobs):
            job.result()
            done += entry.size
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                print(f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB", flush=True)
    for entry in entries:
        if entry.kind in ("symlink", "hardlink"):
            write_directory(entry, root, mtime)
    for entry in reversed(entries):
        if entry.kind == "dir":
            write_directory(entry, root, mtime)


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Assemble one image layer.")
    parser.add_argument("--inputs", type=Path, required=True, help="the layer's build context")
    parser.add_argument("--root", type=Path, default=Path("/"), help="where the files go")
    parser.add_argument("--prefix", required=True, help="folder of the virtual environment")
    parser.add_argument("--python", required=True, help="Python minor version, like 3.11")
    parser.add_argument("--mtime", type=int, required=True, help="time of every file, s since 1970")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Assemble the layer of a build context into a root folder; return the exit status."""
    options = _arguments(arguments)
    layer = layer_from_json((options.inputs / "layer.json").read_text(encoding="utf-8"))
    scheme = Scheme(options.prefix.lstrip("/"), options.python)
    start = time.monotonic()
    try:
        unpacked = any(artifact.kind == "deb" for artifact in layer.artifacts)
        below = list(read_directory(options.root, "usr")) if unpacked else []
        context = Context(context_files(layer, options.inputs), options.workers)
        entries = layer_entries(layer, options.inputs, scheme, context, below)
        _write_all(entries, options.root, options.mtime, options.workers)
    except LayerError as error:
        print(f"layer {layer.name}: {error}", file=sys.stderr)
        return 1
    size = sum(entry.size for entry in entries)
    seconds = time.monotonic() - start
    print(f"{layer.name}: {len(entries):,} paths, {size / 1e6:,.0f} MB in {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
