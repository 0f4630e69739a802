# SPDX-License-Identifier: Apache-2.0
"""What Python and dpkg say is installed is what the Plan locks; it imports and finds its libraries."""

from fnmatch import fnmatchcase

import pytest
import yaml

from tests.image.facts import IMAGES

# A wheel's file name and its METADATA can disagree about the version: name → (METADATA, file name).
MISLABELLED: dict[str, tuple[str, str]] = {}


@pytest.mark.check("python-packages")
def test_python_packages_are_exactly_the_locked_ones(plan, packages):
    locked = {a.name: a.version for layer in plan.layers for a in layer.artifacts if a.kind == "wheel"}
    differing = {n: (v, locked[n]) for n, v in packages.items() if n in locked and v != locked[n]}
    assert differing == {name: pair for name, pair in MISLABELLED.items() if name in locked}
    assert packages.keys() == locked.keys()


@pytest.mark.check("debian-packages")
def test_debian_packages_are_exactly_the_locked_ones(plan, host):
    locked = {a.name: a.version for a in plan.layers[0].artifacts}
    done = host.run("dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert {row[0]: row[1] for row in rows} == locked
    assert {row[2] for row in rows} == {"ii"}


@pytest.mark.check("imports")
def test_packages_and_plugins_import(imports):
    assert {name: error for name, error in imports.items() if error} == {}
    assert imports


@pytest.fixture(scope="module")
def listed(plan):
    return yaml.safe_load((IMAGES / "stacks" / plan.stack / "unresolved.yaml").read_text())


@pytest.mark.check("libraries")
def test_needed_libraries_resolve_or_are_listed(listed, needed):
    """A library that a file needs is there, or is listed with the reason why it need not be."""
    unlisted = {
        name: files
        for name, files in needed["missing"].items()
        if not any(fnmatchcase(name, pattern) for pattern in listed)
    }
    assert unlisted == {}
    assert needed["count"] > 300


@pytest.mark.check("libraries")
def test_nothing_is_listed_that_is_not_missing(listed, needed, plan):
    if "torch" not in plan.packages:
        return  # the list is that of the whole stack
    slim = any(t.kind == "slim" for layer in plan.layers for t in layer.transforms)
    wanted = [pattern for pattern, entry in listed.items() if entry.get("slim", True) or not slim]
    unused = [p for p in wanted if not any(fnmatchcase(name, p) for name in needed["missing"])]
    assert unused == []


@pytest.mark.check("libraries")
def test_libraries_listed_as_in_the_image_are_there_and_the_others_are_not(listed, needed, tree):
    found = {path.rpartition("/")[2] for path in tree if ".so" in path and "/stubs/" not in path}
    wrong = {}
    for name in needed["missing"]:
        place = next((entry["from"] for pattern, entry in listed.items() if fnmatchcase(name, pattern)), None)
        if place is not None and (name in found) != (place == "image"):
            wrong[name] = place
    assert wrong == {}
