# SPDX-License-Identifier: Apache-2.0
"""scripts/install-docker: its command line and its reading of apt's sources. Nothing is installed."""

import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.subprocess

SCRIPT = Path(__file__).parents[2] / "scripts" / "install-docker"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SIGNED = f"signed-by={KEYRING}"


def run(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(SCRIPT), *args], check=False, capture_output=True, text=True, timeout=30)


def apt_dir(tmp_path: Path, files: dict[str, str]) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_is_a_licensed_program_that_names_no_host() -> None:
    text = SCRIPT.read_text()
    assert os.access(SCRIPT, os.X_OK)
    assert "SPDX-License-Identifier: Apache-2.0" in text.split("set -euo pipefail")[0]
    assert not re.findall(r"(?:https?|ftp)://", text)


def test_help_names_every_option_that_the_script_takes() -> None:
    result = run("--help")
    assert (result.returncode, result.stderr) == (0, "")
    parser = SCRIPT.read_text().split("parse_args() {")[1].split("\n}")[0]
    taken = {arg for arg in re.findall(r"--[a-z-]+", parser) if not arg.endswith("-")}
    assert {"--start-only", "--stop", "--purge", "--data-root", "--with-compose"} <= taken
    assert {arg for arg in taken if arg not in result.stdout} == set()


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["--nope"], "unknown argument --nope"),
        (["extra"], "unknown argument extra"),
        (["--purge"], "both --print-mirror and --purge"),
        (["--data-root"], "--data-root needs a value"),
        (["--data-root", "relative/path"], "--data-root 'relative/path' is not an absolute path"),
        (["--data-root=/"], "--data-root '/' is not an absolute path"),
        (["--data-root=/home"], "--data-root '/home' is not an absolute path"),
        (["--data-root=/var/lib/../lib"], "--data-root '/var/lib/../lib' is not an absolute path"),
        (["--data-root=/srv/with blank"], "--data-root '/srv/with blank' is not an absolute path"),
        (["--timeout", "0"], "--timeout '0' is not a number of seconds"),
        (["--storage-driver="], "--storage-driver '' is not a driver's name"),
        (["--mirror=not a url"], "--mirror 'not a url' is not a URL"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_next(args: list[str], found: str) -> None:
    result = run("--print-mirror", *args)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"found: {found}" in result.stderr
    assert "next:  see scripts/install-docker --help" in result.stderr


@pytest.mark.parametrize(
    ("files", "mirrors"),
    [
        pytest.param(
            {"sources.list": "deb http://mirror.example/debian bookworm main\n"},
            ["main http://mirror.example/debian -"],
            id="one line",
        ),
        pytest.param(
            {
                "sources.list": (
                    "# deb http://old.example/debian bookworm main\n"
                    "deb-src http://src.example/debian bookworm main\n"
                    "deb cdrom:[Debian GNU/Linux 12]/ bookworm main\n"
                    "\tdeb [ arch=amd64,arm64 signed-by=" + KEYRING + " ]\thttps://mirror.example/debian/  "
                    "bookworm  contrib main  # the office\n"
                    "deb [signed-by=" + KEYRING + "] https://mirror.example/debian-security "
                    "bookworm-security main\n"
                    "deb https://mirror.example/debian bookworm-updates main"
                )
            },
            [
                f"main https://mirror.example/debian/ {SIGNED}",
                f"security https://mirror.example/debian-security {SIGNED}",
            ],
            id="one line: comments, options, blanks, no newline at the end",
        ),
        pytest.param(
            {
                "sources.list.d/debian.sources": (
                    "Types: deb\n# a snapshot\nURIs: http://mirror.example/debian\n"
                    "Suites: bookworm bookworm-updates\nComponents: main\n"
                    f"Signed-By: {KEYRING}\n\n"
                    "Types: deb\nURIs: http://mirror.example/debian-security\n"
                    f"Suites: bookworm-security\nComponents: main\nSigned-By: {KEYRING}\n"
                )
            },
            [
                f"main http://mirror.example/debian {SIGNED}",
                f"security http://mirror.example/debian-security {SIGNED}",
            ],
            id="deb822 as Debian's images have it",
        ),
        pytest.param(
            {
                "sources.list.d/debian.sources": (
                    "# first stanza is off\nEnabled: no\nTypes: deb\nURIs: http://off.example/debian\n"
                    f"Suites: trixie\nComponents: main\nSigned-By: {KEYRING}\n \t\n"
                    "types: deb-src deb\nURIS:\n http://mirror.example/debian\n# between\n"
                    " http://second.example/debian\nsuites: trixie\ncomponents: main contrib\n"
                    f"enabled: yes\nsigned-by: {KEYRING}"
                )
            },
            [f"main http://mirror.example/debian {SIGNED}"],
            id="deb822: disabled stanza, lists over lines, any case",
        ),
        pytest.param(
            {
                "sources.list.d/debian.sources": (
                    "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n"
                    "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBGXXXXXX\n"
                    " -----END PGP PUBLIC KEY BLOCK-----\n"
                )
            },
            ["main http://mirror.example/debian -"],
            id="deb822: embedded key",
        ),
        pytest.param(
            {
                "sources.list": (
                    "deb [signed-by=/etc/apt/keyrings/vendor.gpg] https://vendor.example/debian trixie main\n"
                    "deb https://vendor.example/linux/debian bookworm stable\n"
                    "deb https://vendor.example/chat stable main\n"
                ),
                "sources.list.d/aaa.list": "deb http://unsigned.example/debian bookworm main\n",
                "sources.list.d/debian.sources": (
                    "Types: deb\nURIs: mirror+file:/etc/apt/mirrors/main.list\nSuites: bookworm\n"
                    f"Components: main\nSigned-By: {KEYRING}\n"
                ),
                "sources.list.d/debian.sources.disabled": (
                    "Types: deb\nURIs: http://off.example/debian\nSuites: bookworm\n"
                    f"Components: main\nSigned-By: {KEYRING}\n"
                ),
            },
            [f"main mirror+file:/etc/apt/mirrors/main.list {SIGNED}"],
            id="Debian's keyring wins over other vendors and unsigned entries",
        ),
        pytest.param(
            {"sources.list": "deb [trusted=yes] http://10.0.0.1/debian trixie main\n"},
            ["main http://10.0.0.1/debian trusted=yes"],
            id="trusted",
        ),
    ],
)
def test_finds_the_debian_mirror(tmp_path: Path, files: dict[str, str], mirrors: list[str]) -> None:
    result = run("--print-mirror", "--apt-dir", str(apt_dir(tmp_path, files)))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == mirrors


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="no sources"),
        pytest.param(
            {
                "sources.list": (
                    "deb http://mirror.example/ubuntu noble main universe\n"
                    "deb http://mirror.example/ubuntu noble-security main\n"
                )
            },
            id="Ubuntu, one line",
        ),
        pytest.param(
            {
                "sources.list.d/ubuntu.sources": (
                    "Types: deb\nURIs: http://mirror.example/ubuntu/\nSuites: noble noble-updates\n"
                    "Components: main universe\nSigned-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n"
                )
            },
            id="Ubuntu, deb822",
        ),
        pytest.param(
            {"sources.list": "# deb http://mirror.example/debian bookworm main\n"},
            id="commented out",
        ),
        pytest.param(
            {"sources.list": f"deb [{SIGNED}] http://mirror.example/debian bookworm contrib\n"},
            id="without main",
        ),
        pytest.param(
            {"sources.list": f"deb [{SIGNED}] http://mirror.example/security bookworm-security main\n"},
            id="security only",
        ),
    ],
)
def test_without_a_debian_mirror_exits_3_and_says_what_next(tmp_path: Path, files: dict[str, str]) -> None:
    result = run("--print-mirror", f"--apt-dir={apt_dir(tmp_path, files)}")
    assert (result.returncode, result.stdout) == (3, "")
    assert "error: no Debian mirror is known" in result.stderr
    assert str(tmp_path) in result.stderr
    assert "give --mirror URL; on another system install Docker Engine >= 23" in result.stderr


def test_an_explicit_mirror_wins(tmp_path: Path) -> None:
    files = {"sources.list": "deb http://mirror.example/debian bookworm main\n"}
    given = "http://10.0.0.1:3142/debian"
    result = run("--print-mirror", "--mirror", given, "--apt-dir", str(apt_dir(tmp_path, files)))
    assert (result.returncode, result.stdout) == (0, f"main {given} -\n")
