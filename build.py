#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build, check and run the image for one GPU architecture: python build.py --arch sm_103"""
# Written so that even Python 2.7 parses this file and can say what is wrong.

import os
import sys

if sys.version_info < (3, 10):  # noqa: UP036
    found = sys.version.split()[0]
    sys.stderr.write("error: Python >= 3.10 needed, found " + found + " (" + sys.executable + ")\n")
    sys.stderr.write("  next: run build.py with a newer one, for example: python3.12 build.py\n")
    sys.exit(3)

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # for python -P
    from imagebuild.bootstrap import enter

    enter()  # comes back only in the locked environment
    from imagebuild.cli import main

    main()
