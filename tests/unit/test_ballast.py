# SPDX-License-Identifier: Apache-2.0
"""Nothing that stays may need what is left out."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from imagebuild.ballast import broken_links, is_removed, named_by_others, token
from imagebuild.gpufacts import FileFacts
from imagebuild.layer.spec import Artifact
from imagebuild.manifest import BallastItem

ITEM = BallastItem(package="cupti", paths=("nv/lib/libperf*",), reason="nobody needs this one")


def library(path: str, *needs: str) -> FileFacts:
    return FileFacts(path, 1, "elf", "sections", (), 1, path.rpartition("/")[2], needs)


def test_a_link_to_a_removed_library_is_an_error():
    facts = {
        "cupti": (library("nv/lib/libperf.so.1"), library("nv/lib/libcupti.so", "libperf.so.1")),
        "torch": (library("torch/a.so", "libperf.so.1", "libc.so.6"), library("torch/b.so", "libcupti.so")),
    }
    assert broken_links(facts, (ITEM,)) == [
        "cupti: nv/lib/libcupti.so is linked against libperf.so.1, which is left out as ballast",
        "torch: torch/a.so is linked against libperf.so.1, which is left out as ballast",
    ]
    assert broken_links(facts, ()) == []


def test_a_library_that_another_wheel_ships_too_may_go():
    facts = {
        "cupti": (library("nv/lib/libperf.so.1"),),
        "other": (library("o/libperf.so.1"), library("o/a.so", "libperf.so.1")),
    }
    assert broken_links(facts, (ITEM,)) == []


def test_patterns_belong_to_one_package():
    assert is_removed((ITEM,), "cupti", "nv/lib/libperf.so")
    assert not is_removed((ITEM,), "torch", "nv/lib/libperf.so")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("nvidia/cu13/lib/libnvrtc.alt.so*", "libnvrtc.alt"),
        ("nvidia/cu13/lib/libcusolverMg.so*", "libcusolverMg"),
        ("nvidia/cu13/lib/libnvperf_*", "libnvperf_"),
        ("triton/_C/libproton.so", "libproton"),
        ("triton/backends/nvidia/bin/ptxas", "bin/ptxas"),
        ("sgl_kernel/sm90/*", "sgl_kernel/sm90"),
        ("tilelang/3rdparty/composable_kernel/*", "3rdparty/composable_kernel"),
    ],
)
def test_token(pattern, text):
    assert token(pattern) == text


def test_names_in_files_need_a_declared_reason(tmp_path: Path):
    late = b"x" * 5_000_000 + b"libperf.so"
    files = {
        "cupti": {"nv/lib/libperf.so.1": b"libperf itself", "nv/lib/libcupti.so": late},
        "torch": {"torch/a.py": b"open('libperf.so')", "torch/b.py": b"nothing", "torch/doc.md": b"libperf"},
    }  # fmt: skip
    wheels, places = [], {}
    for name, members in files.items():
        path = tmp_path / f"{name}.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, content in members.items():
                archive.writestr(member, content)
        wheels.append(Artifact("wheel", name, "1", path.name, "0" * 64, path.stat().st_size))
        places[name] = path
    problems = named_by_others(wheels, lambda a: places[a.name], (ITEM,), 1)
    assert sorted(problems) == [
        "cupti: nv/lib/libcupti.so names libperf, which is left out as ballast",
        "torch: torch/a.py names libperf, which is left out as ballast",
    ]
    allowed = ITEM.model_copy(
        update={"named_by": {"torch/*": "only for tests", "nv/lib/libcupti.so": "lazy"}}
    )
    assert named_by_others(wheels, lambda a: places[a.name], (allowed,), 1) == []
