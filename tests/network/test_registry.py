# SPDX-License-Identifier: Apache-2.0
"""Pushing to a registry that drops, fails, forgets and lies: a clear error or a whole image."""

import base64
import hashlib
import json
import os

import pytest

from imagebuild.catalog import project_root
from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.hostconf import host_network
from imagebuild.layer.entries import file_entry
from imagebuild.oci_blob import write_blob
from imagebuild.oci_layout import make_image
from imagebuild.progress import Quiet
from imagebuild.registry import parse_target, push_image
from imagebuild.resolve import resolve
from imagebuild.settings import load_settings
from imagebuild.transfer import Retry
from tests.network.registry_server import Registry, serve

pytestmark = pytest.mark.loopback
LOGIN = base64.b64encode(b"user:hunter2").decode()
FAST = Retry(attempts=4, base_s=0.01)


@pytest.fixture
def registry():
    made = Registry()
    server = serve(made)
    made.address = f"127.0.0.1:{server.server_address[1]}"
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture
def image(tmp_path):
    plan = resolve(project_root().resolve() / "images", "sm_103")
    parts = [("base", b"a"), ("torch", b"b")]
    layers = []
    for name, letter in parts:
        # Poorly compressible, so that a layer has several chunks.
        noise = b"".join(hashlib.sha256(letter + bytes([i % 256, i // 256])).digest() for i in range(20_000))
        entries = [file_entry(name, noise)]
        layers.append((name, write_blob(entries, tmp_path, 0, "zstd", 1, lambda n: None)))
    return make_image(plan, layers, tmp_path)


@pytest.fixture
def push(registry, image, monkeypatch, tmp_path):
    monkeypatch.setattr("imagebuild.registry_upload.CHUNK_BYTES", 100_000)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))

    def run(**more):
        target = parse_target(f"{registry.address}/team/k26:one", "x")
        return push_image(image, target, host_network(load_settings()), Quiet(), retry=FAST, **more)

    return run


def is_whole(registry, image):
    digests = {layer.digest for layer in image.layers} | {image.config_digest}
    good = all(f"sha256:{hashlib.sha256(v).hexdigest()}" == k for k, v in registry.blobs.items())
    return good and digests <= registry.blobs.keys() and registry.manifests["one"] == image.manifest


def test_a_push_gives_the_digest_reference(registry, image, push):
    assert push() == f"{registry.address}/team/k26@{image.digest}"
    assert is_whole(registry, image)


def test_what_is_there_is_not_sent_again(registry, image, push):
    push()
    before = registry.received
    push()
    assert registry.received == before


def test_layers_of_another_repository_are_mounted(registry, image, push):
    registry.mountable = {layer.digest for layer in image.layers}
    push(mount_from="team/other")
    assert registry.received == 0
    assert registry.manifests["one"] == image.manifest


@pytest.mark.parametrize(
    "faults",
    [
        {"PATCH uploads": ["drop"]},
        {"PATCH uploads": ["", "half", "", "half"]},
        {"PATCH uploads": ["500", "503"]},
        {"PATCH uploads": ["", "", "lose"]},
        {"PUT uploads": ["500"]},
        {"PUT uploads": ["drop"]},
        {"PUT uploads": ["lose", "lose"]},
        {"PATCH uploads": ["", "lose", "", "lose"], "PUT uploads": ["lose"]},
        {"GET uploads": ["404"], "PATCH uploads": ["500"]},
        {"POST uploads": ["503", "drop"]},
        {"HEAD blobs": ["500", "drop"]},
        {"PUT manifests": ["502", "drop"]},
        {"GET manifests": ["429"]},
        {"GET uploads": ["500"], "PATCH uploads": ["500"]},
    ],
    ids=str,
)
def test_passing_trouble_ends_in_a_whole_image(registry, image, push, faults):
    registry.plan = {key: list(values) for key, values in faults.items()}
    push()
    assert is_whole(registry, image)


def test_an_upload_goes_on_where_it_broke(registry, image, push):
    registry.plan = {"PATCH uploads": ["", "", "half"]}
    push()
    assert registry.received == sum(layer.size for layer in image.layers)


@pytest.mark.parametrize(
    ("faults", "error", "message"),
    [
        ({"PUT uploads": ["lie"]}, IntegrityError, "stored sha256:0000"),
        ({"GET manifests": ["other"]}, IntegrityError, "another manifest"),
        ({"HEAD blobs": ["", "", "deny", "deny", "deny", "deny"]}, IntegrityError, "does not have it"),
        ({"PUT manifests": ["500"] * 9}, PreconditionError, "500"),
        ({"POST uploads": ["403"] * 9}, PreconditionError, "answered 403"),
        ({"PATCH uploads": ["lose"] * 99}, PreconditionError, "lost the upload"),
        ({"PUT uploads": ["lose"] * 99}, PreconditionError, "lost the upload"),
        ({"PATCH uploads": ["413"] * 999}, PreconditionError, "does not take bytes 0 to .*answered 413"),
        ({"PATCH uploads": ["half"] * 999}, PreconditionError, "does not take bytes"),
        ({"POST uploads": ["no location"]}, PreconditionError, "no Location header"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_lasting_trouble_is_a_clear_error(registry, push, faults, error, message):
    registry.plan = {key: list(values) for key, values in faults.items()}
    with pytest.raises(error, match=message):
        push()


@pytest.mark.parametrize("token", [False, True])
def test_docker_login_is_used(registry, image, push, tmp_path, token):
    registry.login, registry.token = LOGIN, token
    with pytest.raises(PreconditionError, match="answered 401") as caught:
        push()
    assert "docker login" in str(caught.value)
    (tmp_path / "docker").mkdir()
    config = {"auths": {registry.address: {"auth": LOGIN}}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps(config))
    push()
    assert is_whole(registry, image)


HELPER = """\
#!/bin/sh
# Speaks docker's credential helper protocol: the verb, the server on standard input, JSON back.
[ "$1" = get ] || exit 1
read -r server
echo "$server" >>"$HELPER_LOG"
[ "$server" = "$HELPER_SERVER" ] || { echo "credentials not found in native keychain"; exit 1; }
printf '{"ServerURL": "%s", "Username": "user", "Secret": "hunter2"}' "$server"
"""


@pytest.fixture
def helper(tmp_path, monkeypatch, registry):
    """A real program docker-credential-vault on the PATH; returns the log of what it was asked."""
    program = tmp_path / "bin" / "docker-credential-vault"
    program.parent.mkdir()
    program.write_text(HELPER)
    program.chmod(0o755)
    log = tmp_path / "asked"
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HELPER_LOG", str(log))
    monkeypatch.setenv("HELPER_SERVER", registry.address)
    (tmp_path / "docker").mkdir()
    return log


@pytest.mark.subprocess
@pytest.mark.parametrize("whole", [False, True], ids=["credHelpers", "credsStore"])
def test_a_credential_helper_is_asked(registry, image, push, tmp_path, helper, whole):
    registry.login, registry.token = LOGIN, True
    config = {"credsStore": "vault"} if whole else {"credHelpers": {registry.address: "vault"}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps(config))
    push()
    assert is_whole(registry, image)
    assert helper.read_text().split() == [registry.address]


@pytest.mark.subprocess
def test_a_helper_without_the_login_means_none(registry, image, push, tmp_path, helper, monkeypatch):
    monkeypatch.setenv("HELPER_SERVER", "elsewhere.example")
    (tmp_path / "docker" / "config.json").write_text(json.dumps({"credsStore": "vault"}))
    push()
    registry.login = LOGIN
    registry.blobs.clear()
    with pytest.raises(PreconditionError, match="answered 401"):
        push()


@pytest.mark.subprocess
@pytest.mark.parametrize("answer", ["exit 3", "echo no JSON", 'echo \'{"Username": "user"}\''])
def test_a_broken_helper_is_named(registry, push, tmp_path, helper, answer):
    (tmp_path / "bin" / "docker-credential-vault").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "docker" / "config.json").write_text(json.dumps({"credsStore": "vault"}))
    with pytest.raises(PreconditionError, match="docker-credential-vault"):
        push()


@pytest.mark.subprocess
def test_a_missing_helper_is_named(registry, push, tmp_path):
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text(json.dumps({"credsStore": "nowhere"}))
    with pytest.raises(PreconditionError, match="docker-credential-nowhere"):
        push()


def test_a_wrong_password_shows_nowhere(registry, push, tmp_path, caplog):
    registry.login = base64.b64encode(b"user:other").decode()
    (tmp_path / "docker").mkdir()
    config = {"auths": {registry.address: {"auth": LOGIN}}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps(config))
    caplog.set_level("DEBUG")
    with pytest.raises(PreconditionError, match="answered 401") as caught:
        push()
    assert "hunter2" not in str(caught.value) + caplog.text
    assert LOGIN not in str(caught.value) + caplog.text


def test_no_registry_at_all(push, registry, image, tmp_path):
    target = parse_target("127.0.0.1:9/team/k26", "x")
    with pytest.raises(PreconditionError):
        push_image(image, target, host_network(load_settings()), Quiet(), retry=FAST)
