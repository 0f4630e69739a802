# SPDX-License-Identifier: Apache-2.0
"""`pytest tests/services --image REF --arch A`: what goes around a built image, with the Docker Engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.catalog import project_root
from imagebuild.resolve import resolve


def pytest_addoption(parser):
    parser.addoption("--image", help="image reference or id (docker)")
    parser.addoption("--arch", help="the arch it was built for")


def pytest_collection_modifyitems(config, items):
    here = Path(__file__).parent
    chosen = [item for item in items if here in Path(item.fspath).parents]
    if chosen and not (config.getoption("--image") and config.getoption("--arch")):
        raise pytest.UsageError("tests/services needs --image REF and --arch ARCH")


@pytest.fixture(scope="session")
def plan(pytestconfig):
    return resolve(project_root() / "images", pytestconfig.getoption("--arch"))


@pytest.fixture(scope="session")
def reference(pytestconfig):
    return pytestconfig.getoption("--image")
