# SPDX-License-Identifier: Apache-2.0
"""The command `audit`: which GPU code a plan, wheel, folder or image has, judged for one arch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
from pydantic import ValidationError

from imagebuild.arch import GpuArch, parse_arch
from imagebuild.audit import Audit, Facts, judge
from imagebuild.audit_sources import path_facts, tar_facts
from imagebuild.audit_text import difference, from_json, table, to_json, violations
from imagebuild.engine_docker import DockerEngine
from imagebuild.errors import CheckFailed, ManifestError
from imagebuild.fetch import fetch
from imagebuild.gpucache import plan_facts
from imagebuild.layer.spec import Artifact
from imagebuild.options import (
    Reporter,
    arch_option,
    images_dir,
    network_options,
    output_options,
    print_result,
)
from imagebuild.plan import Plan
from imagebuild.policy import PolicyManifest, read_policy
from imagebuild.progress import open_progress
from imagebuild.resolve import resolve
from imagebuild.settings import Settings


def _policy(arch: GpuArch) -> PolicyManifest:
    """Return the arch's policy; an arch without an image gets the default rule alone."""
    images = images_dir()
    if (images / arch.name / "policy.yaml").is_file():
        return read_policy(images, arch)[0]
    return PolicyManifest.model_validate({"schema": 1, "arch": arch.name})


def audit_plan(
    plan: Plan, locate: Callable[[Artifact], Path], cache_dir: Path, report: Callable[[str], None]
) -> Audit:
    """Judge the fetched wheels of a plan by its arch's policy."""
    wheels = [a for layer in plan.layers for a in layer.artifacts if a.kind == "wheel"]
    facts: Facts = plan_facts(wheels, locate, cache_dir, report)
    gpu = parse_arch(plan.arch)
    return judge(facts, gpu, _policy(gpu), whole=True)


def require_policy(audit: Audit) -> None:
    """Raise CheckFailed naming every wheel and file that breaks the policy."""
    if not audit.ok:
        raise CheckFailed(
            f"the GPU code does not fit {audit.arch}:\n{violations(audit)}",
            hint=f"python build.py audit --arch {audit.arch}",
        )


def _audit_of(source: str, arch: GpuArch) -> Audit:
    """Return the audit of a JSON report, a wheel or a folder."""
    path = Path(source)
    if path.suffix == ".json" and path.is_file():
        try:
            return from_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            raise ManifestError(f"{path}: not a report of `audit --json`: {error}") from None
    return judge(path_facts(path, os.cpu_count() or 1), arch, _policy(arch), whole=False)


@click.command()
@arch_option
@click.argument("path", required=False)
@click.option("--image", help="Audit the files of this image, by name, tag or id.")
@click.option(
    "--diff", nargs=2, metavar="A B", help="Say what changed between two reports, wheels or folders."
)
@network_options
@output_options
def audit(
    arch: str,
    path: str | None,
    image: str | None,
    diff: tuple[str, str] | None,
    settings: Settings,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Judge the GPU code of the arch's plan (its wheels), of PATH (a wheel, folder or report) or an image.

    Exit code 1 if it breaks images/<arch>/policy.yaml.
    """
    gpu = parse_arch(arch)
    if diff is not None:
        before, after = (_audit_of(source, gpu) for source in diff)
        text = difference(before, after)
        print_result(as_json, {"difference": text.splitlines()}, text)
        return
    if image is not None:
        with DockerEngine().files(image) as stream:
            found = judge(tar_facts(stream, settings.cache_dir), gpu, _policy(gpu), whole=False)
    elif path is not None:
        found = _audit_of(path, gpu)
    else:
        plan = resolve(images_dir(), arch)
        with open_progress(quiet=quiet) as progress:
            store = fetch(plan.artifacts, settings, source=None, created=plan.created, progress=progress)
        found = audit_plan(plan, lambda a: store.path(a.sha256), settings.cache_dir, Reporter(quiet))
    print_result(as_json, to_json(found), table(found))
    if not found.ok:
        raise CheckFailed(f"{len(found.violations) + len(found.stale)} violations of the policy (above)")
