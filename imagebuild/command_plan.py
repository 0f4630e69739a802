# SPDX-License-Identifier: Apache-2.0
"""Commands that read and write files of the project: plan, render, lock."""

from __future__ import annotations

import datetime

import click

from imagebuild.catalog import arch_names, project_root
from imagebuild.errors import ImageBuildError, IntegrityError
from imagebuild.layer.spec import LayerSpec
from imagebuild.locking import Refreshed, jobs, refresh, stale
from imagebuild.options import (
    Reporter,
    arch_option,
    images_dir,
    network_options,
    output_options,
    print_result,
    slim_option,
)
from imagebuild.plan import Plan, to_json
from imagebuild.render import write_dockerfile
from imagebuild.resolve import resolve
from imagebuild.security import security_report
from imagebuild.settings import Settings


def _row(layer: LayerSpec) -> str:
    size = sum(a.size for a in layer.artifacts) / 1e6
    kinds = ", ".join(t.kind for t in layer.transforms) or "-"
    return f"  {layer.name:<10} {len(layer.artifacts):>4} packages {size:>8,.1f} MB to fetch   {kinds}"


def summary(plan: Plan) -> str:
    """Return a Plan as a few lines for people."""
    total = sum(a.size for a in plan.artifacts) / 1e6
    lines = [
        f"image   {plan.reference}",
        f"stack   {plan.stack}",
        f"digest  {plan.digest}",
        f"layers  {len(plan.layers)}, {len(plan.artifacts)} files, {total:,.1f} MB to fetch",
        *(_row(layer) for layer in plan.layers),
    ]
    return "\n".join(lines)


@click.command()
@arch_option
@slim_option
@output_options
def plan(arch: str, no_slim: bool, as_json: bool, verbose: int, quiet: bool) -> None:
    """Print what the image of one arch is made from."""
    found = resolve(images_dir(), arch, slim=not no_slim)
    value = {"digest": found.digest, "reference": found.reference, **to_json(found)}
    print_result(as_json, value, summary(found))


@click.command()
@click.option("--arch", help="One arch only; default: all.")
@click.option("--check", is_flag=True, help="Write nothing; exit 4 if a Dockerfile differs.")
@output_options
def render(arch: str | None, check: bool, as_json: bool, verbose: int, quiet: bool) -> None:
    """Write images/<arch>/Dockerfile from the template and the plan."""
    images, template = images_dir(), project_root() / "Dockerfile.template"
    report = Reporter(quiet)
    problems, changed = [], []
    for name in [arch] if arch else arch_names(images):
        found = resolve(images, name)
        try:
            target = images / found.arch / "Dockerfile"
            if write_dockerfile(found, template, target, check=check):
                changed.append(str(target))
                report(f"{target}: written")
        except IntegrityError as error:
            problems.append(error.message)
    if problems:
        raise IntegrityError("\n".join(problems), hint="python build.py render")
    print_result(as_json, {"changed": changed}, "\n".join(changed) or "up to date")


def _describe(refreshed: Refreshed, security: list[str]) -> str:
    path = refreshed.job.file.path
    if not refreshed.written:
        return f"{path}: up to date, {len(refreshed.new.artifacts)} packages"
    lines = [f"{path}: {len(refreshed.new.artifacts)} packages", *(f"  {line}" for line in refreshed.lines)]
    return "\n".join(lines + [f"  security: {line}" for line in security])


@click.command()
@click.option("--check", is_flag=True, help="Offline: exit 4 if a lock does not fit its manifest.")
@click.option("--base-only", is_flag=True, help="Refresh the Debian base only (security updates).")
@network_options
@output_options
def lock(check: bool, base_only: bool, settings: Settings, as_json: bool, verbose: int, quiet: bool) -> None:
    """Refresh the locks under images/ and print what changed."""
    images, report = images_dir(), Reporter(quiet)
    if check:
        problems = stale(images)
        if problems:
            raise IntegrityError("\n".join(problems), hint="python build.py lock")
        print_result(as_json, {"stale": []}, "all locks fit their manifests")
        return
    now = datetime.datetime.now(datetime.timezone.utc)
    results: list[dict[str, object]] = []
    texts = []
    for job in jobs(images, base_only=base_only):
        report(f"resolving {job.file.path}")
        done = refresh(job, settings, now)
        try:
            security = security_report(done, settings, quiet) if done.written else []
        except ImageBuildError as error:
            security = [f"could not read the changelogs: {error.message}"]
        texts.append(_describe(done, security))
        results.append({"lock": str(done.job.file.path), "changes": list(done.lines), "security": security})
    print_result(as_json, {"locks": results}, "\n".join(texts))
