# SPDX-License-Identifier: Apache-2.0
"""Manifests + locks → Plan. The only place where defaults and two files meet."""

from __future__ import annotations

import calendar
import fnmatch
import graphlib
import hashlib
import time
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from imagebuild.arch import min_driver
from imagebuild.catalog import LockFile, Recipe, read_recipe, read_tools
from imagebuild.diagnostics import Diagnostic, Diagnostics, Refused
from imagebuild.digest import digest
from imagebuild.errors import IntegrityError, ManifestError
from imagebuild.layer.spec import Artifact, FileInput, LayerSpec, Transform
from imagebuild.lock import Lock
from imagebuild.manifest import Bytecompile, CudaHome, FileItem, Patches, Slim, Symlinks
from imagebuild.plan import LABEL_PREFIX, SCHEMA, Config, Plan
from imagebuild.resolve_patches import patch_labels, patch_transform, plugin_wheels
from imagebuild.resolve_slim import check_slim, slim_labels, slim_transform, without_slim
from imagebuild.toolbox import PACKAGE, base_digest, code_digest, image_code


def resolve(images: Path, arch_text: str, *, slim: bool = True) -> Plan:
    """Return the Plan of one arch. Without `slim`, every file is as its wheel shipped it.

    Raises ManifestError (exit 2) for wrong manifests, all errors at once, and IntegrityError
    (exit 4) for a lock that is missing or was made from other inputs.
    """
    recipe = read_recipe(images, arch_text)
    if not slim:
        recipe = without_slim(recipe)
    _, tools_file = read_tools(images)
    base_lock, python_lock, tools_lock = (
        fresh_lock(f) for f in (recipe.base_lock, recipe.python_lock, tools_file)
    )
    _check_cuda(recipe)
    _check_names(recipe, python_lock)
    created = max(base_lock.created, python_lock.created)
    names = _placeholders(recipe)
    layers = _layers(images, recipe, base_lock, python_lock, names)
    return Plan(
        schema_version=SCHEMA,
        arch=recipe.arch.name,
        stack=recipe.stack.name,
        repository=recipe.image.name,
        tag_stem=_tag_stem(recipe, python_lock, created),
        created=created,
        mtime=calendar.timegm(time.strptime(created, "%Y-%m-%dT%H:%M:%SZ")),
        prefix=recipe.stack.prefix,
        python=recipe.stack.source.python,
        base=recipe.base.settings,
        layers=layers,
        overlaps=tuple((item.before, item.after) for item in recipe.stack.order),
        tools=tools_lock.artifacts,
        tool_code=code_digest(),
        base_code=base_digest(),
        config=_config(recipe, python_lock, created, names, patch_labels(layers)),
    )


def fresh_lock(file: LockFile) -> Lock:
    """Return a lock that fits its manifest. Raises IntegrityError if it is stale."""
    lock = file.read()
    if lock.inputs != file.expected_inputs:
        raise IntegrityError(
            f"{file.path}: stale: it was made from other inputs than {file.path.parent} has now",
            hint="python build.py lock",
        )
    return lock


def _check_cuda(recipe: Recipe) -> None:
    """Refuse a CUDA release that does not know the image's arch."""
    try:
        min_driver(recipe.arch, recipe.stack.cuda)
    except Refused as error:
        at = recipe.stack_at.diagnostic(("cuda",), error.message, allowed=error.allowed)
        raise Diagnostics([at]) from None


def _check_names(recipe: Recipe, lock: Lock) -> None:
    """Report every name in the manifests that the lock does not know, and every lock/pin conflict."""
    versions = {a.name: a.version for a in lock.artifacts}
    problems: list[Diagnostic] = []
    for name in recipe.image.exclude:
        if name not in versions:
            message = f"{name} is not in the lock of {recipe.stack.name}"
            problems.append(recipe.image_at.diagnostic(("exclude", name), message, key=True))
        if name == recipe.stack.main:
            message = f"{name} is the package this image exists for"
            problems.append(recipe.image_at.diagnostic(("exclude", name), message, key=True))
    for index, item in enumerate(recipe.stack.order):
        for key, name in (("before", item.before), ("after", item.after)):
            if name not in versions:
                message = f"{name} is not in the lock of {recipe.stack.name}"
                problems.append(recipe.stack_at.diagnostic(("order", index, key), message))
    problems += check_slim(recipe, lock)
    if recipe.stack.main not in versions:
        message = f"{recipe.stack.main} is not in the lock of {recipe.stack.name}"
        problems.append(recipe.stack_at.diagnostic(("main",), message))
    for index, pin in enumerate(recipe.stack.source.requirements):
        requirement = Requirement(pin)
        locked = versions.get(requirement.name)
        if locked is None or not requirement.specifier.contains(locked, prereleases=True):
            message = f"the lock has {requirement.name} {locked}"
            problems.append(recipe.stack_at.diagnostic(("source", "requirements", index), message))
    if problems:
        raise Diagnostics(problems)


def _placeholders(recipe: Recipe) -> dict[str, str]:
    """Return the names that `env` values may use in braces."""
    stack, arch = recipe.stack, recipe.arch
    site = f"{stack.prefix}/lib/python{stack.source.python}/site-packages"
    return {
        "arch": arch.name,
        "cache": stack.runtime.cache,
        "cuda_home": f"{site}/nvidia/cu{stack.cuda.split('.')[0]}",
        "cute_arch": arch.cute,
        "flashinfer_arch": arch.flashinfer,
        "prefix": stack.prefix,
        "site": site,
        "torch_arch": arch.torch,
    }


def _env(recipe: Recipe, names: dict[str, str]) -> dict[str, str]:
    """Fill the placeholders of the stack's and the image's variables; the image's win."""
    filled: dict[str, str] = {}
    problems: list[Diagnostic] = []
    for env, at in ((recipe.stack.env, recipe.stack_at), (recipe.image.env, recipe.image_at)):
        for key, value in env.items():
            try:
                filled[key] = value.format_map(names)
            except (KeyError, ValueError, IndexError, AttributeError) as error:
                message = f"cannot fill {value!r}: {error}"
                allowed = [f"{{{name}}}" for name in names]
                problems.append(at.diagnostic(("env", key), message, allowed=allowed))
    if problems:
        raise Diagnostics(problems)
    return dict(sorted(filled.items()))


def _install_order(recipe: Recipe, artifacts: list[Artifact]) -> tuple[Artifact, ...]:
    """Sort by name, moved only as far as the stack's `order` asks."""
    by_name = {a.name: a for a in artifacts}
    graph: dict[str, set[str]] = {name: set() for name in by_name}
    for item in recipe.stack.order:
        if item.before in graph and item.after in graph:
            graph[item.after].add(item.before)
    sorter = graphlib.TopologicalSorter(graph)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        cycle = " before ".join(error.args[1])
        message = f"the order goes in a circle: {cycle}"
        raise ManifestError(recipe.stack_at.diagnostic(("order",), message, key=True).render()) from None
    ordered: list[str] = []
    ready = sorted(sorter.get_ready())
    while ready:
        name = ready.pop(0)
        ordered.append(name)
        sorter.done(name)
        ready = sorted([*ready, *sorter.get_ready()])
    return tuple(by_name[name] for name in ordered)


def _assign(recipe: Recipe, lock: Lock) -> list[list[Artifact]]:
    """Give every package of the image to the first layer that names it; `*` alone comes last."""
    layers = recipe.stack.layers
    assigned: list[list[Artifact]] = [[] for _ in layers]
    rest = next(i for i, layer in enumerate(layers) if "*" in layer.packages)
    for artifact in lock.artifacts:
        if artifact.name in recipe.image.exclude:
            continue
        for index, layer in enumerate(layers):
            if any(p != "*" and fnmatch.fnmatchcase(artifact.name, p) for p in layer.packages):
                assigned[index].append(artifact)
                break
        else:
            assigned[rest].append(artifact)
    used = {a.name for group in assigned for a in group} | set(recipe.image.exclude)
    problems = [
        recipe.stack_at.diagnostic(("layers", i, "packages", j), f"no locked package matches {pattern}")
        for i, layer in enumerate(layers)
        for j, pattern in enumerate(layer.packages)
        if not fnmatch.filter(used, pattern)
    ]
    if problems:
        raise Diagnostics(problems)
    return assigned


def _layers(
    images: Path, recipe: Recipe, base_lock: Lock, python_lock: Lock, names: dict[str, str]
) -> tuple[LayerSpec, ...]:
    stack = recipe.stack
    prefix = stack.prefix.lstrip("/")
    found = []
    locked = {artifact.name for artifact in python_lock.artifacts}
    for index, (item, artifacts) in enumerate(zip(stack.layers, _assign(recipe, python_lock), strict=True)):
        first = [Transform("venv", {"prefix": prefix, "python": stack.source.python})] if index == 0 else []
        plugins = plugin_wheels(images, recipe, item, locked, ("layers", index))
        ordered = _install_order(recipe, [*artifacts, *plugins])
        given = []
        for number, transform in enumerate(item.transforms):
            at = ("layers", index, "transforms", number)
            if isinstance(transform, Slim):
                given.append(slim_transform(recipe, item.name, ordered))
            elif isinstance(transform, Patches):
                site = names["site"].lstrip("/")
                given.append(patch_transform(images, recipe, transform, item.name, ordered, site, at))
            else:
                given.append(_transform(images, recipe, transform, names, at))
        found.append(LayerSpec(item.name, ordered, (), tuple(first + given)))
    compiled = {t.files for layer in found for t in layer.transforms if t.kind == "bytecompile"}
    base_transforms = tuple(Transform("bytecompile", {}, files) for files in sorted(compiled, key=str)[:1])
    base = LayerSpec("base", base_lock.artifacts, (), base_transforms)
    return (base, *found, _launch_layer(images, recipe))


def _launch_layer(images: Path, recipe: Recipe) -> LayerSpec:
    runtime = recipe.stack.runtime
    homes = [runtime.cache, *runtime.folders, *(v for k, v in _env_dirs(recipe))]
    files = tuple(
        _file_input(images, recipe, item, ("files", index, "source"))
        for index, item in enumerate(recipe.stack.files)
    )
    files += _code_files(recipe)
    owner = {"paths": sorted(set(homes)), "uid": runtime.uid, "gid": runtime.gid, "mode": 0o775}
    embed = {"name": "plan.json", "target": "/etc/imagebuild/plan.json"}
    return LayerSpec("launch", (), files, (Transform("directories", owner), Transform("embed", embed)))


def _code_files(recipe: Recipe) -> tuple[FileInput, ...]:
    """Return our own modules that run in the image; their sources are paths in the checkout."""
    folder = recipe.stack.code
    if folder is None:
        return ()
    return tuple(
        FileInput(
            path.relative_to(PACKAGE.parent).as_posix(), f"{folder}/{target}", 0o644,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for target, path in image_code().items()
    )  # fmt: skip


def _env_dirs(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the variables that name a folder below the cache volume."""
    cache = recipe.stack.runtime.cache
    filled = _env(recipe, _placeholders(recipe))
    return [(k, v) for k, v in filled.items() if v.startswith(cache + "/")]


def _file_input(images: Path, recipe: Recipe, item: FileItem, at: tuple[str | int, ...]) -> FileInput:
    return FileInput(item.source, item.target, int(item.mode, 8), _sha256(images, recipe, item.source, at))


def _sha256(images: Path, recipe: Recipe, source: str, at: tuple[str | int, ...]) -> str:
    try:
        return hashlib.sha256((images / source).read_bytes()).hexdigest()
    except OSError as error:
        message = f"cannot read {images / source}: {error.strerror}"
        raise Diagnostics([recipe.stack_at.diagnostic(at, message)]) from None


def _transform(
    images: Path,
    recipe: Recipe,
    item: CudaHome | Symlinks | Bytecompile,
    names: dict[str, str],
    at: tuple[str | int, ...],
) -> Transform:
    if isinstance(item, CudaHome):
        return Transform("cuda-home", {"home": names["cuda_home"].lstrip("/")})
    if isinstance(item, Symlinks):
        return Transform("symlinks", {"links": dict(sorted(item.links.items()))})
    found = FileInput(item.list, "", 0o644, _sha256(images, recipe, item.list, (*at, "list")))
    return Transform("bytecompile", {}, (found,))


def _tag_stem(recipe: Recipe, lock: Lock, created: str) -> str:
    """Return the tag without the digest: stack version, CUDA, arch, day of the locks."""
    version = next(a.version for a in lock.artifacts if a.name == recipe.stack.main)
    cuda = recipe.stack.cuda.replace(".", "")
    day = created[:10].replace("-", "")
    return f"{version}-cu{cuda}-{recipe.arch.name.replace('_', '')}-{day}"


def _config(
    recipe: Recipe, lock: Lock, created: str, names: dict[str, str], more_labels: dict[str, str]
) -> Config:
    runtime = recipe.stack.runtime
    versions: dict[str, Any] = {a.name: a.version for a in lock.artifacts}
    labels = {
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.title": recipe.image.title,
        "org.opencontainers.image.description": recipe.stack.title,
        "org.opencontainers.image.version": versions[recipe.stack.main],
        "org.opencontainers.image.licenses": recipe.stack.licences,
        f"{LABEL_PREFIX}.arch": recipe.arch.name,
        f"{LABEL_PREFIX}.stack": recipe.stack.name,
        f"{LABEL_PREFIX}.cuda": recipe.stack.cuda,
        f"{LABEL_PREFIX}.lock.python": digest(lock.model_dump(mode="json")),
        **more_labels,
        **slim_labels(recipe, LABEL_PREFIX),
    }
    for name in sorted({Requirement(pin).name for pin in recipe.stack.source.requirements}):
        labels[f"{LABEL_PREFIX}.version.{name}"] = versions[name]
    return Config(
        env=_env(recipe, names),
        user=f"{runtime.uid}:{runtime.gid}",
        workdir=runtime.workdir,
        volumes=(runtime.cache,),
        entrypoint=runtime.entrypoint,
        ports=(runtime.port,),
        labels=dict(sorted(labels.items())),
    )
