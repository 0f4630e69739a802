# SPDX-License-Identifier: Apache-2.0
"""The command `slim`: edit one shared object by hand, or prove an edited one against its original."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from imagebuild.arch import parse_arch
from imagebuild.errors import CheckFailed, ManifestError
from imagebuild.layer.archive import Archive
from imagebuild.layer.binary import FileSource, FormatError, Source
from imagebuild.layer.proof import NotProven, Proof, prove
from imagebuild.layer.slim_file import slim_file
from imagebuild.options import arch_option, output_options, print_result


@contextmanager
def _open(path: Path) -> Iterator[Source]:
    with open(path, "rb") as file:
        yield FileSource.of(file.fileno())


def _pairs(original: Path, edited: Path) -> Iterator[tuple[str, Path, Path]]:
    """Yield (name, original, edited) of each file that differs; a wheel's members by way of a file."""
    if original.is_file() and original.suffix != ".whl":
        yield edited.name, original, edited
    elif original.is_dir():
        for path in sorted(p for p in original.rglob("*") if p.is_file() and not p.is_symlink()):
            name = path.relative_to(original).as_posix()
            if (edited / name).is_file():
                yield name, path, edited / name
    else:
        archive = Archive(original)
        for name in archive.members:
            if (edited / name).is_file() and not name.endswith(".dist-info/RECORD"):
                with tempfile.TemporaryDirectory(dir=edited.parent) as folder:
                    archive.unpack(Path(folder), name.__eq__)
                    yield name, Path(folder, name), edited / name


def _equal(a: Path, b: Path) -> bool:
    if a.stat().st_size != b.stat().st_size:
        return False
    with open(a, "rb") as one, open(b, "rb") as two:
        while True:
            left, right = one.read(1 << 20), two.read(1 << 20)
            if left != right:
                return False
            if not left:
                return True


def verify(original: Path, edited: Path, gpu: int) -> dict[str, Proof | None]:
    """Compare two files, or a wheel or folder with a folder; None stands for byte-identical.

    Raises CheckFailed naming the first file that differs in more than it may.
    """
    if not edited.exists():
        raise ManifestError(f"{edited}: no such file or folder")
    found: dict[str, Proof | None] = {}
    for name, first, second in _pairs(original, edited):
        if _equal(first, second):
            found[name] = None
            continue
        try:
            with _open(first) as a, _open(second) as b:
                found[name] = prove(a, b, gpu)
        except (NotProven, FormatError) as error:
            raise CheckFailed(f"{name}: not proven: {error}") from None
    if not found:
        raise ManifestError(f"{edited}: has no file of {original}")
    return found


@click.command()
@arch_option
@click.argument("original", type=click.Path(path_type=Path))
@click.argument("edited", type=click.Path(path_type=Path))
@click.option("--verify", "only_verify", is_flag=True, help="Write nothing; prove EDITED against ORIGINAL.")
@click.option("--no-compact", is_flag=True, help="Blank only; leave the file's size as it is.")
@output_options
def slim(
    arch: str,
    original: Path,
    edited: Path,
    only_verify: bool,
    no_compact: bool,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Blank what the arch cannot load in the shared object ORIGINAL and write it to EDITED.

    With --verify, ORIGINAL may be a wheel or folder too, and EDITED the folder it is installed in:
    every file there must be byte-identical or proven to differ in blank payloads only.
    """
    gpu = parse_arch(arch).number
    if not original.exists():
        raise ManifestError(f"{original}: no such file or folder")
    if not only_verify:
        if not original.is_file():
            raise ManifestError(f"{original}: is not a file", hint="give one shared object, or --verify")
        try:
            with _open(original) as source:
                changed = slim_file(source, edited, gpu, compact=not no_compact)
        except FormatError as error:
            raise ManifestError(f"{original}: {error}") from None
        if not changed:
            print_result(as_json, {"changed": False}, f"{original}: the GPU could load all of it")
            return
    proofs = verify(original, edited, gpu)
    proven = {name: proof for name, proof in proofs.items() if proof is not None}
    text = [
        f"{name}: {p.kept} payloads kept, {p.blanked} blank, {p.cut:,} bytes cut"
        for name, p in proven.items()
    ]
    text.append(f"{len(proofs) - len(proven)} files byte-identical, {len(proven)} proven")
    value = {"identical": len(proofs) - len(proven), "proven": {n: asdict(p) for n, p in proven.items()}}
    print_result(as_json, value, "\n".join(text))
