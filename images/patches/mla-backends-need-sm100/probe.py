# SPDX-License-Identifier: Apache-2.0
"""Both backends are refused on sm_120 wherever they are asked for, and accepted on sm_103."""

import types
from pathlib import Path

from probing import piece, refused, run

MODULE = "sglang/srt/arg_groups/overrides.py"
FIELDS = ("attention_backend", "decode_attention_backend", "prefill_attention_backend")


def probe(tree: Path) -> bool:
    def check(major: int, field: str, backend: str) -> str | None:
        gpu = types.SimpleNamespace(is_blackwell=major in (10, 11, 12), is_sm100=major == 10)
        function = piece(
            tree,
            MODULE,
            "_mla_kv_cache_dtype_checks",
            is_blackwell_supported=lambda: gpu.is_blackwell,
            is_sm100_supported=lambda: gpu.is_sm100,
            get_platform=lambda: gpu,
        )
        values = dict.fromkeys(FIELDS, "triton") | {field: backend, "kv_cache_dtype": "fp8_e4m3"}
        return refused(lambda: function(types.SimpleNamespace(**values)))

    cases = [(field, backend) for field in FIELDS for backend in ("trtllm_mla", "tokenspeed_mla")]
    return all(check(12, *case) and check(10, *case) is None for case in cases)


run(probe)
