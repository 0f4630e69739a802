# SPDX-License-Identifier: Apache-2.0
"""The probe on a real host with any number of GPUs: topology, recommendation, all-reduce, and its faults.

    python3 tests/gpu/two_gpus_host.py --out $OUT            # about 2 minutes
    python3 tests/gpu/two_gpus_host.py --backend gloo --ranks 2   # a rehearsal without GPUs

NVML and nvidia-smi must agree; right numbers must pass; a rank that lies, one that lies in sums only, one
that dies and one that hangs must each be found and named. Exit 1 if not; `two_gpus.json` in --out has all.
Needs torch, packaging, pydantic and PyYAML; NVML needs nvidia-ml-py, a wheel on PYTHONPATH will do.
Variables of the host, NCCL's among them, stay as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from imagebuild.host import allreduce, smi  # noqa: E402
from imagebuild.host.facts import Gpus  # noqa: E402
from imagebuild.host.gpus import by_nvml, difference, run_smi, with_numa  # noqa: E402

HANG_S = 40.0  # importing torch and joining a group takes 10 to 20 s; the last rank never comes


def cases(last: int) -> dict[str, tuple[tuple[str, int] | None, list[str]]]:
    """Return what is run by name: the fault, and the ids that must be found."""
    pair = ["allreduce.wrong-pair"] if last else []
    return {
        "right": (None, ["allreduce.ok"]),
        "lie": (("lie", last), [*pair, "allreduce.wrong-sum"]),
        "lie-sum": (("lie-sum", last), ["allreduce.wrong-sum"]),
        "die": (("die", last), ["allreduce.died"]),
        "hang": (("hang", last), ["allreduce.hang"]),
    }


def judged(gpus: Gpus) -> dict[str, Any]:
    """Return findings and recommendation, without what is read of the rest of the host."""
    from imagebuild.host.advice import advise
    from imagebuild.host.checks import gpu_findings, link_findings
    from imagebuild.serving.service import read_model_recipes

    recipes = read_model_recipes(ROOT / "compose", ROOT / "images", "k26")
    found = [*gpu_findings(gpus, recipes.images), *link_findings(gpus, "", recipes.images)]
    return {"findings": [asdict(finding) for finding in found], "advice": asdict(advise(gpus, recipes))}


def run_cases(ranks: int, backend: str, mib: int) -> tuple[dict[str, Any], list[str]]:
    """Run the all-reduce with and without faults; return the reports and what is not as it must be."""
    reports: dict[str, Any] = {}
    bad = []
    for name, (fault, wanted) in cases(ranks - 1).items():
        deadline = HANG_S if name == "hang" else 180.0
        report = allreduce.check(ranks, backend, deadline, mib=mib, fault=fault)
        reports[name] = report
        found = [finding["id"] for finding in report["findings"]]
        print(
            f"{name:8} {report['seconds']:6.1f} s  " + "; ".join(f["text"] for f in report["findings"]),
            flush=True,
        )
        if found != wanted:
            bad.append(f"{name}: found {found}, wanted {wanted}")
        named = f"rank {ranks - 1}"
        if fault and ranks > 1 and name != "lie-sum" and named not in report["findings"][0]["text"]:
            bad.append(f"{name}: {named} is not named")
    return reports, bad


def main() -> int:
    """Run everything and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for two_gpus.json")
    parser.add_argument("--ranks", type=int, default=0, help="default: all GPUs")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--mib", type=int, default=64, help="of the largest sum")
    options = parser.parse_args()
    start = time.monotonic()
    nvml, text = with_numa(by_nvml(), Path("/sys")), with_numa(smi.read(run_smi), Path("/sys"))
    differ = difference(nvml, text) if options.backend == "nccl" else []
    record: dict[str, Any] = {"nvml": asdict(nvml), "nvidia-smi": asdict(text), "differ": differ}
    bad = [f"NVML and nvidia-smi differ: {name}" for name in differ]
    record |= judged(nvml)
    for finding in record["findings"]:
        print(f"{finding['level']:8} {finding['id']:20} {finding['text']}")
    advice = record["advice"]
    print(f"link {advice['link']}, service {advice['service'] or 'none'}: {advice['reason']}", flush=True)
    ranks = options.ranks or len(nvml.usable)
    if ranks < 1:
        bad.append("no GPU to run on")
    else:
        record["allreduce"], more = run_cases(ranks, options.backend, options.mib)
        bad += more
    record |= {"bad": bad, "seconds": round(time.monotonic() - start, 1)}
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "two_gpus.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(bad) or f"all as it must be, {record['seconds']} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
