# SPDX-License-Identifier: Apache-2.0
"""Commands that build: fetch, build, gc."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from imagebuild import process
from imagebuild.cache import Store
from imagebuild.catalog import arch_names, project_root
from imagebuild.context import remove_contexts, write_contexts
from imagebuild.engine import Engine, Image
from imagebuild.engine_docker import DockerEngine
from imagebuild.errors import CheckFailed
from imagebuild.fetch import export_to
from imagebuild.fetch import fetch as fetch_artifacts
from imagebuild.layer.spec import Artifact
from imagebuild.options import (
    Reporter,
    arch_option,
    images_dir,
    network_options,
    output_options,
    print_result,
    slim_option,
)
from imagebuild.overlaps import check_overlaps
from imagebuild.plan import Plan
from imagebuild.plan_audit import audit_plan, require_policy
from imagebuild.progress import open_progress, size_text
from imagebuild.render import write_dockerfile
from imagebuild.resolve import resolve
from imagebuild.settings import Settings

STAGES = ("plan", "fetch", "context", "build", "check")
_SOURCE = click.option(
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Take files from this folder (made by `fetch --export`), not from the network.",
)


def _fetch(plan: Plan, settings: Settings, source: Path | None, quiet: bool) -> Store:
    with open_progress(quiet=quiet) as progress:
        return fetch_artifacts(
            plan.artifacts, settings, source=source, created=plan.created, progress=progress
        )


def _seconds(start: float) -> str:
    return f"{time.monotonic() - start:.0f} s"


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
    store = _fetch(plan, settings, source, quiet)
    if export is not None:
        with open_progress(quiet=quiet) as progress:
            export_to(export, plan.artifacts, store, progress)
    total = sum(a.size for a in plan.artifacts)
    value = {"plan": plan.digest, "files": len(plan.artifacts), "bytes": total, "cache": str(store.root)}
    print_result(as_json, value, f"{len(plan.artifacts)} files, {size_text(total)}, all as locked")


def _check(image: Image, plan: Plan, report: Reporter) -> None:
    """Run the quick image checks of tests/image on the built image."""
    root = project_root().resolve()
    argv = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    argv += [str(root / "tests" / "image"), "--image", image.reference, "--arch", plan.arch]
    status = process.stream(argv, report, cwd=root)
    if status != 0:
        raise CheckFailed(
            f"{image.reference} was built, but its checks failed (output above)",
            hint=f"repeat with: python -m pytest tests/image --image {image.reference} --arch {plan.arch}",
        )


def _dry_run(plan: Plan, settings: Settings, engine: Engine, as_json: bool) -> None:
    """Say what a build would fetch and do."""
    store = Store(settings.cache_dir)
    missing = [a for a in plan.artifacts if not store.has(a)]
    size = sum(a.size for a in missing)
    value: dict[str, Any] = {
        "reference": plan.reference,
        "plan": plan.digest,
        "engine": engine.name,
        "fetch": [a.file for a in missing],
        "fetch_bytes": size,
    }
    text = (
        f"would fetch {len(missing)} of {len(plan.artifacts)} files ({size_text(size)}), "
        f"then build {plan.reference} with {engine.name}"
    )
    print_result(as_json, value, text)


@dataclass(frozen=True)
class BuildOptions:
    """What a user asked `build` for."""

    arch: str
    source: Path | None
    stop_after: str
    dry_run: bool
    rebuild: bool
    no_slim: bool
    settings: Settings
    as_json: bool
    verbose: int
    quiet: bool

    def reaches(self, stage: str) -> bool:
        """Whether the build goes as far as `stage`."""
        return STAGES.index(self.stop_after) >= STAGES.index(stage)


def _contexts(plan: Plan, options: BuildOptions, report: Reporter) -> tuple[Path, dict[str, Path]]:
    """Fetch everything and make the build contexts; return the Dockerfile and the contexts."""
    start = time.monotonic()
    store = _fetch(plan, options.settings, options.source, options.quiet)

    def locate(artifact: Artifact) -> Path:
        return store.path(artifact.sha256)

    check_overlaps(plan, locate)
    require_policy(audit_plan(plan, images_dir(), locate, options.settings.cache_dir, report))
    report(f"fetched and checked in {_seconds(start)}")
    if not options.reaches("context"):
        return Path(), {}
    start = time.monotonic()
    parent = options.settings.cache_dir / "contexts"
    contexts = write_contexts(plan, images_dir(), parent, locate, report)
    dockerfile = contexts[plan.layers[0].name] / "Dockerfile"
    write_dockerfile(plan, project_root() / "Dockerfile.template", dockerfile, check=False)
    report(f"build contexts ready in {_seconds(start)}")
    return dockerfile, contexts


def _image(plan: Plan, engine: Engine, options: BuildOptions, made: tuple[Path, dict[str, Path]]) -> Image:
    """Build the image, unless the engine has it, and check it."""
    report = Reporter(options.quiet)
    start = time.monotonic()
    image = None if options.rebuild else engine.find(plan)
    if image is not None:
        report(f"{image.reference} is built already")
    else:
        image = engine.build(plan, *made, report)
        report(f"built {image.reference} ({size_text(image.size)}) in {_seconds(start)}")
    if options.reaches("check"):
        start = time.monotonic()
        _check(image, plan, report)
        report(f"checked in {_seconds(start)}")
    return image


@click.command()
@arch_option
@_SOURCE
@click.option("--stop-after", type=click.Choice(STAGES), default="check", help="Last step to do.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@click.option("--rebuild", is_flag=True, help="Build even if the image of this plan is there.")
@slim_option
@network_options
@output_options
def build(**given: Any) -> None:
    """Fetch, build and check the image of one arch; print its digest."""
    options = BuildOptions(**given)
    report = Reporter(options.quiet)
    plan = resolve(images_dir(), options.arch, slim=not options.no_slim)
    engine: Engine = DockerEngine()
    if options.dry_run:
        _dry_run(plan, options.settings, engine, options.as_json)
        return
    report(f"plan {plan.digest[:12]}: {plan.reference}")
    if options.reaches("build"):
        report(f"engine: {engine.require()}")
    value: dict[str, Any] = {"reference": plan.reference, "plan": plan.digest, "arch": plan.arch}
    text = plan.digest
    if options.reaches("fetch"):
        made = _contexts(plan, options, report)
        if options.reaches("build"):
            image = _image(plan, engine, options, made)
            value |= asdict(image)
            text = image.digest
        elif options.reaches("context"):
            value["contexts"] = {name: str(path) for name, path in made[1].items()}
            text = "\n".join(f"{name} {path}" for name, path in made[1].items())
    print_result(options.as_json, value, text)


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@network_options
@output_options
def gc(dry_run: bool, settings: Settings, as_json: bool, verbose: int, quiet: bool) -> None:
    """Remove cached files and build contexts that no image of this checkout needs any more."""
    images = images_dir()
    plans = [resolve(images, name) for name in arch_names(images)]
    keep = {a.sha256 for plan in plans for a in plan.artifacts}
    freed = Store(settings.cache_dir).gc(keep, dry_run=dry_run)
    freed += remove_contexts(settings.cache_dir / "contexts", dry_run=dry_run)
    verb = "would free" if dry_run else "freed"
    print_result(as_json, {"bytes": freed, "dry_run": dry_run}, f"{verb} {size_text(freed)}")
