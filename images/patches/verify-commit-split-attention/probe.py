# SPDX-License-Identifier: Apache-2.0
"""A verify step of DFlash with two MLA backends commits nothing and does not fail."""

import types
from pathlib import Path
from unittest import mock

from probing import piece, run

HYBRID = "sglang/srt/layers/attention/hybrid_attn_backend.py"
WORKER = "sglang/srt/speculative/dflash_worker_v2.py"
COMMIT = "update_mamba_state_after_mtp_verify"


def probe(tree: Path) -> bool:
    backend = object.__new__(piece(tree, HYBRID, "HybridAttnBackend"))
    args = types.SimpleNamespace(speculative_attention_mode="decode", mamba_track_interval=1)
    backend.model_runner = types.SimpleNamespace(server_args=args)
    backend.spec_attn_is_decode = True
    backend.decode_backend = backend.prefill_backend = types.SimpleNamespace()  # MLA: nothing to commit
    commit = piece(
        tree, WORKER, "DFlashWorkerV2._update_target_mamba_state_after_verify", torch=mock.MagicMock()
    )
    runner = types.SimpleNamespace(attn_backend=backend, model=None, mambaish_config=None)
    # Later releases ask once, at start, whether the model has recurrent state: this one has none.
    worker = types.SimpleNamespace(
        target_worker=types.SimpleNamespace(model_runner=runner),
        server_args=args,
        _need_mamba_verify_commit=False,
    )
    batch = mock.MagicMock(mamba_track_indices=None)
    given = {"batch": batch, "seq_lens_pre_verify": None, "commit_lens": mock.MagicMock()}
    if "seq_lens_post_verify" in commit.__code__.co_varnames:
        given["seq_lens_post_verify"] = None
    try:
        commit(worker, **given)
    except AttributeError as error:
        if COMMIT not in str(error):
            raise
        return False
    return commits_where_it_can(backend, worker, commit, given)


def commits_where_it_can(backend, worker, commit, given) -> bool:
    """A backend with recurrent state must still be asked, for each of the two modes."""
    calls = []
    backend.decode_backend = types.SimpleNamespace(**{COMMIT: lambda **_: calls.append("decode")})
    backend.prefill_backend = types.SimpleNamespace(**{COMMIT: lambda **_: calls.append("prefill")})
    worker._need_mamba_verify_commit = True
    commit(worker, **given)
    worker.server_args.speculative_attention_mode = "prefill"
    backend.spec_attn_is_decode = False
    commit(worker, **given)
    return calls == ["decode", "prefill"]


run(probe)
