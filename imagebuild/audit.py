# SPDX-License-Identifier: Apache-2.0
"""Facts + policy → `Audit`: does each library have code that the target GPU runs?

Coverage follows `arch.match`, container by container: a driver picks within one container, so a
file with one uncovered container has kernels that cannot start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from imagebuild.arch import Code, GpuArch, Match, Suffix, archs, loadable, match
from imagebuild.gpufacts import FileFacts, Group
from imagebuild.policy import LEVELS, Level, PolicyManifest, Rule, at_least

Facts = Mapping[str, tuple[FileFacts, ...]]
_LEVEL_OF: dict[Match, Level] = {
    "native": "native",
    "compatible": "compatible",
    "ptx": "ptx",
    "none": "missing",
}


@dataclass(frozen=True)
class Row:
    """One file with GPU code, judged.

    `counts` are its containers by level, with "other" for those that hold neither cubin nor PTX.
    `codes` is payload bytes by code as it would be written for nvcc (sm_100f, compute_90), `loadable`
    the bytes of them that the target could load, `blank` the bytes already blanked. `wanted` is
    what the policy asks, `problem` what is wrong (empty: nothing) and `fix` what would help.
    """

    wheel: str
    path: str
    files: int
    size: int
    read_by: str
    counts: dict[str, int]
    codes: dict[str, int]
    loadable: int
    blank: int
    wanted: str
    reason: str
    problem: str = ""
    fix: str = ""

    @property
    def level(self) -> str:
        """The worst level of any container; "other" if none holds cubin or PTX."""
        return next((level for level in reversed(LEVELS) if self.counts.get(level)), "other")


@dataclass(frozen=True)
class Audit:
    """All rows of one target, sorted by wheel and path.

    `stale` are rules that match nothing; `broken` says which file would miss what is left out.
    """

    arch: str
    rows: tuple[Row, ...]
    stale: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def violations(self) -> tuple[Row, ...]:
        """The rows that break the policy."""
        return tuple(row for row in self.rows if row.problem)

    @property
    def ok(self) -> bool:
        """Whether nothing breaks the policy."""
        return not (self.violations or self.stale or self.broken)


def judge(facts: Facts, gpu: GpuArch, policy: PolicyManifest, *, whole: bool) -> Audit:
    """Judge every file of every wheel. `whole` says the wheels are a whole image's, so that a rule
    that matches none of them is an error.
    """
    rows = []
    used: set[int] = set()
    for wheel in sorted(facts):
        for file in facts[wheel]:
            if not file.groups and not file.problem:
                continue
            rule = policy.rule(wheel, file.path)
            used.add(id(rule))
            rows.append(_row(wheel, file, gpu, rule))
    stale = [f"{r.wheel} {r.files}" for r in policy.rules if id(r) not in used] if whole else []
    return Audit(gpu.name, tuple(rows), tuple(stale))


def _row(wheel: str, file: FileFacts, gpu: GpuArch, rule: Rule) -> Row:
    counts: Counter[str] = Counter()
    codes: Counter[Code] = Counter()
    usable = blank = 0
    for group in file.groups:
        if group.place != "relocatable":
            counts[_level(group, gpu)] += group.count
        for (code, empty), size in zip(group.codes, group.sizes, strict=True):
            if empty:
                blank += size
            else:
                codes[code] += size
                usable += size * loadable(code, gpu)
    named = {str(code): codes[code] for code in sorted(codes)}
    problem, fix = _problem(file, counts, named, gpu, rule)
    return Row(
        wheel, file.path, file.files, file.size, file.read_by, dict(counts), named,
        usable, blank, _wanted(rule), rule.reason, problem, fix and fix.replace("{wheel}", wheel),
    )  # fmt: skip


@cache
def _match(code: Code, gpu: str) -> Level:
    return _LEVEL_OF[match(code, next(a for a in archs() if a.name == gpu))]


def _level(group: Group, gpu: GpuArch) -> str:
    """Return the best level of the codes in a container that are not blank."""
    real = [code for code, empty in group.codes if code.kind != "other" and not empty]
    if not real and all(code.kind == "other" for code, _ in group.codes):
        return "other"
    levels = {_match(code, gpu.name) for code in real}
    return next(level for level in LEVELS if level in levels or level == "missing")


def _wanted(rule: Rule) -> str:
    return f"every {rule.every}" if rule.every else f"some {rule.some}"


def _problem(
    file: FileFacts, counts: Mapping[str, int], codes: Iterable[str], gpu: GpuArch, rule: Rule
) -> tuple[str, str]:
    if file.problem:
        return f"cannot be read: {file.problem}", "fetch the wheel anew; if it stays so, report it"
    judged = {level: counts.get(level, 0) for level in LEVELS}
    total = sum(judged.values())
    wanted = rule.every or rule.some
    assert wanted is not None
    good = sum(count for level, count in judged.items() if at_least(level, wanted))
    if good == total or (rule.some and good):
        return "", ""
    shown = ", ".join(codes) or "nothing that is not blank"
    bad = ", ".join(
        f"{n} {_words(level)}" for level, n in judged.items() if n and not at_least(level, wanted)
    )
    what = f"of {total} containers {bad} on {gpu.name}; {_wanted(rule)} is asked; it has {shown}"
    fix = f"take a build of {{wheel}} that has {_fixes(gpu, wanted)}, or allow it with a reason in "
    return what, fix + f"images/{gpu.name}/policy.yaml"


def _words(level: Level) -> str:
    return {"ptx": "run only by JIT", "missing": "have no code"}.get(level, f"are {level}")


def _fixes(gpu: GpuArch, wanted: Level) -> str:
    """Return the codes that would reach a level, as nvcc spells them."""
    none: tuple[Suffix, ...] = ("",)
    kinds = [Code("elf", a.number, suffix) for a in archs() for suffix in (*none, *a.targets)]
    kinds += [Code("ptx", gpu.number)]
    return " or ".join(str(code) for code in kinds if at_least(_match(code, gpu.name), wanted))
