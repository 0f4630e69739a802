# SPDX-License-Identifier: Apache-2.0
"""Verify never uses what a captured prefill left behind: refused with DFlash, or not looked at."""

import types
from pathlib import Path
from unittest import mock

from dflash_args import handle
from probing import piece, refused, run

BACKEND = "sglang/srt/layers/attention/trtllm_mla_backend.py"


class WentOn(Exception):
    pass


class Verify:
    """The mode of a verify step, which counts as an extend step too."""

    def __getattr__(self, name: str):
        return lambda *_, **__: name in ("is_target_verify", "is_extend")


def verify_uses_prefills_choice(tree: Path) -> bool:
    """Whether a verify step takes the way that an earlier prefill chose."""
    names = {"get_parallel": mock.MagicMock(), "get_in_autotune_dummy_run": lambda: False}
    backend = piece(tree, BACKEND, "TRTLLMMLABackend", torch=mock.MagicMock(), **names)
    backend.data_type = mock.PropertyMock(side_effect=WentOn)
    self = object.__new__(backend)
    self.forward_prefill_metadata = types.SimpleNamespace(fallback_to_flashinfer_impl=True)
    batch = mock.MagicMock(forward_mode=Verify())
    try:
        self.forward_extend(None, None, None, None, batch)
    except WentOn:
        return False
    except AttributeError as error:
        if "forward_extend" in str(error):  # of the parent, which this piece has not
            return True
        raise
    return True


def graph(backend: str) -> dict:
    return {"cuda_graph_config": types.SimpleNamespace(prefill=types.SimpleNamespace(backend=backend))}


def probe(tree: Path) -> bool:
    if not verify_uses_prefills_choice(tree):
        return True
    handle(tree)
    handle(tree, attention_backend="triton", **graph("tc_piecewise"))
    fields = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    cases = [{field: "trtllm_mla"} for field in fields] + [{"attention_backend": "tokenspeed_mla"}]
    return all(refused(lambda case=case: handle(tree, **(case | graph("tc_piecewise")))) for case in cases)


run(probe)
