# SPDX-License-Identifier: Apache-2.0
"""A signed receipt in Debian's own registry, which has no referrers API; a tag that moves by it."""

import hashlib
import json
import subprocess

import pytest

from imagebuild.attest import make_papers, write_papers
from imagebuild.checks.names import ALL
from imagebuild.receipt import make_receipt
from imagebuild.resolve import resolve
from tests.daemons import free_port, own_registry


@pytest.fixture
def registry(tmp_path):
    with own_registry(tmp_path / "registry", free_port()) as address:
        yield address


def digest_of(name):
    """Return the digest of what a tag names; an artifact is no image, so skopeo gives its raw manifest."""
    argv = ["skopeo", "inspect", "--tls-verify=false", "--raw", f"docker://{name}"]
    return (
        f"sha256:{hashlib.sha256(subprocess.run(argv, capture_output=True, check=True).stdout).hexdigest()}"
    )


def test_sign_attach_verify_and_promote(project, registry, tmp_path):
    name = f"{registry}/team/small"
    built = project.run(
        "--arch", "sm_103", "--engine", "oci", "--stop-after", "build", "--json", "--push", f"{name}:one"
    )
    assert built.returncode == 0, built.stderr[-3000:]
    digest = json.loads(built.stdout)["digest"]
    checks = {check.name: {"passed": 1, "failed": 0, "skipped": []} for check in ALL}
    results = {"digest": digest, "backend": "chroot", "not_applicable": [], "checks": checks}
    plan = resolve(project.root / "images", "sm_103")
    papers, key, public = tmp_path / "papers", tmp_path / "sign.key", str(tmp_path / "sign.pub")
    write_papers(make_papers(plan, make_receipt(plan, results, None, "c" * 64), "oci", {}), papers)

    def run(*words):
        done = project.run(*words)
        return done.returncode, done.stdout.strip(), done.stderr

    assert run("receipt", "new-key", str(key))[:2] == (0, public)
    assert run("promote", f"{name}:one", "stable", "--key", public)[0] == 3  # no receipt yet
    assert run("receipt", "sign", str(papers), "--key", str(key))[0] == 0
    assert run("receipt", "verify", str(papers), "--key", public)[0] == 0
    status, artifact, trouble = run("receipt", "attach", str(papers), f"{name}:one")
    assert status == 0, trouble
    assert digest_of(f"{name}:sha256-{digest[7:]}.att") == artifact
    assert run("receipt", "verify", f"{name}@{digest}", "--key", public)[0] == 0
    assert run("promote", f"{name}@{digest}", "stable", "--key", public)[:2] == (0, digest)
    assert digest_of(f"{name}:stable") == digest
    assert "nothing differs" in run("diff", f"{name}:one", f"{name}:stable")[1]
