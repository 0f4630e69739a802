# SPDX-License-Identifier: Apache-2.0
"""`Receipt`: what one image digest was made from, which checks it passed, and whether it may be released.

A receipt has no time in it: the same image with the same results has the same receipt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from imagebuild import __version__
from imagebuild.checks.names import ALL, BY_NAME
from imagebuild.digest import digest
from imagebuild.errors import IntegrityError
from imagebuild.manifest import Model
from imagebuild.manifest_fields import Line, Reason, Sha256
from imagebuild.oci_layout import OciImage
from imagebuild.plan import LABEL_PREFIX, Plan
from imagebuild.yamlfile import load

GPU_SKIP = "needs GPU"
Digest = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]


class CheckResult(Model):
    """What one check came to: how many of its tests passed and failed, and why each other was skipped."""

    passed: Annotated[int, Field(ge=0)]
    failed: Annotated[int, Field(ge=0)]
    skipped: tuple[Line, ...] = ()


class LayerSize(Model):
    """A layer by its Plan's name; sizes in bytes. `digest` is that of the compressed form."""

    name: Line
    digest: Digest
    size: Annotated[int, Field(ge=0)]


class Receipt(Model):
    """The receipt of one image.

    `digest` is the manifest's, or the image id in a container engine; `backend` says where it was
    checked (chroot, docker, podman). `locks` are digests of what each source resolved to, `checker`
    that of the code which checked. `audit` counts libraries with GPU code by their worst level.
    """

    schema_version: Literal[1] = Field(alias="schema")
    tool: Line
    digest: Digest
    reference: Line
    arch: Line
    backend: Line
    plan: Sha256
    locks: dict[Line, Sha256]
    checker: Sha256
    checks: dict[Line, CheckResult]
    not_applicable: tuple[Line, ...] = ()
    audit: dict[Line, int] = Field(default_factory=dict)
    layers: tuple[LayerSize, ...] = ()
    size: Annotated[int, Field(ge=0)] = 0


class AllowedSkip(Model):
    """A check that a release may go without, and why."""

    check: Line
    reason: Reason


class ReleasePolicy(Model):
    """images/release.yaml: what a receipt must show before a friendly tag may move to its image."""

    schema_version: Literal[1] = Field(alias="schema")
    may_skip: tuple[AllowedSkip, ...] = ()


_RECEIPT = TypeAdapter(Receipt)


def make_receipt(
    plan: Plan, results: Mapping[str, Any], image: OciImage | None, checker: str, size: int = 0
) -> Receipt:
    """Return the receipt of a checked image; `results` is what tests/image wrote.

    `size` (bytes) is that of an image without a manifest of ours.
    """
    layers: tuple[LayerSize, ...] = ()
    found = results["digest"]
    if image is not None:
        if found not in (image.digest, image.config_digest):
            raise IntegrityError(f"{found} was checked, {image.digest} was built")
        found, size = image.digest, image.size
        pairs = zip(plan.layers, image.layers, strict=True)
        layers = tuple(LayerSize(name=p.name, digest=b.digest, size=b.size) for p, b in pairs)
    return Receipt(
        schema=1,
        tool=f"imagebuild {__version__}",
        digest=found,
        reference=plan.reference,
        arch=plan.arch,
        backend=results["backend"],
        plan=plan.digest,
        locks={
            "debian": digest([asdict(artifact) for artifact in plan.layers[0].artifacts]),
            "python": plan.labels[f"{LABEL_PREFIX}.lock.python"],
            "tools": digest([asdict(artifact) for artifact in plan.tools]),
        },
        checker=checker,
        checks={name: _result(row) for name, row in sorted(results["checks"].items())},
        not_applicable=tuple(results["not_applicable"]),
        audit=results.get("audit", {}),
        layers=layers,
        size=size,
    )


def _result(row: Mapping[str, Any]) -> CheckResult:
    return CheckResult(passed=row["passed"], failed=row["failed"], skipped=tuple(row["skipped"]))


def checker_digest(root: Path) -> str:
    """Return the sha256 of the code that checks: tests/image and imagebuild/checks, by path and content."""
    total = hashlib.sha256()
    for top in ("imagebuild/checks", "tests/image"):
        for path in sorted((root / top).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                total.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
                total.update(content)
    return total.hexdigest()


def receipt_text(receipt: Receipt) -> str:
    """Return the one JSON text of a receipt."""
    return _RECEIPT.dump_json(receipt, by_alias=True, indent=1).decode() + "\n"


def read_receipt(text: str | bytes, origin: str) -> Receipt:
    """Read a receipt. Raises IntegrityError if it is none of this schema."""
    try:
        return _RECEIPT.validate_json(text)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise IntegrityError(f"{origin}: not a receipt of schema 1: {'; '.join(lines[:5])}") from None


def read_release_policy(images: Path) -> ReleasePolicy:
    """Read images/release.yaml. Raises Diagnostics for any error in it."""
    return load(images / "release.yaml", ReleasePolicy)


def problems(receipt: Receipt, policy: ReleasePolicy) -> list[str]:
    """Return why the image may not be released; empty if it may.

    Every check must be in the receipt and have passed. One that its Plan has nothing for must be
    of that kind; a skip must be allowed by the policy and be for want of a GPU.
    """
    allowed = {item.check for item in policy.may_skip}
    found = [f"the policy may skip {name}, which is no check" for name in sorted(allowed - BY_NAME.keys())]
    found += [f"{name}: no check of this version" for name in sorted(receipt.checks.keys() - BY_NAME.keys())]
    for check in ALL:
        result = receipt.checks.get(check.name)
        if check.name in receipt.not_applicable and check.needs and result is None:
            continue
        if result is None:
            found.append(f"{check.name}: was not run")
        elif result.failed:
            found.append(f"{check.name}: {result.failed} failed")
        elif result.skipped:
            bad = [reason for reason in result.skipped if not reason.startswith(GPU_SKIP)]
            if bad or check.name not in allowed:
                found.append(f"{check.name}: skipped: {(bad or list(result.skipped))[0]}")
        elif not result.passed:
            found.append(f"{check.name}: nothing was checked")
    return found
