# SPDX-License-Identifier: Apache-2.0
"""fetch() against a real server: trouble that passes, wrong bytes, and what the user is told."""

from __future__ import annotations

import errno
import hashlib
import io
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagebuild.cache import Store, disk_error
from imagebuild.errors import ImageBuildError, IntegrityError, PreconditionError
from imagebuild.fetch import Retry, fetch
from imagebuild.layer.spec import Artifact
from imagebuild.progress import open_progress
from imagebuild.settings import Settings
from tests.network.server import Fault, Server, serve, wheel

pytestmark = pytest.mark.loopback

RETRY = Retry(base_s=0.01, longest_s=0.05)


def deb(name: str, suite: str = "bookworm", pool: str = "pool/main") -> tuple[Artifact, bytes]:
    data = f"{name} of {suite}".encode() * 1000
    file = f"{name}_1.0_amd64.deb"
    digest = hashlib.sha256(data).hexdigest()
    return Artifact(
        "deb", name, "1.0", file, digest, len(data), f"{pool}/{name[0]}/{name}/{file}", suite
    ), data


def leftovers(settings: Settings) -> list[Path]:
    return [p for p in settings.cache_dir.rglob("*") if p.is_file()]


def failure(
    error: type[ImageBuildError], artifacts: list[Artifact], settings: Settings, **kwargs: Any
) -> str:
    with pytest.raises(error) as caught:
        fetch(artifacts, settings, retry=RETRY, **kwargs)
    assert type(caught.value).exit_code == {IntegrityError: 4, PreconditionError: 3}[error]
    return str(caught.value)


def test_many_files_of_both_kinds(server: Server, settings: Settings) -> None:
    made = [wheel(f"pkg{i}", 1000 * i + 1) for i in range(20)]
    for number, (artifact, data) in enumerate(made):
        server.add_wheel(artifact, data, style="html" if number % 2 else "json")
    package, content = deb("libfoo")
    server.files[f"/debian/{package.path}"] = ("application/octet-stream", content)
    out = io.StringIO()
    with open_progress(stream=out) as progress:
        store = fetch([a for a, _ in made] + [package, made[0][0]], settings, progress=progress)
    for artifact, data in [*made, (package, content)]:
        assert store.path(artifact.sha256).read_bytes() == data
    assert "fetching: " in out.getvalue() and "(100 %)" in out.getvalue()
    before = len(server.requests)
    fetch([a for a, _ in made], settings)
    assert len(server.requests) == before, "a second run asks nobody"


def test_big_files_begin_first(server: Server, settings: Settings) -> None:
    made = [wheel(f"pkg{size}", size) for size in (10, 30_000, 200, 4_000)]
    for artifact, data in made:
        server.add_wheel(artifact, data)
    fetch([a for a, _ in made], settings.model_copy(update={"jobs": 1}))
    assert [r.path for r in server.requests if r.path.startswith("/files")] == [
        f"/files/pkg{size}-1.0-py3-none-any.whl" for size in (30_000, 4_000, 200, 10)
    ]


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(status=500), Fault(status=503), Fault(status=429, headers={"Retry-After": "0"})],
        [Fault(drop_after=100_000), Fault(drop_after=100_000), Fault(drop_after=0)],
        [Fault(drop_after=100_000), Fault(no_range=True)],
        [Fault(drop_after=100_000), Fault(wrong_range=True)],
        [Fault(drop_after=100_000), Fault(status=416)],
        [Fault(no_length=True, drop_after=100_000), Fault(no_length=True)],
        # The first part of another file, then the rest of ours: the hash tells, once more from the start.
        [Fault(flip=10, drop_after=100_000)],
    ],
    ids=[
        "5xx-and-429",
        "drops",
        "server-without-range",
        "wrong-range",
        "416",
        "no-length",
        "changed-content",
    ],
)
def test_trouble_that_passes(faults: list[Fault], server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 300_000)
    path = server.add_wheel(artifact, data)
    server.faults[path] = list(faults)
    if faults[0].flip >= 0:  # this one continues in a later run
        fetch_until_dropped(artifact, settings, server, path)
    store = fetch([artifact], settings, retry=RETRY)
    assert store.path(artifact.sha256).read_bytes() == data
    assert not server.faults[path]


def fetch_until_dropped(artifact: Artifact, settings: Settings, server: Server, path: str) -> None:
    server.always[path] = Fault(status=500)
    failure(PreconditionError, [artifact], settings)
    del server.always[path]
    assert Store(settings.cache_dir).part_size(artifact.sha256) == 100_000


def test_a_dropped_connection_continues_where_it_stopped(server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 3_000_000)
    path = server.add_wheel(artifact, data)
    server.faults[path] = [Fault(drop_after=2_000_000)]
    fetch([artifact], settings, retry=RETRY)
    first, second = server.seen(path)
    assert second.headers["range"] == "bytes=2000000-"
    assert first.sent + second.sent == len(data)


def test_many_drops_with_progress_between_are_no_failure(server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 20 << 20)
    path = server.add_wheel(artifact, data)
    server.faults[path] = [Fault(drop_after=1 << 20) for _ in range(15)]
    store = fetch([artifact], settings, retry=RETRY)
    assert store.has(artifact) and server.sent(path) == len(data)


def test_a_host_asked_too_often_is_given_the_time_it_asks_for(server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 100)
    path = server.add_wheel(artifact, data)
    server.faults[path] = [Fault(status=429, headers={"Retry-After": "1"})]
    start = time.monotonic()
    fetch([artifact], settings, retry=RETRY)
    assert time.monotonic() - start >= 1


def test_a_server_that_stays_broken(server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 100)
    path = server.add_wheel(artifact, data)
    server.always[path] = Fault(status=503)
    text = failure(PreconditionError, [artifact], settings)
    assert f"{server.url}{path}: HTTP 503" in text and "run again later" in text
    assert len(server.seen(path)) == RETRY.attempts


def test_a_server_that_never_finishes_answering(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagebuild.session.CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr("imagebuild.hostconf.MIN_TIMEOUT_S", 0.1)
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "0.1")
    artifact, data = wheel("demo", 100)
    path = server.add_wheel(artifact, data)
    server.faults[path] = [Fault(stall_s=0.5)]
    assert fetch([artifact], settings, retry=RETRY).has(artifact)


@pytest.mark.parametrize("flip", [0, 150_000, 299_999])
def test_a_wrong_byte(flip: int, server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 300_000)
    path = server.add_wheel(artifact, data)
    server.always[path] = Fault(flip=flip)
    text = failure(IntegrityError, [artifact], settings)
    wrong = bytearray(data)
    wrong[flip] ^= 1
    assert artifact.file in text and artifact.sha256 in text
    assert hashlib.sha256(wrong).hexdigest() in text and "not kept" in text
    assert leftovers(settings) == [] and len(server.seen(path)) == 1


@pytest.mark.parametrize("size", [10, 299_999, 300_001])
def test_a_file_of_another_size(size: int, server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 300_000)
    path = server.add_wheel(artifact, data)
    server.always[path] = Fault(body=(data + b"x")[:size])
    text = failure(IntegrityError, [artifact], settings)
    assert "expected 300000 bytes" in text and f"found {size} bytes" in text
    assert leftovers(settings) == [] and server.sent(path) <= size


def test_more_bytes_than_promised_without_a_length(server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 300_000)
    path = server.add_wheel(artifact, data)
    server.always[path] = Fault(body=data * 2, no_length=True)
    assert "more than 300000 bytes" in failure(IntegrityError, [artifact], settings)
    assert leftovers(settings) == []


def test_a_login_page_instead_of_the_file(server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 300_000)
    path = server.add_wheel(artifact, data)
    server.files[path] = ("text/html; charset=utf-8", b"<html>please log in</html>")
    assert "answers with a web page" in failure(PreconditionError, [artifact], settings)
    assert leftovers(settings) == []


def test_redirects_keep_the_range_and_lose_the_login(server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 3_000_000)
    with serve() as other:
        path = server.add_wheel(artifact, data)
        other.files["/blob"] = ("application/octet-stream", data)
        other.faults["/blob"] = [Fault(drop_after=1 << 20)]
        server.login = "anna:secret"
        moved = f"{other.url.replace('127.0.0.1', 'localhost')}/blob?signature=hush"
        server.always[path] = Fault(status=302, headers={"Location": moved})
        index = server.url.replace("http://", "http://anna:secret@") + "/simple"
        fetch([artifact], settings.model_copy(update={"index_url": index}), retry=RETRY)
        ranges = [r.headers.get("range") for r in other.seen("/blob")]
        assert ranges == [None, f"bytes={1 << 20}-"]
        assert all("authorization" not in r.headers for r in other.requests)


def test_all_failures_are_told_at_once(server: Server, settings: Settings) -> None:
    made = [wheel(f"pkg{i}", 1000 + i) for i in range(4)]
    paths = [server.add_wheel(artifact, data) for artifact, data in made]
    server.always[paths[0]] = Fault(flip=1)
    server.always[paths[1]] = Fault(status=500)
    server.always[paths[2]] = Fault(status=404)
    absent, _ = wheel("absent", 10)
    text = failure(IntegrityError, [a for a, _ in made] + [absent], settings)
    assert text.startswith("could not fetch 4 of 5 files:")
    for words in ("pkg0-1.0-py3-none-any.whl: wrong bytes", "pkg1-1.0-py3-none-any.whl: HTTP 500",
                  "pkg2-1.0-py3-none-any.whl", "absent-1.0-py3-none-any.whl: not found on"):  # fmt: skip
        assert words in text
    assert Store(settings.cache_dir).has(made[3][0]), "what was complete is kept"


def test_without_network(tmp_path: Path) -> None:
    made = [wheel(f"pkg{i}", 1_000_000)[0] for i in range(30)]
    package, _ = deb("libfoo")
    nobody = "http://127.0.0.1:1"
    settings = Settings(
        cache_dir=tmp_path / "cache", index_url=f"{nobody}/simple", debian_mirror=f"{nobody}/debian"
    )
    start = time.monotonic()
    text = failure(PreconditionError, [*made, package], settings)
    assert time.monotonic() - start < 5
    assert text.startswith(f"no network: 31 files (30.0 MB) not in {tmp_path / 'cache'}")
    assert "Connection refused" in text and "--export DIR" in text and "--from DIR" in text
    assert text.count(nobody) <= 3, "one line per server, not per file"
    assert leftovers(settings) == []


def test_a_refused_login_is_not_tried_for_every_file(server: Server, settings: Settings) -> None:
    made = [wheel(f"pkg{i}", 100) for i in range(40)]
    for artifact, data in made:
        server.add_wheel(artifact, data)
    server.login = "anna:secret"
    wrong = server.url.replace("http://", "http://anna:wr0ng@") + "/simple"
    text = failure(PreconditionError, [a for a, _ in made], settings.model_copy(update={"index_url": wrong}))
    assert "HTTP 401" in text and "netrc" in text and "wr0ng" not in text and "anna" not in text
    assert len(server.requests) <= settings.jobs


def test_debian_moves_files_between_its_archives(server: Server, settings: Settings) -> None:
    package, data = deb("libfoo", "bookworm-security", "pool/updates/main")
    server.files[f"/debian/{package.path.replace('/updates', '')}"] = ("application/octet-stream", data)
    assert fetch([package], settings).has(package)
    assert [r.path.split("/")[1] for r in server.requests] == ["debian-security", "debian"]


def test_a_superseded_debian_package(server: Server, settings: Settings) -> None:
    package, data = deb("libfoo", "bookworm-security", "pool/updates/main")
    text = failure(PreconditionError, [package], settings)
    assert "superseded by a security update" in text
    assert "python build.py lock --base-only" in text and "--debian-snapshot URL" in text
    snapshot = f"/snap/archive/debian-security/20261201T000000Z/{package.path}"
    server.files[snapshot] = ("application/octet-stream", data)
    with_snapshot = settings.model_copy(update={"debian_snapshot": f"{server.url}/snap"})
    assert fetch([package], with_snapshot, created="2026-12-01T00:00:00Z").has(package)


def test_too_little_space_is_said_before_anything_is_downloaded(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, data = wheel("demo", 1000)
    server.add_wheel(artifact, data)
    usage = type("Usage", (), {"free": 5_000_000_000})
    monkeypatch.setattr("imagebuild.cache.shutil.disk_usage", lambda _: usage)
    text = failure(PreconditionError, [replace(artifact, size=9_000_000_000)], settings)
    assert "9.0 GB needed, 5.0 GB free" in text and "--cache-dir" in text
    assert server.requests == []


def test_a_disk_that_fills_up_ends_the_run(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [wheel(f"pkg{i}", 1000) for i in range(30)]
    for artifact, data in made:
        server.add_wheel(artifact, data)

    def full(file: Any, data: bytes) -> None:
        raise disk_error(OSError(errno.ENOSPC, "No space left on device"), Path(file.name))

    monkeypatch.setattr("imagebuild.transfer.write_all", full)
    text = failure(PreconditionError, [a for a, _ in made], settings)
    assert "the disk is full" in text and "re-run" in text
    assert len([r for r in server.requests if r.path.startswith("/files")]) <= settings.jobs


def test_a_cache_that_cannot_be_written(server: Server, settings: Settings, tmp_path: Path) -> None:
    artifact, data = wheel("demo", 1000)
    server.add_wheel(artifact, data)
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert "cannot write" in failure(PreconditionError, [artifact], settings)


def test_a_damaged_cached_file_is_found_and_removed(server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 1000)
    server.add_wheel(artifact, data)
    path = fetch([artifact], settings).path(artifact.sha256)
    path.chmod(0o644)
    path.write_bytes(data[:-1] + b"?")
    text = failure(IntegrityError, [artifact], settings)
    assert artifact.file in text and "run again to fetch it anew" in text and not path.exists()
    assert fetch([artifact], settings).path(artifact.sha256).read_bytes() == data
