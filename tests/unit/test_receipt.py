# SPDX-License-Identifier: Apache-2.0
"""A receipt says what was checked; its signature is one image's and one key's; its policy is kept."""

import base64
import json
import stat

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from imagebuild.attest import (
    PROVENANCE,
    RECEIPT,
    SBOM,
    make_papers,
    open_envelope,
    read_papers,
    sign_papers,
    verified_receipt,
    write_papers,
)
from imagebuild.catalog import project_root
from imagebuild.checks.names import ALL
from imagebuild.errors import IntegrityError, ManifestError, PreconditionError
from imagebuild.layer.entries import file_entry
from imagebuild.oci_blob import write_blob
from imagebuild.oci_layout import make_image
from imagebuild.receipt import (
    AllowedSkip,
    ReleasePolicy,
    checker_digest,
    make_receipt,
    problems,
    read_receipt,
    read_release_policy,
    receipt_text,
)
from imagebuild.resolve import resolve
from imagebuild.signing import new_key, read_private_key, read_public_key

ROOT = project_root()
DIGEST = "sha256:" + "1" * 64
GPU = "needs GPU sm_103, in a container engine"


@pytest.fixture(scope="module")
def plan():
    return resolve(ROOT / "images", "sm_103")


@pytest.fixture
def results():
    checks = {check.name: {"passed": 2, "failed": 0, "skipped": []} for check in ALL}
    checks["gpu"] = {"passed": 0, "failed": 0, "skipped": [GPU]}
    return {
        "digest": DIGEST, "backend": "chroot", "seconds": 100, "not_applicable": [], "checks": checks,
        "audit": {"native": 20, "compatible": 3},
    }  # fmt: skip


@pytest.fixture
def receipt(plan, results):
    return make_receipt(plan, results, None, "c" * 64, 5)


@pytest.fixture
def papers(plan, receipt):
    return make_papers(plan, receipt, "oci", {"sglang": "Apache-2.0", "nvidia-cublas": "LicenseRef-NVIDIA"})


@pytest.fixture
def key(tmp_path):
    new_key(tmp_path / "sign.key", "")
    return read_private_key(tmp_path / "sign.key", "")


def test_the_same_results_give_the_same_receipt(plan, results, receipt):
    again = make_receipt(plan, results | {"seconds": 7}, None, "c" * 64, 5)
    assert receipt_text(again) == receipt_text(receipt)
    assert read_receipt(receipt_text(receipt), "here") == receipt
    assert receipt.plan == plan.digest


def test_a_receipt_of_the_embedded_engine_has_its_layers(plan, results, tmp_path):
    layers = [
        (layer.name, write_blob([file_entry(layer.name, b"x")], tmp_path, 0, "zstd", 1, lambda n: None))
        for layer in plan.layers
    ]
    image = make_image(plan, layers, tmp_path)
    with pytest.raises(IntegrityError, match="was checked"):
        make_receipt(plan, results, image, "c" * 64)
    for digest in (image.digest, image.config_digest):
        found = make_receipt(plan, results | {"digest": digest}, image, "c" * 64)
        assert found.digest == image.digest
        assert [layer.name for layer in found.layers] == [layer.name for layer in plan.layers]
        assert found.size == image.size


def test_the_checkers_digest_is_that_of_its_code(tmp_path):
    for name in ("imagebuild/checks/a.py", "tests/image/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    before = checker_digest(tmp_path)
    (tmp_path / "tests/image/b.py").write_text("changed")
    assert checker_digest(tmp_path) != before


def test_a_whole_receipt_may_be_released_by_the_projects_policy(receipt):
    assert problems(receipt, read_release_policy(ROOT / "images")) == []


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("files", {"passed": 3, "failed": 1, "skipped": []}, "files: 1 failed"),
        ("files", None, "files: was not run"),
        ("files", {"passed": 0, "failed": 0, "skipped": []}, "files: nothing was checked"),
        ("files", {"passed": 3, "failed": 0, "skipped": [GPU]}, "files: skipped: needs GPU"),
        ("gpu", {"passed": 1, "failed": 0, "skipped": ["slow today"]}, "gpu: skipped: slow today"),
        ("other", {"passed": 1, "failed": 0, "skipped": []}, "other: no check of this version"),
    ],
)
def test_what_forbids_a_release(plan, results, name, row, expected):
    checks = {k: v for k, v in results["checks"].items() if k != name} | ({name: row} if row else {})
    found = make_receipt(plan, results | {"checks": checks}, None, "c" * 64)
    (problem,) = problems(found, read_release_policy(ROOT / "images"))
    assert problem.startswith(expected)


def test_a_policy_without_exceptions_wants_a_gpu(receipt):
    assert problems(receipt, ReleasePolicy(schema=1)) == [f"gpu: skipped: {GPU}"]
    odd = ReleasePolicy(schema=1, may_skip=(AllowedSkip(check="gpus", reason="a name that is wrong"),))
    assert "the policy may skip gpus, which is no check" in problems(receipt, odd)


def test_only_a_check_that_needs_a_package_can_be_not_applicable(plan, results):
    checks = {k: v for k, v in results["checks"].items() if k not in ("jit", "files")}
    given = results | {"checks": checks, "not_applicable": ["jit", "files"]}
    found = make_receipt(plan, given, None, "c" * 64)
    assert problems(found, read_release_policy(ROOT / "images")) == ["files: was not run"]


def test_the_sbom_is_valid_and_complete(plan, papers):
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(papers.sbom)) is None
    broken = papers.sbom | {"components": [{"type": "nothing"}]}
    assert validator.validate_str(json.dumps(broken)) is not None
    urls = {component["purl"] for component in papers.sbom["components"]}
    assert len(urls) == sum(len(layer.artifacts) for layer in plan.layers)
    assert "pkg:pypi/sglang@0.5.15.post1" in urls
    assert any(url.startswith("pkg:deb/debian/python3.11@") and "arch=amd64" in url for url in urls)
    (sglang,) = [c for c in papers.sbom["components"] if c["name"] == "sglang"]
    ids = [patch["resolves"][0]["id"] for patch in sglang["pedigree"]["patches"]]
    assert ids == [item["id"] for item in plan.ledger if item.get("package") == "sglang"]
    assert sglang["licenses"] == [{"expression": "Apache-2.0"}]


def test_the_provenance_names_every_input(plan, papers):
    given = papers.provenance["buildDefinition"]["resolvedDependencies"]
    assert {a.sha256 for a in plan.artifacts} <= {item["digest"]["sha256"] for item in given}
    assert papers.provenance["runDetails"]["builder"]["id"] == "urn:imagebuild:engine:oci"


def test_papers_are_read_back(papers, tmp_path):
    write_papers(papers, tmp_path)
    assert read_papers(tmp_path) == papers
    (tmp_path / "provenance.json").write_text("{")
    with pytest.raises(IntegrityError, match="no complete receipt"):
        read_papers(tmp_path)


def test_a_signed_receipt_is_verified(papers, key):
    lines = sign_papers(papers, key)
    assert verified_receipt(lines, key.public, DIGEST) == papers.receipt
    kinds = [open_envelope(line, key.public, DIGEST)[0] for line in lines]
    assert kinds == [RECEIPT, SBOM, PROVENANCE]


def changed(line, edit):
    value = json.loads(line)
    statement = json.loads(base64.b64decode(value["payload"]))
    edit(statement)
    value["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    return json.dumps(value)


def test_what_was_changed_after_signing_is_refused(papers, key, tmp_path):
    lines = sign_papers(papers, key)
    forged = changed(lines[0], lambda s: s["predicate"]["checks"]["files"].update(passed=9))
    with pytest.raises(IntegrityError, match="not of this key"):
        verified_receipt([forged, *lines[1:]], key.public, DIGEST)
    with pytest.raises(IntegrityError, match="not of this key"):
        verified_receipt([*lines[:2], changed(lines[2], lambda s: s.update(more=1))], key.public, DIGEST)
    new_key(tmp_path / "other.key", "")
    other = read_public_key(tmp_path / "other.pub")
    with pytest.raises(IntegrityError, match="not of this key"):
        verified_receipt(lines, other, DIGEST)
    with pytest.raises(IntegrityError, match="another image"):
        verified_receipt(lines, key.public, "sha256:" + "2" * 64)
    with pytest.raises(IntegrityError, match="0 signed receipts"):
        verified_receipt(lines[1:], key.public, DIGEST)
    with pytest.raises(IntegrityError, match="2 signed receipts"):
        verified_receipt([lines[0], *lines], key.public, DIGEST)
    for junk in ("", "{}", "[]", '{"payload": "?", "payloadType": "x", "signatures": []}'):
        with pytest.raises(IntegrityError):
            verified_receipt([junk], key.public, DIGEST)


def test_a_private_key_is_for_its_owner_and_its_password(tmp_path):
    path = tmp_path / "sign.key"
    made = new_key(path, "open sesame")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"ENCRYPTED" in path.read_bytes()
    assert read_private_key(path, "open sesame").public.keyid == made.keyid
    assert read_public_key(tmp_path / "sign.pub").pem == made.pem
    for password in ("", "wrong"):
        with pytest.raises(PreconditionError, match="opens with this password"):
            read_private_key(path, password)
    with pytest.raises(ManifestError, match="never replaced"):
        new_key(path, "")


def test_a_key_of_another_kind_is_refused(tmp_path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    other = ed25519.Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path = tmp_path / "odd.key"
    path.write_bytes(other.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    with pytest.raises(PreconditionError, match="P-256"):
        read_private_key(path, "")
    public = other.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.write_bytes(public)
    with pytest.raises(PreconditionError, match="P-256"):
        read_public_key(path)
    with pytest.raises(PreconditionError, match="No such file"):
        read_public_key(tmp_path / "none.pub")
