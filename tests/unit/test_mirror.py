# SPDX-License-Identifier: Apache-2.0
"""Finding mirrors in apt's sources, and the URLs of a locked package."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.errors import ManifestError, PreconditionError
from imagebuild.layer.spec import Artifact
from imagebuild.mirror import Mirrors, apt_sources, find_mirrors, urls_for

ARCHIVE, SECURITY = "http://deb.example.org/debian", "http://deb.example.org/debian-security"
ONE_LINE = f"""\
# deb http://old.example.org/debian bookworm main
deb-src {ARCHIVE} bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {ARCHIVE}/ bookworm main contrib
deb {SECURITY} bookworm-security main # updates
"""
DEB822 = f"""\
Types: deb deb-src
URIs: {ARCHIVE}
# a comment
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: {SECURITY}/
Suites:
 bookworm-security
Components: main
"""


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def find(apt: Path, option: str | None = None, security: str | None = None) -> Mirrors:
    return find_mirrors(option=option, security_option=security, apt_dir=apt)


def test_one_line_format(apt):
    (apt / "sources.list").write_text(ONE_LINE)
    assert find(apt) == Mirrors(ARCHIVE, SECURITY)


def test_deb822_format(apt):
    (apt / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert find(apt) == Mirrors(ARCHIVE, SECURITY)
    suites = [source.suite for source in apt_sources(apt)]
    assert suites == ["bookworm", "bookworm-updates", "bookworm-security"]


def test_options_win_and_the_neighbour_is_assumed(apt):
    (apt / "sources.list").write_text(ONE_LINE)
    other = "https://mirror.example.org/debian"
    assert find(apt, option=other + "/") == Mirrors(other, other + "-security")
    assert find(apt, option=other, security="file:/srv/security") == Mirrors(other, "file:/srv/security")
    assert find(apt, security="file:/srv/security") == Mirrors(ARCHIVE, "file:/srv/security")


def test_mirror_file(apt):
    (apt / "mirrors").write_text(f"# comment\n{ARCHIVE}\tpriority:1\nhttp://second.example.org/debian\n")
    (apt / "sources.list").write_text(f"deb mirror+file:{apt}/mirrors bookworm main\n")
    assert find(apt).archive == ARCHIVE


@pytest.mark.parametrize(
    "line",
    [
        "deb http://archive.example.org/ubuntu jammy main",
        "deb http://archive.example.org/ubuntu noble-security main",
        "deb http://download.example.org/linux/debian bookworm stable",
        "deb [signed-by=/etc/apt/keyrings/vendor.gpg] http://vendor.example.org/apt stable main",
        "deb http://apt.example.org/pgdg bookworm-pgdg main",
        "deb cdrom:[Debian]/ bookworm main",
        "deb-src http://deb.example.org/debian bookworm main",
        "#deb http://deb.example.org/debian bookworm main",
        "",
    ],
)
def test_other_sources_are_not_debians(apt, line):
    (apt / "sources.list").write_text(line + "\n")
    with pytest.raises(PreconditionError) as error:
        find(apt)
    assert error.value.exit_code == 3
    for word in ("--debian-mirror", "IMAGEBUILD_DEBIAN_MIRROR", "debian_mirror"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    "field",
    [
        "Enabled: no",
        "Enabled: False",
        "Signed-By: /etc/apt/vendor.asc",
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .",
    ],
)
def test_deb822_entries_that_do_not_count(apt, field):
    text = f"Types: deb\nURIs: {ARCHIVE}\nSuites: bookworm\nComponents: main\n{field}\n"
    (apt / "sources.list.d" / "x.sources").write_text(text)
    with pytest.raises(PreconditionError):
        find(apt)


def test_no_folder_at_all(tmp_path):
    with pytest.raises(PreconditionError, match="names none"):
        find(tmp_path / "missing")


def test_security_mirror_is_not_guessed_from_any_url(apt):
    with pytest.raises(PreconditionError, match="--debian-security-mirror"):
        find(apt, option="http://127.0.0.1:8000/proxy")


@pytest.mark.parametrize("url", ["deb.example.org/debian", "ftp://deb.example.org", "http://", "http:// x"])
def test_bad_options(apt, url):
    with pytest.raises(ManifestError, match="--debian-mirror"):
        find(apt, option=url)


MIRRORS = Mirrors(ARCHIVE, SECURITY)
FILE = "p/python3.11/python3.11_3.11.2-6+deb12u9_amd64.deb"


def artifact(path: str, suite: str) -> Artifact:
    name = path.rpartition("/")[2]
    return Artifact("deb", "python3.11", "3.11.2-6+deb12u9", name, "0" * 64, 1, path, suite)


def test_urls_of_a_security_package():
    locked = artifact(f"pool/updates/main/{FILE}", "bookworm-security")
    assert urls_for(locked, MIRRORS) == (
        f"{SECURITY}/pool/updates/main/{FILE}",
        f"{ARCHIVE}/pool/main/{FILE}",
    )


def test_urls_of_a_main_package():
    locked = artifact(f"pool/main/{FILE}", "bookworm")
    assert urls_for(locked, MIRRORS)[0] == f"{ARCHIVE}/pool/main/{FILE}"
    assert urls_for(locked, MIRRORS)[1] == f"{SECURITY}/pool/updates/main/{FILE}"


def test_snapshot_urls_come_last():
    locked = artifact(f"pool/updates/main/{FILE}", "bookworm-security")
    urls = urls_for(locked, MIRRORS, "http://snapshot.example.org/", "2026-12-01T00:00:00Z")
    assert urls[2:] == (
        f"http://snapshot.example.org/archive/debian-security/20261201T000000Z/pool/updates/main/{FILE}",
        f"http://snapshot.example.org/archive/debian/20261201T000000Z/pool/main/{FILE}",
    )
    with pytest.raises(ManifestError, match="lock's time"):
        urls_for(locked, MIRRORS, "http://snapshot.example.org/", "yesterday")
