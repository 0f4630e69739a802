# SPDX-License-Identifier: Apache-2.0
"""The package of sparse-attention kernels can be imported where CuTe DSL cannot."""

import sys
from pathlib import Path
from unittest import mock

from probing import first, module, modules, run


def probe(tree: Path) -> bool:
    path = first(tree, "sglang/jit_kernel/dsa/__init__.py", "sglang/kernels/ops/attention/dsa/__init__.py")
    missing = dict.fromkeys(("cutlass", "cutlass.cute", "cutlass.utils"))
    fakes = {"torch": mock.MagicMock(), "triton": mock.MagicMock(), "triton.language": mock.MagicMock()}
    with modules(sglang__srt__utils={"is_cuda": lambda: True}), mock.patch.dict(sys.modules, missing | fakes):
        try:
            package = module(tree, path)
        except ImportError as error:
            if "cutlass" not in str(error):
                raise
            return False
        # What others import by name is there, and using the kernel still says what is missing.
        try:
            package.pick_dsl_expand(1)
        except ImportError as error:
            return "cutlass" in str(error) and callable(package.cutedsl_paged_mqa_logits)
    return False


run(probe)
