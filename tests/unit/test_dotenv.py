# SPDX-License-Identifier: Apache-2.0
"""`.env` is changed in place. That Compose reads what is written: tests/engine/test_dotenv_compose.py."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from imagebuild import dotenv
from imagebuild.diagnostics import Refused
from imagebuild.errors import ManifestError

KEY = dotenv.ARCH


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".env"


def after(path, text, values=None):
    path.write_bytes(text.encode())
    dotenv.update(path, values or {KEY: "sm_120"})
    return path.read_bytes().decode()


def test_a_new_file_has_the_variables_in_order(path):
    assert dotenv.update(path, {KEY: "sm_103", dotenv.MODELS_DIR: "/data/models"})
    assert path.read_text() == "IMAGEBUILD_ARCH=sm_103\nIMAGEBUILD_MODELS_DIR=/data/models\n"
    assert dotenv.read(path) == {KEY: "sm_103", dotenv.MODELS_DIR: "/data/models"}


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("A=1\n", "A=1\nIMAGEBUILD_ARCH=sm_120\n"),
        ("A=1", "A=1\nIMAGEBUILD_ARCH=sm_120\n"),
        ("# x\n\nIMAGEBUILD_ARCH=sm_90 # ours\nB=2\n", "# x\n\nIMAGEBUILD_ARCH=sm_120 # ours\nB=2\n"),
        ("IMAGEBUILD_ARCH = sm_90\n", "IMAGEBUILD_ARCH=sm_120\n"),
        ("IMAGEBUILD_ARCH: 'sm_90' # x\n", "IMAGEBUILD_ARCH=sm_120 # x\n"),
        ("export IMAGEBUILD_ARCH=sm_90\n", "export IMAGEBUILD_ARCH=sm_120\n"),
        ("IMAGEBUILD_ARCH=a\nB=1\nIMAGEBUILD_ARCH=b\n", "B=1\nIMAGEBUILD_ARCH=sm_120\n"),
        ("IMAGEBUILD_ARCH=\n", "IMAGEBUILD_ARCH=sm_120\n"),
        ("A=1\r\nIMAGEBUILD_ARCH=x\r\n", "A=1\r\nIMAGEBUILD_ARCH=sm_120\r\n"),
        ("A=1\r\n", "A=1\r\nIMAGEBUILD_ARCH=sm_120\r\n"),
        ("T='two\nIMAGEBUILD_ARCH=inner\n'\n", "T='two\nIMAGEBUILD_ARCH=inner\n'\nIMAGEBUILD_ARCH=sm_120\n"),
        ("MY_IMAGEBUILD_ARCH=1\nlonely\n", "MY_IMAGEBUILD_ARCH=1\nlonely\nIMAGEBUILD_ARCH=sm_120\n"),
        ("#IMAGEBUILD_ARCH=sm_90\n", "#IMAGEBUILD_ARCH=sm_90\nIMAGEBUILD_ARCH=sm_120\n"),
        ("\ufeffIMAGEBUILD_ARCH=sm_90\n", "\ufeffIMAGEBUILD_ARCH=sm_120\n"),
    ],
)
def test_only_our_line_changes(path, before, expected):
    assert after(path, before) == expected


@pytest.mark.parametrize(
    "value",
    ["/data/models", "a b", "it's", "$HOME/x", "# no comment", 'say "x"', "ü/é", "x=1,y:2", "'", "~/m"],
)
def test_values_come_back(path, value):
    dotenv.update(path, {dotenv.MODELS_DIR: value, KEY: "sm_90"})
    assert dotenv.read(path) == {dotenv.MODELS_DIR: value, KEY: "sm_90"}


def test_read_takes_what_people_write(path):
    path.write_text('A=b # c\nB="x \\" y" # c\nC=\'d\ne\'\nD: f\nE=a#b\nF=\nexport G=1\nA=2\n')
    assert dotenv.read(path) == {
        "A": "2", "B": 'x " y', "C": "d\ne", "D": "f", "E": "a#b", "F": "", "G": "1",
    }  # fmt: skip


def test_a_quote_that_is_not_closed_names_the_line_and_changes_nothing(path):
    path.write_text("A=1\n\nB='x\n")
    with pytest.raises(ManifestError, match=r"\.env:3: B: the quote is not closed"):
        dotenv.update(path, {KEY: "sm_120"})
    assert path.read_text() == "A=1\n\nB='x\n"


@pytest.mark.parametrize(
    "key", ["HOME", "IMAGEBUILD_", "IMAGEBUILD_ARCH\n", "IMAGEBUILD_IMAGE_sm_90", "imagebuild_arch"]
)
def test_other_keys_are_refused(path, key):
    with pytest.raises(Refused, match="IMAGEBUILD_MODELS_DIR"):
        dotenv.update(path, {key: "x"})
    assert not path.exists()


@pytest.mark.parametrize("value", ["", "a\nb", "a\0", "C:\\models", "\x1b[1m"])
def test_values_that_compose_would_read_otherwise_are_refused(path, value):
    with pytest.raises(Refused, match="cannot be kept"):
        dotenv.update(path, {KEY: value})


def test_mode_stays_and_a_link_is_followed(path, tmp_path):
    real = tmp_path / "real"
    real.write_text("TOKEN=x\n")
    real.chmod(0o600)
    path.symlink_to(real)
    dotenv.update(path, {KEY: "sm_103"})
    assert path.is_symlink() and real.read_text() == "TOKEN=x\nIMAGEBUILD_ARCH=sm_103\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == [".env", "real"]


def test_same_values_write_nothing(path):
    dotenv.update(path, {KEY: "sm_103"})
    before = path.stat().st_ino
    assert not dotenv.update(path, {KEY: "sm_103"})
    assert path.stat().st_ino == before


def test_writers_at_the_same_time_lose_nothing(path):
    keys = [dotenv.image_key(f"sm_{number}") for number in range(10, 40)]
    threads = [threading.Thread(target=dotenv.update, args=(path, {key: "x"})) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(dotenv.read(path)) == sorted(keys)


def test_the_first_image_decides_the_arch(tmp_path):
    first = dotenv.note_image(tmp_path, "sm_120", "k26:a", "1f")
    said = "IMAGEBUILD_IMAGE_SM_120=k26:a, IMAGEBUILD_PLAN_SM_120=1f, IMAGEBUILD_ARCH=sm_120"
    assert first == f"{tmp_path}/.env: {said}"
    dotenv.note_image(tmp_path, "sm_103", "k26:b", "2f")
    assert dotenv.note_image(tmp_path, "sm_103", "k26:b", "2f").endswith("(as before)")
    assert dotenv.read(tmp_path / ".env") == {
        "IMAGEBUILD_IMAGE_SM_120": "k26:a", "IMAGEBUILD_PLAN_SM_120": "1f", "IMAGEBUILD_ARCH": "sm_120",
        "IMAGEBUILD_IMAGE_SM_103": "k26:b", "IMAGEBUILD_PLAN_SM_103": "2f",
    }  # fmt: skip


def test_an_image_is_good_without_the_file(tmp_path):
    (tmp_path / ".env").write_text("A='x\n")
    line = dotenv.note_image(tmp_path, "sm_120", "k26:a", "1f")
    assert "left alone" in line and "set IMAGEBUILD_IMAGE_SM_120=k26:a yourself" in line
    assert (tmp_path / ".env").read_text() == "A='x\n"
    assert "left alone" in dotenv.note_image(tmp_path / "missing", "sm_120", "k26:a", "1f")
