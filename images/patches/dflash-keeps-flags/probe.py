# SPDX-License-Identifier: Apache-2.0
"""A flag that DFlash cannot keep is refused; what it chooses itself is on one line."""

from pathlib import Path

from dflash_args import handle
from probing import refused, run

LOST = (
    {"speculative_num_steps": 3},
    {"speculative_eagle_topk": 4},
    {"enable_mixed_chunk": True},
    {"speculative_draft_attention_backend": "trtllm_mha"},
    {"speculative_draft_attention_backend": "cutlass_mla"},
)
KEPT = (
    {"speculative_num_steps": 1, "speculative_eagle_topk": 1},
    {"speculative_draft_attention_backend": "triton"},
    {"max_running_requests": 7},
)


def probe(tree: Path) -> bool:
    args, lines = handle(tree)  # nothing set: DFlash may choose
    chosen = (args.speculative_draft_attention_backend, args.max_running_requests, args.speculative_num_steps)
    if chosen != ("flashinfer", 48, 1):
        return False
    shown = [line for line in lines if "--max-running-requests 48" in line]
    shown = [line for line in shown if "--speculative-draft-attention-backend flashinfer" in line]
    for given in KEPT:
        args, _ = handle(tree, **given)
        if any(getattr(args, name) != value for name, value in given.items()):
            return False
    return len(shown) == 1 and all(refused(lambda given=given: handle(tree, **given)) for given in LOST)


run(probe)
