# SPDX-License-Identifier: Apache-2.0
"""Which of the host's settings counts. pip's own parser reads pip's; here only what we add to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imagebuild.errors import ManifestError, PreconditionError
from imagebuild.hostconf import HostNetwork, host_network, parse_apt_proxies
from imagebuild.settings import Settings

SETTINGS = Settings(cache_dir=Path("/nonexistent"))
A, B, C, D = (f"https://{name}.example.org/simple" for name in "abcd")


@pytest.fixture(autouse=True)
def plain_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name in {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}:
            monkeypatch.delenv(name)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def uv_toml(folder: Path, text: str) -> None:
    (folder / "uv").mkdir()
    (folder / "uv" / "uv.toml").write_text(text)


def test_the_main_index_is_the_first_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    default = host_network(SETTINGS).index_url
    assert default is not None and default.endswith("/simple")
    uv_toml(tmp_path, f'index-url = "{D}"\n')
    assert host_network(SETTINGS).index_url == D
    monkeypatch.setenv("PIP_INDEX_URL", C)
    assert host_network(SETTINGS).index_url == C
    monkeypatch.setenv("UV_INDEX_URL", B)
    assert host_network(SETTINGS).index_url == B
    monkeypatch.setenv("UV_DEFAULT_INDEX", A)
    assert host_network(SETTINGS).index_url == A
    chosen = SETTINGS.model_copy(update={"index_url": "https://mine.example.org/simple"})
    assert host_network(chosen).index_url == "https://mine.example.org/simple"


def test_pips_files_are_merged_by_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cert = tmp_path / "ca.pem"
    cert.touch()
    file = tmp_path / "pip.conf"
    file.write_text(
        f"[global]\nindex-url = {A}\ncert = {cert}\nproxy = http://proxy.example.org:3128\ntimeout = 99\n"
        f"trusted-host =\n  one.example.org\n  two.example.org:8443\nextra-index-url =\n  {B}\n  {C}\n"
        f"[download]\nindex-url = {D}\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    host = host_network(SETTINGS)
    assert host.index_url == D, "the section of the command wins"
    assert host.extra_index_urls == (B, C) and host.proxy == "http://proxy.example.org:3128"
    assert host.ca_file == cert and "PIP_CERT" in host.ca_source and host.timeout_s == 99
    assert host.trusted_hosts == ("one.example.org", "two.example.org:8443")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", A)
    assert host_network(SETTINGS).extra_index_urls == (A,)


def test_uvs_named_indexes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uv_toml(
        tmp_path,
        f'find-links = ["wheels"]\n[[index]]\nname = "main-one"\nurl = "{A}"\ndefault = true\n'
        f'[[index]]\nurl = "{B}"\n[[index]]\nurl = "{C}"\nexplicit = true\n'
        f'[[index]]\nurl = "{D}"\nformat = "flat"\n[pip]\nextra-index-url = ["{D}"]\n',
    )
    monkeypatch.setenv("UV_INDEX", f"x={C} {tmp_path}")
    monkeypatch.setenv("UV_INDEX_MAIN_ONE_USERNAME", "anna")
    monkeypatch.setenv("UV_INDEX_MAIN_ONE_PASSWORD", "s/c")
    host = host_network(SETTINGS)
    assert host.index_url == "https://anna:s%2Fc@a.example.org/simple"
    assert host.extra_index_urls == (C, tmp_path.as_uri(), B, D)
    assert host.find_links == (str(tmp_path / "uv" / "wheels"), D)
    assert "anna" not in repr(host)


def test_no_index_leaves_the_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", A)
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    host = host_network(SETTINGS)
    assert host == HostNetwork(index_url=None, find_links=("/wheels",), timeout_s=host.timeout_s)
    assert host_network(SETTINGS.model_copy(update={"index_url": B})).index_url == B


def test_certificates_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert host_network(SETTINGS).ca_source == "the system's certificate store"
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert host_network(SETTINGS).ca_dir == tmp_path
    for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        (tmp_path / name).touch()
        monkeypatch.setenv(name, str(tmp_path / name))
        assert host_network(SETTINGS).ca_file == tmp_path / name
    (tmp_path / "mine").touch()
    chosen = SETTINGS.model_copy(update={"ca_file": tmp_path / "mine"})
    assert host_network(chosen).ca_file == tmp_path / "mine"


def test_a_missing_certificate_file_names_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such.pem")
    with pytest.raises(PreconditionError, match=r"SSL_CERT_FILE names a CA file .*: /no/such\.pem"):
        host_network(SETTINGS)


def test_malformed_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "mine.toml"))
    (tmp_path / "mine.toml").write_text("index-url = \n")
    with pytest.raises(ManifestError, match=r"mine\.toml: not valid TOML"):
        host_network(SETTINGS)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    (tmp_path / "pip.conf").write_text("no section\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(ManifestError, match=r"(?s)pip's configuration is wrong: .*pip\.conf"):
        host_network(SETTINGS)


def test_apts_proxies() -> None:
    dump = (
        'Acquire "";\nAcquire::http "";\nAcquire::http::Proxy "http://proxy.example.org:3142";\n'
        'Acquire::http::Proxy::deb.example.org "DIRECT";\nAcquire::http::Proxy-Auto-Detect "/x";\n'
    )
    assert parse_apt_proxies(dump) == {
        "http": "http://proxy.example.org:3142",
        "https": "http://proxy.example.org:3142",
        "http://deb.example.org": "",
    }
    assert parse_apt_proxies('Acquire::https::Proxy "DIRECT";\nAcquire::http::Proxy "";\n') == {"https": ""}
