# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Source this on the GPU host, in the repository root: unpacks what make_carry.py made (once) and sets
# the environment. GPU_WORK lies outside the checkout: unknown files there are removed between runs.
: "${GPU_WORK:=${TMPDIR:-/tmp}/gpu-work}" "${CARRY:=.gpu-carry/ddtree}"
export GPU_WORK
mkdir -p "$GPU_WORK/jit-cache"
if [ ! -e "$GPU_WORK/site/.complete" ]; then
    mkdir -p "$GPU_WORK/site"
    python3 - "$CARRY" "$GPU_WORK/site" <<'PY'
import pathlib, sys, tarfile

for name in ("site.tar.xz", "overlay.tar.xz"):
    with tarfile.open(pathlib.Path(sys.argv[1], name)) as archive:
        archive.extractall(sys.argv[2], filter="fully_trusted")
PY
    # Without byte code every engine process spends its first seconds compiling.
    python3 -m compileall -q -j 0 "$GPU_WORK/site" >/dev/null 2>&1
    touch "$GPU_WORK/site/.complete"
fi
for archive in "$CARRY"/jit-*.tar.xz; do # compile caches brought back from an earlier run
    name=$(basename "$archive" .tar.xz)
    if [ -e "$archive" ] && [ ! -e "$GPU_WORK/jit-cache/${name#jit-}" ]; then
        tar -C "$GPU_WORK/jit-cache" -xJf "$archive"
    fi
done
export PYTHONPATH="$GPU_WORK/site:$GPU_WORK/site/kit${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export TVM_FFI_CACHE_DIR="$GPU_WORK/jit-cache/tvm-ffi"
export TRITON_CACHE_DIR="$GPU_WORK/jit-cache/triton"
export TORCHINDUCTOR_CACHE_DIR="$GPU_WORK/jit-cache/inductor"
export FLASHINFER_WORKSPACE_BASE="$GPU_WORK/jit-cache/flashinfer"
