# SPDX-License-Identifier: Apache-2.0
"""Compose reads from `.env` what `imagebuild.dotenv` wrote, and both read a file of people alike."""

from __future__ import annotations

import json
import subprocess

from imagebuild import dotenv

VALUES = [
    "/data/models",
    "a b",
    "it's",
    "$HOME/x",
    "# no comment",
    'say "x"',
    "ü/é",
    "'",
    "~/m",
    "a${X}b",
    "a#b",
]
PEOPLE = 'A=b # c\nB="x \\" y" # c\nC=\'d\ne\'\nD: f\nE=a#b\nF=\nexport G=1\nA=2\n H = 3\n'


def compose_reads(folder, names):
    lines = "".join(f'      {name}: "${{{name}-missing}}"\n' for name in names)
    (folder / "compose.yaml").write_text(f"services:\n  a:\n    image: x\n    environment:\n{lines}")
    done = subprocess.run(
        ["docker", "compose", "config", "--format", "json"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]["a"]["environment"]
    return {name: value.replace("$$", "$") for name, value in found.items()}


def test_compose_reads_what_was_written(tmp_path):
    for value in VALUES:
        dotenv.update(tmp_path / ".env", {dotenv.MODELS_DIR: value, dotenv.ARCH: "sm_90"})
        assert compose_reads(tmp_path, [dotenv.MODELS_DIR, dotenv.ARCH]) == {
            dotenv.MODELS_DIR: value,
            dotenv.ARCH: "sm_90",
        }


def test_both_read_alike(tmp_path):
    path = tmp_path / ".env"
    path.write_text(PEOPLE)
    ours = dotenv.read(path)
    assert len(ours) == 8 and compose_reads(tmp_path, ours) == ours
    dotenv.update(path, {dotenv.ARCH: "sm_90"})
    assert compose_reads(tmp_path, ours) == ours
