# SPDX-License-Identifier: Apache-2.0
"""Plan → Dockerfile text. The template loops and substitutes; it decides nothing."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2

from imagebuild.errors import IntegrityError
from imagebuild.files import write_text
from imagebuild.plan import Plan

# Where a build container sees its two contexts. Below /run, which no package of ours writes to.
MOUNT = "/run/imagebuild"


def layer_command(plan: Plan) -> list[str]:
    """Return the command that a build container runs for each layer."""
    return [
        f"/usr/bin/python{plan.python}", "-B", f"{MOUNT}/tools",
        "--inputs", f"{MOUNT}/inputs", "--prefix", plan.prefix,
        "--python", plan.python, "--mtime", str(plan.mtime),
    ]  # fmt: skip


def render(plan: Plan, template: Path) -> str:
    """Return the Dockerfile of a Plan: the same text on any machine."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    # Dockerfile words in double quotes: JSON escapes quote and backslash, `$` would be expanded.
    environment.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False).replace("$", "\\$")
    text = environment.from_string(template.read_text(encoding="utf-8"))
    return text.render(plan=plan, mount=MOUNT, command=layer_command(plan))


def write_dockerfile(plan: Plan, template: Path, target: Path, *, check: bool) -> bool:
    """Write the Dockerfile if it differs; say whether it did.

    With `check` nothing is written. Raises IntegrityError then if it differs.
    """
    text = render(plan, template)
    current = target.read_text(encoding="utf-8") if target.is_file() else None
    if text == current:
        return False
    if check:
        raise IntegrityError(
            f"{target}: {'missing' if current is None else 'not what the plan renders to'}",
            hint="python build.py render",
        )
    write_text(target, text)
    return True
