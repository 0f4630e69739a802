# SPDX-License-Identifier: Apache-2.0
"""`Code`: one piece of GPU code, and CUDA's rule of which GPU could load it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["elf", "ptx", "other"]
Suffix = Literal["", "a", "f"]


@dataclass(frozen=True, order=True)
class Code:
    """One piece of GPU code: a cubin (elf), PTX, or another kind that a driver may use.

    `arch` is the number it was compiled for, `suffix` whether for that arch only (a) or for its
    family (f).
    """

    kind: Kind
    arch: int
    suffix: Suffix = ""

    def __str__(self) -> str:
        stem = {"elf": "sm", "ptx": "compute", "other": "other"}[self.kind]
        return f"{stem}_{self.arch}{self.suffix}"


def loadable(code: Code, gpu: int) -> bool:
    """Whether a driver could load `code` on the GPU with this number (103 for sm_103) under any setting.

    A cubin runs within its major version, from its minor version up; f likewise (a family has
    one major version); a on its own arch only. Plain PTX runs by JIT on every later arch, f and a
    like cubins. Of other kinds nothing is known, so they always count as loadable.
    Source: CUDA C++ Programming Guide, Binary Compatibility and PTX Compatibility.
    """
    if code.kind == "other":
        return True
    if code.suffix == "a":
        return code.arch == gpu
    if code.kind == "ptx" and code.suffix == "":
        return code.arch <= gpu
    return code.arch // 10 == gpu // 10 and code.arch <= gpu
