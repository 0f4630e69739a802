# SPDX-License-Identifier: Apache-2.0
"""Our own code inside build containers: which files it is, and its digest.

The `tools` build context is these files, the locked tool wheels and a `__main__.py`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

MAIN = """\
import sys

from imagebuild.layer.run import main

sys.exit(main(sys.argv[1:]))
"""


def code_files() -> dict[str, bytes]:
    """Return the context path and content of every file of ours, sorted by path."""
    package = Path(__file__).resolve().parent
    files = {"__main__.py": MAIN.encode()}
    for path in [package / "__init__.py", *package.glob("layer/*.py")]:
        files[f"{package.name}/{path.relative_to(package).as_posix()}"] = path.read_bytes()
    return dict(sorted(files.items()))


def code_digest() -> str:
    """Return the sha256 of all files of ours, by path and content."""
    total = hashlib.sha256()
    for path, content in code_files().items():
        total.update(f"{path}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()
