# SPDX-License-Identifier: Apache-2.0
"""What goes into a bundle: image, checkout, packages, papers, measurements, host profile, README."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from imagebuild.bundle.format import Member, member_of
from imagebuild.carry import SUMS
from imagebuild.engine_docker import qualified_name
from imagebuild.errors import ManifestError
from imagebuild.layer.spec import Artifact
from imagebuild.oci_blob import blob_path
from imagebuild.oci_layout import OciImage, archive_files
from imagebuild.plan import Plan

# The checkout's own: with these a bundle rebuilds its image, checks it, serves and measures it.
PROJECT = (
    "AGENTS.md", "CHANGELOG.md", "Dockerfile.template", "LICENSE", "README.md", "benchmarks", "build.py",
    "compose",    "compose.yaml", "deploy", "docs", "imagebuild", "images", "plugins", "pyproject.toml",
    "requirements-dev.lock", "requirements-report.lock", "requirements.lock", "scripts", "tests",
)  # fmt: skip
_LEFT_OUT = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
README = """\
# {reference}

One image for {arch} with everything that made it. `bundle.json` lists each file with its sha256.

| folder | holds |
|---|---|
| image/ | the image, an OCI layout that `docker load` takes as well; manifest {digest} |
| project/ | the checkout: locks, patches, recipes, compose files, code, documents |
| packages/ | every wheel and Debian package of the image{packages} |
| tool/ | wheels of the tool's own Python environment{tool} |
| papers/ | receipts, SBOM, provenance |
| results/ | benchmark results |
| host/ | profile of the host that was measured |

On a host without network, with Python {python} and this file as BUNDLE:

    tar -xf BUNDLE project tool                                 # or any checkout of the same tool
    export IMAGEBUILD_WHEELS=$PWD/tool                          # only where tool/ is there
    python3 project/build.py bundle verify BUNDLE
    python3 project/build.py bundle open BUNDLE DIR --load --models /data/models
    cd DIR/project && docker compose up SERVICE

The image again from its sources; the digest must be {digest}:

    cd DIR/project && python3 build.py --arch {arch} --engine oci --stop-after build --from ../packages
"""


@dataclass(frozen=True)
class Extras:
    """What is not made from the Plan. `packages`: with every wheel and .deb; `tool` a folder of wheels."""

    packages: bool = False
    tool: Path | None = None
    papers: tuple[Path, ...] = ()
    results: tuple[Path, ...] = ()
    host: Path | None = None


def contents(
    plan: Plan, image: OciImage, project: Path, locate: Callable[[Artifact], Path], extras: Extras
) -> list[Member]:
    """Return every member. Raises ManifestError for an extra that is not there."""
    members = [*_image(image), *_project(project)]
    if extras.packages:
        members += _packages(plan, locate)
    if extras.tool is not None:
        members += [member_of(f"tool/{path.name}", path) for path in sorted(extras.tool.glob("*.whl"))]
    for kind, paths in (("papers", extras.papers), ("results", extras.results)):
        for path in paths:
            members += tree(path, f"{kind}/{path.resolve().name}")
    if extras.host is not None:
        members.append(member_of("host/host.json", extras.host))
    members.append(member_of("README.md", _readme(plan, image, extras).encode()))
    return members


def _readme(plan: Plan, image: OciImage, extras: Extras) -> str:
    return README.format(
        reference=plan.reference,
        arch=plan.arch,
        digest=image.digest,
        packages="" if extras.packages else " (not in this bundle)",
        tool="" if extras.tool else " (not in this bundle)",
        python=">= 3.10",
    )


def _image(image: OciImage) -> Iterator[Member]:
    for name, content in archive_files(image, qualified_name(image.reference)).items():
        yield member_of(f"image/{name}", content)
    for layer in image.layers:
        digest = layer.digest.removeprefix("sha256:")
        source = blob_path(image.blobs, layer.digest)
        yield Member(f"image/blobs/sha256/{digest}", layer.size, digest, source)


def _packages(plan: Plan, locate: Callable[[Artifact], Path]) -> Iterator[Member]:
    artifacts = {artifact.file: artifact for artifact in plan.artifacts}
    for name, artifact in sorted(artifacts.items()):
        path = locate(artifact)
        yield Member(f"packages/{name}", path.stat().st_size, artifact.sha256, path)
    sums = "".join(f"{artifact.sha256}  {name}\n" for name, artifact in sorted(artifacts.items()))
    yield member_of(f"packages/{SUMS}", sums.encode())


def _project(root: Path) -> Iterator[Member]:
    for name in PROJECT:
        path = root / name
        if path.exists():
            yield from tree(path, f"project/{name}")


def tree(path: Path, name: str) -> list[Member]:
    """Return a file, or all files below a folder, as members below `name`.

    Raises ManifestError if it is not there or holds a symbolic link.
    """
    if path.is_file() and not path.is_symlink():
        return [member_of(name, path, executable=os.access(path, os.X_OK))]
    if not path.is_dir():
        raise ManifestError(f"{path}: no such file or folder")
    found: list[Member] = []
    for child in sorted(path.iterdir()):
        if child.name in _LEFT_OUT:
            continue
        if child.is_symlink():
            raise ManifestError(
                f"{child}: a symbolic link, which a bundle does not carry", hint="copy the file"
            )
        found += tree(child, f"{name}/{child.name}")
    return found
