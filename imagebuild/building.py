# SPDX-License-Identifier: Apache-2.0
"""The steps of a build, one function each: fetch → contexts → engine → where the image goes → checks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild.cache import Store
from imagebuild.catalog import project_root
from imagebuild.checks.run import as_layout, can_unpack, check_image
from imagebuild.context import write_contexts
from imagebuild.engine import Image
from imagebuild.engine_docker import DockerEngine
from imagebuild.engine_oci import OciEngine
from imagebuild.errors import ManifestError, PreconditionError
from imagebuild.fetch import fetch as fetch_artifacts
from imagebuild.hostconf import host_network
from imagebuild.layer.spec import Artifact
from imagebuild.oci_blob import Compression
from imagebuild.oci_layout import OciImage
from imagebuild.options import Reporter, images_dir, print_result
from imagebuild.outputs import Wanted, check_wanted, deliver, open_pusher
from imagebuild.overlaps import check_overlaps
from imagebuild.papers import attach_folder, copy_beside, keep_papers, sign_folder
from imagebuild.patchcheck import check_patches, patched_wheels
from imagebuild.plan import Plan
from imagebuild.plan_audit import audit_plan, require_policy
from imagebuild.plugin import is_local, place_plugins
from imagebuild.progress import open_progress, size_text
from imagebuild.referrers import open_remote
from imagebuild.render import write_dockerfile
from imagebuild.settings import Settings

STAGES = ("plan", "fetch", "context", "build", "check")


@dataclass(frozen=True)
class BuildOptions:
    """What a user asked `build` for."""

    arch: str
    source: Path | None
    stop_after: str
    dry_run: bool
    rebuild: bool
    engine: str
    compression: Compression
    layer_cache: bool
    output: Path | None
    push: str | None
    load: bool
    mount_from: str | None
    sign: Path | None
    no_slim: bool
    settings: Settings
    as_json: bool
    verbose: int
    quiet: bool

    @property
    def wanted(self) -> Wanted:
        """Where the image goes, for the embedded engine."""
        return Wanted(self.output, self.push, self.load, self.mount_from)

    def reaches(self, stage: str) -> bool:
        """Whether the build goes as far as `stage`."""
        return STAGES.index(self.stop_after) >= STAGES.index(stage)


def fetch_plan(plan: Plan, settings: Settings, source: Path | None, quiet: bool) -> Store:
    """Bring every file of a Plan; the patched wheels first, so that a patch that fails does so at once."""
    store = Store(settings.cache_dir)
    place_plugins(plan.artifacts, project_root(), store)
    first = [artifact for artifact in patched_wheels(plan) if not store.has(artifact)]
    if first:
        fetch_artifacts(first, settings, source=source, created=plan.created)
    check_patches(plan, images_dir(), lambda artifact: store.path(artifact.sha256))
    with open_progress(quiet=quiet) as progress:
        return fetch_artifacts(
            plan.artifacts, settings, source=source, created=plan.created, progress=progress
        )


def _seconds(start: float) -> str:
    return f"{time.monotonic() - start:.0f} s"


def _check(
    image: str, plan: Plan, built: OciImage | None, size: int, options: BuildOptions, report: Reporter
) -> Path:
    """Check an image (name or layout folder) and write its receipt; return the receipt's folder.

    Raises CheckFailed if a check fails; there is no receipt then.
    """
    start = time.monotonic()
    results = check_image(image, plan, report)
    cache = options.settings.cache_dir
    folder = keep_papers(plan, results, built, size, cache, lambda a: Store(cache).path(a.sha256))
    if options.sign is not None:
        sign_folder(folder, options.sign)
    report(f"checked in {_seconds(start)}; receipt in {folder}")
    return folder


def dry_run(plan: Plan, options: BuildOptions) -> None:
    """Say what a build would fetch and do."""
    store = Store(options.settings.cache_dir)
    missing = [a for a in plan.artifacts if not store.has(a) and not is_local(a)]
    size = sum(a.size for a in missing)
    value: dict[str, Any] = {
        "reference": plan.reference,
        "plan": plan.digest,
        "engine": options.engine,
        "fetch": [a.file for a in missing],
        "fetch_bytes": size,
    }
    text = (
        f"would fetch {len(missing)} of {len(plan.artifacts)} files ({size_text(size)}), "
        f"then build {plan.reference} with engine {options.engine}"
    )
    print_result(options.as_json, value, text)


def _fetched(
    plan: Plan, settings: Settings, source: Path | None, quiet: bool, report: Reporter
) -> Callable[[Artifact], Path]:
    """Fetch everything, check it, and return where each artifact is."""
    start = time.monotonic()
    store = fetch_plan(plan, settings, source, quiet)

    def locate(artifact: Artifact) -> Path:
        return store.path(artifact.sha256)

    check_overlaps(plan, locate)
    require_policy(audit_plan(plan, images_dir(), locate, settings.cache_dir, report))
    report(f"fetched and checked in {_seconds(start)}")
    return locate


def made_contexts(
    plan: Plan, settings: Settings, source: Path | None, quiet: bool, report: Reporter
) -> tuple[Path, dict[str, Path]]:
    """Fetch everything and make the build contexts; return the Dockerfile and the contexts."""
    locate = _fetched(plan, settings, source, quiet, report)
    start = time.monotonic()
    parent = settings.cache_dir / "contexts"
    contexts = write_contexts(plan, images_dir(), parent, locate, report)
    # Not in a context: a label that changes would make its layer, and so all layers, anew.
    dockerfile = parent / f"dockerfile-{plan.digest[:16]}" / "Dockerfile"
    dockerfile.parent.mkdir(exist_ok=True)
    write_dockerfile(plan, project_root() / "Dockerfile.template", dockerfile, check=False)
    report(f"build contexts ready in {_seconds(start)}")
    return dockerfile, contexts


def embedded_image(
    plan: Plan, settings: Settings, source: Path | None, quiet: bool, report: Reporter
) -> OciImage:
    """Fetch everything and build the image with the embedded engine, as its defaults are."""
    engine = OciEngine(settings.cache_dir)
    report(f"engine oci: {engine.require()}")
    _, contexts = made_contexts(plan, settings, source, quiet, report)
    return engine.image(plan, contexts, report)


def contexts_for(plan: Plan, options: BuildOptions, report: Reporter) -> tuple[Path, dict[str, Path]]:
    """Fetch, and make the build contexts if the build goes that far."""
    given = (plan, options.settings, options.source, options.quiet, report)
    if options.reaches("context"):
        return made_contexts(*given)
    _fetched(*given)
    return Path(), {}


def docker_image(
    plan: Plan, engine: DockerEngine, options: BuildOptions, made: tuple[Path, dict[str, Path]]
) -> tuple[Image, dict[str, str]]:
    """Build the image, unless the engine has it, and check it."""
    report = Reporter(options.quiet)
    start = time.monotonic()
    image = None if options.rebuild else engine.find(plan)
    if image is not None:
        report(f"{image.reference} is built already")
    else:
        image = engine.build(plan, *made, report)
        report(f"built {image.reference} ({size_text(image.size)}) in {_seconds(start)}")
    done = {}
    if options.reaches("check"):
        done["receipt"] = str(_check(image.reference, plan, None, image.size, options, report))
    return image, done


def oci_image(
    plan: Plan, engine: OciEngine, options: BuildOptions, made: tuple[Path, dict[str, Path]]
) -> tuple[Image, dict[str, str]]:
    """Build the image, check it, and put it where it is wanted; unchecked it goes nowhere as root.

    Without root it is checked after it was loaded into a Docker Engine, or not at all.
    """
    report = Reporter(options.quiet)
    start = time.monotonic()
    folder = None
    with open_pusher(options.wanted, plan.reference, engine.blobs, options.settings) as pusher:
        image = engine.image(plan, made[1], report, pusher.layer if pusher else lambda _: None)
        report(f"built {image.reference} ({size_text(image.size)} to pull) in {_seconds(start)}")
        if options.reaches("check") and can_unpack():
            with as_layout(image, options.settings.cache_dir) as layout:
                folder = _check(str(layout), plan, image, 0, options, report)
        done = deliver(image, options.wanted, pusher, options.quiet, report)
    if options.reaches("check") and folder is None and options.load:
        folder = _check(image.reference, plan, image, 0, options, report)
    if folder is not None:
        done |= _deliver_papers(folder, done, options, report)
    elif options.reaches("check"):
        report("NOT checked: that needs root, or --load where there is a Docker Engine")
    return Image(image.reference, image.digest, image.size), done


def _deliver_papers(
    folder: Path, done: dict[str, str], options: BuildOptions, report: Reporter
) -> dict[str, str]:
    """Put the receipt where the image went; return what it is called there."""
    found = {"receipt": str(folder)}
    if options.output is not None:
        found["receipt"] = str(copy_beside(folder, options.output))
    if "pushed" in done and options.sign is not None:
        remote = open_remote(done["pushed"], host_network(options.settings))
        found["attached"] = attach_folder(folder, remote)
        report(f"attached the signed receipt {found['attached']}")
    elif "pushed" in done:
        report("the receipt is not signed (--sign FILE), so it was not attached")
    return found


def choose_engine(options: BuildOptions, report: Reporter) -> DockerEngine | OciEngine:
    """Return the engine to build with; `auto` takes Docker when a good one answers, and says so.

    Raises PreconditionError if the chosen engine cannot build, ManifestError for outputs that only
    the embedded engine has.
    """
    embedded = OciEngine(options.settings.cache_dir, options.compression, use_cache=options.layer_cache)
    if options.engine == "docker" and options.wanted.anything:
        raise ManifestError(
            "--output, --push and --load belong to the embedded engine",
            hint="add --engine oci, or use docker save and docker push",
        )
    check_wanted(options.wanted)
    if options.engine == "oci" or options.wanted.anything:
        report(f"engine oci: {embedded.require()}")
        return embedded
    docker = DockerEngine()
    try:
        report(f"engine docker: {docker.require()}")
    except PreconditionError as error:
        if options.engine == "docker":
            raise
        report(f"engine oci: {embedded.require()}; not docker: {error.message}")
        return embedded
    return docker
