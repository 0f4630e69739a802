# SPDX-License-Identifier: Apache-2.0
"""GPU architectures: one total table (images/archs.yaml), its spellings, and what loads where.

Numbers are not an order of portability: code for sm_103 and sm_120 never runs on the other,
while much of what runs on sm_103 is sm_100 code. `loadable` and `match` say why.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from imagebuild.diagnostics import Refused, closest
from imagebuild.layer import gpucode
from imagebuild.layer.gpucode import Code, Kind, Suffix
from imagebuild.yamlfile import load

Match = Literal["native", "compatible", "ptx", "none"]

TABLE = Path(__file__).resolve().parent.parent / "images" / "archs.yaml"
_SPELLING = re.compile(
    r"(?:(?:sm|compute)[_-]?)?(?:([0-9]{2,3})|([0-9]{1,2})\.([0-9]))([af]?)", re.IGNORECASE
)
_Release = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class GpuArch(_Model):
    """One row of the table.

    `targets` are the suffixes it has beside the plain number; `family` the numbers that share f
    code with it. `cuda` is the first toolkit release and `driver` the first Linux driver branch
    that knows it. `nvcc`, `torch`, `flashinfer` and `cute` are the spellings of those tools for
    code of exactly this arch, empty where a tool does not know it. `shared_memory` is the most
    that one block may opt in to, in bytes; `gpus` are names as nvidia-smi prints them.
    """

    name: Annotated[str, Field(pattern=r"^sm_[0-9]{2,3}$")]
    capability: tuple[int, int]
    targets: tuple[Literal["a", "f"], ...]
    family: tuple[int, ...]
    embedded: bool = False
    cuda: _Release
    driver: int
    nvcc: str
    torch: str
    flashinfer: str
    cute: str
    shared_memory: int
    gpus: tuple[str, ...]

    @property
    def number(self) -> int:
        """The arch as GPU code carries it: 103 for sm_103."""
        return 10 * self.capability[0] + self.capability[1]

    @property
    def gencode(self) -> str:
        """The nvcc option that compiles for exactly this arch."""
        return f"arch=compute_{self.nvcc},code=sm_{self.nvcc}"


class _Table(_Model):
    schema_version: Literal[1] = Field(alias="schema")
    drivers: dict[str, int]
    embedded: tuple[int, ...]
    archs: tuple[GpuArch, ...]


@functools.cache
def _table() -> _Table:
    return load(TABLE, _Table)


def archs() -> tuple[GpuArch, ...]:
    """Return the whole table, by number."""
    return _table().archs


def parse_arch(text: str) -> GpuArch:
    """Return the arch that a user means: sm_103, sm103, 103, 10.3, 10.3a, SM_103A, compute_103 …

    Raises Refused (a ManifestError and a ValueError) for anything else: an unknown number, a
    suffix that the arch does not have, a GPU's name.
    """
    names = [arch.name for arch in archs()]
    spelled = _SPELLING.fullmatch(text.strip())
    if spelled is None:
        near = _arch_of_product(text)
        what = "is a GPU, not an arch" if near else "is not a GPU arch"
        if near is None and re.search("[0-9]", text):
            near = closest(text.strip(), names)
        raise Refused(f'"{text}" {what}', allowed=names, suggestion=near)
    whole, major, minor, suffix = spelled.groups()
    number = int(whole or f"{major}{minor}")
    arch = next((arch for arch in archs() if arch.number == number), None)
    if arch is None:
        near, reason = _nearest(number, names)
        raise Refused(f'unknown GPU arch "{text}"{reason}', allowed=names, suggestion=near)
    if suffix and suffix.lower() not in arch.targets:
        spellings = [arch.name, *(arch.name + target for target in arch.targets)]
        raise Refused(f'{arch.name} has no "{suffix}" target', allowed=spellings, suggestion=arch.name)
    return arch


def _nearest(number: int, names: list[str]) -> tuple[str | None, str]:
    """Return the likeliest meaning of an unknown number, and a reason where there is one."""
    if number == 101:
        return "sm_110", "; CUDA 13 renumbered it sm_110"
    if number < archs()[0].number:
        return None, f"; CUDA 13 begins with {names[0]}"
    swapped = [name for name in names if sorted(name) == sorted(f"sm_{number}")]
    return swapped[0] if swapped else closest(f"sm_{number}", names), ""


def arch_of_capability(major: int, minor: int) -> GpuArch | None:
    """Return the arch of a compute capability, or None if the table lacks it."""
    return next((arch for arch in archs() if arch.capability == (major, minor)), None)


def min_driver(arch: GpuArch, cuda: str) -> int:
    """Return the lowest Linux driver branch that runs `arch` with programs of a CUDA release.

    `cuda` is like "13.0". Raises Refused if that release is unknown or cannot compile for `arch`.
    """
    drivers, major = _table().drivers, cuda.partition(".")[0]
    if re.fullmatch(r"[0-9]+\.[0-9]+", cuda) is None or major not in drivers:
        raise Refused(f'unknown CUDA release "{cuda}"', allowed=[f"{known}.x" for known in drivers])
    if _release(cuda) < _release(arch.cuda):
        raise Refused(f"CUDA {cuda} does not know {arch.name}: it needs {arch.cuda} or later")
    return max(drivers[major], arch.driver)


def _release(cuda: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cuda.split("."))


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.casefold())) - {"nvidia"}


def _arch_of_product(text: str) -> str | None:
    """Return the only arch with a GPU whose name holds all words of `text`, or None.

    "RTX PRO 6000" means sm_120 and "h100" sm_90; "RTX" could be many and so means none.
    """
    wanted = _words(text)
    found = {arch.name for arch in archs() for gpu in arch.gpus if wanted and wanted <= _words(gpu)}
    return found.pop() if len(found) == 1 else None


# --- what loads where -------------------------------------------------------------------------


def loadable(code: Code, gpu: GpuArch) -> bool:
    """Whether a driver could load `code` on `gpu` under any setting; what is not may be removed."""
    return gpucode.loadable(code, gpu.number)


def match(code: Code, gpu: GpuArch) -> Match:
    """What NVIDIA promises of `code` on `gpu`: the rule for judging an image, stricter than `loadable`.

    native: compiled for this arch; compatible: a cubin for an earlier one of the same major version
    (f: the same family); ptx: runs after JIT; none: no promise. Code of embedded GPUs is never
    promised to run on another number, nor other code on embedded GPUs except by PTX.
    Sources: as for `loadable`, and the table Family-Specific Compatibility.
    """
    if code.kind == "other" or not loadable(code, gpu):
        return "none"
    if code.arch == gpu.number:
        return "native" if code.kind == "elf" else "ptx"
    if _embedded(code.arch) or (code.suffix == "f" and code.arch not in gpu.family):
        return "none"
    if code.kind == "ptx":
        return "ptx"
    return "none" if gpu.embedded else "compatible"


def _embedded(number: int) -> bool:
    return number in _table().embedded or any(a.embedded for a in archs() if a.number == number)


__all__ = [
    "Code",
    "GpuArch",
    "Kind",
    "Match",
    "Suffix",
    "arch_of_capability",
    "archs",
    "loadable",
    "match",
    "min_driver",
    "parse_arch",
]
