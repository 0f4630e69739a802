# SPDX-License-Identifier: Apache-2.0
"""What the docker engine says when Docker is missing, too old or of another kind."""

import pytest

from imagebuild import process
from imagebuild.engine_docker import DockerEngine
from imagebuild.errors import BuildError, PreconditionError


class Client:
    def __init__(self, version):
        self._version = version

    def version(self):
        return self._version


def engine_with(monkeypatch, version, buildx="github.com/docker/buildx 0.13.1 abc"):
    def output(argv, **_):
        assert argv[:3] == ["docker", "buildx", "version"]
        if isinstance(buildx, Exception):
            raise buildx
        return buildx

    monkeypatch.setattr(DockerEngine, "_client", lambda self: Client(version))
    monkeypatch.setattr(process, "output", output)
    return DockerEngine()


def test_a_good_server_is_named(monkeypatch):
    engine = engine_with(monkeypatch, {"Version": "26.1.5+dfsg1", "Os": "linux", "Arch": "amd64"})
    assert engine.require() == "Docker Engine 26.1.5+dfsg1, buildx 0.13.1"


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ({"Version": "20.10.24+dfsg1", "Os": "linux", "Arch": "amd64"}, r"is 20\.10\.24.*23\.0 or newer"),
        ({"Version": "unknown", "Os": "linux", "Arch": "amd64"}, "is unknown"),
        ({"Version": "28.0.0", "Os": "linux", "Arch": "arm64"}, "linux/arm64"),
        ({"Version": "28.0.0", "Os": "windows", "Arch": "amd64"}, "windows/amd64"),
    ],
)
def test_a_server_that_cannot_build_is_refused(monkeypatch, version, message):
    with pytest.raises(PreconditionError, match=message) as caught:
        engine_with(monkeypatch, version).require()
    assert caught.value.exit_code == 3
    assert "next: " in str(caught.value)


def test_missing_buildx_is_refused(monkeypatch):
    error = BuildError("docker: 'buildx' is not a docker command")
    engine = engine_with(monkeypatch, {"Version": "28.0.0", "Os": "linux", "Arch": "amd64"}, error)
    with pytest.raises(PreconditionError, match="docker has no buildx"):
        engine.require()


def test_missing_docker_is_refused(monkeypatch):
    def output(argv, **_):
        raise PreconditionError("program not found: docker")

    monkeypatch.setattr(process, "output", output)
    with pytest.raises(PreconditionError, match="docker command was not found") as caught:
        DockerEngine().require()
    assert "scripts/install-docker" in str(caught.value)
