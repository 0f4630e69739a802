# SPDX-License-Identifier: Apache-2.0
"""`build.py slim`: one library by hand, and --verify on files, folders and wheels."""

from __future__ import annotations

import json
import zipfile

import pytest

from imagebuild.cli import run
from imagebuild.layer.gpucode import Code
from tests.gpufiles import fat, library

LIB = library(fat((Code("elf", 90), 200_000), (Code("elf", 103), 1000)))


@pytest.fixture
def original(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(LIB)
    return path


def slim(*arguments: object) -> int:
    return run(["slim", "--arch", "sm_103", *map(str, arguments)])


def test_one_library(tmp_path, original, capsys):
    out = tmp_path / "slim.so"
    assert slim(original, out, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["proven"]["slim.so"]["blanked"] == 1
    assert out.stat().st_size < 30_000
    assert original.read_bytes() == LIB
    assert slim(original, out, "--verify") == 0
    assert slim(original, tmp_path / "blank.so", "--no-compact") == 0
    assert (tmp_path / "blank.so").stat().st_size == len(LIB)
    assert slim(original, original, "--verify") == 0
    assert "1 files byte-identical" in capsys.readouterr().out


def test_a_tampered_library_is_not_proven(tmp_path, original, capsys):
    out = tmp_path / "slim.so"
    slim(original, out)
    out.write_bytes(out.read_bytes().replace(b"host code", b"evil code"))
    assert slim(original, out, "--verify") == 1
    assert "slim.so: not proven: bytes near" in capsys.readouterr().err


def test_wheels_and_folders(tmp_path, original, capsys):
    site = tmp_path / "site"
    (site / "k").mkdir(parents=True)
    slim(original, site / "k" / "a.so")
    (site / "k" / "a.py").write_text("x = 1")
    wheel = tmp_path / "k-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("k/a.so", LIB)
        archive.writestr("k/a.py", "x = 1")
        archive.writestr("k/gone.cubin", "left out")
    capsys.readouterr()
    assert slim(wheel, site, "--verify") == 0
    assert "1 files byte-identical, 1 proven" in capsys.readouterr().out
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "plain")
    assert slim(tmp_path / "plain", site, "--verify") == 0
    (site / "k" / "a.py").write_text("x = 2")
    assert slim(wheel, site, "--verify") == 1
    assert "k/a.py: not proven" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert slim(wheel, tmp_path / "empty", "--verify") == 2


def test_what_cannot_be_slimmed(tmp_path, original, capsys):
    text = tmp_path / "x.txt"
    text.write_text("no library")
    assert slim(text, tmp_path / "out") == 0
    assert "the GPU could load all of it" in capsys.readouterr().out
    assert slim(tmp_path, tmp_path / "out") == 2
    assert slim(tmp_path / "gone", tmp_path / "out") == 2
    assert slim(original, tmp_path / "gone", "--verify") == 2
    original.write_bytes(LIB[:6000])
    assert slim(original, tmp_path / "out") == 2
    assert "lib.so: " in capsys.readouterr().err
