# SPDX-License-Identifier: Apache-2.0
"""Print the source file of every module that starting a server imports, relative to /.

Run in an image by scripts/refresh-bytecode. Each group is imported in a process of its own, as
the server's processes do; a module that needs a GPU at import is skipped and named on stderr.
"""

import subprocess
import sys

GROUPS = (
    ("sglang.launch_server", "sglang.cli.main", "sglang.srt.entrypoints.http_server"),
    ("sglang.srt.managers.scheduler", "sglang.srt.managers.detokenizer_manager"),
    ("sglang.srt.models.kimi_k25", "sglang.srt.models.deepseek_v2", "sglang.srt.models.dflash"),
    ("sglang.srt.speculative.dflash_worker_v2", "sglang.srt.speculative.dflash_info_v2"),
    ("sglang.srt.layers.attention.triton_backend", "sglang.srt.layers.attention.trtllm_mla_backend"),
    ("sglang.srt.layers.attention.flashinfer_mla_backend", "flashinfer"),
    ("sglang.srt.layers.quantization.compressed_tensors.compressed_tensors",),
    ("sglang.srt.function_call.kimik2_detector", "sglang.srt.parser.reasoning_parser"),
    (
        "sglang.bench_serving",
        "flashinfer.jit.norm",
        "torch.utils.cpp_extension",
        "torch._inductor.compile_fx",
    ),
)
SCRIPT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
for module in list(sys.modules.values()):
    path = getattr(module, "__file__", None) or ""
    if path.endswith(".py") and path.startswith(("/opt/", "/usr/lib/python3")):
        print(path.lstrip("/"))
"""

for group in GROUPS:
    subprocess.run([sys.executable, "-B", "-W", "ignore", "-c", SCRIPT, *group], check=True)
