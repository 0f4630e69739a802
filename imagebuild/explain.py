# SPDX-License-Identifier: Apache-2.0
"""Plan + what the cache has → for each layer whether it is reused or made anew, why, and what that costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from imagebuild.layer.spec import LayerSpec
from imagebuild.oci_blob import Blob
from imagebuild.plan import Plan
from imagebuild.progress import size_text

# Bytes of packages that one core turns into a layer per second: 3.5 GB of wheels of sm_90 in 60 s on two
# cores, slimming and zstd included. A layer's own work may be faster; the sum is what was measured.
BYTES_PER_CORE_S = 29e6
# A layer's compressed size by the size of its packages, when none of that name was made before.
_RATIO = 0.75
_SHOWN = 4


@dataclass(frozen=True)
class LayerNews:
    """One layer. `reasons` say why it is made anew (empty: it is reused), `pull` is bytes that who has the
    layer before it must pull again, `seconds` how long it is expected to take on this machine.
    """

    name: str
    reused: bool
    reasons: tuple[str, ...]
    pull: int
    seconds: float


@dataclass(frozen=True)
class Explanation:
    """What building an image would do. `fetch` is the bytes of files that are not in the cache."""

    reference: str
    plan: str
    layers: tuple[LayerNews, ...]
    fetch: int

    @property
    def pull(self) -> int:
        """Bytes of all layers that are made anew."""
        return sum(layer.pull for layer in self.layers)

    @property
    def seconds(self) -> float:
        """Expected seconds for all layers that are made anew."""
        return sum(layer.seconds for layer in self.layers)


def explain(
    plan: Plan,
    cached: Mapping[str, Blob],
    before: Mapping[str, LayerSpec],
    sizes: Mapping[str, int],
    fetch: int,
    cores: int,
) -> Explanation:
    """Explain a build by the embedded engine.

    `cached` are the layers that are there, `before` what the last layer of each name was made from,
    `sizes` its compressed bytes.
    """
    news = []
    for layer in plan.layers:
        if layer.name in cached:
            news.append(LayerNews(layer.name, True, (), 0, 0.0))
            continue
        packages = sum(artifact.size for artifact in layer.artifacts)
        pull = sizes.get(layer.name, int(packages * _RATIO))
        reasons = tuple(_reasons(layer, before.get(layer.name)))
        news.append(LayerNews(layer.name, False, reasons, pull, packages / BYTES_PER_CORE_S / cores))
    return Explanation(plan.reference, plan.digest, tuple(news), fetch)


def _reasons(layer: LayerSpec, before: LayerSpec | None) -> list[str]:
    if before is None:
        return ["no layer of this name was made here before"]
    found = [
        *_changed("package", _packages(before), _packages(layer)),
        *_changed("file", _files(before), _files(layer)),
        *_changed("transform", _transforms(before), _transforms(layer)),
    ]
    if not found and [a.name for a in before.artifacts] != [a.name for a in layer.artifacts]:
        found = ["packages are installed in another order"]
    if not found and any(t.kind == "embed" for t in layer.transforms):
        found = ["it carries the plan, and the plan differs"]
    return found or ["the code that makes layers, the base or the compression differs; or its blob is gone"]


def _packages(layer: LayerSpec) -> dict[str, str]:
    return {artifact.name: artifact.sha256 for artifact in layer.artifacts}


def _files(layer: LayerSpec) -> dict[str, str]:
    return {item.target: item.sha256 for item in layer.files}


def _transforms(layer: LayerSpec) -> dict[str, str]:
    """Return each transform's kind with its arguments; patches one by one."""
    found = {}
    for item in layer.transforms:
        given = asdict(item)
        if item.kind == "patch":
            for patch in item.args["ledger"]:
                found[f"patch {patch['id']}"] = str(patch["sha256"])
            given["args"] = {key: value for key, value in item.args.items() if key != "ledger"}
            given["files"] = ()
        found[item.kind] = json.dumps(given, sort_keys=True, default=str)
    return found


def _changed(kind: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterable[str]:
    groups = {
        "new": sorted(after.keys() - before.keys()),
        "gone": sorted(before.keys() - after.keys()),
        "changed": sorted(name for name in after.keys() & before.keys() if after[name] != before[name]),
    }
    for word, names in groups.items():
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"{kind} {word}: {', '.join(names[:_SHOWN])}{more}"


def explanation_json(found: Explanation) -> dict[str, Any]:
    """Return the JSON form; `pull`, `fetch` in bytes, `seconds` expected on this machine."""
    return asdict(found) | {"pull": found.pull, "seconds": round(found.seconds, 1)}


def explanation_text(found: Explanation) -> str:
    """Return the explanation as lines for people."""
    lines = [found.reference]
    for layer in found.layers:
        if layer.reused:
            lines.append(f"  {layer.name:10} reused")
            continue
        cost = f"about {layer.seconds:.0f} s, {size_text(layer.pull)} to pull"
        lines.append(f"  {layer.name:10} anew, {cost}")
        lines += [f"             {reason}" for reason in layer.reasons]
    lines.append(f"to fetch {size_text(found.fetch)}, to build about {found.seconds:.0f} s")
    return "\n".join([*lines, f"to pull {size_text(found.pull)} for who has the layers before"])
