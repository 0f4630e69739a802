# SPDX-License-Identifier: Apache-2.0
"""Refreshing locks: what is written, what stays, what is reported."""

import datetime

import pytest

from imagebuild.catalog import LockFile, project_root
from imagebuild.errors import BuildError
from imagebuild.layer.spec import Artifact
from imagebuild.locking import Job, jobs, refresh, stale
from imagebuild.settings import load_settings
from tests.checkouts import copy_images

IMAGES = project_root().resolve() / "images"
DAY = datetime.datetime(2026, 12, 24, 10, tzinfo=datetime.timezone.utc)


def wheel(version):
    return Artifact("wheel", "demo", version, f"demo-{version}-py3-none-any.whl", "0" * 64, 1)


def job(path, *artifacts, inputs="in"):
    return Job(LockFile("demo", path, inputs), "python", lambda _: artifacts)


def test_a_first_lock_is_written_with_its_day(tmp_path):
    done = refresh(job(tmp_path / "python.lock", wheel("1")), load_settings(), DAY)
    assert done.written
    assert done.new.created == "2026-12-24T00:00:00Z"
    assert done.lines == ("+ demo 1",)


def test_no_news_keeps_the_day_and_so_every_image(tmp_path):
    path = tmp_path / "python.lock"
    refresh(job(path, wheel("1")), load_settings(), DAY)
    before = path.read_bytes()
    done = refresh(job(path, wheel("1")), load_settings(), DAY + datetime.timedelta(days=9))
    assert not done.written
    assert path.read_bytes() == before


def test_news_moves_the_day_and_is_told(tmp_path):
    path = tmp_path / "python.lock"
    refresh(job(path, wheel("1")), load_settings(), DAY)
    done = refresh(job(path, wheel("2")), load_settings(), DAY + datetime.timedelta(days=9))
    assert done.lines == ("~ demo 1 -> 2",)
    assert done.new.created == "2027-01-02T00:00:00Z"


def test_other_inputs_with_the_same_answer_update_the_lock(tmp_path):
    path = tmp_path / "python.lock"
    refresh(job(path, wheel("1")), load_settings(), DAY)
    again = job(path, wheel("1"), inputs="other")
    assert again.file.stale
    assert refresh(again, load_settings(), DAY).written
    assert not again.file.stale


def test_a_failed_refresh_leaves_the_old_lock(tmp_path):
    path = tmp_path / "python.lock"
    refresh(job(path, wheel("1")), load_settings(), DAY)
    before = path.read_bytes()

    def fail(_):
        raise BuildError("no solution")

    with pytest.raises(BuildError):
        refresh(Job(LockFile("demo", path, "in"), "python", fail), load_settings(), DAY)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["python.lock"]


def test_base_only_leaves_python_out():
    assert {j.kind for j in jobs(IMAGES, base_only=True)} == {"debian"}
    assert sorted({j.kind for j in jobs(IMAGES)}) == ["debian", "python"]


def test_every_stale_or_missing_lock_is_told_at_once(tmp_path):
    images = copy_images(tmp_path)
    assert stale(images) == []
    (images / "tools" / "python.lock").unlink()
    path = images / "base" / "bookworm" / "base.yaml"
    path.write_text(path.read_text().replace("  procps:", "  psmisc:"))
    lines = stale(images)
    assert len(lines) == 2
    assert any("debian.lock" in line for line in lines)
    assert any("no such lock" in line for line in lines)
