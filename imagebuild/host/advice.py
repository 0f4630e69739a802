# SPDX-License-Identifier: Apache-2.0
"""Which service suits the host: the link between its GPUs chooses, memory and SGLang's rules may refuse.

The choice, its reason and the measured rates are data: `links` and `measured` of compose/recipes/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from imagebuild.arch import GpuArch, arch_of_capability, archs
from imagebuild.host.facts import Gpu, Gpus
from imagebuild.host.report import Advice, LinkKind, Option, Rate
from imagebuild.models.gpus import Gpu as Product
from imagebuild.models.gpus import read_gpus
from imagebuild.serving.plugins import stack_plugins
from imagebuild.serving.recipe import Link, Parallel, ServiceItem
from imagebuild.serving.rules import Choice, refusals
from imagebuild.serving.service import ModelRecipes, choose


def arch_of(gpu: Gpu) -> GpuArch | None:
    """Return a GPU's arch, None if it is unknown; by its name where an old driver says no capability."""
    if gpu.capability:
        return arch_of_capability(*gpu.capability)
    return next((arch for arch in archs() if gpu.name in arch.gpus), None)


def archs_of(gpus: Gpus) -> Counter[str]:
    """Return how many usable GPUs there are of each arch; "" counts those of no known one."""
    return Counter(arch.name if (arch := arch_of(gpu)) else "" for gpu in gpus.usable)


def link_of(gpus: Gpus) -> LinkKind:
    """Return how the usable GPUs are joined: all pairs count, since the slowest decides a collective."""
    places = [index for index, gpu in enumerate(gpus.devices) if gpu in gpus.usable]
    if len(places) < 2:
        return "single"
    if not gpus.links:
        return "unknown"
    cells = [gpus.links[i][j] for i in places for j in places if i != j]
    fast = [cell.startswith("NV") for cell in cells]
    if all(fast):
        return "nvlink"
    return "partial" if any(fast) else "pcie" if all(cells) else "unknown"


def usual_link(gpus: Gpus, products: Sequence[Product]) -> Link | None:
    """Return how such GPUs are joined in usual servers, None if they are not in images/gpus.yaml."""
    names = {gpu.name for gpu in gpus.usable}
    found = {product.link for product in products if product.name in names}
    return found.pop() if len(found) == 1 else None


def advise(gpus: Gpus, recipes: ModelRecipes) -> Advice:
    """Return the recommendation with its reasons, or why there is none."""
    found, link = archs_of(gpus), link_of(gpus)
    name = next(iter(found), "")
    blank = Advice(recipes.file.name, name if len(found) == 1 else "", link, "", "")
    reason = _no_arch(gpus, found, recipes)
    if reason:
        return replace(blank, reason=reason)
    kind = _kind(gpus, link, recipes)
    settings = recipes.file.links[kind]
    plugins = stack_plugins(recipes.images, name)
    options = [_option(gpus, recipes, item, name, plugins) for item in recipes.file.services]
    fitting = [option.service for option in options if option.fits]
    rates = tuple(Rate(**rate.model_dump()) for rate in recipes.file.measured if rate.link == kind)
    advice = replace(blank, measured=rates, env=dict(settings.env), options=tuple(options))
    if not fitting:
        return replace(advice, reason=_nothing(gpus, recipes, options, name, plugins))
    if settings.prefer in fitting:
        return replace(advice, service=settings.prefer, reason=_because(link, kind) + settings.reason)
    why = next(option for option in options if option.service == settings.prefer).against
    reason = f"{settings.prefer} would be right for {kind}, but: {'; '.join(why)}"
    return replace(advice, service=fitting[0], reason=reason)


def _no_arch(gpus: Gpus, found: Counter[str], recipes: ModelRecipes) -> str:
    if not found:
        return "no GPU that can be used"
    if len(found) > 1:
        counts = ", ".join(f"{count} x {name or 'unknown'}" for name, count in found.items())
        return f"GPUs of different archs ({counts}): one image and one server are for one"
    name = next(iter(found))
    if name not in recipes.file.archs:
        known = ", ".join(recipes.file.archs)
        return f"{gpus.usable[0].name} is {name or 'of no known arch'}: there are recipes for {known}"
    return ""


def _kind(gpus: Gpus, link: LinkKind, recipes: ModelRecipes) -> Link:
    """Return whose recipe to take; what is not NVLink throughout goes at the pace of PCIe."""
    if link in ("nvlink", "pcie"):
        return link
    if link == "partial":
        return "pcie"
    return usual_link(gpus, read_gpus(recipes.images)) or "pcie"


def _because(link: LinkKind, kind: Link) -> str:
    if link == "partial":
        return "not all pairs have NVLink, so PCIe sets the pace: "
    return f"the link is not known, taken to be {kind}: " if link == "unknown" else ""


def _option(
    gpus: Gpus, recipes: ModelRecipes, item: ServiceItem, arch: str, plugins: frozenset[str]
) -> Option:
    """Return whether a service can run with the memory and number of these GPUs."""
    against = _against(gpus, recipes, choose(recipes, item, arch), plugins)
    return Option(item.name, item.title, not against, tuple(against))


def _against(gpus: Gpus, recipes: ModelRecipes, choice: Choice, plugins: frozenset[str]) -> list[str]:
    """Return what speaks against a service here: too few GPUs, and SGLang's rules and memory on these."""
    have, need = len(gpus.usable), choice.service.parallel.gpus
    out = [f"needs {need} GPUs, {have} can be used here"] if have < need else []
    smallest = min((gpu.memory_mib for gpu in gpus.usable if gpu.memory_mib), default=0)
    if smallest:
        choice = replace(choice, gpu=choice.gpu.model_copy(update={"memory_mib": smallest}))
    found = refusals(choice, recipes.at, plugins)
    prefix = f"{choice.service.name} on {choice.arch}: "
    return out + [diagnostic.message.removeprefix(prefix) for diagnostic in found]


def _nothing(
    gpus: Gpus, recipes: ModelRecipes, options: Sequence[Option], arch: str, plugins: frozenset[str]
) -> str:
    """Say why no service fits, and whether tensor parallelism over the GPUs at hand would."""
    file = recipes.file
    text = f"no service of {file.name} fits these GPUs: {options[0].service}: {'; '.join(options[0].against)}"
    choice = choose(recipes, file.services[0], arch)
    for tp in range(len(gpus.usable), 0, -1):
        service = choice.service.model_copy(update={"parallel": Parallel(tp=tp)})
        if not _against(gpus, recipes, replace(choice, service=service), plugins):
            return f"{text}; {{tp: {tp}}} would fit: add such a service to compose/recipes/{file.name}.yaml"
    return text
