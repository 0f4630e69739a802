# SPDX-License-Identifier: Apache-2.0
"""The server's settings, which are logged at every start, do not show the API keys."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

from probing import CannotTell, run, source

PATH = "sglang/srt/server_args.py"
KEYS = ("api_key", "admin_api_key")


def probe(tree: Path) -> bool:
    classes = [node for node in ast.parse(source(tree, PATH)).body if isinstance(node, ast.ClassDef)]
    settings = next((node for node in classes if node.name == "ServerArgs"), None)
    fields = [node for node in settings.body if isinstance(node, ast.AnnAssign)] if settings else []
    chosen = [node for node in fields if getattr(node.target, "id", "") in KEYS]
    if settings is None or len(chosen) != len(KEYS):
        raise CannotTell(f"{PATH} has no ServerArgs with {' and '.join(KEYS)}")
    settings.body, settings.bases, settings.decorator_list = list(chosen), [], []
    # Annotations are not evaluated: this file's future import holds for what it compiles, too.
    space: dict[str, Any] = {"dataclasses": dataclasses, "field": dataclasses.field}
    exec(compile(ast.fix_missing_locations(ast.Module([settings], [])), PATH, "exec"), space)
    shown = repr(dataclasses.dataclass(space["ServerArgs"])(api_key="first-key", admin_api_key="second-key"))
    return "first-key" not in shown and "second-key" not in shown


run(probe)
