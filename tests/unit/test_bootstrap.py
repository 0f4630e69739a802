# SPDX-License-Identifier: Apache-2.0
"""The first start's decisions. That each way really works: tests/engine/test_bootstrap_ways.py."""

from __future__ import annotations

import ast
import os
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from imagebuild import bootstrap, bootstrap_make, bootstrap_ways
from imagebuild.bootstrap_ways import Job
from imagebuild.errors import BuildError, PreconditionError

ROOT = Path(bootstrap.ROOT)
LINES = ["sha256:1 requirements.lock"]


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "requirements.lock"
    path.write_text(
        "a==1 \\\n    --hash=sha256:aa\nuv==9 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\nz==2\n"
    )
    return path


def fake_env(folder: Path, *lines: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / bootstrap.MARKER).write_text("\n".join(lines))
    return folder


def use_ways(monkeypatch, *ways):
    monkeypatch.setattr(bootstrap_make, "WAYS", tuple((way.__name__, way) for way in ways))


def good(job: Job) -> None:
    (job.env / "bin").mkdir(parents=True)
    (job.env / "bin" / "python").touch()


def bad(job: Job) -> None:
    good(job)
    raise BuildError("pip exited 1\nWARNING: noise\nno such wheel")


# Which environment


def test_env_folder_is_one_per_python_machine_and_lock(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = Path(bootstrap.env_folder(""))
    assert folder.parent == tmp_path / "xdg" / "imagebuild" / "venv"
    python, platform, machine, digest = folder.name.rsplit("-", 3)
    assert python == f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    assert (platform, machine, len(digest)) == (sys.platform, os.uname().machine, 16)
    assert bootstrap.env_folder("dev") != bootstrap.env_folder("")


def test_order_of_the_settings_for_the_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert bootstrap.cache_folder() == str(Path.home() / ".cache" / "imagebuild")
    monkeypatch.setenv("IMAGEBUILD_CACHE_DIR", str(tmp_path / "own"))
    assert bootstrap.env_folder("").startswith(str(tmp_path / "own" / "venv"))
    monkeypatch.setenv("IMAGEBUILD_VENV_DIR", str(tmp_path / "env"))
    assert bootstrap.env_folder("") == str(tmp_path / "env")


def test_no_home_is_an_error_and_not_a_folder_named_tilde(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(PreconditionError, match="IMAGEBUILD_CACHE_DIR") as caught:
        bootstrap.cache_folder()
    assert caught.value.exit_code == 3


def test_ready_means_this_lock_and_a_living_interpreter(tmp_path):
    env = str(fake_env(tmp_path / "env", *LINES, "sha256:2 requirements-dev.lock"))
    assert bootstrap.is_ready(env, LINES)
    assert not bootstrap.is_ready(env, ["sha256:3 requirements.lock"])
    (tmp_path / "env" / "bin" / "python").unlink()
    assert not bootstrap.is_ready(env, LINES)
    assert not bootstrap.is_ready(str(tmp_path / "absent"), LINES)


# Making it


def test_ways_are_tried_in_order_and_each_failure_names_the_next(monkeypatch, tmp_path, lock, capsys):
    use_ways(monkeypatch, bad, good)
    bootstrap_make.make(str(tmp_path / "env"), LINES, lock, quiet=False)
    assert bootstrap.is_ready(str(tmp_path / "env"), LINES)
    out, err = capsys.readouterr()
    assert out == ""
    first, failure, ready = err.splitlines()
    assert "making a Python environment" in first and f"rm -r {tmp_path / 'env'}" in first
    assert failure == "imagebuild: bad: no such wheel; trying good"
    assert ready.endswith("(good)")


def test_all_reasons_and_the_offline_way_are_told(monkeypatch, tmp_path, lock, capsys):
    def absent(job):
        raise PreconditionError("program not found: uv")

    use_ways(monkeypatch, absent, bad)
    with pytest.raises(PreconditionError) as caught:
        bootstrap_make.make(str(tmp_path / "env"), LINES, lock, quiet=True)
    assert caught.value.exit_code == 3
    text = str(caught.value)
    assert "1. absent: program not found: uv" in text
    assert "2. bad: pip exited 1\n     no such wheel" in text
    assert "IMAGEBUILD_WHEELS" in text and "noise" not in text
    assert capsys.readouterr().err == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env.lock", "requirements.lock"]


def test_an_interrupt_leaves_nothing_half_made(monkeypatch, tmp_path, lock):
    def interrupted(job):
        good(job)
        raise KeyboardInterrupt

    use_ways(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        bootstrap_make.make(str(tmp_path / "env"), LINES, lock, quiet=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env.lock", "requirements.lock"]


def test_what_a_killed_start_left_is_removed(monkeypatch, tmp_path, lock):
    (tmp_path / "env.work-dead" / "env").mkdir(parents=True)
    use_ways(monkeypatch, good)
    bootstrap_make.make(str(tmp_path / "env"), LINES, lock, quiet=True)
    assert not (tmp_path / "env.work-dead").exists()


def test_a_folder_that_is_not_ours_is_refused_and_kept(monkeypatch, tmp_path, lock):
    use_ways(monkeypatch, good)
    precious = tmp_path / "home" / "thesis.tex"
    precious.parent.mkdir()
    precious.touch()
    with pytest.raises(PreconditionError, match="not empty and not an environment"):
        bootstrap_make.make(str(precious.parent), LINES, lock, quiet=True)
    assert precious.exists()


def test_an_environment_of_another_lock_is_replaced(monkeypatch, tmp_path, lock):
    use_ways(monkeypatch, good)
    env = fake_env(tmp_path / "env", "sha256:old requirements.lock")
    (env / "old").touch()
    bootstrap_make.make(str(env), LINES, lock, quiet=True)
    assert bootstrap.is_ready(str(env), LINES)
    assert not (env / "old").exists()


def test_an_unwritable_place_says_what_to_set(tmp_path, lock):
    (tmp_path / "file").touch()
    with pytest.raises(PreconditionError, match="IMAGEBUILD_CACHE_DIR"):
        bootstrap_make.make(str(tmp_path / "file" / "env"), LINES, lock, quiet=True)


# The ways


def test_every_way_asks_for_hashes_and_wheels_only_and_hides_the_index(monkeypatch, tmp_path, lock):
    """An index address may hold a password: it goes in the environment, not on the command line."""
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@mirror.invalid/simple")
    calls: list[tuple[list[str], dict[str, str]]] = []

    def fake_output(argv, *, cwd=None, env=None, timeout=None):
        calls.append((list(argv), dict(env or {})))
        if argv[0] == "dpkg":
            wheel = Path(argv[-1]) / "usr" / "share" / "python-wheels" / "pip-1-py3-none-any.whl"
            wheel.parent.mkdir(parents=True)
            wheel.touch()
        elif "download" in argv:
            (cwd / "python3-pip-whl.deb").touch()
        return ""

    monkeypatch.setattr(bootstrap_ways, "output", fake_output)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(bootstrap_ways, "_make_scripts_relocatable", lambda env: None)
    for number, (_, way) in enumerate(bootstrap_ways.WAYS):
        work = tmp_path / str(number)
        work.mkdir()
        way(Job(work=work, lock=lock, wheels=None))
    installs = [(argv, env) for argv, env in calls if "install" in argv or "sync" in argv]
    assert len(installs) == 6  # uv; pip and uv; Debian's pip and uv; pip
    for argv, env in installs:
        assert "--require-hashes" in argv
        assert argv[argv.index("--only-binary") + 1] == ":all:"
        assert "secret" not in " ".join(argv)
        if "sync" in argv:
            assert env["UV_DEFAULT_INDEX"] == "https://user:secret@mirror.invalid/simple"
            assert env["UV_PYTHON_DOWNLOADS"] == "never"


def test_the_locked_lines_of_uv(lock):
    assert bootstrap_ways.locked_uv(lock) == "uv==9 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
    assert bootstrap_ways.locked_uv(ROOT / "requirements.lock").count("--hash=sha256:") > 5


def test_an_offline_uv_wheel_must_have_a_locked_hash(tmp_path, lock):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / f"uv-9-py3-none-manylinux_2_17_{os.uname().machine}.whl").write_bytes(b"evil")
    with pytest.raises(Exception, match="is not in"):
        bootstrap_ways.by_uv_wheel_in_folder(Job(work=tmp_path, lock=lock, wheels=wheels))


LONG = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
"""


@pytest.mark.parametrize("head", ["#!{python}\n", LONG], ids=["short", "long"])
def test_scripts_of_pip_survive_the_rename(tmp_path, head):
    scripts = tmp_path / "env" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "tool").write_text(head.format(python=scripts / "python3.12") + "import sys\n")
    (scripts / "other").write_text("#!/bin/sh\ntrue\n")
    bootstrap_ways._make_scripts_relocatable(tmp_path / "env")
    text = (scripts / "tool").read_text()
    assert str(tmp_path) not in text
    assert text.startswith("#!/bin/sh\n") and text.endswith("\n' '''\nimport sys\n")
    assert (scripts / "other").read_text() == "#!/bin/sh\ntrue\n"


# Entering it


def test_enter_runs_build_py_again_with_the_same_arguments(monkeypatch, tmp_path):
    lines = bootstrap._marker_lines()
    env = fake_env(tmp_path / "env", *lines)
    monkeypatch.setenv("IMAGEBUILD_VENV_DIR", str(env))
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(sys, "argv", ["build.py", "--arch", "sm 103", ""])
    seen = []
    monkeypatch.setattr(os, "execve", lambda *call: seen.append(call))
    bootstrap.enter()
    [(python, argv, environment)] = seen
    assert python == str(env / "bin" / "python")
    assert argv == [python, str(ROOT / "build.py"), "--arch", "sm 103", ""]
    assert "PYTHONPATH" not in environment
    assert environment["HOME"] == os.environ["HOME"]


def test_enter_returns_inside_also_in_the_development_environment(monkeypatch, tmp_path):
    both = fake_env(tmp_path / "env", *bootstrap._marker_lines("dev"))
    monkeypatch.setattr(sys, "prefix", str(both))
    bootstrap.enter()  # execve would fail the test
    monkeypatch.setenv("IMAGEBUILD_DEV", "1")
    bootstrap.enter()


def test_enter_prints_an_error_and_exits_with_its_code(monkeypatch, capsys):
    def refuse(extra, quiet):
        raise PreconditionError("no room", hint="make room")

    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(bootstrap, "ensure", refuse)
    with pytest.raises(SystemExit) as caught:
        bootstrap.enter()
    assert caught.value.code == 3
    assert capsys.readouterr().err == "error: no room\n  next: make room\n"


def test_ctrl_c_while_making_exits_130(monkeypatch):
    def interrupt(extra, quiet):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(bootstrap, "ensure", interrupt)
    with pytest.raises(SystemExit) as caught:
        bootstrap.enter()
    assert caught.value.code == 130


def test_build_py_parses_on_old_pythons_and_says_what_is_needed(monkeypatch, capsys):
    source = (ROOT / "build.py").read_text()
    tree = ast.parse(source, feature_version=(3, 0))
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.JoinedStr, ast.AnnAssign))]
    assert "__future__" not in source
    monkeypatch.setattr(sys, "version_info", (3, 9, 7))
    monkeypatch.setattr(sys, "version", "3.9.7 (main)")
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(ROOT / "build.py"), run_name="__main__")
    assert caught.value.code == 3
    assert "Python >= 3.10 needed, found 3.9.7" in capsys.readouterr().err


# What may be imported where


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return found | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def foreign(path: Path, *allowed: str) -> set[str]:
    return {
        name
        for name in imports(path)
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not any(name == ours or name.startswith(f"{ours}.") for ours in allowed)
    }


EARLY = ["errors", "process", *(path.stem for path in sorted((ROOT / "imagebuild").glob("bootstrap*.py")))]


@pytest.mark.parametrize("name", EARLY)
def test_what_runs_first_needs_the_standard_library_only(name):
    allowed = [f"imagebuild.{module}" for module in EARLY]
    assert foreign(ROOT / "imagebuild" / f"{name}.py", *allowed) == set()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "imagebuild" / "layer").glob("*.py")), ids=lambda path: path.name
)
def test_layer_needs_the_standard_library_and_installer_only(path):
    assert foreign(path, "imagebuild.layer", "installer") == set()


@pytest.mark.subprocess
def test_a_warm_start_imports_little():
    from imagebuild import process

    code = "import sys; import imagebuild.bootstrap; print(*sys.modules)"
    loaded = set(process.output([sys.executable, "-S", "-c", code], cwd=ROOT).split())
    assert not loaded & {
        "subprocess",
        "pathlib",
        "logging",
        "argparse",
        "tempfile",
        "dataclasses",
        "re",
        "json",
    }
