# SPDX-License-Identifier: Apache-2.0
"""Fetches that are killed, interrupted or run twice, and files that come over Xet."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagebuild.models.fetch import Wanted, fetch
from imagebuild.models.hub import Hub as Client
from imagebuild.models.lockfile import OURS
from imagebuild.models.stamp import read_stamp
from imagebuild.settings import Settings
from imagebuild.transfer import Retry
from tests.modelfiles import images_with_tiny, locked, noise, small_drafter, small_target
from tests.network.hub import Hub, serve_hub
from tests.network.server import Fault

pytestmark = [pytest.mark.loopback, pytest.mark.subprocess]

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
import imagebuild.options
imagebuild.options.project_root = lambda: Path(sys.argv[1])
from imagebuild.cli import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    with serve_hub() as running:
        yield running


@pytest.fixture
def build(hub: Hub, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts `build.py` with the model `tiny` and the hub."""
    images_with_tiny(tmp_path / "project")
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_HUB_DISABLE_XET": "1"}

    def start(*arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "project"), "models", *arguments],
            cwd=ROOT, env={**env, **more}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


def done(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def big_target() -> dict[str, bytes]:
    """A target with one shard of 6 MB more, which a slow server takes seconds for."""
    return {**small_target(), "model.bin": noise("big", 6 << 20)}


def test_the_whole_way_by_command(hub: Hub, build: Any, tmp_path: Path) -> None:
    target, drafter = small_target(), small_drafter()
    hub.repo("acme/Tiny", target)
    hub.repo("acme/Tiny-DFlash", drafter)
    models = str(tmp_path / "models")
    status, out, err = done(build("fetch", "tiny", "--dir", models, "-q"))
    assert status == 4 and "no lock for acme/Tiny, acme/Tiny-DFlash" in err and "--unlocked" in err
    assert not Path(models).exists()
    status, out, err = done(build("lock", "tiny", "-q"))
    assert status == 0 and "acme/Tiny-DFlash" in out, err
    lock = (tmp_path / "project" / "images" / "models" / "tiny.lock").read_text()
    assert hub.url.removeprefix("http://") not in lock and hub.token not in lock
    status, out, err = done(build("lock", "tiny", "-q"))
    assert status == 0 and "up to date" in out
    assert (tmp_path / "project" / "images" / "models" / "tiny.lock").read_text() == lock
    status, out, err = done(build("fetch", "tiny", "--dir", models, "--dry-run", "-q"))
    assert status == 0 and "to fetch" in out and not Path(models).exists()
    status, out, err = done(build("fetch", "tiny", "--dir", models))
    assert status == 0 and "13 files" in out and "fetching acme/Tiny-DFlash, acme/Tiny" in err, err
    for place, files in (("Tiny", target), ("Tiny-DFlash", drafter)):
        for path, data in files.items():
            assert (Path(models) / place / path).read_bytes() == data
    status, out, err = done(build("verify", "tiny", "--dir", models, "-q", HF_ENDPOINT="http://127.0.0.1:9"))
    assert status == 0 and "0 hashed, 10 by stamp" in out, out
    for words in (("check", "tiny", "--dir", models, "--tp", "2"), ("identify", f"{models}/Tiny", "--full")):
        status, out, err = done(build(*words, "-q"))
        assert status == 0, (out, err)
    assert "repo         acme/Tiny\n" in out and "confidence   certain" in out
    status, out, err = done(build("identify", f"{models}/Tiny", "--hub", "--json", "-q"))
    assert (status == 0 and '"confidence": "strong"' in out) or '"confidence": "certain"' in out
    assert hub.token not in err + out


def test_unlocked_takes_the_explicit_word(hub: Hub, build: Any, tmp_path: Path) -> None:
    hub.repo("acme/Tiny", small_target())
    words = ("fetch", "tiny", "--drafter", "none", "--dir", str(tmp_path / "m"))
    status, _, err = done(build(*words, "--unlocked"))
    assert status == 0 and "not locked; taking commit" in err
    assert not (tmp_path / "project" / "images" / "models" / "tiny.lock").exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_stopped_fetch_goes_on(how: signal.Signals, hub: Hub, build: Any, tmp_path: Path) -> None:
    files = big_target()
    hub.repo("acme/Tiny", files)
    digest = hashlib.sha256(files["model.bin"]).hexdigest()

    hub.repo("acme/Tiny-DFlash", small_drafter())
    assert done(build("lock", "tiny", "-q"))[0] == 0
    hub.faults[f"/cdn/{digest}"] = [Fault(rate=3 << 20)]
    words = ("fetch", "tiny", "--drafter", "none", "--dir", str(tmp_path / "m"))
    child = build(*words)
    part = tmp_path / "m" / "Tiny" / OURS / "files" / digest[:2] / f"{digest}.part"
    wait_for(lambda: part.is_file() and part.stat().st_size > 2 << 20)
    child.send_signal(how)
    stopped = time.monotonic()
    child.wait(timeout=10)
    assert time.monotonic() - stopped < 5
    assert child.returncode == (130 if how == signal.SIGINT else -how)
    kept = part.stat().st_size
    assert kept > 2 << 20 and not (tmp_path / "m" / "Tiny" / "model.bin").exists()
    status, _, err = done(build(*words))
    assert status == 0, err
    last = hub.seen(f"/cdn/{digest}")[-1]
    assert last.headers["range"] == f"bytes={kept}-" and last.sent == (6 << 20) - kept
    assert (tmp_path / "m" / "Tiny" / "model.bin").read_bytes() == files["model.bin"]
    assert set(read_stamp(tmp_path / "m" / "Tiny")) == set(files)


def test_two_fetches_at_once_share_the_work(hub: Hub, build: Any, tmp_path: Path) -> None:
    files = big_target()
    hub.repo("acme/Tiny", files)
    hub.repo("acme/Tiny-DFlash", small_drafter())
    assert done(build("lock", "tiny", "-q"))[0] == 0
    digest = hashlib.sha256(files["model.bin"]).hexdigest()
    hub.always[f"/cdn/{digest}"] = Fault(rate=4 << 20)
    words = ("fetch", "tiny", "--drafter", "none", "--dir", str(tmp_path / "m"))
    children = [build(*words) for _ in range(2)]
    assert [done(child)[0] for child in children] == [0, 0]
    assert hub.sent(f"/cdn/{digest}") == len(files["model.bin"]), "the large file came once"
    for path, data in files.items():
        assert (tmp_path / "m" / "Tiny" / path).read_bytes() == data


def test_verification_needs_little_memory(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from imagebuild.models.lockfile import LockedFile, LockedRepo
from imagebuild.models.verify import verify
folder = Path(sys.argv[1])
files = tuple(LockedFile(path=p.name, size=p.stat().st_size, sha256="0" * 64) for p in folder.iterdir())
repo = LockedRepo(name="target", repo="a/b", commit="", files=files)
assert {f.state for f in verify(folder, repo).findings} == {"hash"}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    (tmp_path / "m").mkdir()
    for number in range(16):
        with (tmp_path / "m" / str(number)).open("wb") as file:
            file.truncate(64 << 20)
    command = [sys.executable, "-c", program, str(tmp_path / "m")]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert int(out) < 500_000, "kB"


# --- Xet --------------------------------------------------------------------------------------


def offer_over_xet(hub: Hub, folder: Path, data: bytes) -> None:
    """Put bytes into a chunk store on disk, with the real hf_xet, and let the hub name them."""
    hf_xet = pytest.importorskip("hf_xet")
    hub.xet_endpoint = f"local://{folder}"
    commit = hf_xet.XetSession().new_upload_commit(
        endpoint=hub.xet_endpoint, token="t", token_expiry_unix_secs=int(time.time()) + 3600
    )
    upload = commit.start_upload_bytes(data, name="a")
    commit.wait_to_finish()
    hub.xet[hashlib.sha256(data).hexdigest()] = upload.result().xet_info.hash


def over_xet(hub: Hub, tmp_path: Path, files: dict[str, bytes]) -> None:
    commit = hub.repo("acme/Tiny", files)
    client = Client(hub.url, hub.token, pause_s=0.01)
    settings = Settings(cache_dir=tmp_path / "cache", jobs=2)
    fetch([Wanted(locked(files, commit=commit), tmp_path / "m")], settings, client, retry=Retry(base_s=0.01))
    assert (tmp_path / "m" / "model.bin").read_bytes() == files["model.bin"]


def test_a_file_comes_over_xet_and_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    files = {"model.bin": noise("xet", 3 << 20)}
    digest = hashlib.sha256(files["model.bin"]).hexdigest()
    offer_over_xet(hub, tmp_path / "cas", files["model.bin"])
    part = tmp_path / "m" / OURS / "files" / digest[:2] / f"{digest}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(files["model.bin"][: 1 << 20])
    over_xet(hub, tmp_path, files)
    assert hub.seen("/xet-read-token/") and not hub.seen("/cdn/")


def test_wrong_bytes_over_xet_are_healed_over_http(hub: Hub, tmp_path: Path) -> None:
    files = {"model.bin": noise("right", 1 << 20)}
    offer_over_xet(hub, tmp_path / "cas", noise("wrong", 1 << 20))
    hub.xet[hashlib.sha256(files["model.bin"]).hexdigest()] = hub.xet.popitem()[1]
    over_xet(hub, tmp_path, files)
    assert hub.sent("/cdn/") == 1 << 20


def test_a_chunk_store_that_is_down_is_healed_over_http(hub: Hub, tmp_path: Path) -> None:
    files = {"model.bin": noise("right", 1 << 20)}
    hub.xet[hashlib.sha256(files["model.bin"]).hexdigest()] = "0" * 64
    hub.xet_endpoint = f"local://{tmp_path}/nothing"
    over_xet(hub, tmp_path, files)
    assert hub.sent("/cdn/") == 1 << 20
