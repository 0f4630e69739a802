# SPDX-License-Identifier: Apache-2.0
"""Each way to make the environment, for real: from an empty cache, with nothing but what it needs.

Every test works on a copy of the checkout whose command line is a small program that prints what it
got, so that what is tested is how it was started.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import uv

ROOT = Path(__file__).parents[2]
CLI = """
import json, os, sys, time
import click, pydantic
def main():
    print(json.dumps({"argv": sys.argv[1:], "prefix": sys.prefix, "click": click.__file__}), flush=True)
    if "sleep" in sys.argv:
        time.sleep(60)
    sys.exit(7 if "seven" in sys.argv else 0)
"""

# The interpreter that users start: these tests themselves may run in an environment that bootstrap made.
PYTHON = sys._base_executable  # type: ignore[attr-defined]


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "a checkout"
    (folder / "imagebuild").mkdir(parents=True)
    for path in (ROOT / "build.py", *ROOT.glob("requirements*.lock")):
        shutil.copy(path, folder)
    names = ("__init__", "__main__", "errors", "process", "bootstrap*")
    for path in (path for name in names for path in ROOT.glob(f"imagebuild/{name}.py")):
        shutil.copy(path, folder / "imagebuild")
    (folder / "imagebuild" / "cli.py").write_text(CLI)
    return folder


@pytest.fixture
def only_uv(tmp_path):
    """A PATH with uv and nothing else."""
    folder = tmp_path / "only-uv"
    folder.mkdir()
    (folder / "uv").symlink_to(uv.find_uv_bin())
    return str(folder)


@pytest.fixture
def nothing(tmp_path):
    """A PATH with nothing on it."""
    folder = tmp_path / "nothing"
    folder.mkdir()
    return str(folder)


@pytest.fixture
def python_without_pip(tmp_path):
    folder = tmp_path / "no-pip"
    subprocess.run([uv.find_uv_bin(), "venv", "--quiet", "--python", PYTHON, folder], check=True)
    return str(folder / "bin" / "python")


@pytest.fixture
def host(tmp_path):
    """The environment of a user whose caches are empty. Variables that name pip's index stay."""
    hidden = ("IMAGEBUILD_", "UV_", "XDG_", "PYTHON", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {
        **env,
        "HOME": str(tmp_path / "home"),
        "IMAGEBUILD_CACHE_DIR": str(tmp_path / "cache"),
        "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
    }


def start(checkout, host, path, *arguments, python=PYTHON, before=(), **more):
    return subprocess.Popen(
        [*before, python, str(checkout / "build.py"), *arguments],
        env={**host, "PATH": path, **more},
        cwd="/",
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(*arguments, **more):
    process = start(*arguments, **more)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def answer(result):
    code, out, err = result
    assert code == 0, err
    return json.loads(out)


def leftovers(host):
    return [path.name for path in Path(host["IMAGEBUILD_CACHE_DIR"], "venv").glob("*.work-*")]


def test_uv_on_path(checkout, host, only_uv):
    code, out, err = run(checkout, host, only_uv, "--arch", "sm 103", "", "seven")
    assert (code, json.loads(out)["argv"]) == (7, ["--arch", "sm 103", "", "seven"])
    assert "(uv on PATH)" in err and len(err.splitlines()) == 2
    assert json.loads(out)["click"].startswith(host["IMAGEBUILD_CACHE_DIR"])
    assert run(checkout, host, only_uv, "seven")[2] == ""  # the second start finds it and says nothing
    assert leftovers(host) == []


def test_pip_of_this_python(checkout, host, nothing):
    result = run(checkout, host, nothing)
    assert answer(result) and "(uv by this Python's pip)" in result[2]
    assert leftovers(host) == []


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="not Debian")
@pytest.mark.parametrize("lists", ["of the system", "none yet"])
def test_debian_pip_wheel(checkout, host, tmp_path, python_without_pip, lists):
    """Also in a fresh container, where nobody ran apt-get update."""
    if lists == "none yet":
        (tmp_path / "empty" / "partial").mkdir(parents=True)
        (tmp_path / "apt.conf").write_text(f'Dir::State::lists "{tmp_path}/empty";\n')
        host["APT_CONFIG"] = str(tmp_path / "apt.conf")
    result = run(checkout, host, "/usr/sbin:/usr/bin:/sbin:/bin", python=python_without_pip)
    assert answer(result) and "(uv by the pip of Debian's python3-pip-whl)" in result[2]
    assert "No module named pip" in result[2]
    assert leftovers(host) == []


def test_venv_and_its_pip(checkout, host, nothing, python_without_pip):
    result = run(checkout, host, nothing, python=python_without_pip)
    answered = answer(result)
    assert "(venv and its pip)" in result[2]
    # Scripts were written before the rename and must work after it.
    script = Path(answered["prefix"]) / "bin" / "pytest"
    assert (
        "pytest" in subprocess.run([script, "--version"], check=True, capture_output=True, text=True).stdout
    )


def test_without_network_from_a_folder_of_wheels(checkout, host, nothing, tmp_path, python_without_pip):
    wheels = tmp_path / "wheels"
    pip = [PYTHON, "-m", "pip", "download", "--quiet", "--require-hashes", "--only-binary", ":all:"]
    subprocess.run([*pip, "-r", checkout / "requirements.lock", "-d", wheels], check=True)
    alone = ("/usr/bin/unshare", "--net") if os.geteuid() == 0 else ("/usr/bin/unshare", "-r", "--net")
    failed = run(checkout, host, nothing, python=python_without_pip, before=alone)
    assert failed[0] == 3 and "IMAGEBUILD_WHEELS" in failed[2]
    result = run(
        checkout, host, nothing, python=python_without_pip, before=alone, IMAGEBUILD_WHEELS=str(wheels)
    )
    assert answer(result) and "(uv from its wheel in IMAGEBUILD_WHEELS)" in result[2]


def test_a_killed_start_leaves_nothing_that_is_used(checkout, host, only_uv):
    process = start(checkout, host, only_uv)
    venvs = Path(host["IMAGEBUILD_CACHE_DIR"], "venv")
    deadline = time.monotonic() + 60
    while not list(venvs.glob("*.work-*/env/lib/python*/site-packages/*")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [path.name for path in venvs.iterdir() if path.is_dir() and ".work-" not in path.name] == []
    assert answer(run(checkout, host, only_uv))
    assert answer(run(checkout, host, only_uv))


def test_two_at_once_make_one_environment(checkout, host, only_uv):
    both = [start(checkout, host, only_uv, "x") for _ in range(2)]
    results = [(process.returncode, out, err) for process in both for out, err in [process.communicate()]]
    assert [answer(result)["argv"] for result in results] == [["x"], ["x"]]
    texts = "".join(err for _, _, err in results)
    assert texts.count("making a Python environment") == 1
    assert leftovers(host) == []


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """One ready environment for the tests of a later start."""
    cache = tmp_path_factory.mktemp("warm")
    env = {**os.environ, "IMAGEBUILD_CACHE_DIR": str(cache)}
    env.pop("IMAGEBUILD_VENV_DIR", None)
    subprocess.run([PYTHON, "-m", "imagebuild.bootstrap", "-q"], cwd=ROOT, env=env, check=True)
    return str(cache)


def test_what_lies_in_the_current_folder_or_pythonpath_is_not_imported(checkout, host, warm, tmp_path):
    for name in ("click.py", "pydantic.py", "imagebuild.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the wrong place')\n")
    command = [PYTHON, "-P", str(checkout / "build.py")] if sys.version_info >= (3, 11) else []
    for argv in filter(None, ([PYTHON, str(checkout / "build.py")], command)):
        env = {**host, "IMAGEBUILD_CACHE_DIR": warm}
        result = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
    (tmp_path / "json.py").unlink()  # it would stop the first Python itself
    env = {**host, "IMAGEBUILD_CACHE_DIR": warm, "PYTHONPATH": str(tmp_path)}
    argv = [PYTHON, str(checkout / "build.py")]
    assert subprocess.run(argv, cwd="/", env=env, capture_output=True, check=False).returncode == 0


def test_python_m_imagebuild_is_the_same(checkout, host, warm):
    env = {**host, "IMAGEBUILD_CACHE_DIR": warm}
    argv = [PYTHON, "-m", "imagebuild", "seven"]
    assert subprocess.run(argv, cwd=checkout, env=env, capture_output=True, check=False).returncode == 7


def test_a_signal_reaches_the_program(checkout, host, warm, nothing):
    process = start(checkout, {**host, "IMAGEBUILD_CACHE_DIR": warm}, nothing, "sleep")
    assert process.stdout is not None and process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM


def test_a_warm_start_costs_less_than_50_ms(checkout, host, warm):
    """Until our command line starts, over a bare start of the same Python."""
    (checkout / "imagebuild" / "cli.py").write_text("def main(): pass\n")
    env = {**host, "IMAGEBUILD_CACHE_DIR": warm}

    def seconds(*argv: str) -> float:
        times = []
        for _ in range(15):
            started = time.perf_counter()
            subprocess.run(argv, env=env, check=True)
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    cost = seconds(PYTHON, str(checkout / "build.py")) - seconds(PYTHON, "-c", "pass")
    print(f"warm start: {cost * 1000:.0f} ms")
    assert cost < 0.05


# Where the machine has some; that old ones can parse build.py is checked in tests/unit on every machine.
OLD_PYTHONS = [
    found
    for version in ("2.7", "3.6", "3.7", "3.8", "3.9")
    for found in (
        *glob.glob(f"/root/.pyenv/versions/{version}.*/bin/python"),
        shutil.which(f"python{version}"),
    )
    if found and "shims" not in found
]
if OLD_PYTHONS:

    @pytest.mark.parametrize("old", OLD_PYTHONS)
    def test_an_old_python_says_what_is_needed(checkout, host, old):
        code, _, err = run(checkout, host, "/usr/bin:/bin", python=old)
        assert code == 3 and "Python >= 3.10 needed, found " in err
