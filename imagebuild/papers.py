# SPDX-License-Identifier: Apache-2.0
"""The papers of an image on this host: made after its checks, kept in the cache, signed, passed on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from imagebuild.attest import SIGNED_FILE, make_papers, read_papers, sign_papers, write_papers
from imagebuild.catalog import project_root
from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.files import write_text
from imagebuild.layer.spec import Artifact
from imagebuild.oci_layout import OciImage
from imagebuild.plan import Plan
from imagebuild.receipt import checker_digest, make_receipt
from imagebuild.referrers import Remote, attach, require_manifest
from imagebuild.sbom import wheel_licences
from imagebuild.signing import PASSWORD, PrivateKey, read_private_key


def receipts_folder(cache: Path, digest: str) -> Path:
    """Return where the papers of an image are kept."""
    return cache / "receipts" / digest.replace(":", "-")


def keep_papers(
    plan: Plan,
    results: Mapping[str, Any],
    image: OciImage | None,
    size: int,
    cache: Path,
    locate: Callable[[Artifact], Path],
) -> Path:
    """Write receipt, SBOM and provenance of an image whose checks passed; return their folder.

    `image` is that of the embedded engine, None for one of a container engine with `size` bytes.
    """
    receipt = make_receipt(plan, results, image, checker_digest(project_root()), size)
    engine = "docker" if image is None else "oci"
    folder = receipts_folder(cache, receipt.digest)
    write_papers(make_papers(plan, receipt, engine, wheel_licences(plan, locate)), folder)
    return folder


def read_key(path: Path) -> PrivateKey:
    """Read the key to sign with; its password is in the environment. Raises PreconditionError."""
    return read_private_key(path, os.environ.get(PASSWORD, ""))


def sign_folder(folder: Path, key_file: Path) -> Path:
    """Sign the papers in a folder; return the file with the envelopes.

    Raises PreconditionError for a key that cannot be used, IntegrityError for damaged papers.
    """
    lines = sign_papers(read_papers(folder), read_key(key_file))
    write_text(folder / SIGNED_FILE, "".join(f"{line}\n" for line in lines))
    return folder / SIGNED_FILE


def signed_lines(folder: Path) -> list[str]:
    """Return the signed envelopes of a folder. Raises PreconditionError if it has none."""
    try:
        return (folder / SIGNED_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise PreconditionError(
            f"{folder}: its receipt is not signed", hint="build.py receipt sign DIGEST --key FILE"
        ) from None


def copy_beside(folder: Path, output: Path) -> Path:
    """Copy papers beside a layout or archive, into a folder of its name with .receipt; return it."""
    target = output.with_name(f"{output.name}.receipt")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target


def attach_folder(folder: Path, remote: Remote) -> str:
    """Attach the signed papers in a folder to an image in a registry; return the artifact's digest.

    Raises IntegrityError if the registry's image is another one.
    """
    lines, found = signed_lines(folder), read_papers(folder).receipt
    stored = require_manifest(remote.registry, remote.reference)
    if stored.digest != found.digest:
        raise IntegrityError(f"the receipt is of {found.digest}, {remote.reference} is {stored.digest}")
    return attach(remote.registry, stored, lines)
