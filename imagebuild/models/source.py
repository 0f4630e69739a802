# SPDX-License-Identifier: Apache-2.0
"""`ModelSource`: images/models/NAME.yaml as written: which repos a model and its drafters come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from imagebuild.diagnostics import Refused, closest
from imagebuild.digest import digest
from imagebuild.errors import ManifestError
from imagebuild.models.shapes import DrafterShape, Model, TargetShape
from imagebuild.yamlfile import load_with_positions

_NAME = r"^[a-z0-9][a-z0-9.-]{0,62}$"
_REPO = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$"
TARGET = "target"


class RepoSource(Model):
    """One repo of a hub. `revision` is what `models lock` asks for; the lock holds the commit.

    `folder` is the name below the models folder (default: the repo's own), `about_bytes` the size on
    disk as far as known before there is a lock, `lookalikes` other repos whose config has the same
    shape, `note` where the figures come from.
    """

    repo: Annotated[str, Field(pattern=_REPO)]
    revision: Annotated[str, Field(min_length=1, pattern=r"^[^\s\x00-\x1f?*\[\]^~:\\]+$")] = "main"
    folder: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")] = ""
    about_bytes: Annotated[int, Field(ge=1)]
    license: str
    lookalikes: tuple[str, ...] = ()
    note: str = ""

    @property
    def place(self) -> str:
        """The folder's name below the models folder."""
        return self.folder or self.repo.rpartition("/")[2]


class TargetSource(RepoSource):
    """The large model."""

    shape: TargetShape


class DrafterSource(RepoSource):
    """A drafter; the first of the list is fetched by default."""

    name: Annotated[str, Field(pattern=_NAME)]
    shape: DrafterShape


class ModelSource(Model):
    """A target with the drafters made for it."""

    schema_version: Literal[1] = Field(alias="schema")
    name: Annotated[str, Field(pattern=_NAME)]
    title: str
    target: TargetSource
    drafters: tuple[DrafterSource, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> ModelSource:
        seen: dict[str, str] = {TARGET: "target", self.target.place: "target"}
        for index, drafter in enumerate(self.drafters):
            for key, text in (("name", drafter.name), ("folder", drafter.place)):
                if text in seen and not (key == "folder" and text == drafter.name):
                    message = f'{key} "{text}" is taken by {seen[text]}'
                    raise Refused(message, at=("drafters", index, key))
                seen[text] = drafter.name
        return self

    def repos(self) -> dict[str, RepoSource]:
        """Return all repos by name: `target`, then the drafters in order."""
        return {TARGET: self.target, **{drafter.name: drafter for drafter in self.drafters}}

    def drafter(self, name: str | None) -> DrafterSource | None:
        """Return a drafter by name; None means the first, "none" means none. Raises ManifestError."""
        if name == "none" or (name is None and not self.drafters):
            return None
        names = [drafter.name for drafter in self.drafters]
        found = next((d for d in self.drafters if d.name == (name or names[0])), None)
        if found is None:
            raise Refused(
                f'{self.name} has no drafter "{name}"',
                allowed=[*names, "none"], suggestion=closest(name or "", names),
            )  # fmt: skip
        return found


def models_dir(images: Path) -> Path:
    """Return the folder with the data of models."""
    return images / "models"


def model_names(images: Path) -> list[str]:
    """Return the models there are, sorted."""
    return sorted(path.stem for path in models_dir(images).glob("*.yaml"))


def read_source(images: Path, name: str) -> ModelSource:
    """Read a model's source. Raises ManifestError (Refused or Diagnostics)."""
    names = model_names(images)
    if name not in names:
        raise Refused(f'no model "{name}"', allowed=names, suggestion=closest(name, names))
    source, at = load_with_positions(models_dir(images) / f"{name}.yaml", ModelSource)
    if source.name != name:
        message = at.diagnostic(("name",), "differs from the file's name", allowed=[name]).render()
        raise ManifestError(message)
    return source


def source_inputs(source: ModelSource) -> str:
    """Return the digest of what a lock depends on: which repos, at which revision, by which name."""
    return digest({name: [repo.repo, repo.revision] for name, repo in source.repos().items()})
