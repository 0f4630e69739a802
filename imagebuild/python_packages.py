# SPDX-License-Identifier: Apache-2.0
"""Choose Python wheels: pins in, exact files out, by uv.

uv resolves for the image's Python and platform, not the host's, and sees the index as it was on
one day; which of a release's wheels the image takes is decided by packaging's tags (PEP 425).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.pylock import PackageWheel, Pylock, PylockSelectError, PylockValidationError
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name
from uv import find_uv_bin

from imagebuild import process
from imagebuild.bootstrap_config import uv_environment
from imagebuild.errors import BuildError, ManifestError
from imagebuild.layer.spec import Artifact
from imagebuild.manifest import PythonSource

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# manylinux policies older than the numbered ones, by the glibc minor version they stand for (PEP 600).
_LEGACY = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
_OLDEST_GLIBC = 5
_TIMEOUT = 900.0


def platform_tags(platform: str) -> list[str]:
    """Return the wheel platform tags that uv's target `platform` takes, best first.

    Raises ManifestError unless it is like x86_64-manylinux_2_36.
    """
    machine, _, policy = platform.partition("-")
    parts = policy.split("_")
    if len(parts) != 3 or parts[:2] != ["manylinux", "2"] or not parts[2].isdigit() or not machine:
        raise ManifestError(
            f"platform {platform!r}: allowed: MACHINE-manylinux_2_N, like x86_64-manylinux_2_36"
        )
    tags = []
    for minor in range(int(parts[2]), _OLDEST_GLIBC - 1, -1):
        tags.append(f"manylinux_2_{minor}_{machine}")
        if minor in _LEGACY:
            tags.append(f"{_LEGACY[minor]}_{machine}")
    return [*tags, f"linux_{machine}"]


def wheel_tags(source: PythonSource) -> list[Tag]:
    """Return the wheel tags of the target interpreter and platform, best first."""
    version = tuple(int(part) for part in source.python.split("."))
    platforms = platform_tags(source.platform)
    interpreter = "cp" + source.python.replace(".", "")
    return [
        *cpython_tags(python_version=version, platforms=platforms),
        *compatible_tags(python_version=version, interpreter=interpreter, platforms=platforms),
    ]


def _environment(source: PythonSource) -> Mapping[str, str]:
    """Return the marker environment (PEP 508) of the image."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{source.python}.0",
        "os_name": "posix",
        "platform_machine": source.platform.split("-", maxsplit=1)[0],
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{source.python}.0",
        "python_version": source.python,
        "sys_platform": "linux",
    }


def _compile(source: PythonSource, folder: Path) -> Path:
    """Run uv; return its pylock.toml (PEP 751)."""
    requirements, out = folder / "requirements.in", folder / "pylock.toml"
    requirements.write_text("\n".join(source.requirements) + "\n", encoding="utf-8")
    argv = [find_uv_bin(), "pip", "compile", str(requirements), "--format", "pylock.toml", "-o", str(out)]
    argv += ["--python-version", source.python, "--python-platform", source.platform]
    argv += ["--only-binary", ":all:", "--prerelease", "explicit", "--upgrade", "--no-header", "--quiet"]
    argv += ["--exclude-newer", f"{source.exclude_newer.isoformat()}T23:59:59Z"]
    process.output(argv, cwd=folder, env=uv_environment(os.environ), timeout=_TIMEOUT)
    return out


def _artifacts(path: Path, source: PythonSource) -> Iterator[Artifact]:
    lock = Pylock.from_dict(tomllib.loads(path.read_text(encoding="utf-8")))
    tags = wheel_tags(source)
    for package, file in lock.select(environment=_environment(source), tags=tags):  # type: ignore[arg-type]
        name = canonicalize_name(package.name)
        if not isinstance(file, PackageWheel) or file.size is None or "sha256" not in file.hashes:
            raise BuildError(f"{name}: the index offers no wheel with size and sha256 for {source.platform}")
        yield Artifact("wheel", name, str(package.version), file.filename, file.hashes["sha256"], file.size)


def resolve_wheels(source: PythonSource) -> tuple[Artifact, ...]:
    """Return the wheels that a source resolves to, sorted by name.

    Raises BuildError with uv's own words where there is no solution, or where the index offers no
    wheel for the target.
    """
    with tempfile.TemporaryDirectory(prefix="imagebuild-") as folder:
        path = _compile(source, Path(folder))
        try:
            return tuple(sorted(_artifacts(path, source), key=lambda a: a.name))
        except (PylockValidationError, PylockSelectError) as error:
            raise BuildError(f"uv's lock has no answer for {source.platform}: {error}") from error
