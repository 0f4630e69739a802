# SPDX-License-Identifier: Apache-2.0
"""Plan's artifacts → files in the cache, over parallel connections, every byte checked.

The only step of a build that uses the network, on the host, with the host's own settings.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from imagebuild.cache import DiskTrouble, Store
from imagebuild.carry import copy_in, export_to, find_in
from imagebuild.crew import POLL_S, Counter, work_together
from imagebuild.errors import ImageBuildError, IntegrityError, ManifestError, PreconditionError
from imagebuild.hostconf import HostNetwork, apt_proxies, host_network
from imagebuild.layer.spec import Artifact
from imagebuild.mirror import Mirrors, find_mirrors, urls_for
from imagebuild.progress import Progress, Quiet, Task, files_text, size_text
from imagebuild.redact import without_credentials
from imagebuild.session import LoginRefused, Reach, Session, open_session
from imagebuild.settings import Settings
from imagebuild.transfer import NotThere, Retry, Unreachable, download, patiently

__all__ = ["Retry", "export_to", "fetch"]

log = logging.getLogger(__name__)

DETAIL_SIZE = 20_000_000  # bytes; files from this size on get a bar of their own
_SHOWN = 10  # failures told in full

# Brings one file, True; False if another process is at it. Raises an ImageBuildError, or Stopped.
_Bring = Callable[[Artifact, Task], bool]


@dataclass
class _Run:
    """What the threads of one run share."""

    store: Store
    progress: Progress
    todo: deque[Artifact]
    busy: deque[Artifact] = field(default_factory=deque)  # another process was at them
    failures: list[tuple[Artifact, ImageBuildError]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class _Network:
    """Where files come from, and how."""

    host: HostNetwork
    deb_proxies: dict[str, str]
    mirrors: Mirrors | None
    snapshot: str | None
    created: str
    retry: Retry
    reach: Reach = field(default_factory=Reach)


def fetch(
    artifacts: Iterable[Artifact],
    settings: Settings,
    *,
    source: Path | None = None,
    created: str = "",
    progress: Progress | None = None,
    verify: bool = True,
    retry: Retry | None = None,
) -> Store:
    """Make sure that every artifact is in the cache and has the bytes of the lock.

    With `source` (`--from`) files come from that folder and the network is not used. `created` is
    the lock's time, for Debian's snapshots. `verify` also reads the files that were there already.

    Raises one error for all files that failed: IntegrityError if any had wrong bytes, else
    PreconditionError (network, disk, index or mirror lacks it). What was complete is kept, and
    after an interrupt too: the same call again goes on from there.
    """
    store = Store(settings.cache_dir)
    progress = progress or Quiet()
    wanted = list({a.sha256: a for a in artifacts}.values())
    there = [a for a in wanted if store.has(a)]
    if verify and there:
        store.verify(there, progress)
    todo = sorted((a for a in wanted if not store.has(a)), key=lambda a: (-a.size, a.file))
    if not todo:
        return store
    store.check_space(sum(max(0, a.size - store.part_size(a.sha256)) for a in todo))
    run = _Run(store, progress, deque(todo))
    if source is not None:
        found = find_in(source, todo)

        def copy(artifact: Artifact, task: Task) -> bool:
            return copy_in(artifact, found[artifact.sha256], store, advance=task.advance, stop=run.stop)

        _work(run, [copy] * min(4, settings.jobs), f"copying from {source}", resumes=False)
    else:
        network = _network(todo, settings, created, retry or Retry())
        with contextlib.ExitStack() as stack:
            count = min(settings.jobs, len(todo))
            workers = [_downloader(run, network, stack) for _ in range(count)]
            _work(run, workers, "fetching", resumes=True)
    _raise_failures(run, len(todo))
    return store


def _network(todo: Iterable[Artifact], settings: Settings, created: str, retry: Retry) -> _Network:
    host = host_network(settings)
    if not any(a.kind == "deb" for a in todo):
        return _Network(host, {}, None, None, created, retry)
    mirrors = find_mirrors(option=settings.debian_mirror, security_option=settings.debian_security_mirror)
    return _Network(host, apt_proxies(), mirrors, settings.debian_snapshot, created, retry)


def _downloader(run: _Run, network: _Network, stack: contextlib.ExitStack) -> _Bring:
    """Return what one thread brings files with: it has connections of its own."""
    for_wheels = stack.enter_context(open_session(network.host, network.reach))
    for_debs = stack.enter_context(open_session(network.host, network.reach, network.deb_proxies))

    def bring(artifact: Artifact, task: Task) -> bool:
        with run.store.open_part(artifact.sha256) as file:
            if file is None:
                return False
            if run.store.has(artifact):
                return True
            session = for_debs if artifact.kind == "deb" else for_wheels
            trouble: list[PreconditionError] = []
            for url in _urls(artifact, network, session, run.stop):
                log.debug("%s: %s", artifact.file, without_credentials(url))
                try:
                    download(
                        artifact, url, file, session,
                        advance=task.advance, retry=network.retry, stop=run.stop,
                    )  # fmt: skip
                except (NotThere, Unreachable) as error:
                    trouble.append(error)
                else:
                    run.store.commit(file, artifact.sha256)
                    return True
            raise _nowhere(artifact, network, trouble)

    return bring


def _urls(artifact: Artifact, network: _Network, session: Session, stop: threading.Event) -> tuple[str, ...]:
    if artifact.kind == "deb":
        assert network.mirrors is not None
        return urls_for(artifact, network.mirrors, network.snapshot, network.created)
    from imagebuild.index import find_wheel  # pypi-simple is slow to import

    return (patiently(lambda: find_wheel(artifact, network.host, session), session, network.retry, stop),)


def _nowhere(artifact: Artifact, network: _Network, trouble: list[PreconditionError]) -> PreconditionError:
    """Return the error for a file that no URL gave."""
    unreachable = next((error for error in trouble if isinstance(error, Unreachable)), None)
    if unreachable is not None:
        return unreachable
    places = "; ".join(error.message.removeprefix(f"{artifact.file}: ") for error in trouble)
    if artifact.kind == "wheel":
        return PreconditionError(
            f"{artifact.file}: the index lists it but does not have it: {places}",
            hint="try again later, or another index: --index-url URL",
        )
    give = "give another --debian-snapshot URL" if network.snapshot else "give --debian-snapshot URL"
    return PreconditionError(
        f"{artifact.file}: on no Debian mirror any more, superseded by a security update: {places}",
        hint=f"take the update: python build.py lock --base-only; or, for the locked version, {give}",
    )


# --- threads ----------------------------------------------------------------------------------


def _work(run: _Run, workers: list[_Bring], title: str, *, resumes: bool) -> None:
    """Let each worker take files until none is left; raises KeyboardInterrupt soon after Ctrl-C."""
    parts = {a.sha256: run.store.part_size(a.sha256) if resumes else 0 for a in run.todo}
    total = sum(a.size for a in run.todo)
    with run.progress.task(title, total or None, done=sum(parts.values())) as overall:
        work_together([functools.partial(_loop, run, bring, overall, parts) for bring in workers], run.stop)


def _loop(run: _Run, bring: _Bring, overall: Task, parts: dict[str, int]) -> None:
    while not run.stop.is_set():
        queue = run.todo or run.busy
        try:
            artifact = queue.popleft()
        except IndexError:
            if run.todo or run.busy:
                continue  # another thread took the last one of the first queue
            return
        if queue is run.busy:
            run.stop.wait(POLL_S)
        counter = Counter(overall, parts[artifact.sha256])
        try:
            if _one(run, bring, artifact, counter):
                counter.advance(max(0, artifact.size - counter.done))
            else:
                run.busy.append(artifact)
        except ImageBuildError as error:
            run.failures.append((artifact, error))
            if isinstance(error, (DiskTrouble, LoginRefused)):
                run.stop.set()  # the others would fail alike


def _one(run: _Run, bring: _Bring, artifact: Artifact, counter: Counter) -> bool:
    if artifact.size < DETAIL_SIZE:
        return bring(artifact, counter)
    with run.progress.task(artifact.file, artifact.size, done=counter.done, detail=True) as counter.detail:
        return bring(artifact, counter)


# --- what went wrong --------------------------------------------------------------------------


def _raise_failures(run: _Run, total: int) -> None:
    """Raise one error for all failures; files with the same trouble are told together."""
    failures = sorted(run.failures, key=lambda failure: failure[0].file)
    if not failures:
        return
    errors = [error for _, error in failures]
    silent = [e for e in errors if isinstance(e, Unreachable) and not e.known]
    if len(silent) == len(errors):
        reasons = "".join(dict.fromkeys(f"\n  {error.server}: {error.reason}" for error in silent))
        size = size_text(sum(artifact.size for artifact, _ in failures))
        raise PreconditionError(
            f"no network: {files_text(len(failures))} ({size}) not in {run.store.root}, "
            f"and nothing answers:{reasons}",
            hint="check proxy and index settings; without network: run `python build.py fetch --arch ARCH "
            "--export DIR` on a machine that has it, bring DIR here and add `--from DIR`",
        )
    if len(errors) == 1:
        raise errors[0]
    groups: dict[str, list[str]] = {}
    for artifact, error in failures:
        groups.setdefault(error.message, []).append(artifact.file)
    lines = [
        message if files == [files[0]] and files[0] in message
        else f"{message} ({', '.join(files[:3])}{f' and {len(files) - 3} more' if len(files) > 3 else ''})"
        for message, files in groups.items()
    ]  # fmt: skip
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more"]
    text = f"could not fetch {len(failures)} of {files_text(total)}:" + "".join(f"\n  {x}" for x in lines)
    hint = "\n        ".join(dict.fromkeys(error.hint for error in errors if error.hint))
    for kind in (IntegrityError, ManifestError):
        if any(isinstance(error, kind) for error in errors):
            raise kind(text, hint=hint or None)
    raise PreconditionError(text, hint=hint or None)
