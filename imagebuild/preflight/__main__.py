# SPDX-License-Identifier: Apache-2.0
"""Lies in the image beside the package: `python /usr/local/lib/imagebuild ACTION ...` runs it."""

import sys

from imagebuild.preflight.main import main

sys.exit(main(sys.argv[1:]))
