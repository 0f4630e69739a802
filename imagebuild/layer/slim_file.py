# SPDX-License-Identifier: Apache-2.0
"""Slim one shared object from file to file, outside of any layer."""

from __future__ import annotations

import os
from pathlib import Path

from imagebuild.layer.binary import Source
from imagebuild.layer.blank import blankable, blanked
from imagebuild.layer.compact import compacted, layout
from imagebuild.layer.elf import read_elf
from imagebuild.layer.scan import scan


def slim_file(source: Source, out: Path, gpu: int, *, compact: bool) -> bool:
    """Write the slim form of a shared object to `out`; False if there is nothing to blank.

    Raises FormatError for a damaged file.
    """
    code = scan(source)
    spans = blankable(code, gpu) if code is not None and code.kind == "elf" else []
    if not spans:
        return False
    elf = read_elf(source)
    plan = layout(source, elf, spans) if compact else None
    pieces = blanked(source, spans, 0, source.size) if plan is None else compacted(source, elf, spans, plan)
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.writelines(pieces)
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    return True
