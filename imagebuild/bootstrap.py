# SPDX-License-Identifier: Apache-2.0
"""Give build.py its locked Python environment, whatever Python starts it. Standard library only.

A checkout and a Python >= 3.10 are enough: the first start makes an environment from
requirements.lock in the user's cache and runs build.py again in it; later starts only find it.
Each start pays for what is imported here, so all that only the first start needs is imported late.

An environment is made in a work folder beside its final place and renamed with its marker inside:
a killed start leaves a work folder, never a half-made environment. The rename matters also because
a killed start can leave an installer running, which then still writes, but into the old work folder.
"""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOCK = "requirements.lock"
DEV_LOCK = "requirements-dev.lock"
REPORT_LOCK = "requirements-report.lock"
# What IMAGEBUILD_EXTRA may name: an environment with more than the tool itself needs.
EXTRAS = {"": LOCK, "report": REPORT_LOCK, "dev": DEV_LOCK}
MARKER = "imagebuild-env.txt"


def _hash_of(lock: str) -> str:
    import hashlib

    with open(os.path.join(ROOT, lock), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _marker_lines(extra: str = "") -> list[str]:
    """What the marker of an environment says: the locks whose packages are in it. `dev` has all."""
    names = list(EXTRAS) if extra == "dev" else ["", extra] if extra else [""]
    return [f"sha256:{_hash_of(EXTRAS[name])} {EXTRAS[name]}" for name in names]


def wanted_extra(dev: bool = False) -> str:
    """The environment that is asked for: `dev` (IMAGEBUILD_DEV=1), or $IMAGEBUILD_EXTRA.

    Raises ManifestError for an extra that there is none of.
    """
    if dev or os.environ.get("IMAGEBUILD_DEV") == "1":
        return "dev"
    extra = os.environ.get("IMAGEBUILD_EXTRA", "")
    if extra not in EXTRAS:
        from imagebuild.errors import ManifestError

        raise ManifestError(f"IMAGEBUILD_EXTRA={extra}: unknown", hint="allowed: report, dev, or not set")
    return extra


def is_ready(folder: str, lines: list[str]) -> bool:
    """Whether `folder` is a complete environment of these locks (more packages do no harm)."""
    try:
        with open(os.path.join(folder, MARKER), encoding="utf-8") as file:
            found = file.read().splitlines()
    except OSError:
        return False
    # The link to the Python it was made from breaks when that Python is removed.
    return set(lines) <= set(found) and os.path.exists(python_of(folder))


def python_of(folder: str) -> str:
    """The interpreter of an environment."""
    return os.path.join(folder, "bin", "python")


def cache_folder() -> str:
    """$IMAGEBUILD_CACHE_DIR, else $XDG_CACHE_HOME/imagebuild, else ~/.cache/imagebuild.

    Raises PreconditionError if this user has no home folder (an arbitrary uid in a container).
    """
    own = os.environ.get("IMAGEBUILD_CACHE_DIR")
    if own:
        return os.path.abspath(own)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base.startswith("~"):
        from imagebuild.errors import PreconditionError

        raise PreconditionError(
            "no folder for the cache: HOME is not set and this user has none",
            hint="set IMAGEBUILD_CACHE_DIR to a folder that you may write",
        )
    return os.path.join(os.path.abspath(base), "imagebuild")


def env_folder(extra: str = "") -> str:
    """$IMAGEBUILD_VENV_DIR, else one folder in the cache per Python, machine and lock."""
    own = os.environ.get("IMAGEBUILD_VENV_DIR")
    if own:
        return os.path.abspath(own)
    tag = f"{sys.implementation.cache_tag}{sys.abiflags}-{sys.platform}-{os.uname().machine}"
    name = f"{tag}-{_hash_of(EXTRAS[extra])[:16]}"
    return os.path.join(cache_folder(), "venv", name)


def ensure(extra: str = "", quiet: bool = False) -> str:
    """Return the folder of a ready environment; make it first if need be.

    Raises PreconditionError if this Python is too old, no way to install works, or the folder
    cannot be written.
    """
    from imagebuild.errors import PreconditionError

    if sys.version_info < (3, 10):  # noqa: UP036 (for `python3.9 -m imagebuild`)
        raise PreconditionError(f"Python >= 3.10 needed, found {sys.version.split()[0]} ({sys.executable})")
    try:
        lines = _marker_lines(extra)
    except FileNotFoundError as error:
        raise PreconditionError(
            f"{error.filename} is missing: this checkout is not complete", hint="git status; git checkout ."
        ) from error
    folder = env_folder(extra)
    if not is_ready(folder, lines):
        from imagebuild.bootstrap_make import make

        make(folder, lines, os.path.join(ROOT, EXTRAS[extra]), quiet=quiet)
    return folder


def _exit(error: object, code: int) -> SystemExit:
    print(f"error: {error}", file=sys.stderr)
    return SystemExit(code)


def _ensure_or_exit(dev: bool, quiet: bool) -> str:
    from imagebuild.errors import ImageBuildError

    try:
        return ensure(wanted_extra(dev), quiet)
    except ImageBuildError as error:
        raise _exit(error, error.exit_code) from error
    except KeyboardInterrupt as error:
        raise _exit(
            "interrupted while the Python environment was made; nothing half-made stays", 130
        ) from error


def enter() -> None:
    """Return if this process runs in the locked environment; else run build.py again in it.

    It runs build.py itself, not `-m imagebuild.cli`: -m would put the current folder first on the
    import path, and build.py needs no PYTHONPATH, which every program we start would inherit.
    """
    from imagebuild.errors import ManifestError

    try:
        if is_ready(sys.prefix, _marker_lines(wanted_extra())):
            return
    except (FileNotFoundError, ManifestError):
        pass  # `ensure` says it properly
    quiet = bool({"-q", "--quiet"} & set(sys.argv[1:]))
    python = python_of(_ensure_or_exit(False, quiet))
    # Both would let other packages in before the locked ones, or keep the locked ones out.
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    os.execve(python, [python, os.path.join(ROOT, "build.py"), *sys.argv[1:]], env)


def main() -> None:
    """`python -m imagebuild.bootstrap [--dev] [--print-python] [-q]`: make the environment, run nothing."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m imagebuild.bootstrap", description=main.__doc__)
    parser.add_argument("--dev", action="store_true", help="with the test and lint tools (IMAGEBUILD_DEV=1)")
    parser.add_argument("--print-python", action="store_true", help="print the path of its interpreter")
    parser.add_argument("-q", "--quiet", action="store_true", help="no notices on stderr")
    options = parser.parse_args()
    folder = _ensure_or_exit(options.dev, options.quiet)
    if options.print_python:
        print(python_of(folder))


if __name__ == "__main__":
    main()
