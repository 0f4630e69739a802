# SPDX-License-Identifier: Apache-2.0
"""Command lines that SGLang itself resolves in the image: every service of the arch, and odd ones."""

from __future__ import annotations

from imagebuild.catalog import project_root
from imagebuild.serving.kubernetes import flags_over
from imagebuild.serving.service import read_model_recipes, services_of

ROOT = project_root().resolve()
# What Kubernetes puts in for a pod of the second node.
NODE = {"$(NODE_RANK)": "1", "$(LWS_LEADER_ADDRESS):20000": "10.0.0.1:20000"}
MODEL = ["--model-path", "/models/Kimi-K2.6", "--trust-remote-code"]
DFLASH = [
    *MODEL, "--speculative-algorithm", "DFLASH",
    "--speculative-draft-model-path", "/drafter/Kimi-K2.6-DFlash-tmp-long",
]  # fmt: skip
LOST = {
    "steps": ["--speculative-num-steps", "3"],
    "topk": ["--speculative-eagle-topk", "4"],
    "draft backend": ["--speculative-draft-attention-backend", "trtllm_mha"],
    "mixed chunk": ["--enable-mixed-chunk"],
}
CASES = {
    "bare": [*DFLASH, "--tp", "8"],
    "pp with dflash": [*DFLASH, "--pp-size", "8"],
    "dp attention with dflash": [*DFLASH, "--tp", "8", "--dp-size", "8", "--enable-dp-attention"],
    "unknown flag": [*MODEL, "--tp", "8", "--no-such-flag"],
    "trtllm_mla": [*MODEL, "--tp", "8", "--attention-backend", "trtllm_mla"],
    "kept": [
        *DFLASH, "--tp", "8", "--max-running-requests", "7",
        "--speculative-draft-attention-backend", "triton",
    ],
    "prefill graph": [*DFLASH, "--tp", "8", "--cuda-graph-backend-prefill", "tc_piecewise"],
    "no such tree": [*MODEL, "--tp", "8", "--speculative-algorithm", "NOSUCHTREE"],
    "key": [*MODEL, "--tp", "8", "--api-key", "topsecret"],
    **{name: [*DFLASH, "--tp", "8", *words] for name, words in LOST.items()},
}  # fmt: skip


def server_lines(arch: str) -> dict[str, list[str]]:
    """Return every command line by name: the cases, the services as "service NAME", and as "nodes NAME"
    on the second of two nodes, with the flags that deploy/kubernetes has.
    """
    services = services_of(read_model_recipes(ROOT / "compose", ROOT / "images", "k26"), arch)
    alone = {f"service {serving.service}": list(serving.flags) for serving in services}
    second = {
        f"nodes {serving.service}": [NODE.get(word, word) for word in flags_over(serving, 2)]
        for serving in services
    }
    return {**CASES, **alone, **second}
