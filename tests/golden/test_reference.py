# SPDX-License-Identifier: Apache-2.0
"""Generated documents are current."""

import pytest

from imagebuild.catalog import project_root
from imagebuild.reference import generated

FILES = generated(project_root().resolve())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_generated_file_is_current(path):
    assert path.read_text(encoding="utf-8") == FILES[path], "python -m imagebuild.reference"


def test_every_command_is_in_the_reference():
    text = next(text for path, text in FILES.items() if path.name == "cli.md")
    names = ["build", "plan", "fetch", "render", "lock", "gc", "completion", "unpack", "models fetch"]
    names += ["patches", "patches check", "patches list", "patches new", "patches try"]
    for command in names:
        assert f"## build.py {command}\n" in text
