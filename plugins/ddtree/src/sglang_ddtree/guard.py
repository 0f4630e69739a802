# SPDX-License-Identifier: Apache-2.0
"""Is this the SGLang that the plugin was made for? Compares sources with sources.json. No torch here.

    python -m sglang_ddtree.guard SITE            what differs; exit code 1 if anything does
    python -m sglang_ddtree.guard SITE --refresh  writes sources.json anew, after its change was read

sources.json: "path" or "path:Class.function" below site-packages → sha256 of that text.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from pathlib import Path

SOURCES = Path(__file__).with_name("sources.json")


def digest(site: Path, place: str) -> str | None:
    """sha256 of a file, or of one definition in it with its decorators; None if it is not there."""
    path, _, name = place.partition(":")
    try:
        text = (site / path).read_text(encoding="utf-8")
    except OSError:
        return None
    if name:
        node: ast.AST | None = ast.parse(text)
        for part in name.split("."):
            node = next(
                (
                    child
                    for child in getattr(node, "body", [])
                    if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == part
                ),
                None,
            )
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            return None
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        text = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return hashlib.sha256(text.encode()).hexdigest()


def differences(site: Path) -> list[str]:
    """Places that are missing or differ from what the plugin was written against."""
    wanted = json.loads(SOURCES.read_text(encoding="utf-8"))
    return [place for place, sha in wanted.items() if digest(site, place) != sha]


def site_of_sglang() -> Path:
    """The folder that holds the sglang package."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("DDTREE: SGLang is not installed.")
    return Path(next(iter(spec.submodule_search_locations))).parent


def check() -> None:
    """Raise ValueError unless the installed SGLang is the one that this plugin was made for."""
    wrong = differences(site_of_sglang())
    if wrong:
        raise ValueError(
            "DDTREE: this SGLang is not the one that the plugin was made for (0.5.15.post1 with the "
            f"image's patches). Different: {', '.join(wrong)}. Use --speculative-algorithm DFLASH."
        )


def main(argv: list[str]) -> int:
    """Compare, or write sources.json."""
    site = Path(argv[1])
    if "--refresh" in argv:
        wanted = json.loads(SOURCES.read_text(encoding="utf-8"))
        SOURCES.write_text(json.dumps({p: digest(site, p) for p in wanted}, indent=1) + "\n", "utf-8")
        return 0
    wrong = differences(site)
    print("\n".join(wrong) if wrong else "as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
