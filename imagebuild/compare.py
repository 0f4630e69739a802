# SPDX-License-Identifier: Apache-2.0
"""Two images → what differs: packages, patches, archs, settings, layers, sizes, and what is pulled again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from imagebuild.digest import digest
from imagebuild.layer.spec import LayerSpec
from imagebuild.plan import LABEL_PREFIX, Plan
from imagebuild.progress import size_text


@dataclass(frozen=True)
class Layer:
    """A layer of a built image: compressed `size` in bytes."""

    digest: str
    size: int


@dataclass(frozen=True)
class Side:
    """One of the two: its Plan, and the layers in the Plan's order where it is built (else empty)."""

    name: str
    plan: Plan
    layers: tuple[Layer, ...] = ()


@dataclass(frozen=True)
class Change:
    """A thing by name and its two values; None where a side does not have it."""

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.name} {self.after}"
        return f"- {self.name} {self.before}" if self.after is None else (
            f"~ {self.name} {self.before} -> {self.after}"
        )  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """What differs between two images. `pull` is the bytes of layers that only the second one has, and
    None where one of them is not built.
    """

    before: str
    after: str
    archs: tuple[Change, ...]
    packages: tuple[Change, ...]
    patches: tuple[Change, ...]
    settings: tuple[Change, ...]
    layers: tuple[Change, ...]
    size: tuple[int, int]
    pull: int | None

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.archs or self.packages or self.patches or self.settings or self.layers)


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    names = sorted(before.keys() | after.keys())
    pairs = ((name, before.get(name), after.get(name)) for name in names)
    return tuple(Change(name, a, b) for name, a, b in pairs if a != b)


def _packages(plan: Plan) -> dict[str, str]:
    return {f"{a.kind} {a.name}": a.version for layer in plan.layers for a in layer.artifacts}


def _patches(plan: Plan) -> dict[str, str]:
    return {item["id"]: item["sha256"][:12] for item in plan.ledger}


def _archs(plan: Plan) -> dict[str, str]:
    slim = plan.labels.get(f"{LABEL_PREFIX}.slim", "")
    return {"arch": plan.arch, "GPU code": slim}


def _settings(plan: Plan) -> dict[str, str]:
    config = plan.config
    found = {f"env {name}": value for name, value in config.env.items()}
    found |= {"user": config.user, "entrypoint": " ".join(config.entrypoint), "workdir": config.workdir}
    found |= {"volumes": " ".join(config.volumes), "ports": " ".join(map(str, config.ports))}
    files = {item.target: item.sha256[:12] for layer in plan.layers for item in layer.files}
    return found | {f"file {target}": sha256 for target, sha256 in files.items()}


def _layers(side: Side) -> dict[str, str]:
    """Return each layer by name with its digest, or what it is made of where it is not built."""
    if side.layers:
        pairs = zip(side.plan.layers, side.layers, strict=True)
        return {spec.name: f"{layer.digest[7:19]} {size_text(layer.size)}" for spec, layer in pairs}
    return {spec.name: _inputs(spec) for spec in side.plan.layers}


def _inputs(spec: LayerSpec) -> str:
    return digest(asdict(spec))[:12]


def compare(before: Side, after: Side) -> Comparison:
    """Compare two images by their Plans, and by their layers where both are built."""
    built = bool(before.layers and after.layers)
    if not built:
        before, after = Side(before.name, before.plan), Side(after.name, after.plan)
    have = {layer.digest for layer in before.layers}
    pull = sum(layer.size for layer in after.layers if layer.digest not in have) if built else None
    plans = before.plan, after.plan
    return Comparison(
        before=before.name,
        after=after.name,
        archs=_changes(*map(_archs, plans)),
        packages=_changes(*map(_packages, plans)),
        patches=_changes(*map(_patches, plans)),
        settings=_changes(*map(_settings, plans)),
        layers=_changes(_layers(before), _layers(after)),
        size=(sum(x.size for x in before.layers), sum(x.size for x in after.layers)),
        pull=pull,
    )


def comparison_json(found: Comparison) -> dict[str, Any]:
    """Return the JSON form."""
    return {**asdict(found), "same": found.same}


def comparison_text(found: Comparison) -> str:
    """Return the comparison as lines for people."""
    lines = [f"{found.before} -> {found.after}"]
    for title in ("archs", "packages", "patches", "settings", "layers"):
        changes = getattr(found, title)
        if changes:
            lines += [title, *(f"  {change}" for change in changes)]
    if found.same:
        lines.append("nothing differs")
    if found.pull is not None:
        sizes = " -> ".join(size_text(size) for size in found.size)
        lines.append(f"to pull {size_text(found.pull)} of {sizes}")
    return "\n".join(lines)
