# SPDX-License-Identifier: Apache-2.0
"""Kimi K2.6 at its full size: 64 sparse shards with the real headers of 208,000 tensors.

Holes read as zeros at memory speed, so hashing all of it would take five minutes of two cores: what
reads every byte is tested at smaller sizes, and here what reads headers, sizes and samples.
"""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuild.models.clues import Clues, collect
from imagebuild.models.hashing import hash_file
from imagebuild.models.identify import Identity, identify
from imagebuild.models.known import known_repos
from imagebuild.models.lockfile import LockedFile, LockedRepo, ModelLock
from imagebuild.models.shards import check_weights
from imagebuild.models.source import read_source
from imagebuild.models.stamp import mark, write_stamp
from imagebuild.models.verify import verify
from tests.modelfiles import README, index, shards, target_tensors, write_sparse

ROOT = Path(__file__).parents[2]
SOURCE = read_source(ROOT / "images", "k26")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("k26") / "unnamed"
    place.mkdir()
    split = dict(shards(target_tensors(SOURCE.target.shape), 64))
    for name, tensors in split.items():
        write_sparse(place / name, tensors)
    (place / "model.safetensors.index.json").write_bytes(index(split))
    (place / "config.json").write_text((ROOT / "tests/image/models/k26/config.json").read_text())
    (place / "README.md").write_text(README)
    yield place
    shutil.rmtree(place)


def lock_of(folder: Path) -> LockedRepo:
    """Lock the folder with the hashes of small files, and made-up ones for shards, which nobody can hash."""
    small = [p for p in folder.iterdir() if p.is_file() and p.suffix != ".safetensors"]
    hashes = {p.name: hash_file(p, lambda _: None) for p in small}
    return LockedRepo(
        name="target", repo=SOURCE.target.repo, commit="c" * 40,
        files=tuple(
            LockedFile(path=p.name, size=p.stat().st_size, sha256=hashes.get(p.name, f"{n:064x}"))
            for n, p in enumerate(sorted(folder.iterdir())) if p.is_file()
        ),
    )  # fmt: skip


def answer(clues: Clues, *locks: ModelLock) -> Identity:
    return identify(clues, known_repos([SOURCE], locks))


def test_the_size_is_the_public_one_and_the_weights_are_whole(folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert abs(size / SOURCE.target.about_bytes - 1) < 0.015, f"{size / 2**30:.1f} GiB"
    assert sum(path.stat().st_blocks for path in folder.iterdir()) * 512 < 200 << 20
    began = time.monotonic()
    weights = check_weights(folder)
    assert not weights.problems and weights.files == 64 and len(weights.tensors) > 200_000
    assert time.monotonic() - began < 30


def test_the_folder_that_started_it(folder: Path) -> None:
    """No name, no README that helps, no lock: what it is in part, and what it could be."""
    clues = collect(folder)
    found = answer(clues)
    assert (found.repo, found.commit, found.confidence) == ("", "", "unknown")
    assert found.candidates == (SOURCE.target.repo, *SOURCE.target.lookalikes)
    assert found.quantisation == "compressed-tensors INT4 g32 (experts)"
    assert found.stored == "packed integers (compressed-tensors)"
    lock = ModelLock(schema=1, name="k26", created="", inputs="", repos=(lock_of(folder),))
    found = answer(clues, lock)
    assert (found.repo, found.commit, found.confidence) == (SOURCE.target.repo, "c" * 40, "strong")
    found = answer(replace(clues, title="Kimi K2.6"))
    assert (found.repo, found.confidence) == (SOURCE.target.repo, "likely")


def test_a_quick_check_of_all_of_it(folder: Path) -> None:
    repo = lock_of(folder)
    assert write_stamp(folder, {f.path: mark(folder / f.path, f.sha256) for f in repo.files})
    began = time.monotonic()
    report = verify(folder, repo)
    assert report.ok and not any(finding.hashed for finding in report.findings)
    assert time.monotonic() - began < 30
    shard = folder / repo.files[5].path
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1)
    report = verify(
        folder, repo.model_copy(update={"files": tuple(f for f in repo.files if f.path != shard.name)})
    )
    assert set(report.weights.problems) == {shard.name}
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size + 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1_500_000, "kB, pytest and fixtures included"
