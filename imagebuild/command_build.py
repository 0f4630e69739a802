# SPDX-License-Identifier: Apache-2.0
"""Commands that build: fetch, build, unpack, gc."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from imagebuild import dotenv
from imagebuild.building import (
    STAGES,
    BuildOptions,
    choose_engine,
    contexts_for,
    docker_image,
    dry_run,
    embedded_image,
    fetch_plan,
    oci_image,
)
from imagebuild.cache import Store
from imagebuild.catalog import arch_names, project_root
from imagebuild.context import remove_contexts
from imagebuild.engine_docker import DockerEngine
from imagebuild.fetch import export_to
from imagebuild.oci_layers import remove_layers
from imagebuild.options import (
    Reporter,
    arch_option,
    images_dir,
    network_options,
    output_options,
    print_result,
    slim_option,
)
from imagebuild.papers import read_key
from imagebuild.plan import LABEL_PREFIX
from imagebuild.progress import open_progress, size_text
from imagebuild.resolve import resolve
from imagebuild.settings import Settings
from imagebuild.unpack import unpack_image

_SOURCE = click.option(
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Take files from this folder (made by `fetch --export`), not from the network.",
)


@click.command()
@arch_option
@_SOURCE
@click.option("--export", type=click.Path(path_type=Path), help="Also put every file into this folder.")
@network_options
@output_options
def fetch(
    arch: str,
    source: Path | None,
    export: Path | None,
    settings: Settings,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Download every file of one arch's image and check it against the locks."""
    plan = resolve(images_dir(), arch)
    store = fetch_plan(plan, settings, source, quiet)
    if export is not None:
        with open_progress(quiet=quiet) as progress:
            export_to(export, plan.artifacts, store, progress)
    total = sum(a.size for a in plan.artifacts)
    value = {"plan": plan.digest, "files": len(plan.artifacts), "bytes": total, "cache": str(store.root)}
    print_result(as_json, value, f"{len(plan.artifacts)} files, {size_text(total)}, all as locked")


@click.command()
@arch_option
@_SOURCE
@click.option("--stop-after", type=click.Choice(STAGES), default="check", help="Last step to do.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@click.option("--rebuild", is_flag=True, help="Build even if the image of this plan is there.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "docker", "oci"]),
    default="auto",
    help="oci: the embedded engine, no daemon and no root. auto: docker if it answers, else oci.",
)
@click.option(
    "--compression", type=click.Choice(["zstd", "gzip"]), default="zstd", help="oci: of the layers."
)
@click.option("--layer-cache/--no-layer-cache", default=True, help="oci: use layers made before.")
@click.option("--output", type=click.Path(path_type=Path), help="oci: layout folder, or one file if *.tar.")
@click.option("--push", help="oci: HOST[:PORT]/REPOSITORY[:TAG] to push to.")
@click.option("--mount-from", help="oci: repository of that registry that may have layers already.")
@click.option("--load", is_flag=True, help="oci: load into the Docker Engine.")
@click.option("--sign", type=click.Path(path_type=Path), help="Sign the receipt with this key.")
@slim_option
@network_options
@output_options
def build(**given: Any) -> None:
    """Fetch, build and check the image of one arch; print its digest."""
    options = BuildOptions(**given)
    report = Reporter(options.quiet)
    plan = resolve(images_dir(), options.arch, slim=not options.no_slim)
    if options.dry_run:
        dry_run(plan, options)
        return
    if options.sign is not None:
        read_key(options.sign)  # a key that cannot be used is told before the build, not after it
    report(f"plan {plan.digest[:12]}: {plan.reference}")
    if plan.labels.get(f"{LABEL_PREFIX}.redistributable") == "no":
        report("warning: it edits files whose licence does not allow passing it on (slim.licences): keep it")
    engine = choose_engine(options, report) if options.reaches("build") else None
    value: dict[str, Any] = {"reference": plan.reference, "plan": plan.digest, "arch": plan.arch}
    text = plan.digest
    if options.reaches("fetch"):
        made = contexts_for(plan, options, report)
        if isinstance(engine, DockerEngine):
            image, done = docker_image(plan, engine, options, made)
        elif engine is not None:
            image, done = oci_image(plan, engine, options, made)
        if engine is not None:
            local = options.load or isinstance(engine, DockerEngine)
            ready = image.reference if local else done.get("pushed")
            if ready is not None and options.reaches("check"):
                report(dotenv.note_image(project_root(), plan.arch, ready, plan.digest[:16]))
            value |= {"engine": engine.name, **asdict(image), **done}
            text = image.digest
        elif options.reaches("context"):
            value["contexts"] = {name: str(path) for name, path in made[1].items()}
            text = "\n".join(f"{name} {path}" for name, path in made[1].items())
    print_result(options.as_json, value, text)


@click.command()
@arch_option
@click.argument("directory", type=click.Path(path_type=Path))
@_SOURCE
@network_options
@output_options
def unpack(
    arch: str,
    directory: Path,
    source: Path | None,
    settings: Settings,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Build with the embedded engine and unpack the root file system into DIRECTORY (empty or new)."""
    report = Reporter(quiet)
    plan = resolve(images_dir(), arch)
    image = embedded_image(plan, settings, source, quiet, report)
    count = unpack_image(image.layers, image.blobs, directory, plan.mtime, report)
    value = {"digest": image.digest, "directory": str(directory), "paths": count}
    print_result(as_json, value, image.digest)


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@network_options
@output_options
def gc(dry_run: bool, settings: Settings, as_json: bool, verbose: int, quiet: bool) -> None:
    """Remove cached files, layers and build contexts that no image of this checkout needs any more."""
    images = images_dir()
    plans = [resolve(images, name, slim=slim) for name in arch_names(images) for slim in (True, False)]
    keep = {a.sha256 for plan in plans for a in plan.artifacts}
    freed = Store(settings.cache_dir).gc(keep, dry_run=dry_run)
    freed += remove_layers(settings.cache_dir, plans, dry_run=dry_run)
    freed += remove_contexts(settings.cache_dir / "contexts", dry_run=dry_run)
    verb = "would free" if dry_run else "freed"
    print_result(as_json, {"bytes": freed, "dry_run": dry_run}, f"{verb} {size_text(freed)}")
