# SPDX-License-Identifier: Apache-2.0
"""The audit of a plan's wheels, which every build passes before anything is assembled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from imagebuild.arch import GpuArch, parse_arch
from imagebuild.audit import Audit, Facts, judge
from imagebuild.audit_text import violations
from imagebuild.ballast import broken_links, named_by_others
from imagebuild.catalog import read_recipe
from imagebuild.crew import cores
from imagebuild.errors import CheckFailed
from imagebuild.gpucache import plan_facts
from imagebuild.layer.spec import Artifact
from imagebuild.manifest import BallastItem
from imagebuild.plan import Plan
from imagebuild.policy import PolicyManifest, read_policy
from imagebuild.resolve_slim import ballast_of

Locate = Callable[[Artifact], Path]
Report = Callable[[str], None]


def policy_of(images: Path, arch: GpuArch) -> PolicyManifest:
    """Return the arch's policy; an arch without an image gets the default rule alone."""
    if (images / arch.name / "policy.yaml").is_file():
        return read_policy(images, arch)[0]
    return PolicyManifest.model_validate({"schema": 1, "arch": arch.name})


def ballast_in(plan: Plan, images: Path) -> tuple[BallastItem, ...]:
    """Return what the plan leaves out."""
    recipe = read_recipe(images, plan.arch)
    slims = any(t.kind == "slim" for layer in plan.layers for t in layer.transforms)
    return ballast_of(recipe.stack.slim, recipe.arch) if slims and recipe.stack.slim else ()


def _wheels(plan: Plan) -> list[Artifact]:
    return [a for layer in plan.layers for a in layer.artifacts if a.kind == "wheel"]


def audit_plan(plan: Plan, images: Path, locate: Locate, cache_dir: Path, report: Report) -> Audit:
    """Judge the fetched wheels of a plan by its arch's policy, and the links to what it leaves out."""
    facts: Facts = plan_facts(_wheels(plan), locate, cache_dir, report)
    gpu = parse_arch(plan.arch)
    found = judge(facts, gpu, policy_of(images, gpu), whole=True)
    return replace(found, broken=tuple(broken_links(facts, ballast_in(plan, images))))


def with_names(audit: Audit, plan: Plan, images: Path, locate: Locate, report: Report) -> Audit:
    """Also search every library and module for the names of what the plan leaves out."""
    report("searching every library and module for the names of what is left out")
    workers = cores()
    named = named_by_others(_wheels(plan), locate, ballast_in(plan, images), workers)
    return replace(audit, broken=(*audit.broken, *named))


def require_policy(audit: Audit) -> None:
    """Raise CheckFailed naming every wheel and file that breaks the policy."""
    if not audit.ok:
        raise CheckFailed(
            f"the GPU code does not fit {audit.arch}:\n{violations(audit)}",
            hint=f"python build.py audit --arch {audit.arch}",
        )
