# SPDX-License-Identifier: Apache-2.0
"""Headers, shards, hashes and stamps: every kind of damage is named, and only the damaged file."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuild.errors import CheckFailed, IntegrityError, PreconditionError
from imagebuild.models import room
from imagebuild.models.hashing import hash_all, hash_file, sample
from imagebuild.models.lockfile import OURS
from imagebuild.models.pin import pin_folder
from imagebuild.models.shards import INDEX, check_weights
from imagebuild.models.source import RepoSource
from imagebuild.models.stamp import read_stamp
from imagebuild.models.tensors import read_header
from imagebuild.models.verify import describe, require, verify
from tests.modelfiles import header, index, locked, noise, safetensors, small_target, write

TENSORS = {"a": ("BF16", (4, 8)), "b": ("F32", (3,)), "c": ("I32", (2, 2))}
SHARD = "model-00002-of-000003.safetensors"


def head(value: object, data: int = 64) -> bytes:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(data)


def entry(begin: int, end: int, shape: object = (32,), dtype: object = "BF16") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# --- one file ---------------------------------------------------------------------------------


def test_a_good_header(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(safetensors(TENSORS))
    found = read_header(tmp_path / "m")
    assert found.problems == () and found.total == 64 + 12 + 16 and found.metadata == {"format": "pt"}
    assert found.tensors["a"].shape == (4, 8)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "too short"),
        (b"1234567", "too short"),
        (b"\xff" * 8 + b"x" * 50, "only 50 follow"),
        (head(b"{", 0), "no JSON"),
        (head(b"[1]"), "no JSON object"),
        (head(b'{"a": 1, "a": 2}'), "occurs twice"),
        (head(b"[" * 50_000), "no JSON"),
        (head({"a": 1}), "lacks dtype"),
        (head({"a": entry(0, 64, dtype="F99")}), "unknown dtype"),
        (head({"a": entry(0, 64, dtype=[])}), "unknown dtype"),
        (head({"a": entry(0, 64, shape=[-32])}), "no list of sizes"),
        (head({"a": entry(0, 64, shape=[True])}), "no list of sizes"),
        (head({"a": {**entry(0, 1), "data_offsets": [0]}}), "no pair of numbers"),
        (head({"a": entry(0, 64)}, 60), "outside the 60"),
        (head({"a": entry(8, 4)}), "outside"),
        (head({"a": entry(-2, 62)}), "outside"),
        (head({"a": entry(0, 62)}), "takes 64 bytes"),
        (head({"a": entry(0, 64)}, 65), "1 bytes follow the last"),
        (head({"a": entry(0, 32, [16]), "b": entry(16, 48, [16])}), "a hole or an overlap"),
        (head({"a": entry(0, 16, [8]), "b": entry(32, 64, [16])}), "a hole or an overlap"),
    ],
)
def test_a_bad_header_is_named(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "m").write_bytes(data)
    assert text in " ".join(read_header(tmp_path / "m").problems)


@given(st.binary(max_size=200), st.integers(0, 300))
@settings(max_examples=200, deadline=None)
def test_no_bytes_break_the_header_reader(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int
) -> None:
    path = tmp_path_factory.mktemp("h") / "m"
    good = safetensors(TENSORS)
    for candidate in (data, good[:at] + data + good[at + len(data) :], good[:at]):
        path.write_bytes(candidate)
        read_header(path)


def test_a_header_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "m").open("wb") as file:
        file.write((80 << 20).to_bytes(8, "little"))
        file.truncate(100 << 20)
    assert "more than" in read_header(tmp_path / "m").problems[0]


# --- index and shards -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", small_target())


def problems(folder: Path) -> str:
    return "\n".join(f"{n}: {t}" for n, texts in check_weights(folder).problems.items() for t in texts)


def test_a_whole_folder(folder: Path) -> None:
    weights = check_weights(folder)
    assert not weights.problems and weights.files == 3 and len(weights.tensors) > 200


def test_damage_to_index_and_shards_is_named(folder: Path) -> None:
    good = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def damaged(name: str, data: bytes | None) -> str:
        if data is None:
            (folder / name).unlink(missing_ok=True)
        else:
            (folder / name).write_bytes(data)
        text = problems(folder)
        (folder / name).unlink(missing_ok=True)
        if name in good:
            (folder / name).write_bytes(good[name])
        return text

    raw = json.loads(good[INDEX])
    tensor = next(iter(raw["weight_map"]))
    fewer = {**raw, "weight_map": {k: v for k, v in raw["weight_map"].items() if k != tensor}}
    more = {**raw, "weight_map": {**raw["weight_map"], "ghost": SHARD}}
    assert f"{SHARD}: is missing" in damaged(SHARD, None)
    assert f"{SHARD}: " in damaged(SHARD, good[SHARD][:-1])
    twice = damaged(SHARD, good["model-00001-of-000003.safetensors"])
    assert f"{SHARD}: has " in twice and "that model-00001-of-000003.safetensors has too" in twice
    assert "nothing says which shard" in damaged(INDEX, None)
    assert f"{INDEX}: lacks 1 tensors of the shards: {tensor}" in damaged(INDEX, json.dumps(fewer).encode())
    assert f"{SHARD}: lacks 1 tensors of the index: ghost" in damaged(INDEX, json.dumps(more).encode())
    assert f"{INDEX}: has no weight_map" in damaged(INDEX, b'{"weight_map": [1]}')
    assert "not JSON" in damaged(INDEX, b"{")
    wrong = json.dumps({**raw, "metadata": {"total_size": 7}}).encode()
    assert "says 7 bytes" in damaged(INDEX, wrong)
    text = damaged("model-00001-of-000002.safetensors", safetensors({"x": ("F32", (1,))}))
    assert "two sets of shards" in text and "not in the index" in text
    assert problems(folder) == ""


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors(TENSORS))
    assert problems(tmp_path) == ""
    (tmp_path / INDEX).write_bytes(index({"model.safetensors": TENSORS}))
    assert problems(tmp_path) == ""


# --- against a lock ---------------------------------------------------------------------------


def test_full_once_and_quick_afterwards(folder: Path) -> None:
    repo = locked(small_target())
    first, second = verify(folder, repo), verify(folder, repo)
    assert first.ok and second.ok
    assert [sum(f.hashed for f in r.findings) for r in (first, second)] == [10, 0]
    assert sum(f.hashed for f in verify(folder, repo, full=True).findings) == 10
    assert "10 of 10 files as locked (0 hashed, 10 by stamp)" in describe(second)


def test_each_damage_names_its_file_and_no_other(folder: Path) -> None:
    files = small_target()
    repo = locked(files)
    assert verify(folder, repo).ok
    path = folder / SHARD
    good = path.read_bytes()
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns

    def states() -> dict[str, str]:
        return {f.path: f.state for f in verify(folder, repo).bad}

    path.write_bytes(good[:-1])
    assert states() == {SHARD: "size"}
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert states() == {SHARD: "hash"}
    path.write_bytes(good)
    assert states() == {}
    with path.open("r+b") as file:  # as a disk that loses bits: neither inode nor time change
        file.seek(len(good) - 1)
        file.write(bytes([good[-1] ^ 1]))
    os.utime(path, ns=(times[0], read_stamp(folder)[SHARD].mtime))
    assert states() == {SHARD: "changed"}
    path.unlink()
    assert states() == {SHARD: "missing"}
    path.mkdir()
    assert states() == {SHARD: "unreadable"}
    path.rmdir()
    (folder / "away").write_bytes(good)
    path.symlink_to(folder / "away")
    assert states() == {SHARD: "link"}
    with pytest.raises(IntegrityError, match=f"{SHARD}: is a link") as caught:
        require([verify(folder, repo)], "tiny")
    assert "only these" in str(caught.value)


def test_a_file_that_is_touched_is_hashed_again(folder: Path) -> None:
    repo = locked(small_target())
    verify(folder, repo)
    os.utime(folder / SHARD)
    assert [f.path for f in verify(folder, repo).findings if f.hashed] == [SHARD]


def test_a_new_lock_is_not_served_by_an_old_stamp(folder: Path) -> None:
    assert verify(folder, locked(small_target())).ok
    other = locked({**small_target(), "LICENSE": b"a licencE\n"})
    assert [f.path for f in verify(folder, other).bad] == ["LICENSE"]


def test_files_that_a_server_could_load_are_named(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"x")
    (folder / "notes.txt").write_text("x")
    assert verify(folder, locked(small_target())).extra == ("pytorch_model.bin",)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": {"a": 1}}', '{"files": {"a": {"size": 1}}}'])
def test_a_broken_stamp_is_no_stamp(folder: Path, text: str) -> None:
    (folder / OURS).mkdir()
    (folder / OURS / "verified.json").write_text(text)
    assert read_stamp(folder) == {} and verify(folder, locked(small_target())).ok


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="no such folder"):
        verify(tmp_path / "none", locked({}))


# --- hashing ----------------------------------------------------------------------------------


def test_hashes_of_many_files_and_of_what_cannot_be_read(tmp_path: Path) -> None:
    sizes = [0, 1, 1 << 20, (1 << 20) + 1, 3_000_000]
    paths = []
    for number, size in enumerate(sizes):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(noise(str(number), size))
    seen: list[int] = []
    found = hash_all([*((p, p.stat().st_size) for p in paths), (tmp_path / "gone", 5)], seen.append)
    assert isinstance(found.pop(tmp_path / "gone"), FileNotFoundError)
    assert found == {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}
    assert sum(seen) == sum(sizes)


def test_hashing_stops_when_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(4 << 20))
    stop = threading.Event()
    stop.set()
    assert hash_file(tmp_path / "a", lambda _: None, stop) == ""


def test_samples_cover_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "a"
    data = bytearray(noise("s", 5 << 20))
    path.write_bytes(data)
    before = sample(path, len(data))
    for place in (0, 100, len(data) - 1):
        data[place] ^= 1
        path.write_bytes(data)
        assert sample(path, len(data)) != before
        data[place] ^= 1


# --- locks from folders, and room -------------------------------------------------------------


def test_a_folder_is_locked_only_if_it_is_whole(folder: Path) -> None:
    source = RepoSource(repo="acme/Tiny", about_bytes=1, license="mit")
    repo = pin_folder("target", source, folder)
    assert repo.origin == "folder" and repo.commit == "" and repo.tensors > 200
    assert {f.path: f.sha256 for f in repo.files} == {f.path: f.sha256 for f in locked(small_target()).files}
    traces = folder / ".cache" / "huggingface" / "download"
    traces.mkdir(parents=True)
    digest = hashlib.sha256((folder / SHARD).read_bytes()).hexdigest()
    (traces / f"{SHARD}.metadata").write_text(f"{'e' * 40}\n{digest}\n1.0\n")
    assert pin_folder("target", source, folder).commit == "e" * 40
    (traces / f"{SHARD}.metadata").write_text(f"{'e' * 40}\n{'0' * 64}\n1.0\n")
    with pytest.raises(IntegrityError, match=f"changed since it was downloaded: {SHARD}"):
        pin_folder("target", source, folder)
    (folder / SHARD).unlink()
    with pytest.raises(CheckFailed, match=f"{SHARD}: is missing"):
        pin_folder("target", source, folder)


def test_room_is_looked_up_with_all_numbers(tmp_path: Path) -> None:
    def small(_: Path) -> room.Room:
        return room.Room(free=10**9, inodes=5, quota=2 * 10**9, quota_inodes=3)

    with pytest.raises(PreconditionError) as caught:
        room.require(tmp_path, 3 * 10**9, 10, small)
    text = str(caught.value)
    for part in (
        "space: 3.0 GB needed, 1.0 GB free", "quota: 3.0 GB needed, 2.0 GB left",
        "inodes: 10 files to write, 5 left", "quota of files: 10 files to write, 3 left",
    ):  # fmt: skip
        assert part in text
    room.require(tmp_path, 10**8, 3, small)
    found = room.look(tmp_path / "not" / "yet")
    assert found.free > 0 and (found.inodes is None or found.inodes > 0)
    assert room.left(1000, 500, 0, 7) == (1000 * 1024 - 500, None) and room.left(0, 5, 9, 7) == (None, 2)


def test_the_header_maker_of_these_tests_is_right() -> None:
    raw, size = header(TENSORS)
    assert size == 92 and (len(raw) - 8) % 8 == 0
