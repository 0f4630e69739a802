# SPDX-License-Identifier: Apache-2.0
"""One file that reproduces an image: the image, its sources, and what was measured on it.

    Plan + image + checkout + papers ─contents→ Members ─format→ FILE ─verify, open→ folder

The file is an uncompressed tar: `bundle.json` names every member with size and sha256, and its own
sha256 is the bundle's digest. Equal content gives equal bytes.
"""
