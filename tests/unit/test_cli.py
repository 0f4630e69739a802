# SPDX-License-Identifier: Apache-2.0
"""The command line: default command, exit codes, streams."""

import json
import sys

import pytest

from imagebuild.cli import run
from imagebuild.errors import BuildError, CheckFailed, IntegrityError, ManifestError, PreconditionError
from tests.checkouts import copy_images


def test_plan_is_json_on_stdout_and_nothing_else(capsys):
    assert run(["plan", "--arch", "10.3a", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["arch"] == "sm_103"
    assert err == ""


def test_arch_without_a_command_means_build(capsys):
    assert run(["--arch", "sm_103", "--stop-after", "plan", "--json"]) == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert value["reference"].endswith(value["plan"][:12])
    assert value["plan"][:12] in err


def test_quiet_prints_the_result_only(capsys):
    assert run(["--arch", "sm_103", "--stop-after", "plan", "-q"]) == 0
    out, err = capsys.readouterr()
    assert len(out.strip()) == 64
    assert err == ""


def test_dry_run_needs_no_engine(capsys):
    assert run(["--arch", "sm_120", "--dry-run", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["fetch_bytes"] > 4_000_000_000
    assert not any("flashinfer_cubin" in name for name in value["fetch"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "sm_1O3"], "sm_103"),
        (["--arch", "RTX PRO 6000"], "sm_120"),
        (["plan", "--arch", "sm_89"], "no image for sm_89; images/ has sm_90, sm_103, sm_120"),
        (["plan"], "--arch"),
        (["plam", "--arch", "sm_103"], "plam"),
        (["--arch", "sm_103", "--stop-after", "chekc"], "check"),
        (["--arch", "sm_103", "--jobs", "0", "--stop-after", "plan"], "--jobs"),
    ],
)
def test_wrong_usage_is_exit_2_and_says_what_is_allowed(capsys, arguments, message):
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


@pytest.mark.parametrize(
    ("error", "code"),
    [(CheckFailed, 1), (ManifestError, 2), (PreconditionError, 3), (IntegrityError, 4), (BuildError, 5)],
)
def test_each_kind_of_error_has_its_exit_code(monkeypatch, capsys, error, code):
    def fail(*_, **__):
        raise error("what happened", hint="do this")

    monkeypatch.setattr("imagebuild.command_plan.resolve", fail)
    assert run(["plan", "--arch", "sm_103"]) == code
    assert "what happened\n  next: do this" in capsys.readouterr().err


def test_an_interrupt_is_130(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("imagebuild.command_plan.resolve", interrupt)
    assert run(["plan", "--arch", "sm_103"]) == 130
    assert "run the same command again" in capsys.readouterr().err


def test_a_full_disk_is_a_precondition(monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device", "/cache/x")

    monkeypatch.setattr("imagebuild.command_plan.resolve", full)
    assert run(["plan", "--arch", "sm_103"]) == 3
    assert "/cache/x: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(capsys, shell):
    assert run(["completion", shell]) == 0
    assert "_BUILD_PY_COMPLETE" in capsys.readouterr().out


def test_lock_check_is_offline_and_fits(capsys):
    assert run(["lock", "--check"]) == 0
    assert "fit" in capsys.readouterr().out


def test_lock_check_exits_4_when_stale(monkeypatch, tmp_path, capsys):
    images = copy_images(tmp_path)
    path = images / "base/bookworm/base.yaml"
    path.write_text(path.read_text().replace("  procps:", "  psmisc:"))
    monkeypatch.setattr("imagebuild.command_plan.images_dir", lambda: images)
    assert run(["lock", "--check"]) == 4
    err = capsys.readouterr().err
    assert "debian.lock" in err
    assert "build.py lock" in err


def test_render_check_exits_4_and_writes_nothing(monkeypatch, tmp_path, capsys):
    images = copy_images(tmp_path)
    (images / "sm_90" / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.setattr("imagebuild.command_plan.images_dir", lambda: images)
    assert run(["render", "--check"]) == 4
    assert "sm_90/Dockerfile" in capsys.readouterr().err
    assert (images / "sm_90" / "Dockerfile").read_text() == "FROM scratch\n"
    assert run(["render"]) == 0
    assert run(["render", "--check"]) == 0


@pytest.mark.parametrize(("value", "coloured"), [("1", False), ("", True)])
def test_no_color_is_honoured_on_a_terminal(monkeypatch, capsys, value, coloured):
    monkeypatch.setenv("NO_COLOR", value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run(["plan", "--arch", "sm_1"]) == 2
    assert ("\x1b[" in capsys.readouterr().err) == coloured


def test_gc_of_an_empty_cache(capsys):
    assert run(["gc", "--dry-run"]) == 0
    assert "would free 0 B" in capsys.readouterr().out
