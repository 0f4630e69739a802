# SPDX-License-Identifier: Apache-2.0
"""`fetch --export` and `--from`: no socket is used here, so these run under the network guard."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuild.cache import Store
from imagebuild.errors import IntegrityError, ManifestError, PreconditionError
from imagebuild.fetch import export_to, fetch
from imagebuild.layer.spec import Artifact
from imagebuild.settings import Settings


def make(store: Store, kind: str, name: str, size: int = 5000) -> Artifact:
    data = name.encode() * size
    file = f"{name}-1.0-py3-none-any.whl" if kind == "wheel" else f"{name}_1.0_amd64.deb"
    version = "1.0" if kind == "wheel" else "2:1.0"
    digest = hashlib.sha256(data).hexdigest()
    artifact = Artifact("wheel" if kind == "wheel" else "deb", name, version, file, digest, len(data))
    with store.open_part(digest) as part:
        assert part is not None
        part.write(data)
        store.commit(part, digest)
    return artifact


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "there")


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return Settings(cache_dir=tmp_path / "here")


def test_round_trip(store: Store, here: Settings, tmp_path: Path) -> None:
    artifacts = [make(store, "wheel", f"pkg{i}") for i in range(5)] + [make(store, "deb", "libfoo")]
    size = sum(a.size for a in artifacts)
    folder = tmp_path / "disk"
    assert export_to(folder, artifacts, store) == size
    sums = (folder / "SHA256SUMS").read_text()
    assert sums == "".join(f"{a.sha256}  {a.file}\n" for a in sorted(artifacts, key=lambda a: a.file))
    assert {p.name for p in folder.iterdir()} == {a.file for a in artifacts} | {"SHA256SUMS"}
    filled = fetch(artifacts, here, source=folder)
    filled.verify(artifacts)
    assert export_to(folder, artifacts, filled) == 0, "nothing is copied twice"


def test_two_archs_share_a_folder(store: Store, tmp_path: Path) -> None:
    one, two, both = (make(store, "wheel", name) for name in ("one", "two", "both"))
    export_to(tmp_path / "disk", [one, both], store)
    export_to(tmp_path / "disk", [two, both], store)
    lines = (tmp_path / "disk" / "SHA256SUMS").read_text().splitlines()
    assert [line.split()[1].split("-")[0] for line in lines] == ["both", "one", "two"]


def test_one_name_for_two_files_is_refused(store: Store, tmp_path: Path) -> None:
    one = make(store, "wheel", "one")
    with pytest.raises(ManifestError, match="two locks name files of this name"):
        export_to(tmp_path / "disk", [one, replace(one, sha256="00" * 32)], store)


def test_a_damaged_or_missing_file_is_not_exported(store: Store, tmp_path: Path) -> None:
    one = make(store, "wheel", "one")
    store.path(one.sha256).chmod(0o644)
    store.path(one.sha256).write_bytes(b"x" * one.size)
    with pytest.raises(IntegrityError, match="damaged in the cache"):
        export_to(tmp_path / "disk", [one], store)
    with pytest.raises(PreconditionError, match="is not in the cache"):
        export_to(tmp_path / "disk", [one], store)
    assert list((tmp_path / "disk").iterdir()) == []


def test_any_folder_with_the_right_names_serves(store: Store, here: Settings, tmp_path: Path) -> None:
    wheel, package = make(store, "wheel", "one"), make(store, "deb", "libfoo")
    deep = tmp_path / "disk" / "some" / "where"
    deep.mkdir(parents=True)
    (deep / wheel.file).write_bytes(store.path(wheel.sha256).read_bytes())
    (tmp_path / "disk" / wheel.file).write_bytes(b"another file of this name")
    (deep / "libfoo_2%3a1.0_amd64.deb").write_bytes(
        store.path(package.sha256).read_bytes()
    )  # as apt names it
    fetch([wheel, package], here, source=tmp_path / "disk").verify([wheel, package])


def test_wrong_bytes_are_not_taken(store: Store, here: Settings, tmp_path: Path) -> None:
    one, two = make(store, "wheel", "one"), make(store, "wheel", "two")
    export_to(tmp_path / "disk", [one, two], store)
    path = tmp_path / "disk" / one.file
    data = bytearray(path.read_bytes())
    data[77] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        fetch([one, two], here, source=tmp_path / "disk")
    text = str(caught.value)
    assert str(path) in text and one.sha256 in text and hashlib.sha256(data).hexdigest() in text
    filled = Store(here.cache_dir)
    assert filled.has(two) and not filled.has(one) and not list(here.cache_dir.rglob("*.part"))


def test_all_missing_files_are_named(store: Store, here: Settings, tmp_path: Path) -> None:
    made = [make(store, "wheel", f"pkg{i}") for i in range(3)]
    export_to(tmp_path / "disk", made[:1], store)
    with pytest.raises(PreconditionError) as caught:
        fetch(made, here, source=tmp_path / "disk")
    text = str(caught.value)
    assert "it lacks 2 files" in text and made[1].file in text and made[2].file in text
    assert "--export DIR" in text and made[0].file not in text


def test_a_missing_folder(store: Store, here: Settings, tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="no such folder"):
        fetch([make(store, "wheel", "one")], here, source=tmp_path / "disk")
