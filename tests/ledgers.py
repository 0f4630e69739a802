# SPDX-License-Identifier: Apache-2.0
"""A small images/ folder with a patched wheel of its own, for tests of the ledger."""

import shutil
from pathlib import Path

from imagebuild.catalog import project_root
from imagebuild.patch_tree import write_patch

IMAGES = project_root().resolve() / "images"
STACK = "sglang-0.5.15.post1"
BEFORE = "".join(f"line {n}\n" for n in range(1, 31))
PATH = "demo/code.py"
PROBE = """\
# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

path = Path(sys.argv[1]) / "demo/code.py"
if not path.is_file():
    print("no demo/code.py")
    sys.exit(3)
sys.exit(0 if {wanted!r} in path.read_text() else 1)
"""


def make_images(tmp_path: Path) -> Path:
    """Copy the real images/ and empty its ledger."""
    images = tmp_path / "images"
    shutil.copytree(IMAGES, images, ignore=shutil.ignore_patterns("*.pyc", "__pycache__"))
    for path in (images / "patches").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    list_patches(images)
    return images


def list_patches(images: Path, *names: str) -> None:
    """Make these the stack's patches."""
    path = images / "stacks" / STACK / "stack.yaml"
    head, _, rest = path.read_text().partition("    packages: [sglang]\n    transforms:\n")
    rest = rest[rest.index("      - kind: bytecompile") :]
    block = "".join(f"          - {name}\n" for name in names)
    block = f"      - kind: patch\n        patches:\n{block}" if names else ""
    path.write_text(f"{head}    packages: [sglang]\n    transforms:\n{block}{rest}")


def add_patch(images: Path, name: str, before: str, after: str, **changed: str) -> Path:
    """Write a ledger entry that turns demo/code.py from one text into another; return its folder."""
    trees = (images.parent / f"{name}-before", images.parent / f"{name}-after")
    for tree, text in zip(trees, (before, after), strict=True):
        (tree / "demo").mkdir(parents=True)
        (tree / PATH).write_text(text)
    folder = write_patch(images, name, STACK, "sglang", trees).folder
    text = (folder / "patch.yaml").read_text().replace("TODO", "to do")
    for old, new in changed.items():
        assert f"{old}: " in text
        text = "".join(
            f"{old}: {new}\n" if line.startswith(f"{old}: ") else line
            for line in text.splitlines(keepends=True)
        )
    (folder / "patch.yaml").write_text(text)
    wanted = next(line for line in after.splitlines() if line not in before.splitlines())
    (folder / "probe.py").write_text(PROBE.format(wanted=wanted))
    return folder


def two_patches(folder, first, second):
    """Return an images/ folder whose stack lists two patches of one file: BEFORE to first to second."""
    found = make_images(folder)
    add_patch(found, "one", BEFORE, first)
    add_patch(found, "two", first, second)
    list_patches(found, "one", "two")
    return found
