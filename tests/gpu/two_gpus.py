# SPDX-License-Identifier: Apache-2.0
"""Tensor and expert parallelism with the drafter: texts and accepted lengths as on one GPU.

On a host with several GPUs, after `. tests/gpu/spec/host.sh` and models.py (tests/gpu/spec/README.md):

    python3 $GPU_WORK/site/kit/two_gpus.py --gpus 2 --out $OUT [--limit SECONDS]

For tp 1 and tp N of the dense MLA model in float32, custom all-reduce on and off, and for tp 1, tp N and
tp N with ep N of the mixture of experts in bfloat16: no speculation, DFLASH, DDTREE, with CUDA graphs.
Float32 texts must equal those of tp 1 without speculation, and accepted lengths those of tp 1; bfloat16
must run. Arms follow one another: each takes all GPUs. NVLink multicast stays as the host sets it.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arms
import burst

ALGORITHMS: dict[str, tuple[str, str | None] | None] = {
    "none": None,
    "dflash": ("DFLASH", None),
    "ddtree": ("DDTREE", "16"),
}
ACCEPT = 0.02  # relative: float32 sums of another order may turn a tie


def plan(work: Path, gpus: int) -> list[dict[str, Any]]:
    """All arms for so many GPUs, the reference first."""
    layouts: list[tuple[str, str, dict[str, Any]]] = [
        ("mla-fp32", "tp1", {}),
        ("mla-fp32", f"tp{gpus}", {"tp_size": gpus}),
        ("mla-fp32", f"tp{gpus}-nccl", {"tp_size": gpus, "disable_custom_all_reduce": True}),
        ("deepseek-bf16", "tp1", {}),
        ("deepseek-bf16", f"tp{gpus}", {"tp_size": gpus}),
        ("deepseek-bf16", f"tp{gpus}-ep{gpus}", {"tp_size": gpus, "ep_size": gpus}),
    ]
    found = []
    for target, layout, options in layouts:
        for label, chosen in ALGORITHMS.items():
            name, kind = f"{target}-{layout}-{label}", target.rsplit("-", 1)[1]
            algorithm, budgets = chosen or ("DFLASH", None)
            draft = f"draft-anchor-{kind}" if chosen else None
            tasks = {task: dict(arms.TEXT[task]) for task in ("batch", "ragged")}
            if name == "mla-fp32-tp1-none":
                tasks = {task: value | {"gaps": True} for task, value in tasks.items()}
            spec = arms.engine(work, target, draft, tasks, algorithm=algorithm, budgets=budgets, **options)
            found.append({"name": name, "spec": spec, "judge": judge(name, target, label)})
    return found


def judge(name: str, target: str, label: str) -> Callable[[Any], list[arms.Verdict]]:
    """Float32: the reference's text, and tp 1's accepted length. Bfloat16: complete."""

    def verdicts(run: Any) -> list[arms.Verdict]:
        result = run.result(name)
        if target.endswith("bf16"):
            accept = result.get("tasks", {}).get("batch", {}).get("accept")
            return [(bool(result.get("done")), f"{name}: accept {accept}")]
        found: list[arms.Verdict] = arms.same_text(name, f"{target}-tp1-none")(run)
        if label != "none":
            mine, other = (
                arm.get("tasks", {}).get("batch", {}).get("accept") or 0.0
                for arm in (result, run.result(f"{target}-tp1-{label}"))
            )
            alike = other > 0 and abs(mine - other) <= ACCEPT * other
            found.append((alike, f"{name}: accept {mine}, on one GPU {other}"))
        return found

    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=560, help="seconds for all arms together")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    run = burst.Burst(args.out, args.limit)
    chosen = plan(burst.WORK, args.gpus)
    run.finished = {arm["name"]: threading.Event() for arm in chosen}
    for arm in chosen:
        run.run(arm)
    failed = arms.judge(run, chosen)
    run.say(f"{len(chosen)} arms on {args.gpus} GPUs, {failed} judgements failed")
    run.pack(caches=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
