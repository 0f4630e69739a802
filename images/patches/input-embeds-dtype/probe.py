# SPDX-License-Identifier: Apache-2.0
"""Input embeddings come out in the model's dtype, whatever it is."""

import types
from pathlib import Path
from unittest import mock

from probing import piece, run


class Tensor:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def bfloat16(self) -> "Tensor":
        return Tensor("bfloat16")

    def to(self, dtype: str) -> "Tensor":
        return Tensor(dtype)


def probe(tree: Path) -> bool:
    function = piece(tree, "sglang/srt/model_executor/model_runner.py", "ModelRunner._extend_forward_kwargs")

    def dtype_of(model: str, given: str) -> str:
        runner = mock.MagicMock(dtype=model)
        runner._pp_kwargs.return_value = {}
        batch = types.SimpleNamespace(input_embeds=Tensor(given), replace_embeds=None, replace_positions=None)
        return function(runner, batch, None)["input_embeds"].dtype

    return all(
        dtype_of(m, g) == m for m in ("bfloat16", "float16", "float32") for g in ("float32", "float16")
    )


run(probe)
