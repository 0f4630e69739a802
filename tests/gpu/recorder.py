# SPDX-License-Identifier: Apache-2.0
"""Run named GPU operations, keep a hash and sums of each result, and compare two such records."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

_CLOSE = 2e-2  # relative, of sums: for results that do not repeat even in the original


class Recorder:
    """Results by name: {"hash", "sums", "ms"} or {"error"}."""

    def __init__(self) -> None:
        self.results: dict[str, dict[str, Any]] = {}

    def run(self, name: str, operation: Callable[[], Any]) -> None:
        """Run one operation with a fixed seed; an error is a result too."""
        import torch

        torch.manual_seed(1234)
        start = time.monotonic()
        try:
            tensors = flatten(operation())
            torch.cuda.synchronize()
            digest, sums = hashlib.sha256(), []
            for tensor in tensors:
                host = tensor.detach().contiguous().cpu()
                flat = host.reshape(-1)
                digest.update(f"{host.dtype}{tuple(host.shape)}".encode())
                if flat.numel():
                    digest.update(flat.view(torch.uint8).numpy().tobytes())
                if host.is_floating_point() or host.is_complex():
                    real = torch.view_as_real(flat).double() if host.is_complex() else flat.double()
                    real = real[torch.isfinite(real)]
                    sums.append([real.sum().item(), real.abs().sum().item()])
            took = round((time.monotonic() - start) * 1e3, 1)
            self.results[name] = {"hash": digest.hexdigest()[:24], "sums": sums[:8], "ms": took}
        except Exception as error:
            text = (str(error).splitlines() or [""])[0][:160]
            self.results[name] = {"error": f"{type(error).__name__}: {text}"}


def flatten(value: Any) -> list[Any]:
    """Return the tensors in a result, sparse ones by their parts."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout in (torch.sparse_csr, torch.sparse_bsr):
            return [value.crow_indices(), value.col_indices(), value.values()]
        return [value if value.layout == torch.strided else value.to_dense()]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in flatten(item)]
    return []


def compare(orig: dict[str, Any], again: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Compare a variant with the original, whose second run tells which results do not repeat.

    "different" are the names that matter: another result where the original repeats itself, an
    error where it has none, or sums apart where the original's own runs are near each other.
    "not judged" are the names whose original runs are apart themselves.
    """
    found: dict[str, Any] = {
        "identical": 0,
        "fail alike": 0,
        "not repeatable": 0,
        "not run": 0,
        "not judged": [],
        "different": [],
    }
    for name, a in orig.items():
        b = other.get(name)
        if b is None:
            found["not run"] += 1
        elif "error" in a and "error" in b:
            found["fail alike"] += 1
        elif "error" in a or "error" in b:
            found["different"].append(f"{name}: {a.get('error', 'worked')} / {b.get('error', 'works')}")
        elif a["hash"] == b["hash"]:
            found["identical"] += 1
        elif a["hash"] != again.get(name, a).get("hash") and _near(a["sums"], b["sums"]):
            found["not repeatable"] += 1
        elif not _near(a["sums"], again.get(name, a).get("sums", [])):
            found["not judged"].append(name)
        else:
            found["different"].append(f"{name}: sums {a['sums'][:2]} / {b['sums'][:2]}")
    return found


def _near(a: list[list[float]], b: list[list[float]]) -> bool:
    return len(a) == len(b) and all(
        abs(x[0] - y[0]) <= _CLOSE * (x[1] + y[1] + 1e-6) and abs(x[1] - y[1]) <= _CLOSE * (x[1] + 1e-6)
        for x, y in zip(a, b, strict=True)
    )
