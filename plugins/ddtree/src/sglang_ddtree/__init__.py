# SPDX-License-Identifier: Apache-2.0
"""DDTREE, speculative decoding for SGLang: DFlash's block of marginals, verified as a tree.

    settings.py   flags and environment → Settings            no torch
    guard.py      is this the SGLang that it was made for?     no torch
    controller.py measured acceptance and step time → budget   no torch
    algorithm.py  what SGLang asks of a speculative algorithm; refuses what does not work
    hook.py       the one place where SGLang's own code is told otherwise
    candidates.py the drafter's hidden states → its K best tokens per position
    kernels.py    candidates → tree, mask, positions, slots; target's tokens → path; KV compaction
    runners.py    one target attention backend and one set of CUDA graphs per budget
    worker.py     one decode step
    metrics.py    what /metrics shows

SGLang calls `register` in its main process and in every scheduler process. It only logs what a
plugin raises, so whatever may be wrong is raised by DDTreeAlgorithm.handle_server_args instead,
which stops the start.
"""

from __future__ import annotations

NAME = "DDTREE"


def register() -> None:
    """Register the algorithm and its one hook (entry point of the group sglang.srt.plugins)."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sglang_ddtree import hook
    from sglang_ddtree.algorithm import DDTreeAlgorithm

    def worker(server_args: object) -> type:
        from sglang_ddtree.worker import DDTreeWorker

        return DDTreeWorker

    HookRegistry.register(hook.TARGET, hook.spec_info, HookType.AROUND)
    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=DDTreeAlgorithm)(worker)
