# SPDX-License-Identifier: Apache-2.0
"""Run SGLang's whole argument resolution for a GPU that is not there.

argv: compute capability major, minor, GPU name, GPU memory in MiB, then SGLang's arguments.
torch.cuda answers for that GPU, eight times; nothing of SGLang is replaced. Prints the effective
values of the arguments with DFlash's line about them, or {"refused": "why"}.
"""

import json
import logging
import sys
import types

import torch

major, minor, name, mib = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
memory = mib << 20
properties = types.SimpleNamespace(
    name=name,
    major=major,
    minor=minor,
    total_memory=memory,
    multi_processor_count=148,
    is_integrated=0,
    gcnArchName="",
)
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 8
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_capability = lambda device=None: (major, minor)
torch.cuda.get_device_name = lambda device=None: name
torch.cuda.get_device_properties = lambda device=None: properties
torch.cuda.mem_get_info = lambda device=None: (memory, memory)

from sglang.srt.server_args import prepare_server_args  # noqa: E402

SHOWN = (
    "tp_size", "pp_size", "ep_size", "attention_backend", "prefill_attention_backend",
    "decode_attention_backend", "moe_runner_backend", "page_size", "speculative_algorithm",
    "speculative_num_draft_tokens", "speculative_draft_attention_backend", "max_running_requests",
    "quantization", "dtype", "kv_cache_dtype", "device",
)  # fmt: skip
lines: list[str] = []


class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())


logging.getLogger("sglang.srt.arg_groups.speculative_hook").addHandler(Keep())
try:
    args = prepare_server_args(sys.argv[5:])
except (ValueError, AssertionError, NotImplementedError, SystemExit) as error:
    print(json.dumps({"refused": f"{type(error).__name__}: {error}"}))
else:
    effective = [line for line in lines if "effective flags" in line]
    shown = {key: getattr(args, key, None) for key in SHOWN}
    print(json.dumps(shown | {"effective": effective}, default=str))
