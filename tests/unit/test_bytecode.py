# SPDX-License-Identifier: Apache-2.0
"""Byte-code must not depend on what the process that makes it has loaded before."""

import subprocess
import sys
from pathlib import Path

import pytest

from imagebuild.layer.bytecode import compile_source

SHORT_ASCII_INTERNED = 0xDA  # marshal's 'Z' with FLAG_REF
PRELUDES = (
    "pass",
    "import sys; held = [sys.intern(chr(i)) for i in range(256)]",
    'import asyncio, typing, json; exec(\'[1]; x = "["; y = "("\')',
)


def test_one_character_strings_are_always_written_as_interned():
    code = compile_source(b'x = "["\ny = "a b"\n', "/x.py")
    assert bytes([SHORT_ASCII_INTERNED, 1]) + b"[" in code


@pytest.mark.subprocess
def test_equal_bytes_in_processes_with_different_pasts():
    root = Path(__file__).resolve().parents[2]
    source = root / "imagebuild" / "layer" / "entries.py"
    text = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from imagebuild.layer.bytecode import compile_source\n"
        'source = open(sys.argv[2], \'rb\').read() + b\'\\nz = ("[", "", "\\\\xe9", "}", "(")\\n\'\n'
        "sys.stdout.buffer.write(compile_source(source, '/x.py'))\n"
    )
    made = {
        subprocess.run(
            [sys.executable, *flags, "-c", f"{prelude}\n{text}", str(root), str(source)],
            capture_output=True,
            check=True,
        ).stdout
        for prelude in PRELUDES
        for flags in ((), ("-S", "-B"), ("-X", "utf8", "-I"))
    }
    assert len(made) == 1
