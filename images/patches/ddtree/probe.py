# SPDX-License-Identifier: Apache-2.0
"""The plugin is there and finds every source that it relies on as it expects it."""

import importlib.util
from pathlib import Path

from probing import CannotTell, run


def fixed(tree: Path) -> bool:
    """The plugin's own guard judges the tree; without the plugin there is no algorithm DDTREE."""
    guard = tree / "sglang_ddtree/guard.py"
    if not guard.is_file():
        return False
    spec = importlib.util.spec_from_file_location("ddtree_guard", guard)
    if spec is None or spec.loader is None:
        raise CannotTell("the guard cannot be read")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wrong = module.differences(tree)
    if wrong:
        raise CannotTell(f"written for other sources of {', '.join(wrong)}")
    return True


if __name__ == "__main__":
    run(fixed)
