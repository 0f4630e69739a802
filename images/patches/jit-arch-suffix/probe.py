# SPDX-License-Identifier: Apache-2.0
"""The JIT target has the suffix that lets the compiler use all of the GPU."""

import types
from pathlib import Path
from unittest import mock

from probing import CannotTell, first, piece, run

WANTED = {(9, 0): "a", (10, 0): "a", (10, 3): "a", (12, 0): "f", (12, 1): "a", (8, 9): "", (8, 0): ""}


def probe(tree: Path) -> bool:
    path = first(tree, "sglang/jit_kernel/utils.py", "sglang/kernels/jit/utils/arch.py")
    try:  # where later releases choose it
        choose = piece(tree, path, "_cuda_arch_suffix", _jit_cuda_version=lambda: (13, 0))
    except CannotTell:
        choose = None

    def suffix(capability: tuple[int, int], cuda: str | None = "13.0") -> str:
        torch = mock.MagicMock()
        torch.cuda.get_device_capability.return_value = capability
        torch.version = types.SimpleNamespace(cuda=cuda, hip=None if cuda else "7.0")
        function = piece(
            tree,
            path,
            "_init_jit_cuda_arch_once",
            torch=torch,
            logger=mock.MagicMock(),
            ArchInfo=lambda major, minor, suffix: suffix,
            _cuda_arch_suffix=choose,
            is_hip_runtime=lambda: cuda is None,
            is_musa_runtime=lambda: False,
            is_sail_runtime=lambda: False,
        )
        function()
        return function.__globals__["_CUDA_ARCH"]

    return all(suffix(key) == value for key, value in WANTED.items()) and suffix((9, 4), None) == ""


run(probe)
