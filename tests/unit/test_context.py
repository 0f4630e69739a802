# SPDX-License-Identifier: Apache-2.0
"""Build contexts: the same Plan gives the same bytes, and nothing half is ever taken for whole."""

import hashlib
import os

import pytest

from imagebuild.catalog import project_root
from imagebuild.context import remove_contexts, write_contexts
from imagebuild.errors import IntegrityError
from imagebuild.layer.base import BaseSettings
from imagebuild.layer.entries import LayerError
from imagebuild.layer.spec import Artifact, LayerSpec
from imagebuild.resolve import resolve
from tests.checkouts import copy_images
from tests.debs import folder, make_deb, member
from tests.unit.test_wheel import BASIC, make_wheel

IMAGES = project_root().resolve() / "images"
LDCONFIG = b"\0ldconfig (Debian GLIBC 2.36-9) stable release version 2.36\0"


def artifact(kind, path):
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return Artifact(kind, path.name.split("-")[0], "1.0", path.name, digest, len(content))


@pytest.fixture
def files(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    masters = [
        member("./usr/share/base-passwd/passwd.master", b"root:*:0:0:root:/root:/bin/bash\n"),
        member("./usr/share/base-passwd/group.master", b"root:*:0:\nshadow:*:42:\n"),
    ]
    make_deb(store, "base-passwd", folder("./usr/"), folder("./usr/share/"), *masters)
    ldconfig = member("./sbin/ldconfig", LDCONFIG, mode=0o755)
    make_deb(
        store, "libc-bin", folder("./sbin/"), ldconfig, folder("./etc/"), member("./etc/ld.so.conf", b"")
    )
    make_wheel(store, BASIC)
    return store


@pytest.fixture
def plan(files):
    real = resolve(IMAGES, "sm_103")
    debs = tuple(artifact("deb", path) for path in sorted(files.glob("*.deb")))
    wheel = artifact("wheel", files / "demo-1.0-py3-none-any.whl")
    layers = (LayerSpec("base", debs), LayerSpec("python", (wheel,)), real.layers[-1])
    changes = {"layers": layers, "tools": (wheel,), "base": BaseSettings()}
    return real.model_copy(update=changes)


def contexts(plan, files, parent):
    return write_contexts(plan, IMAGES, parent, lambda a: files / a.file, lambda line: None)


def content(parent):
    return {
        path.relative_to(parent).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(parent.rglob("*"))
        if path.is_file()
    }


def test_the_same_plan_gives_the_same_bytes_anywhere(plan, files, tmp_path, monkeypatch):
    contexts(plan, files, tmp_path / "one")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    os.umask(0o077)
    try:
        contexts(plan, files, tmp_path / "two")
    finally:
        os.umask(0o022)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_each_layer_has_what_its_container_reads(plan, files, tmp_path):
    made = contexts(plan, files, tmp_path / "c")
    assert set(made) == {"base", "python", "launch", "tools"}
    assert (made["base"] / "base.tar").is_file()
    assert (made["python"] / "artifacts" / "demo-1.0-py3-none-any.whl").is_file()
    assert (made["launch"] / "files" / "launch" / "entrypoint").is_file()
    assert plan.arch in (made["launch"] / "files" / "plan.json").read_text()
    assert (made["tools"] / "__main__.py").is_file()
    assert (made["tools"] / "imagebuild" / "layer" / "run.py").is_file()
    assert not (made["tools"] / "imagebuild" / "cli.py").exists()


def test_artifacts_cost_no_disk(plan, files, tmp_path):
    made = contexts(plan, files, tmp_path / "c")
    assert (made["python"] / "artifacts" / "demo-1.0-py3-none-any.whl").stat().st_nlink > 1


def test_a_reused_context_takes_the_file_that_the_cache_has_now(plan, files, tmp_path):
    made = contexts(plan, files, tmp_path / "c")
    wheel = files / "demo-1.0-py3-none-any.whl"
    good = wheel.read_bytes()
    linked = made["python"] / "artifacts" / wheel.name
    linked.write_bytes(b"damaged")  # through the link, so the cache's file too
    wheel.unlink()
    wheel.write_bytes(good)
    contexts(plan, files, tmp_path / "c")
    assert linked.read_bytes() == good


def test_a_failed_step_leaves_no_context(plan, files, tmp_path):
    deb = next(files.glob("*.deb"))
    deb.write_bytes(deb.read_bytes()[:100])
    with pytest.raises(LayerError):
        contexts(plan, files, tmp_path / "c")
    assert not [path for path in (tmp_path / "c").iterdir() if path.name.startswith(("base-tar", "."))]


def test_a_file_of_ours_that_changed_under_us_is_refused(plan, files, tmp_path):
    images = copy_images(tmp_path)
    (images / "launch" / "entrypoint").write_text("changed")
    with pytest.raises(IntegrityError, match="changed since the plan"):
        write_contexts(plan, images, tmp_path / "c", lambda a: files / a.file, lambda line: None)


def test_contexts_are_removed_and_the_cache_stays(plan, files, tmp_path):
    contexts(plan, files, tmp_path / "c")
    told = remove_contexts(tmp_path / "c", dry_run=True)
    assert told > 0
    assert (tmp_path / "c").is_dir()
    assert remove_contexts(tmp_path / "c", dry_run=False) == told
    assert not (tmp_path / "c").exists()
    assert (files / "demo-1.0-py3-none-any.whl").is_file()
