# SPDX-License-Identifier: Apache-2.0
"""requirements*.lock belong to pyproject.toml and are usable everywhere. `scripts/lock-tools` makes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock")


def declared(table: str) -> list[Requirement]:
    """The requirements of one list in pyproject.toml (Python 3.10 has no tomllib)."""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(rf"^{table} = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert found
    return [Requirement(line) for line in re.findall(r'^    "(.+)",', found.group(1), re.MULTILINE)]


def locked(name: str) -> dict[str, list[Requirement]]:
    entries: dict[str, list[Requirement]] = {}
    for entry in re.split(
        r"\n(?=\w)", re.sub(r"^ *#.*\n?", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    ):
        requirement, *hashes = (part.strip() for part in entry.split("\\\n"))
        assert hashes and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", text) for text in hashes), entry
        parsed = Requirement(requirement)
        assert re.fullmatch(r"==[^*,]+", str(parsed.specifier)), requirement
        entries.setdefault(canonicalize_name(parsed.name), []).append(parsed)
    return entries


@pytest.mark.parametrize(
    ("name", "tables"), [(LOCKS[0], ["dependencies"]), (LOCKS[1], ["dependencies", "dev"])]
)
def test_every_dependency_is_locked_within_its_bounds(name, tables):
    entries = locked(name)
    wanted = [requirement for table in tables for requirement in declared(table)]
    assert len(wanted) >= 20
    for requirement in wanted:
        for entry in entries[canonicalize_name(requirement.name)]:
            version = str(entry.specifier).removeprefix("==")
            assert requirement.specifier.contains(version, prereleases=True), entry


def test_tests_run_what_users_run():
    users, developers = (locked(name) for name in LOCKS)
    assert {name: list(map(str, entries)) for name, entries in users.items()} == {
        name: list(map(str, developers[name])) for name in users
    }


@pytest.mark.parametrize("name", LOCKS)
def test_no_host_no_option_and_never_pypi_build(name):
    text = (ROOT / name).read_text()
    assert "://" not in text and not re.search(r"^-", text, re.MULTILINE)
    assert "build" not in locked(name)
