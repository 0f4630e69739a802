# SPDX-License-Identifier: Apache-2.0
"""Choosing packages: what apt is asked, what is made of its answer, and which advisories a change brings."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from imagebuild import debian, process
from imagebuild.errors import BuildError, IntegrityError, ManifestError, PreconditionError
from imagebuild.layer.deb import Deb
from imagebuild.layer.entries import file_entry
from imagebuild.layer.spec import Artifact
from imagebuild.mirror import Mirrors

MIRRORS = Mirrors("http://deb.example.org/debian", "http://deb.example.org/debian-security")


def stanza(name: str, version: str, path: str, digit: str) -> str:
    return (
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nFilename: {path}\nSize: 12\n"
        f"SHA256: {digit * 64}\n\n"
    )


PYTHON = "p/python3.11/python3.11_3.11.2-6+deb12u9_amd64.deb"
INDEXES = {
    "bookworm": stanza("bash", "1:5.2-1", "pool/main/b/bash/bash_5.2-1_amd64.deb", "a"),
    "bookworm-updates": stanza("tzdata", "2026f", "pool/main/t/tzdata/tzdata_2026f_all.deb", "b"),
    "bookworm-security": stanza("python3.11", "3.11.2-6+deb12u9", f"pool/updates/main/{PYTHON}", "c"),
}
LISTING = f"""\
'http://deb.example.org/debian/pool/main/t/tzdata/tzdata_2026f_all.deb' tzdata_2026f_all.deb 12 SHA256:bb
'http://deb.example.org/debian/pool/main/b/bash/bash_5.2-1_amd64.deb' bash_1%3a5.2-1_amd64.deb 12 SHA256:aa
'http://deb.example.org/debian-security/pool/updates/main/{PYTHON.replace("+", "%2b")}' p.deb 12 MD5Sum:cc
"""


class Apt:
    """Stands for apt-get: `update` writes the indexes into the private state, `install` prints URLs."""

    def __init__(self, indexes: dict[str, str], listing: str) -> None:
        self.indexes, self.listing = indexes, listing
        self.calls: list[list[str]] = []
        self.config = self.sources = ""

    def __call__(self, argv, **_kwargs) -> str:
        self.calls.append(list(argv))
        state = Path(argv[argv.index("-c") + 1]).parent
        self.config = (state / "apt.conf").read_text()
        self.sources = (state / "sources.list").read_text()
        if "update" not in argv:
            return self.listing
        for suite, text in self.indexes.items():
            (state / "lists" / f"h_dists_{suite}_main_binary-amd64_Packages").write_text(text)
        return ""


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> Apt:
    fake = Apt(INDEXES, LISTING)
    monkeypatch.setattr(process, "output", fake)
    return fake


def resolve(*packages: str) -> tuple[Artifact, ...]:
    return debian.resolve_packages(
        packages, release="bookworm", architecture="amd64", mirrors=MIRRORS, keyring=Path("/keys/debian.gpg")
    )


def test_resolves_to_exact_files(apt):
    bash, python, tzdata = resolve("tzdata", "bash", "tzdata")
    assert bash == Artifact(
        "deb",
        "bash",
        "1:5.2-1",
        "bash_5.2-1_amd64.deb",
        "a" * 64,
        12,
        "pool/main/b/bash/bash_5.2-1_amd64.deb",
        "bookworm",
    )
    assert (python.suite, python.path) == ("bookworm-security", f"pool/updates/main/{PYTHON}")
    assert tzdata.suite == "bookworm-updates"


def test_apt_sees_a_private_state_and_signed_sources(apt):
    resolve("tzdata", "bash")
    assert apt.calls[1][-4:] == ["--print-uris", "?essential", "bash", "tzdata"]
    assert apt.sources.splitlines() == [
        f"deb [signed-by=/keys/debian.gpg arch=amd64] {base} {suite} main"
        for base, suite in (
            (MIRRORS.archive, "bookworm"),
            (MIRRORS.archive, "bookworm-updates"),
            (MIRRORS.security, "bookworm-security"),
        )
    ]
    for setting in ("State::status", "Etc::sourceparts", "Etc::trustedparts", "Etc::preferences"):
        assert re.search(rf'^Dir::{setting} "/', apt.config, re.MULTILINE)
    assert 'APT::Install-Recommends "false";' in apt.config


def test_a_version_that_main_has_too_is_locked_from_main(apt):
    apt.indexes = {
        **INDEXES,
        "bookworm": INDEXES["bookworm"]
        + stanza("python3.11", "3.11.2-6+deb12u9", f"pool/main/{PYTHON}", "c"),
    }
    assert resolve("bash")[1].path == f"pool/main/{PYTHON}"
    assert resolve("bash")[1].suite == "bookworm"


def test_a_file_that_no_index_lists(apt):
    apt.indexes = {"bookworm": INDEXES["bookworm"]}
    with pytest.raises(IntegrityError, match=r"tzdata_2026f_all\.deb, which no index lists"):
        resolve("bash")


def test_package_names(apt):
    with pytest.raises(ManifestError, match="'--option' is not a Debian package name"):
        resolve("--option")
    assert apt.calls == []


@pytest.mark.parametrize(
    ("fails", "error", "kind"),
    [
        ("update", BuildError("apt-get update exited 100\nE: could not resolve"), PreconditionError),
        ("install", BuildError("apt-get install exited 100\nE: Unable to locate package x"), ManifestError),
        ("update", PreconditionError("program not found: apt-get"), PreconditionError),
    ],
)
def test_failures(apt, monkeypatch, fails, error, kind):
    def run(argv, **kwargs):
        if fails in argv:
            raise error
        return apt(argv, **kwargs)

    monkeypatch.setattr(process, "output", run)
    with pytest.raises(kind) as caught:
        resolve("bash")
    expected = "apt-get is not installed" if isinstance(error, PreconditionError) else error.message
    assert expected in str(caught.value)


def test_keyring(tmp_path):
    with pytest.raises(PreconditionError, match="debian-archive-keyring"):
        debian.find_keyring(tmp_path / "missing.gpg")
    (tmp_path / "k.gpg").touch()
    assert debian.find_keyring(tmp_path / "k.gpg") == tmp_path / "k.gpg"


CHANGELOG = """\
openssl (3.0.22-1~deb12u2) bookworm-security; urgency=medium

  * CVE-2026-1111: fix (DSA-5999-1)

 -- A <a@example.org>  Mon, 02 Nov 2026 10:00:00 +0000

openssl (3.0.22-1~deb12u1) bookworm; urgency=medium

  * CVE-2026-0002, CVE-2026-0001, again CVE-2026-0001

 -- A <a@example.org>  Mon, 01 Jun 2026 10:00:00 +0000

openssl (3.0.20-1) bookworm; urgency=medium

  * CVE-2025-9999

"""


def deb(name: str, *files: tuple[str, str], source: str = "") -> Deb:
    control = f"Package: {name}\n" + (f"Source: {source}\n" if source else "")
    where = f"usr/share/doc/{name}"
    entries = [file_entry(f"{where}/{file}", gzip.compress(text.encode())) for file, text in files]
    return Deb(f"{name}.deb", {"control": control.encode()}, tuple(entries))


def locked(name: str, version: str) -> Artifact:
    return Artifact("deb", name, version, f"{name}.deb", "0" * 64, 1)


def test_security_changes():
    was = {"openssl": "3.0.20-1+b1", "libssl3": "3.0.20-1", "gone": "1", "same": "1"}
    now = {"openssl": "3.0.22-1~deb12u2", "libssl3": "3.0.22-1~deb12u2", "fresh": "1", "same": "1"}
    old, new = ([locked(*item) for item in versions.items()] for versions in (was, now))
    debs = {
        "openssl": deb("openssl", ("changelog.gz", "CVE-1999-0001"), ("changelog.Debian.gz", CHANGELOG)),
        "libssl3": deb("libssl3", source="openssl (3.0.22-1)"),
    }
    opened: list[str] = []

    def open_deb(artifact: Artifact) -> Deb:
        opened.append(artifact.name)
        return debs[artifact.name]

    ids = ("CVE-2026-0001", "CVE-2026-0002", "CVE-2026-1111", "DSA-5999-1")
    assert debian.security_changes(old, new, open_deb) == (
        debian.PackageChange("fresh", "", "1"),
        debian.PackageChange("gone", "1", ""),
        debian.PackageChange("libssl3", "3.0.20-1", "3.0.22-1~deb12u2", ids),
        debian.PackageChange("openssl", "3.0.20-1+b1", "3.0.22-1~deb12u2", ids),
    )
    assert sorted(opened) == ["libssl3", "openssl"]


def test_advisories_of_an_unknown_version():
    assert debian.advisories(CHANGELOG, "2.0-1") == ()
    assert debian.advisories(CHANGELOG, "3.0.22-1~deb12u1") == ("CVE-2026-1111", "DSA-5999-1")


def test_native_changelog():
    assert debian.changelog("base-files", deb("base-files", ("changelog.gz", "native"))) == "native"
    assert debian.changelog("x", deb("x")) == ""
