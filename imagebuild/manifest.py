# SPDX-License-Identifier: Apache-2.0
"""The as-written form of everything under images/: one strict model per file kind.

Nothing here looks at a second file; what needs two files (unknown stack, stale lock) is judged
in `resolve`.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field, model_validator

from imagebuild.diagnostics import Refused, closest
from imagebuild.layer.base import BaseSettings
from imagebuild.manifest_fields import (
    AbsolutePath,
    ArchName,
    DebianPackage,
    Env,
    Line,
    Name,
    Package,
    PackagePattern,
    Pin,
    Reason,
    RelativePath,
    matching,
)


class Model(BaseModel):
    """Strict, closed and frozen."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=True)


class PythonSource(Model):
    """What a Python lock is made from.

    `exclude_newer` is the day (UTC) after which nothing on the index is seen, so that the same
    source resolves to the same lock on any later day. `platform` is uv's name for the target.
    """

    python: Annotated[str, matching(r"3\.\d+", "a Python minor version in quotes")]
    platform: Line
    exclude_newer: datetime.date
    requirements: Annotated[tuple[Pin, ...], Field(min_length=1)]
    prereleases: tuple[Package, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> PythonSource:
        names = self.pinned
        for index, name in enumerate(names):
            if name in names[:index]:
                raise Refused(f"{name} is pinned twice", at=("requirements", index))
        for index, name in enumerate(self.prereleases):
            if name not in names:
                raise Refused(
                    f"a pre-release is allowed only for a pinned package, not {name}",
                    suggestion=closest(name, names),
                    at=("prereleases", index),
                )
        return self

    @property
    def pinned(self) -> list[str]:
        """The names of `requirements`, in their order."""
        return [canonicalize_name(Requirement(pin).name) for pin in self.requirements]


class CudaHome(Model):
    """Make the pip-installed CUDA toolkit link: lib64, lib*.so link names, a libcuda stub."""

    kind: Literal["cuda-home"]


class Symlinks(Model):
    """Symbolic links to add: image path → link text."""

    kind: Literal["symlinks"]
    links: dict[AbsolutePath, Line]


class Bytecompile(Model):
    """Byte-compile the modules listed in `list` (one path per line, relative to the image root)."""

    kind: Literal["bytecompile"]
    list: RelativePath


class Patches(Model):
    """Apply entries of the ledger (images/patches/) in this order, and add their plugin wheels."""

    kind: Literal["patch"]
    patches: Annotated[tuple[Name, ...], Field(min_length=1)]


class Slim(Model):
    """Leave out what this image's GPU can never load, by the stack's `slim` settings."""

    kind: Literal["slim"]


TransformItem = Annotated[CudaHome | Symlinks | Patches | Bytecompile | Slim, Field(discriminator="kind")]


class LayerItem(Model):
    """One Python layer: the packages whose names match, first matching layer wins."""

    name: Name
    packages: Annotated[tuple[PackagePattern, ...], Field(min_length=1)]
    transforms: tuple[TransformItem, ...] = ()

    @model_validator(mode="after")
    def _patches_first(self) -> LayerItem:
        kinds = [item.kind for item in self.transforms]
        for index, item in enumerate(self.transforms):
            if isinstance(item, Patches) and index != kinds.index("patch"):
                raise Refused("a second list of patches", at=("transforms", index))
            if item.kind == "patch" and {"slim", "bytecompile"} & set(kinds[:index]):
                raise Refused("patches go before slim and bytecompile", at=("transforms", index))
            names = item.patches if isinstance(item, Patches) else ()
            for number, name in enumerate(names):
                if name in names[:number]:
                    raise Refused(f"{name} twice", at=("transforms", index, "patches", number))
        return self


class OrderItem(Model):
    """Two wheels that ship the same paths with other content: `after` is installed second and wins."""

    before: Package
    after: Package
    reason: Reason


class DeclaredLicence(Model):
    """The licence of a package whose METADATA names none exactly: an SPDX id and the text it is by.

    `file` is relative to site-packages; `sha256` pins its content. `instead_of` is what METADATA does
    name, where the licence file that it points at says otherwise.
    """

    package: Package
    licence: Line
    instead_of: str = ""
    file: Line
    sha256: Annotated[str, matching(r"[0-9a-f]{64}", "a sha256 in hex")]
    reason: Reason


class BallastItem(Model):
    """Files that are left out. `paths` are patterns relative to site-packages (* crosses folders).

    `archs` limits it to some images (default: all). `named_by` maps a file that does name one of
    them to the reason why that does not matter; the build refuses any other library that needs one.
    """

    package: Package
    paths: Annotated[tuple[Line, ...], Field(min_length=1)]
    archs: tuple[ArchName, ...] = ()
    named_by: dict[Line, Reason] = {}
    reason: Reason


class UntouchedItem(Model):
    """Files of others inside a wheel, which its licence does not cover: never edited."""

    paths: Annotated[tuple[Line, ...], Field(min_length=1)]
    reason: Reason


class SlimSettings(Model):
    """What `slim` may change and leave out. `licences` maps an SPDX id to why it allows editing."""

    licences: dict[Line, Reason]
    declared: tuple[DeclaredLicence, ...] = ()
    untouched: tuple[UntouchedItem, ...] = ()
    ballast: tuple[BallastItem, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> SlimSettings:
        names = [item.package for item in self.declared]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise Refused(f"{name} is declared twice", at=("declared", index, "package"))
        paths: set[str] = set()
        for index, item in enumerate(self.ballast):
            for number, path in enumerate(item.paths):
                if path in paths:
                    raise Refused(f"{path} is there twice", at=("ballast", index, "paths", number))
                paths.add(path)
        return self


class FileItem(Model):
    """A file of images/ that goes into the launch layer."""

    source: RelativePath
    target: AbsolutePath
    mode: Annotated[str, matching(r"0[0-7]{3}", 'an octal mode in quotes, like "0755"')] = "0644"


class Runtime(Model):
    """The image's configuration. `cache` is the volume that must be writable.

    `folders` are further ones that belong to the user, for volumes that may be writable.
    """

    uid: Annotated[int, Field(ge=0)]
    gid: Annotated[int, Field(ge=0)]
    workdir: AbsolutePath
    cache: AbsolutePath
    folders: tuple[AbsolutePath, ...] = ()
    entrypoint: Annotated[tuple[str, ...], Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)]


RESERVED_LAYERS = ("base", "launch", "tools")


class StackManifest(Model):
    """images/stacks/<name>/stack.yaml: one pinned serving stack, shared by archs.

    `main` is the package whose version names the image's tags. `code` is the folder for our own code that
    runs before a server (`imagebuild.preflight`); without it the image has none.
    """

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    title: Line
    licences: Line
    base: Name
    main: Package
    cuda: Annotated[str, matching(r"\d+\.\d+", "a CUDA release in quotes")]
    source: PythonSource
    prefix: AbsolutePath
    layers: Annotated[tuple[LayerItem, ...], Field(min_length=1)]
    order: tuple[OrderItem, ...] = ()
    slim: SlimSettings | None = None
    files: tuple[FileItem, ...] = ()
    code: AbsolutePath | None = None
    env: Env = {}
    runtime: Runtime

    @model_validator(mode="after")
    def _main_is_pinned(self) -> StackManifest:
        pinned = self.source.pinned
        if self.main not in pinned:
            near = closest(self.main, pinned)
            message = f"{self.main} is not pinned in source.requirements"
            raise Refused(message, allowed=pinned, suggestion=near, at=("main",))
        return self

    @model_validator(mode="after")
    def _layers_cover(self) -> StackManifest:
        names: set[str] = set()
        patterns: dict[str, str] = {}
        for index, layer in enumerate(self.layers):
            if layer.name in RESERVED_LAYERS:
                raise Refused(f"{layer.name} is the name of a layer of ours", at=("layers", index, "name"))
            if layer.name in names:
                raise Refused(f"a second layer {layer.name}", at=("layers", index, "name"))
            names.add(layer.name)
            for number, pattern in enumerate(layer.packages):
                if pattern in patterns:
                    message = f"{pattern} is already in layer {patterns[pattern]}"
                    raise Refused(message, at=("layers", index, "packages", number))
                patterns[pattern] = layer.name
        if "*" not in patterns:
            raise Refused('one layer must take the rest: packages: ["*"]', at=("layers",))
        return self

    @model_validator(mode="after")
    def _slim_settings(self) -> StackManifest:
        for index, layer in enumerate(self.layers):
            for number, item in enumerate(layer.transforms):
                if isinstance(item, Slim) and self.slim is None:
                    at = ("layers", index, "transforms", number)
                    raise Refused("a slim transform needs the stack's `slim` settings", at=at)
        return self

    @model_validator(mode="after")
    def _files_and_order(self) -> StackManifest:
        targets = [item.target for item in self.files]
        for index, target in enumerate(targets):
            if target in targets[:index]:
                raise Refused(f"a second file for {target}", at=("files", index, "target"))
        for index, item in enumerate(self.order):
            if item.before == item.after:
                raise Refused(f"{item.after} cannot come after itself", at=("order", index, "after"))
        return self


class ImageManifest(Model):
    """images/<arch>/image.yaml: one image.

    `exclude` names packages of the stack's lock that this arch has no use for, with the reason.
    """

    schema_version: Literal[1] = Field(alias="schema")
    arch: ArchName
    stack: Name
    name: Name
    title: Line
    exclude: dict[Package, Reason] = {}
    env: Env = {}


class ToolsManifest(Model):
    """images/tools/tools.yaml: wheels that the build containers need beside our own code."""

    schema_version: Literal[1] = Field(alias="schema")
    source: PythonSource


class BaseManifest(Model):
    """images/base/<name>/base.yaml: the Debian base. `packages` maps a name to its reason."""

    schema_version: Literal[1] = Field(alias="schema")
    release: Name
    architecture: Name
    packages: dict[DebianPackage, Reason]
    settings: BaseSettings


def as_json(model: BaseModel) -> dict[str, Any]:
    """Return a model's JSON form with the names that users write."""
    return model.model_dump(mode="json", by_alias=True)
