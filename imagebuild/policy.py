# SPDX-License-Identifier: Apache-2.0
"""images/<arch>/policy.yaml: how well each library must fit the arch, with reasons.

The first rule whose wheel and file patterns match decides; what no rule names must be
compatible in every container.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from imagebuild.arch import GpuArch, parse_arch
from imagebuild.diagnostics import Refused
from imagebuild.manifest import Model
from imagebuild.manifest_fields import Line, PackagePattern, Reason
from imagebuild.yamlfile import Positions, load_with_positions

Level = Literal["native", "compatible", "ptx", "missing"]
LEVELS: tuple[Level, ...] = ("native", "compatible", "ptx", "missing")  # best first


def at_least(found: Level, wanted: Level) -> bool:
    """Tell whether `found` is as good as `wanted` or better."""
    return LEVELS.index(found) <= LEVELS.index(wanted)


class Rule(Model):
    """One rule. `every` is the least that each container of a file must reach, `some` what at
    least one must (for libraries that keep one container per arch). `files` is a pattern of paths
    in the wheel, where * crosses folders.
    """

    wheel: PackagePattern
    files: Line = "*"
    every: Level | None = None
    some: Level | None = None
    reason: Reason

    @model_validator(mode="after")
    def _one_of_two(self) -> Rule:
        if (self.every is None) == (self.some is None):
            raise Refused("give one of every and some", at=("reason",))
        return self

    def matches(self, wheel: str, path: str) -> bool:
        """Tell whether the rule is about this file."""
        return fnmatch.fnmatchcase(wheel, self.wheel) and fnmatch.fnmatchcase(path, self.files)


DEFAULT = Rule(wheel="*", every="compatible", reason="what no rule names must run without JIT")


class PolicyManifest(Model):
    """images/<arch>/policy.yaml."""

    schema_version: Literal[1] = Field(alias="schema")
    arch: Annotated[str, AfterValidator(lambda text: parse_arch(text).name)]
    rules: tuple[Rule, ...] = ()

    def rule(self, wheel: str, path: str) -> Rule:
        """Return the rule that decides about a file."""
        return next((rule for rule in self.rules if rule.matches(wheel, path)), DEFAULT)


def read_policy(images: Path, arch: GpuArch) -> tuple[PolicyManifest, Positions]:
    """Read an arch's policy. Raises Diagnostics for any error in it."""
    path = images / arch.name / "policy.yaml"
    policy, at = load_with_positions(path, PolicyManifest)
    if policy.arch != arch.name:
        problem = at.diagnostic(("arch",), "differs from its folder", allowed=[arch.name])
        raise Refused(problem.render())
    return policy, at
