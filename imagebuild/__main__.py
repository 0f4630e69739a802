# SPDX-License-Identifier: Apache-2.0
"""`python -m imagebuild` is `python build.py`."""

from __future__ import annotations

from imagebuild.bootstrap import enter

if __name__ == "__main__":
    enter()
    from imagebuild.cli import main

    main()
