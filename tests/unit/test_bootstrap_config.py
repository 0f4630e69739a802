# SPDX-License-Identifier: Apache-2.0
"""uv looks where the host's pip looks, and what the user set for uv wins."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from imagebuild import bootstrap_config, process
from imagebuild.bootstrap_config import pip_settings, uv_environment


@pytest.fixture(autouse=True)
def bare_host(monkeypatch, tmp_path):
    """No pip.conf and no CA bundle of the machine that runs the tests."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(bootstrap_config, "CA_BUNDLES", ())
    real = bootstrap_config.pip_files
    etc = Path("/etc")
    monkeypatch.setattr(
        bootstrap_config, "pip_files", lambda env: [path for path in real(env) if etc not in path.parents]
    )


@pytest.fixture
def env(tmp_path):
    return {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "site")}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_nothing_set_changes_nothing(env):
    assert uv_environment(env) == {}


def test_all_that_uv_needs_is_taken(env, tmp_path):
    write(
        tmp_path / ".config" / "pip" / "pip.conf",
        "[global]\nindex-url = https://mirror.invalid/simple\nextra_index_url =\n  file:///a\n  file:///b\n"
        "find-links = /wheels\ntrusted-host = mirror.invalid\ntimeout = 90\nproxy = http://proxy.invalid:3128\n"
        "cert = /ca.pem\nclient-cert = /me.pem\n[install]\nno-index = true\n",
    )
    assert uv_environment(env) == {
        "UV_DEFAULT_INDEX": "https://mirror.invalid/simple",
        "UV_INDEX": "file:///a file:///b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels",
        "UV_NO_INDEX": "1",
        "UV_INSECURE_HOST": "mirror.invalid",
        "UV_HTTP_TIMEOUT": "90",
        "ALL_PROXY": "http://proxy.invalid:3128",
        "SSL_CERT_FILE": "/ca.pem",
        "SSL_CLIENT_CERT": "/me.pem",
    }


def test_later_files_the_install_section_and_variables_win(env, tmp_path):
    write(tmp_path / "site" / "pip" / "pip.conf", "[global]\nindex-url = site\ntimeout = 1\nproxy = p\n")
    write(tmp_path / ".pip" / "pip.conf", "[global]\nindex-url = legacy\n")
    write(tmp_path / ".config" / "pip" / "pip.conf", "[global]\nindex-url = user\n[install]\ntimeout = 2\n")
    assert pip_settings(env) == {"index-url": "user", "timeout": "2", "proxy": "p"}
    own = write(tmp_path / "own.conf", "[global]\nindex-url = own\n")
    assert pip_settings({**env, "PIP_CONFIG_FILE": str(own)}) == {
        "index-url": "own",
        "timeout": "1",
        "proxy": "p",
        "config-file": str(own),
    }
    assert pip_settings({**env, "PIP_INDEX_URL": "variable"})["index-url"] == "variable"


def test_config_file_dev_null_means_no_files(env, tmp_path):
    write(tmp_path / ".config" / "pip" / "pip.conf", "[global]\nindex-url = user\n")
    assert "index-url" not in pip_settings({**env, "PIP_CONFIG_FILE": os.devnull})


def test_a_broken_file_is_left_to_pip_to_complain_about(env, tmp_path):
    write(tmp_path / ".config" / "pip" / "pip.conf", "index-url\n = ???")
    assert pip_settings(env) == {}


@pytest.mark.parametrize("name", bootstrap_config.UV_INDEX_VARIABLES)
def test_an_index_set_for_uv_wins(env, name):
    assert uv_environment({**env, name: "x", "PIP_INDEX_URL": "pip", "PIP_TIMEOUT": "9"}) == {
        "UV_HTTP_TIMEOUT": "9"
    }


def test_a_uv_toml_wins(env, tmp_path):
    write(tmp_path / ".config" / "uv" / "uv.toml", "")
    assert uv_environment({**env, "PIP_INDEX_URL": "pip"}) == {}


def test_the_system_ca_bundle_is_used_unless_one_is_set(env, tmp_path, monkeypatch):
    bundle = str(write(tmp_path / "ca.crt", ""))
    monkeypatch.setattr(bootstrap_config, "CA_BUNDLES", ("/absent", bundle))
    assert uv_environment(env) == {"SSL_CERT_FILE": bundle}
    assert uv_environment({**env, "PIP_CERT": "/mine"}) == {"SSL_CERT_FILE": "/mine"}
    assert uv_environment({**env, "SSL_CERT_FILE": "/uvs"}) == {}


@pytest.mark.subprocess
def test_the_same_files_in_the_same_order_as_pip_itself(tmp_path, monkeypatch):
    monkeypatch.undo()
    env = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_DIRS": f"{tmp_path}/a:{tmp_path}/b",
        "XDG_CONFIG_HOME": f"{tmp_path}/c",
        "PIP_CONFIG_FILE": f"{tmp_path}/own.conf",
    }

    def pip(command: str) -> str:
        return process.output([sys.executable, "-m", "pip", "config", command], env=env)

    lines = [line.strip() for line in pip("debug").splitlines()]
    read_by_pip = [line.partition(", exists")[0] for line in lines if ", exists" in line]
    ours = bootstrap_config.pip_files(env)
    assert sorted(map(str, ours)) == sorted(read_by_pip)
    for path in ours:  # from weakest to strongest
        if path.is_relative_to(tmp_path):
            write(path, f"[global]\nprogress-bar = {path.name}-{path.parent.name}\n")
            assert f"global.progress-bar='{pip_settings(env)['progress-bar']}'" in pip("list").splitlines()
