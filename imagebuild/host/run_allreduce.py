# SPDX-License-Identifier: Apache-2.0
"""Run allreduce.py where there is a torch: in the built image, or with a Python of the host."""

from __future__ import annotations

import json
from pathlib import Path

from imagebuild.errors import PreconditionError
from imagebuild.host.checks_machine import gpu_driver
from imagebuild.host.facts import Host
from imagebuild.host.report import Finding
from imagebuild.process import attempt

SCRIPT = Path(__file__).with_name("allreduce.py")
_START_S = 60.0  # of a container, before the check's own deadline runs
_LEVELS = ("ok", "fail", "missing")
_SPEED = {"one_token_us": "us for one token's sum (14 KiB)", "bus_gb_per_s": "GB/s bus bandwidth"}


def command(host: Host, python: str | None, image: str | None, deadline: float) -> list[str] | None:
    """Return the command that checks all GPUs; None: there is neither a Python with torch nor an image."""
    options = ["--json", "--deadline", f"{deadline:g}"]
    if python is not None:
        return [python, str(SCRIPT), *options]
    driver = gpu_driver(host.containers)
    if not image or driver is None:
        return None
    gpus = ["--gpus", "all"] if driver == "nvidia" else ["--device", "nvidia.com/gpu=all"]
    mount = f"type=bind,source={SCRIPT},target=/allreduce.py,readonly"
    limits = ["--shm-size=32g", "--ulimit", "memlock=-1"]
    isolation = ["--network=none", "--pull=never", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    start = ["docker", "run", "--rm", "--init", *gpus, *limits, *isolation, "--mount", mount]
    return [*start, "--entrypoint", "python", image, "/allreduce.py", *options]


def run_allreduce(host: Host, python: str | None, image: str | None, deadline: float) -> list[Finding]:
    """Run the check and return its findings, the speed among them."""
    argv = command(host, python, image, deadline)
    if argv is None:
        text = "not run: no image in .env that GPUs can be given to, and no --python with torch"
        return [Finding("allreduce.skipped", "warning", text, "build.py first, or --python /path/to/python")]
    try:
        ended = attempt(argv, timeout=deadline + _START_S)
    except PreconditionError as error:
        return [Finding("allreduce.missing", "missing", error.message)]
    try:
        report = json.loads(ended.out)
        found = [Finding(f["id"], f["level"], f["text"]) for f in report["findings"] if f["level"] in _LEVELS]
    except (ValueError, KeyError, TypeError):
        words = (ended.err or ended.out).strip().splitlines()
        text = f"the check did not run: {words[-1] if words else 'it said nothing'}"
        return [Finding("allreduce.broken", "fail", text, " ".join(argv))]
    speed = [f"{report[key]} {unit}" for key, unit in _SPEED.items() if key in report]
    if speed:
        found.append(Finding("allreduce.speed", "note", ", ".join(speed)))
    return found
