# SPDX-License-Identifier: Apache-2.0
"""What probes share: pieces of a source tree, run with fakes for all that they need.

A probe is `probe.py TREE`, TREE being a folder like site-packages that holds at least the files
that its patch changes. It exits 0 if the tree has the fix, 1 if the fault is there, and with
anything else if it cannot tell (the code has moved, say). It needs nothing but a Python >= 3.10:
where it can it runs the real function, taken out of its module, and not the module, which would
need torch and a GPU.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

FIXED, FAULT, UNKNOWN = 0, 1, 3


class CannotTell(Exception):
    """The tree is not one that this probe understands."""


def source(tree: Path, path: str) -> str:
    """Return a file's text. Raises CannotTell if the tree has no such file."""
    try:
        return (tree / path).read_text(encoding="utf-8")
    except OSError:
        raise CannotTell(f"no {path}") from None


def piece(tree: Path, path: str, name: str, **names: Any) -> Any:
    """Return one function, class or method of a module, without running the module.

    `name` is like `f`, `C` or `C.f`; `names` are the globals that it sees. Decorators, base
    classes and annotations are dropped. Raises CannotTell if the module has no such piece.
    """
    body: list[ast.stmt] = ast.parse(source(tree, path)).body
    node: ast.stmt | None = None
    for part in name.split("."):
        node = next((n for n in _walk(body) if getattr(n, "name", None) == part), None)
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            raise CannotTell(f"{path} has no {name}")
        body = node.body
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    node.decorator_list = [
        d for d in node.decorator_list if getattr(d, "id", "") in ("property", "contextmanager")
    ]
    if isinstance(node, ast.ClassDef):
        node.bases = []
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    module = ast.fix_missing_locations(ast.Module([future, node], []))
    space: dict[str, Any] = dict(names)
    exec(compile(module, str(tree / path), "exec"), space)
    return space[node.name]


def _walk(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, those inside `if` and `try` at the same level too."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _walk(node.body)
            yield from _walk(node.orelse)


def module(tree: Path, path: str) -> types.ModuleType:
    """Run a module (or a package's __init__.py) of the tree; what it imports must be there or faked.

    Raises CannotTell if the tree has no such file.
    """
    source(tree, path)
    file = tree / path
    folders = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location("probed", file, submodule_search_locations=folders)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["probed"] = made  # for what it imports relative to itself, later too
    spec.loader.exec_module(made)
    return made


def first(tree: Path, *paths: str) -> str:
    """Return the first of several places that the tree has. Raises CannotTell if it has none."""
    for path in paths:
        if (tree / path).is_file():
            return path
    raise CannotTell(f"no {' and no '.join(paths)}")


@contextlib.contextmanager
def modules(**fakes: Any) -> Iterator[None]:
    """Let imports find fakes: `sglang__srt__utils={...}` makes `sglang.srt.utils` with these names."""
    made: dict[str, types.ModuleType] = {}
    for key, names in fakes.items():
        parts = key.split("__")
        for count in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:count]), types.ModuleType(parts[count - 1])).__path__ = []
        made[".".join(parts)].__dict__.update(names)
    with mock.patch.dict(sys.modules, made):
        yield


def refused(function: Callable[[], Any], kind: type[BaseException] = ValueError) -> str | None:
    """Return the message with which a call is refused; None if it is not."""
    try:
        function()
    except kind as error:
        return str(error) or type(error).__name__
    return None


def run(probe: Callable[[Path], bool]) -> None:
    """Run a probe on the tree that the command line names and exit as a probe must."""
    try:
        fixed = probe(Path(sys.argv[1]))
    except CannotTell as error:
        print(f"cannot tell: {error}")
        sys.exit(UNKNOWN)
    except Exception as error:
        traceback.print_exc()
        print(f"cannot tell: {type(error).__name__}: {error}")
        sys.exit(UNKNOWN)
    print("fixed" if fixed else "the fault is there")
    sys.exit(FIXED if fixed else FAULT)
