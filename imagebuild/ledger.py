# SPDX-License-Identifier: Apache-2.0
"""`PatchManifest`: one entry of the ledger, images/patches/<id>/patch.yaml, and how it is read.

An entry is either a change of a wheel's files (change.patch beside it) or a plugin wheel that is
built from a folder of plugins/. Its probe.py tells whether a tree has the fix.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from imagebuild.diagnostics import Diagnostics, Refused, closest
from imagebuild.errors import IntegrityError, ManifestError
from imagebuild.layer.patching import FilePatch, PatchError, parse, sha256
from imagebuild.manifest import Model
from imagebuild.manifest_fields import ArchName, Line, Name, Package, Reason, Sha256, SitePath
from imagebuild.yamlfile import Positions, load_with_positions

CHANGE = "change.patch"
MANIFEST = "patch.yaml"
PROBE = "probe.py"


class States(Model):
    """A file's sha256 without and with the patch."""

    before: Sha256
    after: Sha256


class Upstream(Model):
    """What the project that we patch says about it: a reference like owner/repo#1, and its state."""

    reference: Line
    state: Line


class PatchManifest(Model):
    """images/patches/<id>/patch.yaml. No `archs` means all of them.

    `files` maps a path below site-packages to its states; `package` is the wheel that ships it.
    A plugin has neither, and names its source folder below plugins/ instead.
    """

    schema_version: Literal[1] = Field(alias="schema")
    id: Name
    title: Line
    why: Reason
    archs: tuple[ArchName, ...] = ()
    stacks: Annotated[tuple[Name, ...], Field(min_length=1)]
    package: Package | None = None
    files: Annotated[dict[SitePath, States], Field(default_factory=dict)]
    plugin: Name | None = None
    upstream: Upstream
    drop_when: Reason

    @model_validator(mode="after")
    def _one_kind(self) -> PatchManifest:
        if (self.plugin is None) == (self.package is None):
            raise Refused("write either package and files, or plugin", at=("plugin",))
        if (self.package is None) != (not self.files):
            raise Refused("package and files go together", at=("package",))
        return self


@dataclass(frozen=True)
class Patch:
    """One ledger entry with its change. `text` is the change's text, `parts` what it says per file."""

    manifest: PatchManifest
    at: Positions
    folder: Path
    text: str
    parts: tuple[FilePatch, ...]

    @property
    def id(self) -> str:
        """The entry's name."""
        return self.manifest.id

    @property
    def source(self) -> str:
        """The change's path relative to images/."""
        return f"patches/{self.id}/{CHANGE}"

    @property
    def probe(self) -> Path:
        """The script that tells whether a tree has the fix."""
        return self.folder / PROBE

    def item(self) -> dict[str, Any]:
        """Return what a Plan and /etc/imagebuild/patches.json say about this change of files."""
        manifest = self.manifest
        return {
            "id": self.id,
            "title": manifest.title,
            "package": manifest.package,
            "files": {path: state.model_dump() for path, state in sorted(manifest.files.items())},
            "change": self.source,
            "sha256": sha256(self.text.encode()),
            "upstream": manifest.upstream.model_dump(),
            "drop_when": manifest.drop_when,
        }


def patch_ids(images: Path) -> list[str]:
    """Return the ids of the ledger, sorted."""
    return sorted(path.parent.name for path in images.glob(f"patches/*/{MANIFEST}"))


def read_patch(images: Path, name: str) -> Patch:
    """Read one entry. Raises Diagnostics for its manifest, IntegrityError where its change differs.

    An entry must have its probe, and a change must touch exactly the files that the manifest names.
    """
    folder = images / "patches" / name
    manifest, at = load_with_positions(folder / MANIFEST, PatchManifest)
    if manifest.id != name:
        raise Diagnostics([at.diagnostic(("id",), "differs from its folder", allowed=[name])])
    if not (folder / PROBE).is_file():
        raise ManifestError(f"{folder / PROBE}: a patch needs its probe", hint="see docs/patches.md")
    if manifest.plugin is not None:
        return Patch(manifest, at, folder, "", ())
    path = folder / CHANGE
    try:
        text = path.read_bytes().decode("utf-8")
        parts = parse(text, str(path))
    except PatchError as error:
        raise IntegrityError(str(error), hint=f"python build.py patches new {name}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise IntegrityError(f"{path}: {error}", hint=f"python build.py patches new {name}") from None
    changed = {part.path for part in parts}
    if changed != set(manifest.files):
        odd = ", ".join(sorted(changed ^ set(manifest.files)))
        raise IntegrityError(
            f"{folder}: {CHANGE} and {MANIFEST} name different files: {odd}",
            hint=f"python build.py patches new {name}",
        )
    return Patch(manifest, at, folder, text, parts)


def read_ledger(
    images: Path, names: tuple[str, ...], stack: str, arch: str, at: Positions, loc: tuple[str | int, ...]
) -> list[Patch]:
    """Return the patches for one arch that a stack lists, in its order.

    `loc` is where the list stands in `at`.

    Raises Diagnostics for an id that the ledger lacks or that is not made for this stack, and
    IntegrityError where one patch does not start from what the one before it left.
    """
    known = patch_ids(images)
    problems = []
    found: list[Patch] = []
    state: dict[str, tuple[str, str]] = {}
    for index, name in enumerate(names):
        if name not in known:
            near = closest(name, known)
            problems.append(at.diagnostic((*loc, index), f"no patch {name}", suggestion=near))
            continue
        patch = read_patch(images, name)
        if stack not in patch.manifest.stacks:
            message = f"{name} is made for {', '.join(patch.manifest.stacks)}"
            problems.append(at.diagnostic((*loc, index), message))
        if patch.manifest.archs and arch not in patch.manifest.archs:
            continue
        for path, states in patch.manifest.files.items():
            if path in state and state[path][1] != states.before:
                raise IntegrityError(
                    f"patch {name}: {path}: made for sha256 {states.before}, but patch {state[path][0]} "
                    f"leaves {state[path][1]}",
                    hint="put them into the order in which they were made, or make this one anew",
                )
            state[path] = (name, states.after)
        found.append(patch)
    if problems:
        raise Diagnostics(problems)
    return found
