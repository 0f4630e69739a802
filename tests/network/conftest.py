# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that speak to a server on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuild.settings import Settings
from tests.network.server import Server, serve


@pytest.fixture(autouse=True)
def plain_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has no network settings of its own."""
    for name in list(os.environ):
        upper = name.upper()
        if upper.startswith(("PIP_", "UV_")) or upper.endswith("_PROXY"):
            monkeypatch.delenv(name)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setattr("imagebuild.fetch.apt_proxies", dict)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that all of a test's files come from."""
    with serve() as running:
        yield running


@pytest.fixture
def settings(server: Server, tmp_path: Path) -> Settings:
    """Settings with a cache of the test's own and the test's server as index and mirror."""
    return Settings(
        cache_dir=tmp_path / "cache",
        jobs=4,
        index_url=f"{server.url}/simple",
        debian_mirror=f"{server.url}/debian",
        debian_security_mirror=f"{server.url}/debian-security",
    )
