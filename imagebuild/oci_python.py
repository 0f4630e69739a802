# SPDX-License-Identifier: Apache-2.0
"""Run the image's own Python on the host, without root and without a container.

Byte-code belongs to one interpreter, so the base's is unpacked to a temporary folder and started
through its own loader: no chroot, no user namespace, nothing of the host's Python.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from imagebuild import process
from imagebuild.errors import BuildError
from imagebuild.layer.entries import Entry, write_directory

_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LOADER = f"{_LIBRARIES}/ld-linux-x86-64.so.2"
_TIMEOUT = 1800.0


def _wanted(entry: Entry, python: str) -> bool:
    """Whether the interpreter needs this path of the base: itself, its library, shared objects."""
    if entry.path.startswith((f"usr/lib/python{python}/", f"usr/bin/python{python}")):
        return "/test/" not in entry.path and "/config-" not in entry.path
    folder, _, name = entry.path.rpartition("/")
    return folder == _LIBRARIES and ".so" in name


@dataclass(frozen=True)
class ImagePython:
    """The image's interpreter below `root`; `tools` holds our code, `python` is "3.11"."""

    root: Path
    tools: Path
    python: str

    @property
    def cache_tag(self) -> str:
        """The tag of its byte-code files (PEP 3147)."""
        return f"cpython-{self.python.replace('.', '')}"

    def compile(self, jobs: list[tuple[bytes, str]], workers: int) -> list[bytes | None]:
        """Byte-compile with the image's interpreter; None where a source does not compile.

        Raises BuildError if the interpreter does not run here.
        """
        if not jobs:
            return []
        library = self.root / _LIBRARIES
        argv = [str(self.root / _LOADER), "--inhibit-cache", "--library-path", str(library)]
        argv += [str(self.root / f"usr/bin/python{self.python}"), "-B", "-s", "-S"]
        environment = {
            "PYTHONHOME": str(self.root / "usr"),
            "PYTHONPATH": str(self.tools),
            "LC_ALL": "C.UTF-8",
            "LD_LIBRARY_PATH": "",
            "LD_PRELOAD": "",
        }
        with tempfile.TemporaryDirectory(prefix="imagebuild-") as folder:
            source, out = Path(folder) / "jobs", Path(folder) / "out"
            source.write_bytes(pickle.dumps(jobs))
            argv += ["-m", "imagebuild.layer.bytecode", str(source), str(out), str(workers)]
            process.output(argv, env=environment, timeout=_TIMEOUT)
            made: list[bytes | None] = pickle.loads(out.read_bytes())
        if len(made) != len(jobs):
            raise BuildError(f"the image's Python compiled {len(made)} of {len(jobs)} modules")
        return made


def unpack_python(base: Iterable[Entry], root: Path, tools: Path, python: str) -> ImagePython:
    """Unpack the base's interpreter below `root`; the caller removes it."""
    for entry in base:
        if _wanted(entry, python) and entry.kind != "hardlink":
            write_directory(entry, root, 0)
    if not os.access(root / _LOADER, os.X_OK):
        raise BuildError(f"the base has no {_LOADER}, so its Python cannot be started")
    return ImagePython(root, tools, python)
