# SPDX-License-Identifier: Apache-2.0
"""Every `python build.py` line of the documents is a command line that the program takes."""

import shlex

import click
import pytest

from imagebuild.catalog import project_root
from imagebuild.cli import cli

ROOT = project_root().resolve()
LINES = sorted(
    {
        line.partition("#")[0].strip()
        for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("    python build.py ")
    }
)


FOLDERS = {"DIR", "EXPORT", "WHEELS", "RECEIPTS", "results/b300"}


def _stand_in(word: str) -> str:
    """A file or folder that is there, for one of the documents."""
    if word.startswith(("/data", "/tmp")) or word in FOLDERS:
        return str(ROOT)
    return str(ROOT / "README.md") if word.endswith((".bundle", "host.json")) else word


@pytest.mark.parametrize("line", LINES)
def test_documented_command_is_understood(line):
    command: click.Command = cli
    words = shlex.split(line)[2:]
    if words[0].startswith("-"):
        words = ["build", *words]
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    there = [_stand_in(word) for word in words]
    with command.make_context("x", there) as context:
        assert not context.args
