# SPDX-License-Identifier: Apache-2.0
"""`Finding`: what one check found, with its stable id; all ids there are, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from imagebuild.errors import CheckFailed, PreconditionError

State = Literal["ok", "warning", "skipped", "missing", "failed"]

# Every id, in the order in which they are run. They are stable: scripts and dashboards match on them.
IDS = {
    "gpu": "the container sees GPUs",
    "gpu-arch": "the GPUs are of the arch that the image was built for",
    "gpu-count": "there are as many GPUs as the flags need",
    "gpu-mig": "no GPU is split by MIG",
    "gpu-fabric": "the NVSwitch fabric is up",
    "driver": "the driver is new enough for the image's CUDA",
    "link": "the GPUs are joined as the service expects",
    "shm": "/dev/shm is large enough for NCCL",
    "ulimits": "memlock, stack and nofile are high enough",
    "cache": "the cache volume is writable and belongs to this image",
    "target": "the model is there, its shards and headers whole",
    "weights-lock": "the files are those of the lock",
    "drafter": "the drafter is there, its headers whole",
    "contract": "the drafter fits the target and the flags",
    "port": "the server's port is free",
    "api-key": "who can reach the port needs a key",
    "arguments": "SGLang's own argument resolution takes the flags",
    "memory": "weights, drafter and context fit into the free memory",
}


@dataclass(frozen=True)
class Finding:
    """`missing`: the host lacks something (exit 3); `failed`: what is there is wrong (exit 1).

    `next` is the step that helps, empty for ok. A `warning` was wrong too, but accepted, or only slow.
    """

    id: str
    state: State
    text: str
    next: str = ""

    def __post_init__(self) -> None:
        assert self.id in IDS, self.id


def accept(findings: Iterable[Finding], ids: Iterable[str]) -> list[Finding]:
    """Turn the findings that the operator accepts into warnings."""
    accepted = set(ids)
    return [
        replace(f, state="warning", text=f"accepted: {f.text}")
        if f.id in accepted and f.state in ("missing", "failed")
        else f
        for f in findings
    ]


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 3 if anything is missing, else 1 if anything failed, else 0."""
    states = {finding.state for finding in findings}
    if "missing" in states:
        return PreconditionError.exit_code
    return CheckFailed.exit_code if "failed" in states else 0


def line(finding: Finding) -> str:
    """Return a finding as one line with its next step."""
    text = f"{finding.state:<8} {finding.id:<13} {finding.text}"
    return f"{text} | next: {finding.next}" if finding.next else text


def summary(findings: Sequence[Finding]) -> str:
    """Return how many checks ended how: skipped ones are not passed."""
    states = [finding.state for finding in findings]
    counts = [f"{states.count(s)} {s}" for s in ("ok", "warning", "skipped", "missing", "failed")]
    return ", ".join(count for count in counts if not count.startswith("0 "))


def as_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings in their JSON form."""
    return [asdict(finding) for finding in findings]
