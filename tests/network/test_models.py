# SPDX-License-Identifier: Apache-2.0
"""Lock and fetch models from a hub that the real client talks to: trouble is named or healed."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagebuild.errors import ImageBuildError, IntegrityError, PreconditionError
from imagebuild.models import hub as asking
from imagebuild.models.fetch import Wanted, fetch
from imagebuild.models.hub import Hub as Client
from imagebuild.models.lockfile import OURS, LockedRepo
from imagebuild.models.pin import pin_at_hub
from imagebuild.models.shapes import DrafterShape
from imagebuild.models.source import RepoSource
from imagebuild.models.verify import verify
from imagebuild.progress import open_progress
from imagebuild.settings import Settings
from imagebuild.transfer import Retry
from tests.modelfiles import locked, noise, small_drafter, small_target, write
from tests.network.hub import Hub, serve_hub
from tests.network.server import Fault

pytestmark = pytest.mark.loopback

RETRY = Retry(base_s=0.01, longest_s=0.05)
SHARD = "model-00002-of-000003.safetensors"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    with serve_hub() as running:
        yield running


@pytest.fixture
def client(hub: Hub) -> Client:
    return Client(hub.url, hub.token, pause_s=0.01)


@pytest.fixture
def host(tmp_path: Path) -> Settings:
    return Settings(cache_dir=tmp_path / "cache", jobs=4)


def source(repo: str = "acme/Tiny", revision: str = "main") -> RepoSource:
    return RepoSource(repo=repo, revision=revision, about_bytes=1, license="mit")


def pin(client: Client, host: Settings, repo: str = "acme/Tiny", **kwargs: Any) -> LockedRepo:
    return pin_at_hub("target", source(repo, **kwargs), client, host, retry=RETRY)


def bring(client: Client, host: Settings, *wanted: Wanted, **kwargs: Any) -> Any:
    return fetch(wanted, host, client, retry=RETRY, **kwargs)


def assert_right(folder: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        assert not (folder / path).is_symlink() and (folder / path).read_bytes() == data, path
    assert not list(folder.rglob("*.part"))


def cdn(data: bytes) -> str:
    return f"/cdn/{hashlib.sha256(data).hexdigest()}"


def failure(error: type[ImageBuildError], client: Client, host: Settings, *wanted: Wanted) -> str:
    with pytest.raises(error) as caught:
        bring(client, host, *wanted)
    assert caught.value.exit_code == {IntegrityError: 4, PreconditionError: 3}[error]
    assert caught.value.hint, "every error says the next step"
    return str(caught.value)


# --- the good way -----------------------------------------------------------------------------


def test_a_lock_holds_every_file_over_several_pages(hub: Hub, client: Client, host: Settings) -> None:
    files = small_target()
    commit = hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    assert repo.commit == commit and repo == repo.model_copy(update={"origin": "hub"})
    assert {f.path: (f.size, f.sha256) for f in repo.files} == {
        path: (len(data), hashlib.sha256(data).hexdigest()) for path, data in files.items()
    }
    assert len(hub.seen("/tree/")) == 3, "the listing came in pages"
    assert repo.shape and repo.quantisation == "compressed-tensors INT4 g32 (experts)" and repo.tensors > 200


def test_target_and_drafter_come_together(hub: Hub, client: Client, host: Settings, tmp_path: Path) -> None:
    target, drafter = small_target(), small_drafter()
    hub.repo("acme/Tiny", target)
    hub.repo("acme/Tiny-DFlash", drafter)
    repos = pin(client, host), pin(client, host, "acme/Tiny-DFlash")
    assert isinstance(repos[1].shape, DrafterShape)
    wanted = [Wanted(repo, tmp_path / name) for repo, name in zip(repos, ("t", "d"), strict=True)]
    out = io.StringIO()
    with open_progress(stream=out) as progress:
        done = bring(client, host, *wanted, progress=progress)
    assert (done.files, done.there) == (13, 0)
    assert_right(tmp_path / "t", target)
    assert_right(tmp_path / "d", drafter)
    assert all(verify(w.folder, w.repo).ok for w in wanted)
    assert "fetching acme/Tiny-DFlash, acme/Tiny: " in out.getvalue() and "(100 %)" in out.getvalue()
    before = len(hub.requests)
    assert bring(client, host, *wanted).there == 13
    assert len(hub.requests) == before, "a second run asks nobody"


def test_the_token_reaches_the_hub_only_and_no_text(
    hub: Hub, client: Client, host: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    hub.repos["acme/Tiny"].gated = True
    with caplog.at_level(logging.DEBUG):
        bring(client, host, Wanted(pin(client, host), tmp_path / "t"))
        hub.token = "hf_another"
        text = failure(PreconditionError, client, host, Wanted(locked(files), tmp_path / "again"))
    assert hub.seen("/cdn/") and not any("authorization" in r.headers for r in hub.seen("/cdn/"))
    assert any("authorization" in r.headers for r in hub.seen("/resolve/"))
    for said in (caplog.text, text, repr(client)):
        assert "hf_test" not in said
    assert "s3cr3t" not in text
    assert "hf_test" not in "".join(p.read_text(errors="replace") for p in (tmp_path / "t").rglob("*.json"))


# --- trouble that passes ----------------------------------------------------------------------

PASSING = {
    "500 on the file": {"cdn": [Fault(status=500), Fault(status=500)]},
    "503 with Retry-After": {"cdn": [Fault(status=503, headers={"Retry-After": "0"})]},
    "429 on the redirect": {"resolve": [Fault(status=429)]},
    "429 on the HEAD": {"head": [Fault(status=429, headers={"Retry-After": "0"})]},
    "502 on the HEAD": {"head": [Fault(status=502), Fault(status=502)]},
    "dropped at once": {"cdn": [Fault(drop_after=0)]},
    "dropped in the middle, twice": {"cdn": [Fault(drop_after=9000), Fault(drop_after=9000)]},
    "another range": {"cdn": [Fault(drop_after=9000), Fault(wrong_range=True)]},
    "range ignored": {"cdn": [Fault(drop_after=9000), Fault(no_range=True)]},
    "expired signature": {"cdn": [Fault(status=403)]},
}


@pytest.mark.parametrize("name", PASSING)
def test_trouble_that_passes_is_healed(
    name: str, hub: Hub, client: Client, host: Settings, tmp_path: Path
) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    path = f"/acme/Tiny/resolve/{repo.commit}/{SHARD}"
    places = {"cdn": cdn(files[SHARD]), "resolve": f"GET {path}", "head": f"HEAD {path}"}
    for place, script in PASSING[name].items():
        hub.faults[places[place]] = [Fault(**vars(fault)) for fault in script]
    bring(client, host, Wanted(repo, tmp_path / "t"))
    assert_right(tmp_path / "t", files)
    assert not hub.faults[places[next(iter(PASSING[name]))]], "all of the script was played"


def test_trouble_with_the_listing_is_healed(hub: Hub, client: Client, host: Settings) -> None:
    hub.repo("acme/Tiny", small_target())
    hub.faults["/api/models/acme/Tiny/revision/main"] = [
        Fault(status=500), Fault(status=429, headers={"Retry-After": "0"})
    ]  # fmt: skip
    assert len(pin(client, host).files) == 10


def test_a_dropped_file_goes_on_where_it_stopped(
    hub: Hub, client: Client, host: Settings, tmp_path: Path
) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    hub.faults[cdn(files[SHARD])] = [Fault(drop_after=50_000)]
    bring(client, host, Wanted(repo, tmp_path / "t"))
    first, second = hub.seen(cdn(files[SHARD]))
    assert (first.sent, second.headers["range"]) == (50_000, "bytes=50000-")
    assert first.sent + second.sent == len(files[SHARD])


# --- trouble that is named --------------------------------------------------------------------


def test_wrong_bytes_are_never_kept(hub: Hub, client: Client, host: Settings, tmp_path: Path) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    hub.always[cdn(files[SHARD])] = Fault(flip=60_000)
    text = failure(IntegrityError, client, host, Wanted(repo, tmp_path / "t"))
    assert f"acme/Tiny/{SHARD}" in text and "wrong bytes" in text and "s3cr3t" not in text
    assert not (tmp_path / "t" / SHARD).exists()
    assert len([p for p in (tmp_path / "t").rglob("*") if p.is_file() and OURS not in p.parts]) == 9
    hub.always.clear()
    sent = hub.sent("")
    bring(client, host, Wanted(repo, tmp_path / "t"))
    assert_right(tmp_path / "t", files)
    assert hub.sent("") - sent == len(files[SHARD]), "only the bad file came again"


@pytest.mark.parametrize("data", [b"short", noise("x", 400_000)], ids=["shorter", "longer"])
def test_a_file_of_another_length_is_never_kept(
    data: bytes, hub: Hub, client: Client, host: Settings, tmp_path: Path
) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    hub.always[cdn(files[SHARD])] = Fault(body=data)
    text = failure(IntegrityError, client, host, Wanted(repo, tmp_path / "t"))
    assert "wrong size" in text and not (tmp_path / "t" / SHARD).exists()


def test_a_wrong_byte_after_a_resume_is_found_and_healed(
    hub: Hub, client: Client, host: Settings, tmp_path: Path
) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    hub.faults[cdn(files[SHARD])] = [Fault(flip=10, drop_after=20_000), Fault(drop_after=10), Fault()]
    text = failure(IntegrityError, client, host, Wanted(repo, tmp_path / "t"))
    assert "wrong bytes" in text
    bring(client, host, Wanted(repo, tmp_path / "t"))
    assert_right(tmp_path / "t", files)


def test_small_files_with_other_bytes_are_not_locked(hub: Hub, client: Client, host: Settings) -> None:
    files = small_target()
    commit = hub.repo("acme/Tiny", files)
    hub.always[f"/acme/Tiny/resolve/{commit}/config.json"] = Fault(flip=5)
    with pytest.raises(IntegrityError, match="not those of the hub's own list"):
        pin(client, host)


def test_a_hub_with_another_file_is_found_before_the_download(
    hub: Hub, client: Client, host: Settings, tmp_path: Path
) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    hub.repos["acme/Tiny"].commits[repo.commit][SHARD] = noise("other", len(files[SHARD]))
    text = failure(IntegrityError, client, host, Wanted(repo, tmp_path / "t"))
    assert "the hub has sha256" in text and hub.sent(cdn(files[SHARD])) == 0


def test_a_branch_that_moved_does_not_matter(
    hub: Hub, client: Client, host: Settings, tmp_path: Path
) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    hub.repo("acme/Tiny", small_target("newer"))
    bring(client, host, Wanted(repo, tmp_path / "t"))
    assert_right(tmp_path / "t", files)
    assert pin(client, host).commit != repo.commit, "a new lock takes the new commit"


def test_a_commit_that_is_gone_is_named(hub: Hub, client: Client, host: Settings, tmp_path: Path) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    text = failure(IntegrityError, client, host, Wanted(locked(files), tmp_path / "t"))
    assert "no such revision" in text and "models lock" in text


def test_a_mirror_that_answers_with_another_commit_is_refused(
    hub: Hub, client: Client, host: Settings, tmp_path: Path
) -> None:
    hub.repo("acme/Tiny", small_target())
    repo = pin(client, host)
    hub.commit_header = "d" * 40
    text = failure(IntegrityError, client, host, Wanted(repo, tmp_path / "t"))
    assert f"answers with {'d' * 40}" in text


def test_a_file_that_left_the_repo_is_named(hub: Hub, client: Client, host: Settings, tmp_path: Path) -> None:
    hub.repo("acme/Tiny", small_target())
    repo = pin(client, host)
    del hub.repos["acme/Tiny"].commits[repo.commit][SHARD]
    assert "no such file" in failure(IntegrityError, client, host, Wanted(repo, tmp_path / "t"))


def test_a_store_without_the_file_is_named(hub: Hub, client: Client, host: Settings, tmp_path: Path) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    hub.always[cdn(files[SHARD])] = Fault(status=404)
    assert "404" in failure(PreconditionError, client, host, Wanted(repo, tmp_path / "t"))


def test_gated_private_unknown_and_bad_tokens(hub: Hub, host: Settings) -> None:
    hub.repo("acme/Tiny", small_target())
    hub.repo("acme/Secret", small_target())
    hub.repos["acme/Tiny"].gated = hub.repos["acme/Secret"].private = True
    nobody, wrong = Client(hub.url, None, 0.01), Client(hub.url, "hf_wrong", 0.01)
    for client, repo, text in (
        (nobody, "acme/Tiny", "gated"),
        (nobody, "acme/Secret", "private, or does not exist"),
        (nobody, "acme/Nothing", "private, or does not exist"),
        (wrong, "acme/Tiny", "your token has no right"),
    ):
        with pytest.raises(PreconditionError, match=text) as caught:
            pin(client, host, repo)
        assert "HF_TOKEN" in str(caught.value) and "hf_wrong" not in str(caught.value)


def test_a_revision_that_is_not_there(hub: Hub, client: Client, host: Settings) -> None:
    hub.repo("acme/Tiny", small_target())
    with pytest.raises(IntegrityError, match="no such revision"):
        pin(client, host, revision="v9")


def test_a_hub_that_is_down_or_stays_in_trouble(hub: Hub, client: Client, host: Settings) -> None:
    with pytest.raises(PreconditionError, match="does not answer"):
        pin(Client("http://127.0.0.1:9", None, 0.01), host)
    hub.repo("acme/Tiny", small_target())
    hub.always["/api/models/acme/Tiny/revision/main"] = Fault(status=429)
    with pytest.raises(PreconditionError, match="too many requests"):
        pin(client, host)
    hub.always["/api/models/acme/Tiny/revision/main"] = Fault(status=500)
    with pytest.raises(PreconditionError, match="HTTP 500"):
        pin(client, host)


def test_offline_mode_is_said(
    hub: Hub, client: Client, host: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repo("acme/Tiny", small_target())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PreconditionError, match="HF_HUB_OFFLINE is set"):
        pin(client, host)


def test_paths_that_lead_out_are_refused(hub: Hub, client: Client, host: Settings) -> None:
    for path in ("../evil", "/etc/evil", "a/../../evil", ".imagebuild/verified.json", "a\\b", "a\nb"):
        hub.repos.clear()
        hub.repo("acme/Tiny", {**small_target(), path: b"x"})
        with pytest.raises(IntegrityError, match="no path of a file inside"):
            pin(client, host)


# --- what is there already --------------------------------------------------------------------


def test_only_what_is_wrong_is_brought_anew(hub: Hub, client: Client, host: Settings, tmp_path: Path) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    folder = write(tmp_path / "t", files)
    names = sorted(name for name in files if name.endswith(".safetensors"))
    (folder / names[0]).unlink()
    (folder / names[1]).write_bytes(files[names[1]][:-1])
    (folder / names[2]).write_bytes(files[names[2]][:-1] + b"!")
    sent = hub.sent("")
    done = bring(client, host, Wanted(repo, folder))
    assert (done.files, done.there) == (3, 7)
    assert hub.sent("") - sent == sum(len(files[name]) for name in names)
    assert_right(folder, files)


def test_links_become_real_files_without_a_download(
    hub: Hub, client: Client, host: Settings, tmp_path: Path
) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    blobs = write(tmp_path / "blobs", files)
    folder = tmp_path / "t"
    for path in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(blobs / path)
    before = hub.sent("")
    bring(client, host, Wanted(repo, folder))
    assert_right(folder, files)
    assert_right(blobs, files)
    assert hub.sent("") == before


def test_the_clients_own_cache_is_used_and_checked(
    hub: Hub, client: Client, host: Settings, tmp_path: Path
) -> None:
    files = small_target()
    hub.repo("acme/Tiny", files)
    repo = pin(client, host)
    for file in repo.files:
        blob = asking.cached_blob(repo.repo, file.sha256)
        blob.parent.mkdir(parents=True, exist_ok=True)
        data = files[file.path]
        blob.write_bytes(noise("bad", len(data)) if file.path == SHARD else data)
    before = hub.sent("")
    bring(client, host, Wanted(repo, tmp_path / "t"))
    assert_right(tmp_path / "t", files)
    assert hub.sent("") - before == len(files[SHARD]), "the bad copy was not taken"


def test_from_a_local_folder_without_network(host: Settings, tmp_path: Path) -> None:
    files = small_target()
    given = write(tmp_path / "usb" / "Tiny", files)
    fetch([Wanted(locked(files), tmp_path / "m" / "Tiny", (tmp_path / "usb",))], host, None)
    assert_right(tmp_path / "m" / "Tiny", files)
    (given / SHARD).write_bytes(noise("x", len(files[SHARD])))
    with pytest.raises(PreconditionError, match=f"acme/Tiny/{SHARD}: not in"):
        fetch([Wanted(locked(files), tmp_path / "n" / "Tiny", (given,))], host, None)
    assert not (tmp_path / "n" / "Tiny" / SHARD).exists()


def test_a_link_out_of_the_folder_is_refused(host: Settings, tmp_path: Path) -> None:
    files = small_target()
    given = write(tmp_path / "usb", files)
    (tmp_path / "t").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "t" / "code").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError, match="behind a link"):
        fetch([Wanted(locked(files), tmp_path / "t", (given,))], host, None)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_no_room_is_said_with_numbers(
    hub: Hub, client: Client, host: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from imagebuild.models import room

    files = small_target()
    monkeypatch.setattr(room, "MARGIN", 1 << 62)
    text = failure(PreconditionError, client, host, Wanted(locked(files), tmp_path / "t"))
    assert "kB needed" in text and "free" in text and not (tmp_path / "t").exists()
    assert not hub.requests
