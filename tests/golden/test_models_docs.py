# SPDX-License-Identifier: Apache-2.0
"""docs/models.md: its commands exist, its example is what the command prints, its tests are there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from imagebuild.catalog import project_root
from imagebuild.cli import cli, run

ROOT = project_root().resolve()
DOC = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
BEGIN, END = "<!-- plan: begin -->", "<!-- plan: end -->"
COMMANDS = [
    line.partition("#")[0].strip()
    for name in ("docs/models.md", "README.md")
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
    if line.startswith(("    python build.py models", "    ./scripts/prefetch"))
]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_document_are_understood(line: str) -> None:
    words = shlex.split(line.replace("./scripts/prefetch", "python build.py models fetch"))[2:]
    group = cli.commands["models"]
    assert isinstance(group, click.Group)
    command = group.commands[words[1]]
    given = ["." if word.startswith("/data") else word for word in words[2:]]  # a folder that exists
    with command.make_context(words[1], given) as context:
        assert not context.args


def test_the_example_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "plan", "k26", "--gpu", "RTX-PRO-6000", "--tp", "8"]) == 1
    shown = DOC.partition(BEGIN)[2].partition(END)[0]
    assert shown.strip("\n") == "\n".join(f"    {line}" for line in capsys.readouterr().out.splitlines())


def test_every_fault_of_the_table_has_its_test() -> None:
    rows = re.findall(r"^\| .* \| (test_\w+) \|$", DOC, re.MULTILINE)
    assert len(rows) >= 20
    sources = "".join(path.read_text() for path in (Path(ROOT) / "tests").rglob("test_models*.py"))
    assert [name for name in rows if f"def {name}(" not in sources] == []


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("words", "name"), [([], "k26"), (["--jobs", "2"], "k26"), (["other", "--jobs", "2"], "other")]
)
def test_prefetch_is_the_fetch_command(words: list[str], name: str) -> None:
    script = ROOT / "scripts" / "prefetch"
    out = subprocess.run(
        [script, *words], env={**os.environ, "PYTHON": "echo"}, capture_output=True, text=True, check=True
    ).stdout
    assert out.split()[1:4] == ["models", "fetch", name] and out.split()[4:] == [
        w for w in words if w != name
    ]
