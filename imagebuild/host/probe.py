# SPDX-License-Identifier: Apache-2.0
"""Read the host, judge it and advise: everything that `build.py probe` does but printing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from imagebuild import __version__
from imagebuild.errors import CheckFailed, ImageBuildError, PreconditionError
from imagebuild.host.advice import advise
from imagebuild.host.checks import gpu_findings, link_findings
from imagebuild.host.checks_machine import container_findings, machine_findings, storage_findings
from imagebuild.host.facts import Host
from imagebuild.host.report import SCHEMA, Advice, Finding, Report
from imagebuild.serving.service import ModelRecipes


def judge(host: Host, recipes: ModelRecipes, created: str, more: Iterable[Finding] = ()) -> Report:
    """Return the report on what was read; `more` are findings of checks that were run, not read."""
    images = recipes.images
    findings = [
        *gpu_findings(host.gpus, images),
        *link_findings(host.gpus, host.machine.iommu, images),
        *machine_findings(host.machine),
        *container_findings(host.containers, host.gpus),
        *storage_findings(host.storage, host.hub, recipes.file.name),
        *more,
    ]
    advice = advise(host.gpus, recipes)
    if not advice.service and host.gpus.usable:
        findings.append(
            Finding("advice.none", "fail", advice.reason, f"python build.py models plan {advice.model}")
        )
    bad = {"fail", "missing"} & {finding.level for finding in findings}
    return Report(SCHEMA, __version__, created, not bad, host, tuple(findings), advice)


def describe(report: Report) -> str:
    """Return the report as lines: one per finding, then the recommendation and what else there is."""
    lines = [finding.line() for finding in report.findings]
    lines += ["", *_advice(report.advice)]
    if report.advice.service and not report.ok:
        lines.append("  but first put right what is failed or missing above")
    return "\n".join(lines)


def _advice(advice: Advice) -> list[str]:
    if not advice.service:
        return [f"no recommendation: {advice.reason}"]
    lines = [f"recommended: docker compose up {advice.service}", f"  because {advice.reason}"]
    for rate in advice.measured:
        lines.append(
            f"  measured: {rate.service} {rate.tokens_per_s:g} tokens/s at concurrency {rate.concurrency} on "
            f"{rate.arch}, {rate.link} ({rate.source})"
        )
    lines += [f"  sets {key}={value}" for key, value in (advice.env or {}).items()]
    for option in advice.options:
        if option.service != advice.service:
            state = option.title if option.fits else f"not here: {'; '.join(option.against)}"
            lines.append(f"  {option.service:<16} {state}")
    return lines


def require(findings: Sequence[Finding]) -> None:
    """Raise PreconditionError if something is missing, CheckFailed if a check says no."""
    for level, error in (("missing", PreconditionError), ("fail", CheckFailed)):
        bad = [finding for finding in findings if finding.level == level]
        if bad:
            raise _error(error, bad)


def _error(error: type[ImageBuildError], bad: Sequence[Finding]) -> ImageBuildError:
    names = ", ".join(finding.id for finding in bad)
    hint = next((finding.next for finding in bad if finding.next), "")
    return error(f"this host is not ready: {names} (above)", hint=hint or None)
