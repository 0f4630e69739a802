# SPDX-License-Identifier: Apache-2.0
"""The backends that would verify a tree as a chain refuse it, eager and in graphs, and take a chain."""

import types
from pathlib import Path
from unittest import mock

from probing import CannotTell, piece, run

FOLDER = "sglang/srt/layers/attention"
BACKENDS = {
    "flashinfer_mla_backend": "FlashInferMLAAttnBackend",
    "trtllm_mla_backend": "TRTLLMMLABackend",
    "flashmla_backend": "FlashMLABackend",
    "trtllm_mha_backend": "TRTLLMHAAttnBackend",
}
METHODS = ("init_forward_metadata", "init_forward_metadata_out_graph")


def refuses(tree: Path, module: str, method: str, spec_info: object, verify: bool = True) -> bool:
    """Whether a backend refuses to prepare a step; other trouble is that of our fakes."""
    backend = mock.MagicMock()
    try:
        base = piece(tree, f"{FOLDER}/base_attn_backend.py", "AttentionBackend.refuse_tree_mask")
        backend.refuse_tree_mask = types.MethodType(base, backend)
    except CannotTell:
        pass  # without the patch
    names = ("torch", "triton", "super", "BatchMLAPagedAttentionWrapper", "TRTLLMMHAMetadata", "logger")
    fakes = {name: mock.MagicMock() for name in names}
    function = piece(tree, f"{FOLDER}/{module}.py", f"{BACKENDS[module]}.{method}", **fakes)
    batch = mock.MagicMock(spec_info=spec_info)
    batch.forward_mode.is_target_verify.return_value = verify
    batch.forward_mode.is_decode_or_idle.return_value = not verify
    try:
        function(backend, batch)
    except NotImplementedError:
        return True
    except Exception:
        return False
    return False


def probe(tree: Path) -> bool:
    mask = object()
    ngram = types.SimpleNamespace(tree_topk=-1, custom_mask=mask)
    eagle = types.SimpleNamespace(tree_topk=4, topk=4, custom_mask=mask)
    chains = (
        types.SimpleNamespace(tree_topk=1, topk=1, custom_mask=mask),  # EAGLE with top-k 1
        types.SimpleNamespace(topk=1, custom_mask=None),  # DFlash
        types.SimpleNamespace(topk=1, custom_mask=mask),  # DFlash while its graphs are captured
    )
    return all(
        refuses(tree, module, method, ngram)
        and refuses(tree, module, method, eagle)
        and not refuses(tree, module, method, ngram, verify=False)
        and not any(refuses(tree, module, method, chain) for chain in chains)
        for module in BACKENDS
        for method in METHODS
    )


run(probe)
