# SPDX-License-Identifier: Apache-2.0
"""Rules about the files of the project as a whole."""

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from imagebuild.catalog import project_root

ROOT = project_root().resolve()
pytestmark = pytest.mark.subprocess


def tracked():
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def registry_hosts():
    """Return the hosts that this machine's own package clients use: pip's and apt's."""
    from pip._internal.models.index import PyPI

    hosts = {PyPI.netloc, PyPI.file_storage_domain}
    for path in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
        if path.is_file():
            hosts |= {urlsplit(url).netloc for url in re.findall(r"https?://\S+", path.read_text())}
    return {host for host in hosts if "." in host and "example" not in host}


def test_no_committed_file_names_a_registry_host():
    hosts = registry_hosts()
    assert hosts
    found = {
        path.relative_to(ROOT).as_posix(): host
        for path in tracked()
        for host in hosts
        if host.encode() in path.read_bytes()
    }
    assert found == {}


def test_every_source_file_has_its_licence():
    missing = [
        path.relative_to(ROOT).as_posix()
        for path in tracked()
        if path.suffix == ".py" and "SPDX-License-Identifier: Apache-2.0" not in path.read_text()[:400]
    ]
    assert missing == []


def test_agents_file_is_short():
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 80


def test_documents_link_to_files_that_exist():
    broken = []
    for path in tracked():
        if path.suffix == ".md":
            for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
                if not (path.parent / target).exists():
                    broken.append(f"{path.name}: {target}")
    assert broken == []
