# SPDX-License-Identifier: Apache-2.0
"""Our own code that makes layers: which files it is, and its digest.

The `tools` build context is the code that runs in build containers, the locked tool wheels and a
`__main__.py`. Which files those are follows from the imports, so that an edit to code that only
the host runs leaves every layer cached.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
MAIN = """\
import sys

from imagebuild.layer.run import main

sys.exit(main(sys.argv[1:]))
"""


def _imports(path: Path) -> set[Path]:
    """Return the modules of ours that a module imports (absolute imports only, as is the rule here)."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            target = PACKAGE.parent.joinpath(*parts).with_suffix(".py")
            if parts[0] == PACKAGE.name and target.is_file():
                found.add(target)
    return found


@functools.cache
def _closure(*entries: str) -> dict[str, bytes]:
    """Return path → content of modules of ours (`layer/run.py`) and all of ours that they need."""
    todo, seen = [PACKAGE / entry for entry in entries], set[Path]()
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo += _imports(path)
    folders = {parent for path in seen for parent in path.parents if parent.is_relative_to(PACKAGE)}
    seen |= {folder / "__init__.py" for folder in folders}
    return {p.relative_to(PACKAGE.parent).as_posix(): p.read_bytes() for p in sorted(seen)}


def code_files() -> dict[str, bytes]:
    """Return the context path and content of every file of ours in a build container."""
    return {"__main__.py": MAIN.encode(), **_closure("layer/run.py")}


def _digest(files: dict[str, bytes]) -> str:
    total = hashlib.sha256()
    for path, content in files.items():
        total.update(f"{path}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def code_digest() -> str:
    """Return the sha256 of the code in build containers, by path and content."""
    return _digest(code_files())


def base_digest() -> str:
    """Return the sha256 of the code that unpacks the Debian base on the host."""
    return _digest(_closure("layer/base.py"))


def reader_digest() -> str:
    """Return the sha256 of the code that reads GPU code, so that facts of another reader are not used."""
    return _digest({**_closure("layer/scan.py"), "gpufacts.py": (PACKAGE / "gpufacts.py").read_bytes()})


def image_code() -> dict[str, Path]:
    """Return what runs in an image before its server: path below the code's folder → our file."""
    main = "preflight/__main__.py"
    # The other two are started as programs of their own.
    code = {path: PACKAGE.parent / path for path in _closure(main, "preflight/arguments.py", "host/nvml.py")}
    return {**code, "__main__.py": PACKAGE / main}
