# SPDX-License-Identifier: Apache-2.0
"""`build.py bundle`: make, verify, diff and open the one file that reproduces an image."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from imagebuild import __version__, dotenv
from imagebuild.building import embedded_image
from imagebuild.catalog import project_root
from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.options import (
    Reporter,
    arch_option,
    images_dir,
    network_options,
    output_options,
    print_result,
    slim_option,
)
from imagebuild.settings import Settings

if TYPE_CHECKING:
    from imagebuild.bundle.format import Manifest

_BUNDLE = click.Path(exists=True, dir_okay=False, path_type=Path)
_ANY = click.Path(exists=True, path_type=Path)
_DIR = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def bundle() -> None:
    """One file with an image, its sources and measurements: make it, check it, open it elsewhere."""


@bundle.command()
@arch_option
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--packages/--no-packages", default=False, help="With every wheel and Debian package.")
@click.option("--tool", type=_DIR, help="Folder of the tool's own wheels (README: a room without network).")
@click.option(
    "--paper", "papers", type=_ANY, multiple=True, help="Receipt, SBOM or folder of them; repeatable."
)
@click.option("--results", type=_ANY, multiple=True, help="Benchmark results; repeatable.")
@click.option("--host", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="host.json.")
@click.option("--from", "source", type=_DIR, help="Take packages from this folder, not from the network.")
@slim_option
@network_options
@output_options
def make(  # noqa: PLR0913, PLR0917 - one parameter per option
    arch: str,
    file: Path,
    packages: bool,
    tool: Path | None,
    papers: tuple[Path, ...],
    results: tuple[Path, ...],
    host: Path | None,
    source: Path | None,
    no_slim: bool,
    settings: Settings,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Build with the embedded engine and write FILE; print the bundle's digest."""
    from imagebuild.bundle.contents import Extras, contents
    from imagebuild.bundle.format import make_manifest, write_bundle
    from imagebuild.cache import Store, check_space
    from imagebuild.papers import receipts_folder
    from imagebuild.progress import open_progress
    from imagebuild.resolve import resolve

    report = Reporter(quiet)
    plan = resolve(images_dir(), arch, slim=not no_slim)
    image = embedded_image(plan, settings, source, quiet, report)
    store = Store(settings.cache_dir)
    own = receipts_folder(settings.cache_dir, image.digest)
    extras = Extras(packages, tool, (*papers, own) if own.is_dir() else papers, results, host)
    members = contents(plan, image, project_root().resolve(), lambda a: store.path(a.sha256), extras)
    about = {
        "arch": plan.arch,
        "image": image.digest,
        "image_id": image.config_digest,
        "reference": plan.reference,
        "plan": plan.digest,
        "tool": __version__,
    }
    manifest = make_manifest(about, plan.mtime, members)
    total = sum(listed.size for listed in manifest.files)
    file.parent.mkdir(parents=True, exist_ok=True)
    check_space(file.parent, total, "write it to a larger disk")
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with (
            open_progress(quiet=quiet) as progress,
            progress.task("writing", total) as task,
            temporary.open("wb", buffering=1 << 20) as out,
        ):
            write_bundle(manifest, members, out, task.advance)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    value = {
        "bundle": str(file),
        "digest": manifest.digest,
        "files": len(manifest.files),
        "bytes": total,
        **about,
    }
    print_result(as_json, value, manifest.digest)


def _sound(found: Manifest, wrong: list[str], file: Path, digest: str | None) -> None:
    if digest is not None and digest.removeprefix("sha256:") != found.digest.removeprefix("sha256:"):
        wrong = [f"its digest is {found.digest}, not {digest}", *wrong]
    if wrong:
        raise IntegrityError(
            f"{file}:\n" + "\n".join(f"  {line}" for line in wrong), hint="copy the file again"
        )


@bundle.command()
@click.argument("file", type=_BUNDLE)
@click.option("--digest", help="The digest that `make` printed.")
@output_options
def verify(file: Path, digest: str | None, as_json: bool, verbose: int, quiet: bool) -> None:
    """Check every byte of FILE; name each damaged member. Prints the bundle's digest."""
    from imagebuild.bundle.format import read_bundle
    from imagebuild.progress import open_progress

    with open_progress(quiet=quiet) as progress, progress.task("checking", file.stat().st_size) as task:
        found, wrong = read_bundle(file, None, task.advance)
    _sound(found, wrong, file, digest)
    print_result(as_json, {"digest": found.digest, "files": len(found.files), **found.about}, found.digest)


@bundle.command()
@click.argument("old", type=_BUNDLE)
@click.argument("new", type=_BUNDLE)
@output_options
def diff(old: Path, new: Path, as_json: bool, verbose: int, quiet: bool) -> None:
    """Say what differs between two bundles, from their lists of files. Exit code 1 if anything does."""
    from imagebuild.bundle.difference import difference, difference_text
    from imagebuild.bundle.format import read_manifest

    found = difference(read_manifest(old), read_manifest(new))
    print_result(as_json, asdict(found), difference_text(found))
    if not found.same:
        raise click.exceptions.Exit(1)


@bundle.command("open")
@click.argument("file", type=_BUNDLE)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--digest", help="The digest that `make` printed.")
@click.option(
    "--load", is_flag=True, help="Load the image into the Docker Engine and note it in project/.env."
)
@click.option("--unpack", type=click.Path(path_type=Path), help="Unpack the root file system there.")
@click.option(
    "--models", "models_dir", type=_DIR, help="Check the weights there and note them in project/.env."
)
@output_options
def open_(  # noqa: PLR0913, PLR0917 - one parameter per option
    file: Path,
    directory: Path,
    digest: str | None,
    load: bool,
    unpack: Path | None,
    models_dir: Path | None,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Check every byte of FILE and write its files into DIRECTORY (new). Needs no network."""
    from imagebuild.bundle.format import read_bundle, read_manifest
    from imagebuild.cache import check_space
    from imagebuild.oci_read import read_layout
    from imagebuild.progress import open_progress
    from imagebuild.unpack import unpack_image

    report = Reporter(quiet)
    if directory.exists():
        raise PreconditionError(f"{directory}: exists", hint="give a new folder")
    need = sum(listed.size for listed in read_manifest(file).files)
    directory.parent.mkdir(parents=True, exist_ok=True)
    check_space(directory.parent, need, "open it on a larger disk")
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        with open_progress(quiet=quiet) as progress, progress.task("opening", file.stat().st_size) as task:
            found, wrong = read_bundle(file, temporary, task.advance)
        _sound(found, wrong, file, digest)
        temporary.chmod(0o755)
        os.replace(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    value: dict[str, Any] = {"digest": found.digest, "directory": str(directory), **found.about}
    project, arch = directory / "project", str(found.about["arch"])
    if unpack is not None:
        image = read_layout(directory / "image")
        value["paths"] = unpack_image(image.layers, image.blobs, unpack, found.mtime, report)
    if load:
        value["loaded"] = _load(directory / "image", str(found.about["reference"]))
        report(dotenv.note_image(project, arch, value["loaded"], str(found.about["plan"])[:16]))
        dotenv.update(project / dotenv.NAME, {dotenv.ARCH: arch})
    if models_dir is not None:
        value["models"] = _check_models(project, models_dir, report)
        dotenv.update(project / dotenv.NAME, {dotenv.MODELS_DIR: str(models_dir.resolve())})
    print_result(as_json, value, str(directory))


def _load(layout: Path, reference: str) -> str:
    from imagebuild.engine_docker import load_archive

    def write(out: IO[bytes]) -> None:
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20) as tar:
            for path in sorted(layout.rglob("*")):
                if path.is_file():
                    tar.add(path, str(path.relative_to(layout)))

    return load_archive(write, reference)


def _check_models(project: Path, folder: Path, report: Reporter) -> dict[str, str]:
    """Compare the weights with the locks that the bundle carries.

    Raises IntegrityError naming every file that is missing or wrong. A model without a lock is named and
    left alone, and so is a repo that is not below `folder`.
    """
    from imagebuild.models.lockfile import lock_path, read_lock
    from imagebuild.models.source import read_source
    from imagebuild.models.verify import require, verify

    said: dict[str, str] = {}
    images = project / "images"
    for path in sorted((images / "models").glob("*.yaml")):
        locked = read_lock(lock_path(images, path.stem))
        if locked is None:
            said[path.stem] = "not locked"
            report(f"{path.stem}: no lock in the bundle, so its weights cannot be checked")
            continue
        source = read_source(images, path.stem)
        places = {repo: folder / source.repos()[repo.name].place for repo in locked.repos}
        reports = [verify(place, repo) for repo, place in places.items() if place.is_dir()]
        require(reports, path.stem)
        for repo, place in places.items():
            said[repo.name] = "as locked" if place.is_dir() else f"not in {place}"
            report(f"{repo.repo}: {said[repo.name]}")
    return said
