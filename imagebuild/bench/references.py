# SPDX-License-Identifier: Apache-2.0
"""`References`: images/bench/references.yaml: figures of others, each with its source. Shown, never mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from imagebuild.bench.suite import Name
from imagebuild.manifest import Model
from imagebuild.manifest_fields import Line
from imagebuild.yamlfile import load

Rate = Annotated[float, Field(gt=0, strict=False)]


class Reference(Model):
    """One published figure. `input` and `output` are 0 where the source does not say."""

    model: Line
    gpus: Line
    engine: Line
    setting: Line
    concurrency: Annotated[int, Field(ge=1)]
    input: Annotated[int, Field(ge=0)] = 0
    output: Annotated[int, Field(ge=0)] = 0
    tokens_per_s: Rate
    source: Line


class References(Model):
    """All of them."""

    schema_version: Literal[1] = Field(alias="schema")
    about: Name
    points: Annotated[tuple[Reference, ...], Field(min_length=1)]


def read_references(path: Path) -> References:
    """Read the file. Raises Diagnostics for any error in it."""
    return load(path, References)
