# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi of hosts that we do not have: tests/data/hosts/NAME.txt is what it prints there.

A section begins with `$ nvidia-smi ARGUMENTS # exit STATUS`; status `none`: it does not come back. The
query of `smi.FIELDS` is written `--query-gpu`, others are written out. A command without a section fails.
"""

from __future__ import annotations

import re
from pathlib import Path

from imagebuild.host import smi
from imagebuild.process import Ended

FOLDER = Path(__file__).parent / "data" / "hosts"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
_HEAD = re.compile(r"^\$ nvidia-smi (.+) # exit (\d+|none)\n", re.MULTILINE)


def nvidia_smi(name):
    """Return a function that answers like nvidia-smi on that host."""
    parts = _HEAD.split((FOLDER / f"{name}.txt").read_bytes().decode())[1:]
    known = {
        title: (status, text)
        for title, status, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }

    def run(arguments):
        if not known:
            return None
        words = [word for word in arguments if not word.startswith("--format=")]
        title = " ".join(words)
        if title == f"--query-gpu={','.join(smi.FIELDS)}":
            title = "--query-gpu"
        status, text = known.get(title, ("2", "Invalid combination of input arguments.\n"))
        return Ended(None if status == "none" else int(status), text, "")

    return run


def gpus(name):
    """Return what we read there."""
    return smi.read(nvidia_smi(name))
