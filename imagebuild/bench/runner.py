# SPDX-License-Identifier: Apache-2.0
"""Suite → BenchResult: start each arm, ask its gate, do the runs that are missing, keep each one."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild import __version__
from imagebuild.bench import gate
from imagebuild.bench.load import GENERATOR, Job, Where, run_jobs, to_run
from imagebuild.bench.result import Arm, BenchResult, save
from imagebuild.bench.runs import WARM, Folder, with_warm_up
from imagebuild.bench.server import Server, gpu_memory_mib
from imagebuild.bench.service import Compose, Identity
from imagebuild.bench.startup import read_startup
from imagebuild.bench.suite import ArmSpec, Suite
from imagebuild.errors import CheckFailed
from imagebuild.progress import Progress, Task

Report = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """How a benchmark is run.

    `urls`: arm → URL of a server that runs already; all other arms are compose services, reached at
    `service_url`. `where` says, for a server, where the load generator runs. `host` is the host profile.
    """

    suite: Suite
    prompts: tuple[str, ...]
    folder: Folder
    urls: dict[str, str]
    service_url: str
    where: Callable[[ArmSpec, Server], Where]
    compose: Compose | None
    progress: Progress
    report: Report
    host: dict[str, Any] = field(default_factory=dict)
    receipt: str = ""
    weights_lock: str = ""


@dataclass(frozen=True)
class _Up:
    server: Server
    identity: Identity
    log: Callable[[], Sequence[str]]
    begun: float


@contextlib.contextmanager
def _server(setting: Setting, arm: ArmSpec) -> Iterator[_Up]:
    """Give the arm's server, ready: the one at its URL, or its compose service for as long as needed."""
    timeout, begun = setting.suite.ready_timeout_s, time.monotonic()
    if arm.name in setting.urls:
        server = Server(setting.urls[arm.name])
        server.wait(timeout)
        yield _Up(server, Identity(), list, begun)
        return
    compose, name = setting.compose, arm.compose_service
    assert compose is not None
    with compose.running(name):
        server = Server(setting.service_url)
        waited = server.wait(timeout, lambda: compose.is_up(name), every_s=2)
        setting.report(f"{arm.name}: ready after {waited:.0f} s")
        yield _Up(server, compose.identity(name), lambda: compose.log(name), begun)


def _meet(setting: Setting, arm: ArmSpec, up: _Up) -> Arm:
    """Ask the gate and return what the arm is.

    Raises CheckFailed if the gate says no; what it said is kept.
    """
    spec = setting.suite.gate
    up.server.answer(spec.prompts[0].model_copy(update={"begins": ""}), 1)
    first_token = round(time.monotonic() - up.begun, 3)
    checks, answers = gate.ask(up.server, spec)
    if arm.same_as:
        other = setting.folder.arm(arm.same_as)
        theirs = other.answers if other is not None and other.passed else ()
        checks += gate.compare_answers(spec, arm.same_as, answers, theirs)
    facts, lines = up.server.facts(), up.log()
    met = Arm(
        name=arm.name,
        layout=arm.layout,
        speculation=arm.speculation,
        url=up.server.url,
        service="" if arm.name in setting.urls else arm.compose_service,
        image=up.identity.image,
        image_digest=up.identity.digest,
        receipt=setting.receipt,
        version=facts.version,
        flags=facts.flags,
        memory_gib=facts.memory_gib,
        startup=read_startup(lines, first_token if lines else None),
        gate=checks,
        answers=answers,
    )
    setting.folder.add_arm(met)
    if not met.passed:
        failed = [f"  {check.name}: {check.detail}" for check in checks if not check.passed]
        raise CheckFailed(
            f"{arm.name}: wrong answers, so no figures:\n" + "\n".join(failed),
            hint="a server that answers wrongly has no speed; see docs/bench.md, gate",
        )
    return met


def _one_arm(setting: Setting, arm: ArmSpec, task: Task) -> int:
    """Do what is missing of one arm; return how many runs failed."""
    todo = setting.folder.todo(arm)
    if not todo:
        return 0
    failed = 0
    with _server(setting, arm) as up:
        _meet(setting, arm, up)

        def done(job: Job, value: dict[str, Any]) -> None:
            nonlocal failed
            run = to_run(job, value, gpu_memory_mib())
            if run.failed:
                failed += 1
                reason = run.error.splitlines()[-1] if run.error else "no reason given"
                setting.report(
                    f"{arm.name} {job.id}: {run.failed} of {run.requests} requests failed: {reason}"
                )
            if job.id.endswith(f"-{WARM}"):
                return
            setting.folder.add_run(arm.name, job, run)
            task.describe(f"{arm.name} {job.id}: {run.tokens_per_s:.0f} tok/s")
            task.advance(1)

        run_jobs(setting.where(arm, up.server), with_warm_up(todo), setting.prompts, done)
    return failed


def assemble(setting: Setting) -> BenchResult | None:
    """Return what the folder holds as one result, and write it; None while no arm was begun."""
    arms = setting.folder.arms()
    if not arms:
        return None
    complete = all(not setting.folder.todo(arm) for arm in setting.suite.arms)
    suite = setting.suite
    result = BenchResult(
        suite=suite.name,
        title=suite.title,
        model=suite.model,
        created=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        tool=__version__,
        load_generator=GENERATOR,
        prompts="text" if setting.prompts else "random-ids",
        suite_digest=setting.folder.digest,
        weights_lock=setting.weights_lock,
        host=setting.host,
        complete=complete,
        arms=arms,
    )
    save(setting.folder.root / "result.json", result)
    return result


def run_suite(setting: Setting, wanted: Sequence[ArmSpec]) -> tuple[BenchResult, Path]:
    """Do what is missing of the wanted arms. An arm whose gate says no does not stop the others.

    Raises CheckFailed at the end if a gate said no or a request failed; all else is kept and in the result.
    """
    total = sum(len(setting.folder.todo(arm)) for arm in wanted)
    problems: list[str] = []
    try:
        with setting.progress.task("benchmark", total, unit="steps") as task:
            for arm in wanted:
                try:
                    failed = _one_arm(setting, arm, task)
                except CheckFailed as error:
                    problems.append(error.message)
                    setting.report(error.message)
                    continue
                if failed:
                    problems.append(f"{arm.name}: {failed} runs with failed requests")
    finally:
        result = assemble(setting)
    path = setting.folder.root / "result.json"
    if problems:
        raise CheckFailed("\n".join(problems), hint=f"the rest is in {path}; run again to do what is missing")
    assert result is not None
    return result, path
