# SPDX-License-Identifier: Apache-2.0
"""Receipt, SBOM and provenance as in-toto statements in signed DSSE envelopes, and their folder.

in-toto Attestation Framework 1.0 (statement, bundle of one envelope a line), SLSA provenance 1.0,
DSSE 1.0. `cosign verify-attestation --key` reads the same envelopes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild.digest import canonical_json
from imagebuild.errors import IntegrityError
from imagebuild.files import write_text
from imagebuild.plan import Plan
from imagebuild.receipt import Receipt, read_receipt, receipt_text
from imagebuild.sbom import make_sbom, package_url
from imagebuild.signing import PrivateKey, PublicKey

STATEMENT = "https://in-toto.io/Statement/v1"
PAYLOAD = "application/vnd.in-toto+json"
RECEIPT = "urn:imagebuild:receipt:1"
SBOM = "https://cyclonedx.org/bom"
PROVENANCE = "https://slsa.dev/provenance/v1"
RECEIPT_FILE, SBOM_FILE, PROVENANCE_FILE = "receipt.json", "sbom.cdx.json", "provenance.json"
SIGNED_FILE = "attestations.intoto.jsonl"


@dataclass(frozen=True)
class Papers:
    """What goes with an image: its receipt and the predicates of the other statements."""

    receipt: Receipt
    sbom: dict[str, Any]
    provenance: dict[str, Any]


def make_papers(plan: Plan, receipt: Receipt, engine: str, licences: Mapping[str, str]) -> Papers:
    """Return the papers of a checked image that `engine` (docker, oci) has built."""
    return Papers(receipt, make_sbom(plan, licences), _provenance(plan, engine))


def _provenance(plan: Plan, engine: str) -> dict[str, Any]:
    """SLSA provenance: the Plan decides the bytes, so it is what was asked for; no time, no host."""
    inputs = [{"name": a.file, "uri": package_url(a), "digest": {"sha256": a.sha256}} for a in plan.artifacts]
    own = [{"name": f"images/{i.source}", "digest": {"sha256": i.sha256}} for i in plan.files]
    return {
        "buildDefinition": {
            "buildType": f"urn:imagebuild:plan:{plan.schema_version}",
            "externalParameters": {"arch": plan.arch, "stack": plan.stack, "plan": plan.digest},
            "internalParameters": {"toolCode": plan.tool_code, "baseCode": plan.base_code},
            "resolvedDependencies": inputs + own,
        },
        "runDetails": {"builder": {"id": f"urn:imagebuild:engine:{engine}"}},
    }


def write_papers(papers: Papers, folder: Path) -> None:
    """Write the three files; signed envelopes of other papers are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SIGNED_FILE).unlink(missing_ok=True)
    write_text(folder / RECEIPT_FILE, receipt_text(papers.receipt))
    for name, value in ((SBOM_FILE, papers.sbom), (PROVENANCE_FILE, papers.provenance)):
        write_text(folder / name, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_papers(folder: Path) -> Papers:
    """Read them back. Raises IntegrityError if one is missing or damaged."""
    try:
        receipt = read_receipt((folder / RECEIPT_FILE).read_bytes(), str(folder / RECEIPT_FILE))
        sbom, provenance = (json.loads((folder / n).read_bytes()) for n in (SBOM_FILE, PROVENANCE_FILE))
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{folder}: no complete receipt: {error}", hint="build and check anew") from None
    return Papers(receipt, sbom, provenance)


def sign_papers(papers: Papers, key: PrivateKey) -> list[str]:
    """Return the signed envelopes, each as one line of JSON."""
    receipt = json.loads(receipt_text(papers.receipt))
    parts = ((RECEIPT, receipt), (SBOM, papers.sbom), (PROVENANCE, papers.provenance))
    return [_envelope(papers.receipt, kind, value, key) for kind, value in parts]


def _envelope(receipt: Receipt, kind: str, predicate: dict[str, Any], key: PrivateKey) -> str:
    subject = [{"name": receipt.reference, "digest": {"sha256": receipt.digest.removeprefix("sha256:")}}]
    statement = {"_type": STATEMENT, "subject": subject, "predicateType": kind, "predicate": predicate}
    payload = canonical_json(statement)
    signature = key.sign(authenticated(payload))
    value = {
        "payloadType": PAYLOAD,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": key.public.keyid, "sig": base64.b64encode(signature).decode()}],
    }
    return canonical_json(value).decode()


def authenticated(payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding of a payload: what is signed."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)


def open_envelope(line: str, key: PublicKey, digest: str) -> tuple[str, Any]:
    """Return (predicate type, predicate) of an envelope that `key` signed about the image `digest`.

    Raises IntegrityError for a wrong signature, another subject, or what is no such envelope.
    """
    try:
        value = json.loads(line)
        payload = base64.b64decode(value["payload"], validate=True)
        signatures = [base64.b64decode(item["sig"], validate=True) for item in value["signatures"]]
        kind = value["payloadType"]
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"not a signed envelope: {error}") from None
    if kind != PAYLOAD or not any(key.verifies(one, authenticated(payload)) for one in signatures):
        raise IntegrityError("the signature is not of this key", hint="--key names the signer's public key")
    try:
        statement = json.loads(payload)
        subjects = {item["digest"]["sha256"] for item in statement["subject"]}
        found: tuple[str, Any] = (statement["predicateType"], statement["predicate"])
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"not an in-toto statement: {error}") from None
    if digest.removeprefix("sha256:") not in subjects or statement.get("_type") != STATEMENT:
        raise IntegrityError(f"the statement is about another image than {digest}")
    return found


def verified_receipt(lines: list[str], key: PublicKey, digest: str) -> Receipt:
    """Return the receipt among signed envelopes; every envelope must be the key's and about the image.

    Raises IntegrityError as `open_envelope` does, and if there is not exactly one receipt.
    """
    opened = [open_envelope(line, key, digest) for line in lines]
    receipts = [predicate for kind, predicate in opened if kind == RECEIPT]
    if len(receipts) != 1:
        raise IntegrityError(f"{len(receipts)} signed receipts of {digest}; one is needed")
    receipt = read_receipt(json.dumps(receipts[0]), f"receipt of {digest}")
    if receipt.digest != digest:
        raise IntegrityError(f"the receipt is of {receipt.digest}, not of {digest}")
    return receipt
