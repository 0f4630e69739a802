# SPDX-License-Identifier: Apache-2.0
"""Receipts attached to an image in a registry, with the referrers API and without; tags that move."""

import hashlib
import json

import pytest

from imagebuild.attest import make_papers, sign_papers, verified_receipt, write_papers
from imagebuild.catalog import project_root
from imagebuild.checks.names import ALL
from imagebuild.cli import run
from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.hostconf import host_network
from imagebuild.papers import attach_folder, sign_folder
from imagebuild.receipt import make_receipt
from imagebuild.referrers import attach, find_envelopes, get_manifest, open_remote, require_manifest
from imagebuild.resolve import resolve
from imagebuild.settings import load_settings
from imagebuild.signing import new_key, read_private_key
from tests.network.registry_server import Registry, serve

pytestmark = pytest.mark.loopback
MANIFEST = b'{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[]}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


@pytest.fixture(params=[True, False], ids=["referrers API", "fallback tag"])
def registry(request, monkeypatch, tmp_path):
    made = Registry(referrers=request.param)
    server = serve(made)
    made.address = f"127.0.0.1:{server.server_address[1]}"
    made.manifests["one"] = made.manifests[DIGEST] = MANIFEST
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture
def name(registry):
    return f"{registry.address}/team/k26"


@pytest.fixture
def remote(name):
    return open_remote(f"{name}@{DIGEST}", host_network(load_settings()))


@pytest.fixture
def key(tmp_path):
    new_key(tmp_path / "sign.key", "")
    return read_private_key(tmp_path / "sign.key", "")


def papers(failed=0, digest=DIGEST):
    plan = resolve(project_root() / "images", "sm_103")
    checks = {check.name: {"passed": 1, "failed": 0, "skipped": []} for check in ALL}
    checks["files"]["failed"] = failed
    results = {"digest": digest, "backend": "chroot", "not_applicable": [], "checks": checks}
    return make_papers(plan, make_receipt(plan, results, None, "c" * 64), "oci", {})


def test_attached_envelopes_are_found_again(registry, remote, key):
    lines = sign_papers(papers(), key)
    stored = require_manifest(remote.registry, DIGEST)
    made = attach(remote.registry, stored, lines)
    assert find_envelopes(remote.registry, DIGEST) == [lines]
    assert verified_receipt(lines, key.public, DIGEST) == papers().receipt
    assert attach(remote.registry, stored, lines) == made
    assert find_envelopes(remote.registry, DIGEST) == [lines]
    artifact = json.loads(registry.manifests[made])
    assert artifact["subject"]["digest"] == DIGEST
    assert registry.manifests[f"sha256-{DIGEST[7:]}.att"] == registry.manifests[made]
    assert (f"sha256-{DIGEST[7:]}" in registry.manifests) is not registry.referrers


def test_nothing_is_attached_to_another_image(registry, name, tmp_path, key):
    write_papers(papers(digest="sha256:" + "0" * 64), tmp_path / "papers")
    sign_folder(tmp_path / "papers", tmp_path / "sign.key")
    with pytest.raises(IntegrityError, match="the receipt is of"):
        attach_folder(tmp_path / "papers", open_remote(f"{name}:one", host_network(load_settings())))


def test_a_registry_that_gives_back_other_bytes_is_refused(registry, remote, key):
    attach(remote.registry, require_manifest(remote.registry, DIGEST), sign_papers(papers(), key))
    envelope = next(digest for digest, blob in registry.blobs.items() if blob.startswith(b'{"payload'))
    registry.blobs[envelope] += b" "
    with pytest.raises(IntegrityError, match="another blob"):
        find_envelopes(remote.registry, DIGEST)
    registry.manifests[DIGEST] = b"{}"
    with pytest.raises(IntegrityError, match="gives back"):
        get_manifest(remote.registry, DIGEST)


def attached(name, tmp_path, made):
    write_papers(made, tmp_path / "papers")
    sign_folder(tmp_path / "papers", tmp_path / "sign.key")
    attach_folder(tmp_path / "papers", open_remote(f"{name}:one", host_network(load_settings())))


def test_promote_moves_a_tag_to_a_checked_image(registry, name, tmp_path, key, capsys):
    attached(name, tmp_path, papers())
    argv = ["promote", f"{name}:one", "stable", "--key", str(tmp_path / "sign.pub")]
    assert run([*argv, "--dry-run"]) == 0
    assert "stable" not in registry.manifests
    assert run(argv) == 0
    assert registry.manifests["stable"] == MANIFEST
    assert capsys.readouterr().out.split() == [DIGEST, DIGEST]
    assert run(["receipt", "verify", f"{name}:stable", "--key", str(tmp_path / "sign.pub")]) == 0


@pytest.mark.parametrize("fault", ["unsigned", "failed", "other key", "no image", "tag"])
def test_promote_refuses(registry, name, tmp_path, key, capsys, fault):
    if fault != "unsigned":
        attached(name, tmp_path, papers(failed=int(fault == "failed")))
    public, reference, tag = tmp_path / "sign.pub", f"{name}:one", "stable"
    if fault == "other key":
        new_key(tmp_path / "other.key", "")
        public = tmp_path / "other.pub"
    reference = f"{name}:none" if fault == "no image" else reference
    tag = "no tag" if fault == "tag" else tag
    status = run(["promote", reference, tag, "--key", str(public)])
    wanted = {"unsigned": 3, "failed": 1, "other key": 4, "no image": 3, "tag": 2}
    text = {
        "unsigned": "no receipt is attached", "failed": "files: 1 failed", "other key": "not of this key",
        "no image": "has no none", "tag": "a tag is",
    }  # fmt: skip
    assert (status, text[fault] in capsys.readouterr().err) == (wanted[fault], True)
    assert "stable" not in registry.manifests


def test_a_newer_receipt_of_a_stranger_hides_nothing(registry, name, tmp_path, key):
    attached(name, tmp_path, papers())
    new_key(tmp_path / "other.key", "")
    stranger = read_private_key(tmp_path / "other.key", "")
    remote = open_remote(f"{name}:one", host_network(load_settings()))
    attach(remote.registry, require_manifest(remote.registry, DIGEST), sign_papers(papers(1), stranger))
    assert run(["promote", f"{name}:one", "stable", "--key", str(tmp_path / "sign.pub")]) == 0


def test_papers_must_be_signed_before_they_are_attached(name, registry, tmp_path):
    write_papers(papers(), tmp_path / "papers")
    with pytest.raises(PreconditionError, match="not signed"):
        attach_folder(tmp_path / "papers", open_remote(f"{name}:one", host_network(load_settings())))
