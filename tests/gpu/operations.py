# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (each operation runs at once, before its loop goes on)
"""PyTorch operations that between them reach every GPU library that torch is linked against."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import torch
import torch.nn.functional as F

from tests.gpu.recorder import Recorder

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def rand(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, dtype=dtype, device="cuda")


def matmul(r: Recorder) -> None:
    """cuBLAS, cuBLASLt, and the CUTLASS kernels inside torch."""
    for dtype in (*FLOATS, torch.float64, torch.complex64):
        for m, n, k in ((64, 64, 64), (1, 4096, 4096), (513, 257, 1023), (4096, 4096, 512)):
            r.run(f"mm {dtype} {m}x{n}x{k}", lambda: rand(m, k, dtype=dtype) @ rand(k, n, dtype=dtype))
        r.run(f"bmm {dtype}", lambda: rand(16, 65, 64, dtype=dtype) @ rand(16, 64, 63, dtype=dtype))
        r.run(f"mv {dtype}", lambda: rand(1000, 777, dtype=dtype) @ rand(777, dtype=dtype))
    for dtype in FLOATS:
        args = [(512,), (256, 384), (384, 512)]
        r.run(
            f"addmm gelu {dtype}",
            lambda: torch._addmm_activation(*(rand(*a, dtype=dtype) for a in args), use_gelu=True),
        )
    ints = [
        torch.randint(-9, 9, shape, dtype=torch.int8, device="cuda") for shape in ((256, 512), (512, 256))
    ]
    r.run("int_mm", lambda: torch._int_mm(*ints))
    a, b = (rand(256, 512).to(torch.float8_e4m3fn), rand(512, 512).to(torch.float8_e4m3fn).t())
    one = torch.ones((), device="cuda")
    r.run("scaled_mm", lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16))
    rows = (torch.rand(256, 1, device="cuda"), torch.rand(1, 512, device="cuda"))
    r.run(
        "scaled_mm rows",
        lambda: torch._scaled_mm(a, b, scale_a=rows[0], scale_b=rows[1], out_dtype=torch.bfloat16),
    )
    offsets = torch.tensor([128, 256, 384, 512], dtype=torch.int32, device="cuda")
    half = torch.bfloat16
    r.run(
        "grouped_mm",
        lambda: torch._grouped_mm(rand(512, 256, dtype=half), rand(4, 256, 128, dtype=half), offs=offsets),
    )


def convolution(r: Recorder) -> None:
    """cuDNN."""
    cases: list[tuple[str, Any, tuple[int, ...], tuple[int, ...], dict[str, int]]] = [
        ("2d", F.conv2d, (8, 64, 56, 56), (128, 64, 3, 3), {"padding": 1}),
        ("2d stride", F.conv2d, (8, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
        ("2d 1x1", F.conv2d, (8, 256, 28, 28), (64, 256, 1, 1), {}),
        ("2d depthwise", F.conv2d, (4, 96, 32, 32), (96, 1, 5, 5), {"groups": 96, "padding": 2}),
        ("2d dilated", F.conv2d, (2, 32, 64, 64), (32, 32, 3, 3), {"dilation": 2}),
        ("1d", F.conv1d, (4, 64, 1000), (64, 64, 9), {}),
        ("3d", F.conv3d, (2, 16, 16, 32, 32), (32, 16, 3, 3, 3), {}),
        ("transposed", F.conv_transpose2d, (4, 64, 28, 28), (64, 32, 4, 4), {"stride": 2}),
    ]
    for dtype in FLOATS:
        for name, function, x_shape, w_shape, options in cases:

            def both_ways() -> Any:
                x, w = (rand(*s, dtype=dtype).requires_grad_() for s in (x_shape, w_shape))
                y = function(x, w, **options)
                y.float().pow(2).mean().backward()
                return y, x.grad, w.grad

            r.run(f"conv {name} {dtype}", both_ways)
        for cell in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):

            def recurrent() -> Any:
                x = rand(20, 8, 64, dtype=dtype).requires_grad_()
                y = cell(64, 128, 2, bidirectional=True).cuda().to(dtype)(x)[0]
                y.float().sum().backward()
                return y, x.grad

            r.run(f"{cell.__name__} {dtype}", recurrent)
        r.run(
            f"batch norm {dtype}",
            lambda: F.batch_norm(rand(8, 64, 32, 32, dtype=dtype), None, None, training=True),
        )


def attention(r: Recorder) -> None:
    """The four backends of scaled_dot_product_attention, forward and backward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    names = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
    for name in names:
        for dtype in (torch.float16, torch.bfloat16):
            for size in (64, 128, 256):
                for causal in (False, True):

                    def attend() -> Any:
                        parts = [rand(2, 8, 512, size, dtype=dtype).requires_grad_() for _ in range(3)]
                        with sdpa_kernel(getattr(SDPBackend, name)):
                            y = F.scaled_dot_product_attention(*parts, is_causal=causal)
                        y.float().sum().backward()
                        return y, *(p.grad for p in parts)

                    r.run(f"sdpa {name} {dtype} {size} {causal}", attend)


def fourier(r: Recorder) -> None:
    """cuFFT."""
    for n in (8, 60, 128, 243, 997, 1000, 1024, 4096, 7919, 65536, 1 << 20):
        for dtype in (torch.complex64, torch.complex128):
            r.run(f"fft {n} {dtype}", lambda: torch.fft.fft(rand(3, n, dtype=dtype)))
        r.run(f"rfft {n}", lambda: torch.fft.rfft(rand(3, n)))
        r.run(f"irfft {n}", lambda: torch.fft.irfft(rand(3, n // 2 + 1, dtype=torch.complex64), n=n))
    r.run("fft2", lambda: torch.fft.fft2(rand(4, 120, 250)))
    r.run("fftn", lambda: torch.fft.fftn(rand(32, 48, 50)))


def linear_algebra(r: Recorder) -> None:
    """cuSOLVER."""
    lib = torch.linalg
    for dtype in (torch.float32, torch.float64, torch.complex64):

        def positive(n: int, *batch: int) -> Any:
            a = rand(*batch, n, n, dtype=dtype)
            return a @ a.mH + n * torch.eye(n, dtype=dtype, device="cuda")

        r.run(f"cholesky {dtype}", lambda: lib.cholesky(positive(200)))
        r.run(f"cholesky batch {dtype}", lambda: lib.cholesky(positive(30, 16)))
        r.run(f"qr {dtype}", lambda: lib.qr(rand(200, 120, dtype=dtype)))
        r.run(f"svdvals {dtype}", lambda: lib.svdvals(rand(150, 100, dtype=dtype)))
        r.run(f"eigvalsh {dtype}", lambda: lib.eigvalsh(positive(180)))
        r.run(f"solve {dtype}", lambda: lib.solve(positive(150), rand(150, 7, dtype=dtype)))
        r.run(f"inv batch {dtype}", lambda: lib.inv(positive(24, 32)))
        r.run(f"lu {dtype}", lambda: lib.lu_factor(positive(150)))
        r.run(f"lstsq {dtype}", lambda: lib.lstsq(rand(90, 40, dtype=dtype), rand(90, 3, dtype=dtype))[0])


def sparse(r: Recorder) -> None:
    """cuSPARSE and cuSPARSELt."""
    for dtype in (*FLOATS, torch.float64):

        def csr(n: int = 300, m: int = 200) -> Any:
            return (rand(n, m, dtype=dtype) * (torch.rand(n, m, device="cuda") < 0.1)).to_sparse_csr()

        r.run(f"spmm {dtype}", lambda: csr() @ rand(200, 33, dtype=dtype))
        r.run(f"spmv {dtype}", lambda: csr() @ rand(200, dtype=dtype))
        r.run(f"spgemm {dtype}", lambda: csr(300, 200) @ csr(200, 150))
        r.run(
            f"sparse mm {dtype}",
            lambda: torch.sparse.mm(csr().to_dense().to_sparse(), rand(200, 9, dtype=dtype)),
        )
    for dtype in (torch.float16, torch.bfloat16):

        def two_of_four() -> Any:
            from torch.sparse import SparseSemiStructuredTensor, to_sparse_semi_structured

            SparseSemiStructuredTensor._FORCE_CUTLASS = False
            mask = torch.tensor([0, 0, 1, 1], device="cuda").tile(256, 64).bool()
            return to_sparse_semi_structured(rand(256, 256, dtype=dtype) * mask) @ rand(256, 128, dtype=dtype)

        r.run(f"2:4 {dtype}", two_of_four)


def random_numbers(r: Recorder) -> None:
    """cuRAND, which torch itself uses only by its headers."""
    lib = ctypes.CDLL("libcurand.so.10")
    for kind in (101, 121, 141, 161, 201, 202, 203, 204):

        def generate() -> Any:
            generator = ctypes.c_void_p()
            assert lib.curandCreateGenerator(ctypes.byref(generator), kind) == 0
            out = torch.empty(100_000, dtype=torch.int64 if kind >= 203 else torch.float32, device="cuda")
            if kind < 200:
                lib.curandSetPseudoRandomGeneratorSeed(generator, ctypes.c_ulonglong(77))
            make = lib.curandGenerateLongLong if kind >= 203 else lib.curandGenerateUniform
            assert make(generator, ctypes.c_void_p(out.data_ptr()), ctypes.c_size_t(out.numel())) == 0
            torch.cuda.synchronize()
            lib.curandDestroyGenerator(generator)
            return out

        r.run(f"curand {kind}", generate)


def collectives(r: Recorder) -> None:
    """NCCL with one rank."""
    import torch.distributed as dist

    dist.init_process_group("nccl", init_method=f"file:///tmp/slim-nccl-{os.getpid()}", rank=0, world_size=1)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):

        def reduce() -> Any:
            x = torch.arange(5000, device="cuda").to(dtype)
            dist.all_reduce(x)
            return x

        def gather() -> Any:
            x = torch.arange(5000, device="cuda").to(dtype)
            parts = [torch.empty_like(x) for _ in range(3)]
            dist.all_gather_into_tensor(parts[0], x)
            dist.reduce_scatter_tensor(parts[1], x)
            dist.all_to_all_single(parts[2], x)
            return parts

        r.run(f"nccl all-reduce {dtype}", reduce)
        r.run(f"nccl gather {dtype}", gather)
    dist.destroy_process_group()


def compilers(r: Recorder) -> None:
    """NVRTC and Triton."""
    r.run("nvrtc", lambda: [torch.special.airy_ai(rand(500)), torch.special.bessel_j1(rand(500))])
    r.run(
        "torch.compile",
        lambda: torch.compile(lambda a, b: (torch.softmax(a @ b, -1) * 3).relu().sum(0))(
            rand(64, 64), rand(64, 64)
        ),
    )


def vision(r: Recorder) -> None:
    """torchvision's own kernels."""
    import torchvision

    boxes = torch.rand(500, 4, device="cuda").cumsum(1)
    r.run("nms", lambda: torchvision.ops.nms(boxes, torch.rand(500, device="cuda"), 0.5))
    box = [torch.tensor([[1.0, 1.0, 30.0, 40.0]], device="cuda")]
    r.run("roi_align", lambda: torchvision.ops.roi_align(rand(1, 8, 64, 64), box, 7))


def database(r: Recorder, seconds: float) -> int:
    """torch's own operator database, until the time is up; return how many were run."""
    from torch.testing._internal.common_methods_invocations import op_db

    start, count = time.monotonic(), 0
    for op in op_db:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            if time.monotonic() - start > seconds:
                return count
            if dtype not in op.dtypesIfCUDA and dtype not in op.dtypes:
                continue
            # Uninitialised memory differs from run to run.
            if op.name in (
                "empty",
                "new_empty",
                "empty_like",
                "empty_strided",
                "empty_permuted",
                "new_empty_strided",
            ):
                continue

            def samples() -> Any:
                inputs = op.sample_inputs("cuda", dtype, requires_grad=False)
                return [op(s.input, *s.args, **s.kwargs) for s, _ in zip(inputs, range(4), strict=False)]

            r.run(f"op {op.name}.{op.variant_test_name} {dtype}", samples)
            count += 1
    return count


GROUPS = (
    matmul, convolution, attention, fourier, linear_algebra, sparse, random_numbers, collectives, compilers,
    vision,
)  # fmt: skip


def run_all(r: Recorder, database_seconds: float) -> dict[str, Any]:
    """Run every group; one that cannot start at all is an error result of its name."""
    for group in GROUPS:
        try:
            group(r)
        except Exception as error:
            r.results[f"group {group.__name__}"] = {"error": repr(error)[:200]}
    try:
        return {"database": database(r, database_seconds)}
    except Exception as error:
        return {"database": repr(error)[:200]}
