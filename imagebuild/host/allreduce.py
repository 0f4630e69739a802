# SPDX-License-Identifier: Apache-2.0
"""Do all GPUs add up to the right numbers, in time? `python3 allreduce.py`, on a host or in an image.

One process per GPU joins a torch.distributed group (NCCL; gloo on CPUs). Each pair of ranks exchanges
numbers that both can compute, then all ranks sum such numbers and compare every element. The parent waits
until a deadline and names what went wrong: the ranks that did not arrive, died, or sent other numbers.

This file stands alone: Python >= 3.10 and torch, nothing of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
MARK = "@allreduce "  # begins a line that is an event; NCCL and torch may print anything between
HIDDEN = 7168  # the all-reduce of one token of a model as wide as K2 is that many bf16 numbers
FAULTS = ("lie", "lie-sum", "hang", "die")
GRACE_S = 5.0  # for the other ranks' last words after one died

# --- one rank ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What every rank is told. `fault` is (kind, rank): that rank misbehaves, which must be found."""

    rank: int
    ranks: int
    backend: str
    store: str
    deadline: float
    mib: int
    fault: tuple[str, int] | None = None

    def is_to(self, *kinds: str) -> bool:
        """Whether this rank is the one that shall do such a thing."""
        return self.fault is not None and self.fault[0] in kinds and self.fault[1] == self.rank


def say(**event: Any) -> None:
    """Tell the parent."""
    print(MARK + json.dumps(event), flush=True)


def take_part(job: Job) -> None:
    """Run one rank from import to the end; every stage is announced before it begins."""
    say(at="import")
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        say(missing=f"torch cannot be imported: {error}")
        return
    if job.backend == "nccl":
        if torch.cuda.device_count() < job.ranks:
            say(missing=f"{job.ranks} GPUs wanted, torch sees {torch.cuda.device_count()}")
            return
        device = torch.device("cuda", job.rank)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
    from datetime import timedelta

    say(at="join", torch=torch.__version__, nccl=_nccl(torch) if job.backend == "nccl" else "")
    limit = timedelta(seconds=job.deadline + 60)  # the parent decides, not a watchdog
    dist.init_process_group(
        job.backend, init_method=f"file://{job.store}", rank=job.rank, world_size=job.ranks, timeout=limit
    )
    dist.all_reduce(torch.zeros(1, device=device))
    _wait(torch, device)
    _pairs(torch, dist, device, job)
    for name, count in (("float32", 1 << 16), ("bfloat16", HIDDEN), ("bfloat16", job.mib << 19)):
        _sum(torch, dist, device, job, getattr(torch, name), name, count)
    say(at="end")
    os._exit(0)  # leaving a group in order is not what is tested, and it can hang


def _nccl(torch: Any) -> str:
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _wait(torch: Any, device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _numbers(torch: Any, device: Any, rank: int, ranks: int, count: int) -> Any:
    """Return rank's numbers: whole, and so small that sums of all ranks are exact in bf16 (up to 256)."""
    top = max(2, 256 // ranks)
    return (torch.arange(count, device=device, dtype=torch.int32) * 7 + rank * 13) % top


def _own(torch: Any, device: Any, job: Job, dtype: Any, count: int, *, lies: tuple[str, ...]) -> Any:
    sent = _numbers(torch, device, job.rank, job.ranks, count).to(dtype)
    if job.is_to(*lies):
        sent[min(5, count - 1)] += 1
    return sent


def _compare(torch: Any, got: Any, expected: Any, **where: Any) -> None:
    wrong = torch.nonzero(got != expected.to(got.dtype)).flatten()
    if len(wrong):
        first = int(wrong[0])
        say(
            wrong=where, count=len(wrong), of=got.numel(), index=first,
            got=float(got[first]), expected=float(expected[first]),
        )  # fmt: skip


def _pairs(torch: Any, dist: Any, device: Any, job: Job) -> None:
    """Send to each other rank and receive from each, in steps in which all ranks are busy."""
    count = 1 << 14
    for step in range(1, job.ranks):
        to, source = (job.rank + step) % job.ranks, (job.rank - step) % job.ranks
        say(at=f"pairs {step}", to=to, source=source)
        sent = _own(torch, device, job, torch.float32, count, lies=("lie",))
        got = torch.full_like(sent, -1)
        work = [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, got, source)]
        for request in dist.batch_isend_irecv(work):
            request.wait()
        _wait(torch, device)
        expected = _numbers(torch, device, source, job.ranks, count)
        _compare(torch, got, expected, source=source, to=job.rank)


def _sum(torch: Any, dist: Any, device: Any, job: Job, dtype: Any, name: str, count: int) -> None:
    """Sum numbers of all ranks, compare each element, then take the time."""
    stage = f"sum of {count} {name}"
    if job.is_to("hang"):
        time.sleep(job.deadline + 3600)
    if job.is_to("die"):
        os._exit(70)
    say(at=stage)
    got = _own(torch, device, job, dtype, count, lies=("lie", "lie-sum"))
    dist.all_reduce(got)
    _wait(torch, device)
    expected = sum(_numbers(torch, device, rank, job.ranks, count) for rank in range(job.ranks))
    _compare(torch, got, expected, stage=stage)
    times = []
    for _ in range(10):
        dist.all_reduce(torch.zeros(1, device=device))  # all ranks begin together
        _wait(torch, device)
        start = time.perf_counter()
        dist.all_reduce(got)
        _wait(torch, device)
        times.append(time.perf_counter() - start)
    say(time=name, bytes=got.numel() * got.element_size(), seconds=sorted(times)[len(times) // 2])


# --- the parent -------------------------------------------------------------------------------


@dataclass
class Rank:
    """What the parent knows of one rank: the stages that it announced and everything that it said."""

    number: int
    process: subprocess.Popen[str]
    stages: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    times: list[dict[str, Any]] = field(default_factory=list)
    missing: str = ""
    tail: list[str] = field(default_factory=list)
    died: float = 0

    @property
    def stage(self) -> str:
        """The last stage that it announced."""
        return str(self.stages[-1]["at"]) if self.stages else "start"

    @property
    def over(self) -> bool:
        """Whether nothing more is to come from it."""
        return self.stage == "end" or bool(self.missing or self.died)

    @property
    def last_words(self) -> str:
        """The end of what it printed beside events."""
        return " | ".join(self.tail[-3:]) or "it said nothing"


@dataclass(frozen=True)
class Finding:
    """One finding: `level` is ok, fail or missing."""

    id: str
    level: str
    text: str


def check(
    ranks: int, backend: str, deadline: float, *, mib: int, fault: tuple[str, int] | None = None
) -> dict[str, Any]:
    """Run all ranks and return the report; `deadline` seconds after the start all of them are over."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="allreduce-") as folder:
        store = os.path.join(folder, "store")
        jobs = [Job(n, ranks, backend, store, deadline, mib, fault) for n in range(ranks)]
        members = [Rank(job.rank, _start(job)) for job in jobs]
        try:
            _listen(members, start + deadline)
        finally:
            for member in members:
                _kill(member.process)
    findings = judge(members, deadline)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "ok": all(finding.level == "ok" for finding in findings),
        "ranks": ranks,
        "backend": backend,
        "seconds": round(time.monotonic() - start, 1),
        "findings": [vars(finding) for finding in findings],
    }
    joined = next((stage for stage in members[0].stages if stage["at"] == "join"), {})
    return report | {key: joined[key] for key in ("torch", "nccl") if joined.get(key)} | _speed(members)


def _start(job: Job) -> subprocess.Popen[str]:
    text = json.dumps({**vars(job), "fault": list(job.fault) if job.fault else None})
    return subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--job", text],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip


def _listen(members: list[Rank], until: float) -> None:
    """Take in what the ranks say, until all are over or the time is."""
    said: queue.Queue[tuple[Rank, str | None]] = queue.Queue()

    def follow(member: Rank) -> None:
        assert member.process.stdout is not None
        for line in member.process.stdout:
            said.put((member, line.rstrip()))
        said.put((member, None))

    for member in members:
        threading.Thread(target=follow, args=(member,), daemon=True).start()
    while not all(member.over for member in members):
        left = until - time.monotonic()
        try:
            member, line = said.get(timeout=max(0.0, left))
        except queue.Empty:
            return
        if line is not None:
            _take(member, line)
        elif not member.over:
            member.died = time.monotonic()
            until = min(until, time.monotonic() + GRACE_S)
        if member.missing:
            until = min(until, time.monotonic() + GRACE_S)


def _take(member: Rank, line: str) -> None:
    if not line.startswith(MARK):
        member.tail = [*member.tail[-19:], line]
        return
    event = json.loads(line[len(MARK) :])
    for key, place in (("at", member.stages), ("wrong", member.wrong), ("time", member.times)):
        if key in event:
            place.append(event)
    member.missing = event.get("missing", member.missing)


def _kill(process: subprocess.Popen[str]) -> None:
    """End a rank; one that waits in a broken driver cannot be, and is left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=GRACE_S)
    except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
        pass


def judge(members: list[Rank], deadline: float) -> list[Finding]:
    """Return what was found, the cause before its consequences."""
    missing = sorted({member.missing for member in members if member.missing})
    if missing:
        return [Finding("allreduce.missing", "missing", text) for text in missing]
    # Who died first; NCCL's and gloo's other ranks go down with it.
    dead = min((m for m in members if m.died), key=lambda m: m.died, default=None)
    findings = []
    if dead is not None:
        text = f"rank {dead.number} died in {dead.stage!r}: {dead.last_words}"
        findings.append(Finding("allreduce.died", "fail", text))
    findings += _wrong(members)
    if not findings and not all(member.over for member in members):
        findings.append(Finding("allreduce.hang", "fail", _hang(members, deadline)))
    if findings:
        return findings
    checked = ", ".join(str(stage["at"]) for stage in members[0].stages if str(stage["at"]).startswith("sum"))
    return [Finding("allreduce.ok", "ok", f"{len(members)} ranks, every number right: {checked}")]


def _wrong(members: list[Rank]) -> Iterator[Finding]:
    pairs = [event for member in members for event in member.wrong if "source" in event["wrong"]]
    for source in sorted({event["wrong"]["source"] for event in pairs}):
        mine = [event for event in pairs if event["wrong"]["source"] == source]
        to = ", ".join(str(event["wrong"]["to"]) for event in mine)
        yield Finding("allreduce.wrong-pair", "fail", f"rank {source} to rank {to}: {_example(mine[0])}")
    sums = [(m.number, event) for m in members for event in m.wrong if "stage" in event["wrong"]]
    if sums:
        stages = list(dict.fromkeys(event["wrong"]["stage"] for _, event in sums))
        ranks = ", ".join(str(number) for number in sorted({number for number, _ in sums}))
        more = f", and {len(stages) - 1} more sums" if len(stages) > 1 else ""
        cause = "" if pairs else "; every pair was right, so look at the reduction, not at one link"
        text = f"{stages[0]}{more}, on rank {ranks}: {_example(sums[0][1])}{cause}"
        yield Finding("allreduce.wrong-sum", "fail", text)


def _example(event: dict[str, Any]) -> str:
    return (
        f"{event['count']} of {event['of']} numbers wrong, "
        f"the first at {event['index']}: {event['got']:g} instead of {event['expected']:g}"
    )


def _hang(members: list[Rank], deadline: float) -> str:
    """Say who did not arrive where the others are; if all did, that they wait for each other."""
    last = min(len(member.stages) for member in members)
    behind = [member for member in members if len(member.stages) == last]
    names = ", ".join(str(member.number) for member in behind)
    if len(behind) < len(members):
        ahead = max(members, key=lambda member: len(member.stages))
        return (
            f"after {deadline:g} s rank {names} has not come to {ahead.stage!r}, where the others wait; "
            f"its last stage was {behind[0].stage!r}"
        )
    return f"after {deadline:g} s all ranks wait in {behind[0].stage!r}"


def _speed(members: list[Rank]) -> dict[str, Any]:
    """Return the slowest rank's latency and bus bandwidth (as nccl-tests: 2(n-1)/n of the bytes)."""
    n = len(members)
    small = [e["seconds"] for m in members for e in m.times if e["bytes"] == 2 * HIDDEN]
    large = [e for m in members for e in m.times if e["bytes"] > 2 * HIDDEN and e["time"] == "bfloat16"]
    found: dict[str, Any] = {}
    if len(small) == n:
        found["one_token_us"] = round(max(small) * 1e6, 1)
    if len(large) == n and n > 1:
        rate = min(e["bytes"] / e["seconds"] for e in large)
        found["bus_gb_per_s"] = round(rate * 2 * (n - 1) / n / 1e9, 2)
    return found


def gpu_count() -> int:
    """Return how many GPUs torch sees, asked in a process of its own; -1: no torch."""
    script = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.split() else -1


def _fault(text: str) -> tuple[str, int]:
    kind, _, rank = text.partition(":")
    if kind not in FAULTS or not rank.isdigit():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one of {', '.join(FAULTS)} with a rank, as in lie:1"
        )
    return kind, int(rank)


def main() -> int:
    """Run the check; exit 0: right, 1: wrong or late, 3: no torch or too few GPUs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=0, help="processes; default: all GPUs")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl", help="gloo: on CPUs")
    parser.add_argument("--deadline", type=float, default=180, help="seconds for everything")
    parser.add_argument("--mib", type=int, default=0, help="size of the largest sum; default: 64, on CPUs 1")
    parser.add_argument(
        "--fault", type=_fault, help=f"let a rank misbehave: {', '.join(FAULTS)}, as in lie:1"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        given = json.loads(options.job)
        take_part(Job(**{**given, "fault": tuple(given["fault"]) if given["fault"] else None}))
        return 0
    ranks = options.ranks or (gpu_count() if options.backend == "nccl" else 2)
    if ranks < 1:
        text = "this Python has no torch" if ranks < 0 else "torch sees no GPU"
        report: dict[str, Any] = {
            "schema": SCHEMA, "ok": False, "ranks": 0, "backend": options.backend,
            "findings": [vars(Finding("allreduce.missing", "missing", text))],
        }  # fmt: skip
    else:
        mib = options.mib or (64 if options.backend == "nccl" else 1)
        report = check(ranks, options.backend, options.deadline, mib=mib, fault=options.fault)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        for finding in report["findings"]:
            print(f"{finding['level']:8}{finding['id']:24}{finding['text']}")
    levels = {finding["level"] for finding in report["findings"]}
    return 3 if "missing" in levels else 1 if "fail" in levels else 0


if __name__ == "__main__":
    sys.exit(main())
