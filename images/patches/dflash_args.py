# SPDX-License-Identifier: Apache-2.0
"""For probes: SGLang's own handling of DFlash's arguments, run on arguments that a probe chooses."""

import types
from pathlib import Path
from unittest import mock

from probing import CannotTell, module, modules

HOOK = "sglang/srt/arg_groups/speculative_hook.py"


def handle(tree: Path, **changed):
    """Return the arguments as DFlash leaves them and the lines that it logged.

    Raises ValueError where it refuses them, CannotTell if the tree has no such handling.
    """
    values = {
        "device": "cuda",
        "pp_size": 1,
        "enable_dp_attention": False,
        "enable_dp_lm_head": False,
        "speculative_draft_model_path": "/drafter",
        "speculative_num_steps": None,
        "speculative_eagle_topk": None,
        "speculative_dflash_block_size": None,
        "speculative_num_draft_tokens": 8,
        "speculative_draft_window_size": None,
        "speculative_draft_attention_backend": None,
        "attention_backend": "trtllm_mla",
        "prefill_attention_backend": None,
        "decode_attention_backend": None,
        "page_size": 64,
        "max_running_requests": None,
        "enable_mixed_chunk": False,
        "cuda_graph_config": types.SimpleNamespace(prefill=types.SimpleNamespace(backend="disabled")),
    }
    args = types.SimpleNamespace(**(values | changed))
    lines = []
    log = mock.MagicMock()
    for level in ("info", "warning"):
        getattr(log, level).side_effect = lambda text, *given: lines.append(text % given if given else text)
    with modules(
        sglang__srt__arg_groups__overrides={"resolved_view": lambda a: a, "attention_backends_of": _backends},
        sglang__srt__utils={"is_hip": lambda: False},
    ):
        hook = module(tree, HOOK)
        if not hasattr(hook, "_handle_dflash"):
            raise CannotTell("no _handle_dflash")
        hook.logger = log
        hook._handle_dflash(args)
    return args, lines


def _backends(args):
    return tuple(
        getattr(args, f"{phase}_attention_backend") or args.attention_backend
        for phase in ("prefill", "decode")
    )
