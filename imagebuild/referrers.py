# SPDX-License-Identifier: Apache-2.0
"""Attach signed envelopes to an image in a registry, find them again, and move its tags.

OCI distribution specification 1.1: an artifact manifest names the image as its `subject` and is
listed by the referrers API. A registry without that API (Debian's) gets the specification's
fallback, an index under the tag sha256-<hex>. The tag sha256-<hex>.att, where cosign looks, leads to
the same manifest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild.digest import canonical_json
from imagebuild.errors import IntegrityError, ManifestError, PreconditionError
from imagebuild.hostconf import HostNetwork
from imagebuild.oci_layout import MANIFEST
from imagebuild.registry import connect, parse_target
from imagebuild.registry_upload import Upload, push_bytes
from imagebuild.unpack import layer_members

ARTIFACT = "application/vnd.imagebuild.receipt.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_ENVELOPE = "application/vnd.dsse.envelope.v1+json"
_EMPTY, _EMPTY_TYPE = b"{}", "application/vnd.oci.empty.v1+json"
_ACCEPT = f"{MANIFEST}, {_INDEX}, application/vnd.docker.distribution.manifest.v2+json"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LIMIT = 8 << 20  # bytes of a manifest or an envelope that we are ready to read


@dataclass(frozen=True)
class Stored:
    """A manifest in a registry: its exact bytes and media type."""

    content: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """What the registry calls it."""
        return _digest(self.content)

    @property
    def descriptor(self) -> dict[str, Any]:
        """How another manifest names it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.content)}


@dataclass(frozen=True)
class Remote:
    """A name in a registry: the connection to its repository, and a tag or digest there."""

    registry: Upload
    reference: str


def open_remote(text: str, host: HostNetwork) -> Remote:
    """Read HOST[:PORT]/REPOSITORY[:TAG] or HOST[:PORT]/REPOSITORY@sha256:…. Raises ManifestError for else."""
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ManifestError(f"{text}: after @ stands sha256: and 64 hex digits")
    target = parse_target(name, "latest")
    return Remote(connect(target, host), digest or target.tag)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def get_manifest(registry: Upload, reference: str) -> Stored | None:
    """Return a manifest by tag or digest; None if there is none.

    Raises IntegrityError if the registry gives back other bytes than a digest names.
    """
    url = f"{registry.target.url}/manifests/{reference}"
    response = registry.call("GET", url, (200, 404), headers={"Accept": _ACCEPT})
    if response.status_code == 404:
        return None
    media_type = response.headers.get("Content-Type", "").partition(";")[0]
    found = Stored(_limited(response.content, reference), media_type)
    if reference.startswith("sha256:") and found.digest != reference:
        raise IntegrityError(f"{registry.target.host} gives back {found.digest} for {reference}")
    return found


def put_manifest(registry: Upload, reference: str, content: bytes, media_type: str) -> Any:
    """Store a manifest under a tag or its digest; return the response's headers."""
    url = f"{registry.target.url}/manifests/{reference}"
    return registry.call("PUT", url, (201,), data=content, headers={"Content-Type": media_type}).headers


def _limited(content: bytes, what: str) -> bytes:
    if len(content) > _LIMIT:
        raise IntegrityError(f"{what}: {len(content)} bytes, more than a receipt has")
    return content


def attach(registry: Upload, subject: Stored, envelopes: list[str]) -> str:
    """Attach envelopes to an image that the registry has; return the artifact's digest.

    The same envelopes attached again are the same artifact.
    """
    layers = []
    for line in envelopes:
        content = line.encode()
        push_bytes(registry, content, _digest(content))
        note = {"dev.cosignproject.cosign/signature": "", "predicateType": _predicate_type(line)}
        layers.append(
            {"mediaType": _ENVELOPE, "digest": _digest(content), "size": len(content), "annotations": note}
        )
    push_bytes(registry, _EMPTY, _digest(_EMPTY))
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ARTIFACT,
            "config": {"mediaType": _EMPTY_TYPE, "digest": _digest(_EMPTY), "size": len(_EMPTY)},
            "layers": layers,
            "subject": subject.descriptor,
        }
    )
    made = Stored(manifest, MANIFEST)
    headers = put_manifest(registry, made.digest, manifest, MANIFEST)
    if headers.get("OCI-Subject") != subject.digest:
        _list_by_tag(registry, subject, made)
    put_manifest(registry, f"{_tag(subject.digest)}.att", manifest, MANIFEST)
    return made.digest


def _predicate_type(line: str) -> str:
    payload = json.loads(base64.b64decode(json.loads(line)["payload"]))
    return str(payload["predicateType"])


def _tag(digest: str) -> str:
    return digest.replace(":", "-")


def _list_by_tag(registry: Upload, subject: Stored, made: Stored) -> None:
    """Add an artifact to the index that stands in for the referrers API."""
    before = get_manifest(registry, _tag(subject.digest))
    listed = json.loads(before.content).get("manifests", []) if before is not None else []
    entry = {**made.descriptor, "artifactType": ARTIFACT}
    if entry not in listed:
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [*listed, entry]}
        put_manifest(registry, _tag(subject.digest), canonical_json(index), _INDEX)


def _referrers(registry: Upload, digest: str) -> list[dict[str, Any]]:
    """Return what names an image as its subject, newest last, by the API or by the fallback tag."""
    url = f"{registry.target.url}/referrers/{digest}"
    response = registry.call("GET", url, (200, 404), headers={"Accept": _INDEX})
    if response.status_code == 200:
        index = json.loads(_limited(response.content, "referrers"))
    else:
        stored = get_manifest(registry, _tag(digest))
        index = json.loads(stored.content) if stored is not None else {}
    found: list[dict[str, Any]] = index.get("manifests", [])
    return found


def find_envelopes(registry: Upload, digest: str) -> list[list[str]]:
    """Return the envelopes of each receipt that is attached to an image, the newest last.

    Raises IntegrityError for a damaged artifact or one about another image.
    """
    found = []
    for entry in _referrers(registry, digest):
        if entry.get("artifactType") != ARTIFACT:
            continue
        stored = get_manifest(registry, entry["digest"])
        if stored is None:
            raise IntegrityError(f"{registry.target.host} lists {entry['digest']} and does not have it")
        manifest = json.loads(stored.content)
        if manifest.get("subject", {}).get("digest") != digest:
            raise IntegrityError(f"{entry['digest']} is about another image than {digest}")
        found.append([_blob(registry, layer) for layer in manifest["layers"]])
    return found


def _blob(registry: Upload, layer: dict[str, Any]) -> str:
    if layer["size"] > _LIMIT:
        raise IntegrityError(f"{layer['digest']}: {layer['size']} bytes, more than a receipt has")
    response = registry.call("GET", f"{registry.target.url}/blobs/{layer['digest']}", (200,))
    if _digest(response.content) != layer["digest"]:
        raise IntegrityError(f"{registry.target.host} gives back another blob for {layer['digest']}")
    return response.content.decode()


def layer_file(registry: Upload, layer: dict[str, Any], path: str) -> bytes:
    """Return a file of a small layer in a registry.

    Raises ManifestError if the layer is large or lacks it.
    """
    if layer["size"] <= _LIMIT:
        response = registry.call("GET", f"{registry.target.url}/blobs/{layer['digest']}", (200,))
        with tempfile.NamedTemporaryFile() as file:
            file.write(response.content)
            file.flush()
            for entry in layer_members(Path(file.name), layer["mediaType"]):
                if entry.path == path:
                    return entry.read()
    raise ManifestError(f"the image's last layer has no {path}", hint="was it built by this tool?")


def move_tag(registry: Upload, tag: str, image: Stored) -> str | None:
    """Make a tag name an image; return the digest that it named before.

    Raises IntegrityError if it does not name the image afterwards.
    """
    before = get_manifest(registry, tag)
    put_manifest(registry, tag, image.content, image.media_type)
    after = get_manifest(registry, tag)
    if after is None or after.digest != image.digest:
        raise IntegrityError(
            f"{registry.target.host}: {tag} does not name {image.digest} after it was moved",
            hint="somebody else may have moved it at the same time; run again",
        )
    return before.digest if before is not None else None


def require_manifest(registry: Upload, reference: str) -> Stored:
    """Return a manifest. Raises PreconditionError if the registry has none of that name."""
    found = get_manifest(registry, reference)
    if found is None:
        where = f"{registry.target.host}/{registry.target.repository}"
        raise PreconditionError(f"{where} has no {reference}", hint="build.py --push puts an image there")
    return found
