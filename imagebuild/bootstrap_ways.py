# SPDX-License-Identifier: Apache-2.0
"""The ways to fill an environment from a lock: by uv, wherever it comes from, or by pip alone.

Standard library only. Every way installs wheels only, and only those with a locked sha256: a wheel
runs no code while it is installed. A way raises PreconditionError, BuildError or OSError if this
machine cannot go it; the caller then tries the next.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from imagebuild.bootstrap_config import uv_environment
from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.process import output

TIMEOUT_S = 1800.0
HASHED = ("--require-hashes", "--only-binary", ":all:")
# What a user may have set for daily work with pip, and what would stop us from installing elsewhere.
PIP_ENVIRONMENT = {
    "PIP_USER": "0",
    "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_RETRIES": "2",  # the next way is a retry too
}


@dataclass(frozen=True)
class Job:
    """One environment to make: `lock` into `work`/env. `wheels` is a folder to take all files from."""

    work: Path
    lock: Path
    wheels: Path | None

    @property
    def env(self) -> Path:
        return self.work / "env"

    def sources(self) -> list[str]:
        """The options, the same for uv and pip, that say where files come from."""
        return [] if self.wheels is None else ["--no-index", "--find-links", str(self.wheels)]


def locked_uv(lock: Path) -> str:
    """The lines of the lock for uv itself: its version and hashes.

    Raises IntegrityError if the lock has none.
    """
    found = re.search(r"^uv==(?:.*\\\n)*.*$", lock.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise IntegrityError(f"{lock}: uv is not locked", hint="scripts/lock-tools")
    return found.group() + "\n"


def _sync(uv: str, job: Job) -> None:
    """Make the environment with a uv. Relocatable, since it is renamed when complete."""
    env = uv_environment(os.environ) if job.wheels is None else {}
    # A uv that we brought leaves nothing outside our folder; the user's own has a cache to use.
    if Path(uv).is_relative_to(job.work) and not os.environ.get("UV_CACHE_DIR"):
        env["UV_CACHE_DIR"] = str(job.work / "uv-cache")
    env["UV_PYTHON_DOWNLOADS"] = "never"
    env["VIRTUAL_ENV"] = str(job.env)
    # In the work folder no pyproject.toml or uv.toml of the current folder counts.
    output(
        [uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(job.env)],
        cwd=job.work,
        env=env,
        timeout=TIMEOUT_S,
    )
    output(
        [uv, "pip", "sync", "--quiet", "--compile-bytecode", *HASHED, *job.sources(), str(job.lock)],
        cwd=job.work,
        env=env,
        timeout=TIMEOUT_S,
    )


def _pip_gets_uv(pip: list[str], job: Job) -> str:
    """Let a pip install the locked uv into a private folder, and return its path."""
    requirement = job.work / "uv.txt"
    requirement.write_text(locked_uv(job.lock), encoding="utf-8")
    target = job.work / "uv"
    command = [*pip, "install", "--quiet", "--no-input", "--no-deps", *HASHED, *job.sources()]
    output(
        [*command, "--target", str(target), "-r", str(requirement)],
        cwd=job.work,
        env=PIP_ENVIRONMENT,
        timeout=TIMEOUT_S,
    )
    return str(target / "bin" / "uv")


def by_uv_on_path(job: Job) -> None:
    """The user's own uv."""
    uv = shutil.which("uv")
    if uv is None:
        raise PreconditionError("program not found: uv")
    _sync(os.path.abspath(uv), job)


def by_pip_of_this_python(job: Job) -> None:
    """The pip of the Python that runs us brings uv."""
    _sync(_pip_gets_uv([sys.executable, "-m", "pip"], job), job)


def by_debian_pip_wheel(job: Job) -> None:
    """Debian's and Ubuntu's package of pip, unpacked and not installed, brings uv. Needs no root."""
    folder = job.work / "deb"
    (folder / "lists" / "partial").mkdir(parents=True)
    download = ["apt-get", "-q", "-o", "APT::Sandbox::User=", "download", "python3-pip-whl"]
    try:
        output(download, cwd=folder)
    except PreconditionError:
        raise
    except Exception:
        # A fresh container has no package lists yet: get some, but leave the system's alone.
        own = ["-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}"]
        output(["apt-get", "-q", "-o", "APT::Sandbox::User=", *own, "update"], cwd=folder)
        output([*download, *own], cwd=folder)
    for package in folder.glob("*.deb"):
        output(["dpkg", "-x", str(package), str(folder / "root")])
    wheel = next(folder.glob("root/usr/share/python-wheels/pip-*.whl"), None)
    if wheel is None:
        raise PreconditionError("python3-pip-whl holds no pip wheel")
    _sync(_pip_gets_uv([sys.executable, str(wheel / "pip")], job), job)


def by_venv_and_pip(job: Job) -> None:
    """No uv at all: the standard library's venv and the pip that comes with it."""
    output([sys.executable, "-m", "venv", str(job.env)], cwd=job.work)
    python = str(job.env / "bin" / "python")
    command = [python, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", *HASHED, *job.sources()]
    output([*command, "-r", str(job.lock)], cwd=job.work, env=PIP_ENVIRONMENT, timeout=TIMEOUT_S)
    _make_scripts_relocatable(job.env)


def _make_scripts_relocatable(env: Path) -> None:
    """pip writes the absolute path of the interpreter into each script, but the folder moves.

    It writes one line, or three through /bin/sh where the path is too long for the system.
    """
    place = re.escape(os.fsencode(env / "bin"))
    absolute = re.compile(rb"#!" + place + rb".*\n|#!/bin/sh\n'''exec' \"?" + place + rb".*\n' '''\n")
    relative = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/python "$0" "$@"
' '''
"""
    for script in (env / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            text = script.read_bytes()
            if found := absolute.match(text):
                script.write_bytes(relative + text[found.end() :])


def by_uv_wheel_in_folder(job: Job) -> None:
    """uv out of its wheel in IMAGEBUILD_WHEELS: a wheel is a zip file, so no pip is needed."""
    assert job.wheels is not None
    locked = locked_uv(job.lock)
    machine = os.uname().machine
    candidates = sorted(path for path in job.wheels.glob("uv-*.whl") if machine in path.name)
    if not candidates:
        raise PreconditionError(f"no uv-*{machine}*.whl in {job.wheels}")
    wheel = candidates[0]  # manylinux sorts before musllinux
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if f"sha256:{digest}" not in locked:
        raise IntegrityError(f"{wheel}: sha256 {digest} is not in {job.lock.name}")
    uv = job.work / "uv"
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        uv.write_bytes(archive.read(member))
    uv.chmod(0o755)
    _sync(str(uv), job)


WAYS: tuple[tuple[str, Callable[[Job], None]], ...] = (
    ("uv on PATH", by_uv_on_path),
    ("uv by this Python's pip", by_pip_of_this_python),
    ("uv by the pip of Debian's python3-pip-whl", by_debian_pip_wheel),
    ("venv and its pip", by_venv_and_pip),
)
OFFLINE_WAYS: tuple[tuple[str, Callable[[Job], None]], ...] = (
    ("uv on PATH", by_uv_on_path),
    ("uv from its wheel in IMAGEBUILD_WHEELS", by_uv_wheel_in_folder),
    ("venv and its pip", by_venv_and_pip),
)
