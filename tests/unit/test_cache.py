# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from imagebuild.cache import Store, check_space
from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.layer.spec import Artifact


def put(store: Store, name: str, data: bytes) -> Artifact:
    artifact = Artifact("wheel", name, "1.0", f"{name}.whl", hashlib.sha256(data).hexdigest(), len(data))
    with store.open_part(artifact.sha256) as file:
        assert file is not None
        file.write(data)
        store.commit(file, artifact.sha256)
    return artifact


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def damage(path: Path, at: int) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_a_file_is_stored_under_its_hash_and_read_only(store: Store) -> None:
    artifact = put(store, "a", b"hello")
    path = store.root / "files" / artifact.sha256[:2] / artifact.sha256
    assert store.path(artifact.sha256) == path and path.read_bytes() == b"hello"
    assert path.stat().st_mode & 0o777 == 0o444
    assert store.has(artifact) and not store.part_path(artifact.sha256).exists()


def test_one_writer_at_a_time(store: Store) -> None:
    with store.open_part("ab" * 32) as first:
        assert first is not None
        first.write(b"x")
        with store.open_part("ab" * 32) as second:
            assert second is None
    assert store.part_size("ab" * 32) == 1
    with store.open_part("ab" * 32) as third:
        assert third is not None and third.read() == b"x"


def test_an_empty_part_does_not_stay(store: Store) -> None:
    with store.open_part("ab" * 32):
        pass
    assert not store.part_path("ab" * 32).exists()


def test_verify_names_all_damaged_files_and_removes_them(store: Store) -> None:
    good, bad, worse = (put(store, name, name.encode() * 3_000_000) for name in ("a", "b", "c"))
    store.verify([good, bad, worse])
    damage(store.path(bad.sha256), 1_500_000)
    damage(store.path(worse.sha256), 2_999_999)
    with pytest.raises(IntegrityError) as caught:
        store.verify([good, bad, worse, bad])
    text = str(caught.value)
    assert text.count(f"expected sha256 {bad.sha256}, found ") == 1 and "b.whl" in text
    assert f"expected sha256 {worse.sha256}" in text and "a.whl" not in text
    assert text.endswith("next: run again to fetch it anew") and caught.value.exit_code == 4
    assert store.has(good) and not store.has(bad) and not store.has(worse)


def test_verify_names_missing_files(store: Store) -> None:
    artifact = put(store, "a", b"hello")
    store.path(artifact.sha256).unlink()
    with pytest.raises(PreconditionError, match=r"not in the cache .*: 1 file: a\.whl"):
        store.verify([artifact])


def test_has_looks_at_the_size(store: Store) -> None:
    artifact = put(store, "a", b"hello")
    store.path(artifact.sha256).chmod(0o644)
    store.path(artifact.sha256).write_bytes(b"hell")
    assert not store.has(artifact)


def test_gc_removes_what_nobody_needs(store: Store) -> None:
    kept, old = put(store, "a", b"kept"), put(store, "b", b"no longer needed")
    resumable, stale, foreign, busy = ("11" * 32, "22" * 32, "33" * 32, "44" * 32)
    for sha256 in (resumable, stale, foreign, busy):
        with store.open_part(sha256) as file:
            assert file is not None
            file.write(b"12345")
    week_ago = time.time() - 8 * 24 * 3600
    os.utime(store.part_path(stale), (week_ago, week_ago))
    keep = {kept.sha256, resumable, stale}
    with store.open_part(busy):
        expected = len(b"no longer needed") + 2 * 5
        assert store.gc(keep, dry_run=True) == expected
        assert store.has(old) and store.part_size(stale) == 5
        assert store.gc(keep) == expected
    assert store.has(kept) and not store.has(old)
    assert [store.part_size(x) for x in (resumable, stale, foreign, busy)] == [5, 0, 0, 5]
    assert store.gc(keep, dry_run=True) == 5, "it is not busy any more"


def test_gc_of_a_cache_that_was_never_used(tmp_path: Path) -> None:
    assert Store(tmp_path / "none").gc(set()) == 0


def test_free_space_is_that_of_the_nearest_existing_folder(tmp_path: Path) -> None:
    check_space(tmp_path / "a" / "b", 1, "")
    with pytest.raises(PreconditionError, match=r"needed, .* free") as caught:
        check_space(tmp_path / "a" / "b", 10**18, "buy a disk")
    assert "buy a disk" in str(caught.value) and "1000000000 GB" in str(caught.value)
