# SPDX-License-Identifier: Apache-2.0
"""The command `audit`: which GPU code a plan, wheel, folder or image has, judged for one arch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from imagebuild.arch import parse_arch
from imagebuild.audit import Audit, judge
from imagebuild.audit_sources import path_facts, tar_facts
from imagebuild.audit_text import difference, from_json, table, to_json
from imagebuild.crew import cores
from imagebuild.engine_docker import DockerEngine
from imagebuild.errors import CheckFailed, ManifestError
from imagebuild.fetch import fetch
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
from imagebuild.plan_audit import audit_plan, policy_of, with_names
from imagebuild.progress import open_progress
from imagebuild.resolve import resolve
from imagebuild.settings import Settings


@dataclass(frozen=True)
class AuditOptions:
    """What a user asked `audit` for."""

    arch: str
    path: str | None
    image: str | None
    ballast: bool
    diff: tuple[str, str] | None
    no_slim: bool
    settings: Settings
    as_json: bool
    verbose: int
    quiet: bool


def _of_path(source: str, arch: str) -> Audit:
    """Return the audit of a JSON report, a wheel or a folder."""
    path, gpu = Path(source), parse_arch(arch)
    if path.suffix == ".json" and path.is_file():
        try:
            return from_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            raise ManifestError(f"{path}: not a report of `audit --json`: {error}") from None
    return judge(path_facts(path, cores()), gpu, policy_of(images_dir(), gpu), whole=False)


def _of_image(reference: str, options: AuditOptions) -> Audit:
    """Return the audit of the files in an image."""
    gpu = parse_arch(options.arch)
    with DockerEngine().files(reference) as stream:
        facts = tar_facts(stream, options.settings.cache_dir)
    return judge(facts, gpu, policy_of(images_dir(), gpu), whole=False)


def _of_plan(options: AuditOptions) -> Audit:
    """Fetch the plan's wheels where they are missing, and return their audit."""
    plan = resolve(images_dir(), options.arch, slim=not options.no_slim)
    report = Reporter(options.quiet)
    with open_progress(quiet=options.quiet) as progress:
        store = fetch(plan.artifacts, options.settings, source=None, created=plan.created, progress=progress)

    def locate(artifact: Artifact) -> Path:
        return store.path(artifact.sha256)

    found = audit_plan(plan, images_dir(), locate, options.settings.cache_dir, report)
    return with_names(found, plan, images_dir(), locate, report) if options.ballast else found


@click.command()
@arch_option
@click.argument("path", required=False)
@click.option("--image", help="Audit the files of this image, by name, tag or id.")
@click.option("--ballast", is_flag=True, help="Also search all wheels for names of what is left out.")
@click.option("--diff", nargs=2, metavar="A B", help="Compare two reports, wheels or folders.")
@slim_option
@network_options
@output_options
def audit(**given: Any) -> None:
    """Judge the GPU code of the arch's plan (its wheels), of PATH (a wheel, folder or report) or an image.

    Exit code 1 if it breaks images/<arch>/policy.yaml.
    """
    options = AuditOptions(**given)
    if options.diff is not None:
        before, after = (_of_path(source, options.arch) for source in options.diff)
        text = difference(before, after)
        print_result(options.as_json, {"difference": text.splitlines()}, text)
        return
    if options.image is not None:
        found = _of_image(options.image, options)
    elif options.path is not None:
        found = _of_path(options.path, options.arch)
    else:
        found = _of_plan(options)
    print_result(options.as_json, to_json(found), table(found))
    if not found.ok:
        raise CheckFailed(f"the GPU code does not fit {found.arch} (above)")
