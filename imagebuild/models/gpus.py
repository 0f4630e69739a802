# SPDX-License-Identifier: Apache-2.0
"""images/gpus.yaml: how much memory the GPUs have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from imagebuild.arch import archs
from imagebuild.diagnostics import Refused, closest
from imagebuild.models.shapes import Model
from imagebuild.yamlfile import load


class Gpu(Model):
    """One product: `name` as nvidia-smi prints it, `short` as people say it."""

    name: str
    short: str
    arch: Annotated[str, Field(pattern="^sm_[0-9]{2,3}$")]
    memory_mib: Annotated[int, Field(ge=1024, le=4 << 20)]
    link: Literal["nvlink", "pcie"]


class _Table(Model):
    schema_version: Literal[1] = Field(alias="schema")
    gpus: tuple[Gpu, ...]


def read_gpus(images: Path) -> tuple[Gpu, ...]:
    """Return all GPUs. Raises Diagnostics."""
    return load(images / "gpus.yaml", _Table).gpus


def find_gpu(images: Path, text: str) -> Gpu:
    """Return the GPU that a user means: `B300`, `rtx pro 6000`, nvidia-smi's name, or an arch with one GPU.

    Raises Refused with all names.
    """
    gpus = read_gpus(images)
    wanted = _words(text)
    exact = [gpu for gpu in gpus if wanted in (_words(gpu.short), _words(gpu.name), _words(gpu.arch))]
    part = [gpu for gpu in gpus if wanted and set(wanted) <= {*_words(gpu.name), *_words(gpu.short)}]
    for found in (exact, part):
        if len(found) == 1:
            return found[0]
    known = {name for arch in archs() for name in arch.gpus}
    why = "; it is known, but not its memory: give --gpu-memory MIB" if text in known else ""
    names = [gpu.short for gpu in gpus]
    raise Refused(f'unknown GPU "{text}"{why}', allowed=names, suggestion=closest(text, names))


def _words(text: str) -> tuple[str, ...]:
    return tuple(sorted(set(re.findall(r"[a-z]+|[0-9]+", text.casefold())) - {"nvidia", "sm"}))
