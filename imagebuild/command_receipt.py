# SPDX-License-Identifier: Apache-2.0
"""Commands about receipts: receipt show|new-key|sign|attach|verify, and promote."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click

from imagebuild.attest import read_papers, verified_receipt
from imagebuild.errors import CheckFailed, IntegrityError, ManifestError, PreconditionError
from imagebuild.hostconf import host_network
from imagebuild.options import images_dir, network_options, output_options, print_result
from imagebuild.papers import attach_folder, receipts_folder, sign_folder, signed_lines
from imagebuild.progress import size_text
from imagebuild.receipt import Receipt, problems, read_release_policy, receipt_text
from imagebuild.referrers import Remote, find_envelopes, move_tag, open_remote, require_manifest
from imagebuild.settings import Settings
from imagebuild.signing import PASSWORD, new_key, read_public_key

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[\w][\w.-]{0,127}")
_key_option = click.option(
    "--key", "key_file", required=True, type=click.Path(path_type=Path), help="The signer's public key (PEM)."
)


def _folder(text: str, settings: Settings) -> Path | None:
    """Return the folder of papers that a digest or a path means; None for a name in a registry."""
    if _DIGEST.fullmatch(text):
        return receipts_folder(settings.cache_dir, text)
    return Path(text) if Path(text).is_dir() else None


def _papers_folder(text: str, settings: Settings) -> Path:
    folder = _folder(text, settings)
    if folder is None or not folder.is_dir():
        raise PreconditionError(
            f"{text}: no receipt here; say an image's digest or the folder beside its layout",
            hint="build.py --arch A makes one when its checks have passed",
        )
    return folder


@click.group()
def receipt() -> None:
    """What an image was made from and which checks it passed: show, sign, attach, verify."""


@receipt.command("new-key")
@click.argument("file", type=click.Path(path_type=Path))
@output_options
def make_key(file: Path, as_json: bool, verbose: int, quiet: bool) -> None:
    """Make a key pair to sign with: FILE, and FILE with the ending .pub.

    IMAGEBUILD_KEY_PASSWORD protects the private key if it is set.
    """
    made = new_key(file, os.environ.get(PASSWORD, ""))
    public = file.with_suffix(".pub")
    print_result(as_json, {"private": str(file), "public": str(public), "keyid": made.keyid}, str(public))


@receipt.command()
@click.argument("image")
@network_options
@output_options
def show(image: str, settings: Settings, as_json: bool, verbose: int, quiet: bool) -> None:
    """Print the receipt of IMAGE: a digest, or the folder beside a layout."""
    found = read_papers(_papers_folder(image, settings)).receipt
    print_result(as_json, json.loads(receipt_text(found)), _table(found))


@receipt.command()
@click.argument("image")
@click.option("--key", "key_file", required=True, type=click.Path(path_type=Path), help="Private key (PEM).")
@network_options
@output_options
def sign(image: str, key_file: Path, settings: Settings, as_json: bool, verbose: int, quiet: bool) -> None:
    """Sign receipt, SBOM and provenance of IMAGE: a digest, or the folder beside a layout."""
    folder = _papers_folder(image, settings)
    path = sign_folder(folder, key_file)
    print_result(as_json, {"signed": str(path)}, str(path))


@receipt.command()
@click.argument("image")
@click.argument("reference")
@network_options
@output_options
def attach(image: str, reference: str, settings: Settings, as_json: bool, verbose: int, quiet: bool) -> None:
    """Attach the signed receipt of IMAGE to that image in a registry: HOST/REPOSITORY[:TAG|@DIGEST]."""
    folder = _papers_folder(image, settings)
    digest = attach_folder(folder, open_remote(reference, host_network(settings)))
    print_result(as_json, {"attached": digest}, digest)


@receipt.command()
@click.argument("image")
@_key_option
@network_options
@output_options
def verify(image: str, key_file: Path, settings: Settings, as_json: bool, verbose: int, quiet: bool) -> None:
    """Verify the signed receipt of IMAGE: a digest, a folder, or HOST/REPOSITORY[:TAG|@DIGEST].

    Needs no network but the registry. Exit code 4 for a wrong signature, 1 if images/release.yaml
    would not release the image.
    """
    key = read_public_key(key_file)
    folder = _folder(image, settings)
    if folder is not None:
        papers = read_papers(_papers_folder(image, settings))
        found = verified_receipt(signed_lines(folder), key, papers.receipt.digest)
    else:
        remote = open_remote(image, host_network(settings))
        found = _newest(remote, require_manifest(remote.registry, remote.reference).digest, key_file)
    _require_release(found)
    print_result(as_json, json.loads(receipt_text(found)), f"{found.digest}: signed by {key.keyid[:16]}")


def _newest(remote: Remote, digest: str, key_file: Path) -> Receipt:
    """Return the newest receipt in a registry that the key has signed.

    Raises PreconditionError if none is attached, IntegrityError if none is the key's.
    """
    key = read_public_key(key_file)
    attached = find_envelopes(remote.registry, digest)
    trouble: IntegrityError | None = None
    for lines in reversed(attached):
        try:
            return verified_receipt(lines, key, digest)
        except IntegrityError as error:
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    raise PreconditionError(
        f"no receipt is attached to {digest}", hint="build.py receipt attach DIGEST HOST/REPOSITORY@DIGEST"
    )


def _require_release(found: Receipt) -> None:
    bad = problems(found, read_release_policy(images_dir()))
    if bad:
        lines = "\n".join(f"  {line}" for line in bad)
        raise CheckFailed(f"{found.digest} may not be released:\n{lines}", hint="images/release.yaml decides")


@click.command()
@click.argument("reference")
@click.argument("tag")
@_key_option
@click.option("--dry-run", is_flag=True, help="Verify; move nothing.")
@network_options
@output_options
def promote(
    reference: str,
    tag: str,
    key_file: Path,
    dry_run: bool,
    settings: Settings,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Move the friendly TAG to the image REFERENCE (HOST/REPOSITORY[:TAG|@DIGEST]) of the same repository.

    Only if a receipt is attached whose signature is the key's, and every check passed that
    images/release.yaml does not let go.
    """
    if not _TAG.fullmatch(tag):
        raise ManifestError(f"{tag}: a tag is letters, digits, . _ and -, 128 at the most")
    remote = open_remote(reference, host_network(settings))
    stored = require_manifest(remote.registry, remote.reference)
    found = _newest(remote, stored.digest, key_file)
    _require_release(found)
    before = None if dry_run else move_tag(remote.registry, tag, stored)
    value: dict[str, Any] = {"digest": stored.digest, "tag": tag, "before": before, "moved": not dry_run}
    print_result(as_json, value, stored.digest)


def _table(found: Receipt) -> str:
    lines = [f"{found.reference}", f"{found.digest}, checked by {found.backend}, {size_text(found.size)}"]
    for name, result in found.checks.items():
        skipped = f", skipped: {result.skipped[0]}" if result.skipped else ""
        failed = f", {result.failed} FAILED" if result.failed else ""
        lines.append(f"  {name:18}{result.passed:4} passed{failed}{skipped}")
    return "\n".join([*lines, *(f"  {name:18}not applicable" for name in found.not_applicable)])
