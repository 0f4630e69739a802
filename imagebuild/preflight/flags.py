# SPDX-License-Identifier: Apache-2.0
"""The few of SGLang's flags that the checks need, read without SGLang, so that they work before it does."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from imagebuild.errors import ManifestError

# Our name → SGLang's spellings (srt/server_args.py) and the type.
_NAMES: dict[str, tuple[tuple[str, ...], type]] = {
    "model_path": (("--model-path", "--model"), str),
    "tp": (("--tensor-parallel-size", "--tp-size", "--tp"), int),
    "pp": (("--pipeline-parallel-size", "--pp-size", "--pp"), int),
    "ep": (("--expert-parallel-size", "--ep-size", "--ep"), int),
    "nnodes": (("--nnodes",), int),
    "context": (("--context-length",), int),
    "mem_fraction": (("--mem-fraction-static",), float),
    "kv_dtype": (("--kv-cache-dtype",), str),
    "attention": (("--attention-backend",), str),
    "page_size": (("--page-size",), int),
    "algorithm": (("--speculative-algorithm",), str),
    "drafter_path": (("--speculative-draft-model-path", "--speculative-draft-model"), str),
    "draft_tokens": (("--speculative-num-draft-tokens",), int),
    "block_size": (("--speculative-dflash-block-size",), int),
    "window": (("--speculative-draft-window-size", "--speculative-dflash-draft-window-size"), int),
    "host": (("--host",), str),
    "port": (("--port",), int),
    "api_key": (("--api-key",), str),
    "config": (("--config",), str),
}
_DEFAULTS = {"tp": 1, "pp": 1, "ep": 1, "nnodes": 1, "host": "127.0.0.1", "port": 30000}


@dataclass(frozen=True)
class Flags:
    """What the words say; None where they do not. `drafter_path` is set for DFlash and DDTree only."""

    model_path: str | None
    tp: int
    pp: int
    ep: int
    nnodes: int
    context: int | None
    mem_fraction: float | None
    kv_dtype: str | None
    attention: str | None
    page_size: int | None
    algorithm: str | None
    drafter_path: str | None
    draft_tokens: int | None
    block_size: int | None
    window: int | None
    host: str
    port: int
    api_key: str | None
    config: str | None

    @property
    def gpus(self) -> int:
        """How many GPUs this node needs."""
        return max(1, self.tp * self.pp // self.nnodes)

    @property
    def tree(self) -> bool:
        """Whether drafts are trees."""
        return self.algorithm == "DDTREE"

    @property
    def dflash(self) -> bool:
        """Whether the drafter is a DFlash one, so that the contract's rules hold."""
        return self.algorithm in ("DFLASH", "DDTREE")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ManifestError(message, hint="serve --help shows SGLang's flags")


def read_flags(words: Sequence[str]) -> Flags:
    """Read SGLang's command line. Raises ManifestError for a value of the wrong type."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name, (spellings, kind) in _NAMES.items():
        parser.add_argument(*spellings, dest=name, type=kind, default=_DEFAULTS.get(name))
    found: dict[str, Any] = vars(parser.parse_known_args(list(words))[0])
    return Flags(**found)
