# SPDX-License-Identifier: Apache-2.0
"""The pure file transforms of a layer: entries in, entries out, nothing else read or written.

A transform gets the layer's entries and its own arguments and input files; the order is the
Plan's. A new transform is one function and one line in TRANSFORMS.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from imagebuild.layer.bytecode import compile_all, pyc_path
from imagebuild.layer.entries import Entry, LayerError, dir_entry, file_entry, symlink_entry
from imagebuild.layer.libcuda_stub import build_stub, declared_functions
from imagebuild.layer.patchset import apply_ledger
from imagebuild.layer.slim import slim
from imagebuild.layer.spec import Transform


@dataclass(frozen=True)
class Context:
    """What a transform may use: `files` maps an input's source path to its place on disk.

    `compile` turns (source, image path) pairs into byte-code of the image's interpreter, whose
    PEP 3147 tag is `cache_tag`; by default that is the interpreter that runs this.
    `scratch` is where large temporary files may lie; None: wherever the system puts them.
    """

    files: dict[str, Path]
    workers: int
    compile: Callable[[list[tuple[bytes, str]], int], list[bytes | None]] = compile_all
    cache_tag: str | None = None
    scratch: Path | None = None


def _venv(entries: list[Entry], transform: Transform, context: Context) -> list[Entry]:
    """Add what `python -m venv --without-pip` makes. Args: prefix, python."""
    prefix, python = transform.args["prefix"], transform.args["python"]
    config = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n"
    return [
        *entries,
        file_entry(f"{prefix}/pyvenv.cfg", config.encode()),
        symlink_entry(f"{prefix}/bin/python", f"/usr/bin/python{python}"),
        symlink_entry(f"{prefix}/bin/python3", "python"),
        symlink_entry(f"{prefix}/bin/python{python}", "python"),
        symlink_entry(f"{prefix}/lib64", "lib"),
    ]


def _symlinks(entries: list[Entry], transform: Transform, context: Context) -> list[Entry]:
    """Add symbolic links. Args: links, a map of absolute image path to link text."""
    links = transform.args["links"].items()
    return [*entries, *(symlink_entry(path.lstrip("/"), text) for path, text in links)]


def _directories(entries: list[Entry], transform: Transform, context: Context) -> list[Entry]:
    """Add directories. Args: paths (absolute), uid, gid, mode."""
    args = transform.args
    made = (dir_entry(path.lstrip("/"), args["mode"], args["uid"], args["gid"]) for path in args["paths"])
    return [*entries, *made]


def _cuda_home(entries: list[Entry], transform: Transform, context: Context) -> list[Entry]:
    """Make a pip-installed CUDA toolkit linkable. Args: home (relative to the image root).

    The toolkit's wheels have neither lib64 (where nvcc looks), nor libX.so link names, nor a
    libcuda stub. Raises LayerError if cuda.h or the libraries are not in this layer.
    """
    home = transform.args["home"]
    by_path = {entry.path: entry for entry in entries}
    header = by_path.get(f"{home}/include/cuda.h")
    if header is None:
        raise LayerError(f"cuda-home: {home}/include/cuda.h is not in this layer")
    versioned = re.compile(re.escape(f"{home}/lib/") + r"(lib[^/]+\.so)\.\d+(\.\d+)*")
    links: dict[str, str] = {}
    for path in sorted(by_path):
        match = versioned.fullmatch(path)
        if match and f"{home}/lib/{match[1]}" not in by_path:
            links.setdefault(f"{home}/lib/{match[1]}", path.rpartition("/")[2])
    if f"{home}/lib/libcudart.so" not in links:
        raise LayerError(f"cuda-home: {home}/lib has no libcudart.so.N")
    stub = build_stub(declared_functions(header.read().decode("utf-8", "replace")))
    return [
        *entries,
        symlink_entry(f"{home}/lib64", "lib"),
        *(symlink_entry(path, text) for path, text in sorted(links.items())),
        file_entry(f"{home}/lib/stubs/libcuda.so", stub, 0o755),
        symlink_entry(f"{home}/lib/stubs/libcuda.so.1", "libcuda.so"),
    ]


def _bytecompile(entries: list[Entry], transform: Transform, context: Context) -> list[Entry]:
    """Add byte-code for the modules of this layer that the list file names.

    A listed module that does not compile under this Python is left without byte-code, as pip
    leaves it: some packages ship templates that end in .py.
    """
    listed = set(context.files[transform.files[0].source].read_text(encoding="utf-8").split("\n"))
    chosen = [entry for entry in entries if entry.kind == "file" and entry.path in listed]
    compiled = context.compile([(entry.read(), f"/{entry.path}") for entry in chosen], context.workers)
    made = [
        file_entry(pyc_path(entry.path, context.cache_tag), code)
        for entry, code in zip(chosen, compiled, strict=True)
        if code is not None
    ]
    return entries + made


def _patch(entries: list[Entry], transform: Transform, context: Context) -> list[Entry]:
    """Apply the ledger's patches; goes before slim and bytecompile. Args: see patchset.apply_ledger."""
    return apply_ledger(entries, transform.args, context.files)


def _embed(entries: list[Entry], transform: Transform, context: Context) -> list[Entry]:
    """Add a file that the build context carries for this layer. Args: name, target (absolute)."""
    content = context.files[transform.args["name"]].read_bytes()
    return [*entries, file_entry(transform.args["target"].lstrip("/"), content)]


def _slim(entries: list[Entry], transform: Transform, context: Context) -> list[Entry]:
    """Leave out what the GPU can never load. Args: see slim.Rule."""
    return slim(entries, transform, context.workers, context.scratch)


TRANSFORMS: dict[str, Callable[[list[Entry], Transform, Context], list[Entry]]] = {
    "venv": _venv,
    "symlinks": _symlinks,
    "directories": _directories,
    "cuda-home": _cuda_home,
    "patch": _patch,
    "bytecompile": _bytecompile,
    "embed": _embed,
    "slim": _slim,
}


def apply(entries: list[Entry], transforms: tuple[Transform, ...], context: Context) -> list[Entry]:
    """Run the transforms in order.

    Raises LayerError for an unknown kind, or as the transform does.
    """
    for transform in transforms:
        function = TRANSFORMS.get(transform.kind)
        if function is None:
            raise LayerError(f"unknown transform {transform.kind!r}; known: {', '.join(TRANSFORMS)}")
        entries = function(entries, transform, context)
    return entries
