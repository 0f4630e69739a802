# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed, interrupted, or work on one cache at the same time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from imagebuild.cache import Store
from imagebuild.fetch import fetch
from imagebuild.layer.spec import Artifact
from imagebuild.settings import Settings
from tests.network.server import Fault, Server, wheel

pytestmark = [pytest.mark.loopback, pytest.mark.subprocess]

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from pathlib import Path
from imagebuild.fetch import fetch
from imagebuild.layer.spec import Artifact
from imagebuild.settings import Settings

artifacts = [Artifact(**item) for item in json.loads(sys.argv[1])]
try:
    fetch(artifacts, Settings(cache_dir=Path(sys.argv[2]), index_url=sys.argv[3]))
except KeyboardInterrupt:
    sys.exit(130)
"""


def start(artifacts: list[Artifact], settings: Settings) -> subprocess.Popen[bytes]:
    argv = json.dumps([asdict(a) for a in artifacts]), str(settings.cache_dir), str(settings.index_url)
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *argv], cwd=ROOT, start_new_session=True)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_stopped_download_continues(how: signal.Signals, server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 8 << 20)
    path = server.add_wheel(artifact, data)
    server.faults[path] = [Fault(rate=4 << 20)]
    store = Store(settings.cache_dir)
    child = start([artifact], settings)
    wait_for(lambda: store.part_size(artifact.sha256) > 2 << 20)
    os.kill(child.pid, how)
    stopped = time.monotonic()
    child.wait(timeout=10)
    assert child.returncode == (130 if how == signal.SIGINT else -how)
    assert time.monotonic() - stopped < 3
    kept = store.part_size(artifact.sha256)
    assert 2 << 20 < kept < len(data) and not store.has(artifact)
    fetch([artifact], settings)
    assert store.path(artifact.sha256).read_bytes() == data
    last = server.seen(path)[-1]
    assert last.headers["range"] == f"bytes={kept}-"
    assert last.sent == len(data) - kept, "only the rest went over the wire"


def test_two_processes_share_a_cache_and_the_work(server: Server, settings: Settings) -> None:
    made = [wheel(f"pkg{i}", 400_000 + i) for i in range(12)]
    for artifact, data in made:
        server.always[server.add_wheel(artifact, data)] = Fault(rate=800_000)
    artifacts = [artifact for artifact, _ in made]
    children = [start(artifacts, settings) for _ in range(2)]
    assert [child.wait(timeout=60) for child in children] == [0, 0]
    for artifact, data in made:
        assert Store(settings.cache_dir).path(artifact.sha256).read_bytes() == data
        assert server.sent(f"/files/{artifact.file}") == len(data), "each file was downloaded once"
    assert not list(settings.cache_dir.rglob("*.part"))


def test_the_second_process_takes_over_when_the_first_is_killed(server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 2 << 20)
    path = server.add_wheel(artifact, data)
    server.faults[path] = [Fault(rate=1 << 20)]
    store = Store(settings.cache_dir)
    first = start([artifact], settings)
    wait_for(lambda: store.part_size(artifact.sha256) > 200_000)
    second = start([artifact], settings)
    time.sleep(0.5)
    first.kill()
    first.wait()
    assert second.wait(timeout=20) == 0
    assert store.path(artifact.sha256).read_bytes() == data
    assert int(server.seen(path)[-1].headers["range"][len("bytes=") : -1]) > 200_000
