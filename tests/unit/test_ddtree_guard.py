# SPDX-License-Identifier: Apache-2.0
"""DDTREE starts with the SGLang that it was written for, and with no other."""

import json

import pytest
from sglang_ddtree import guard

MODULE = """\
VALUE = 1


class A:
    @property
    def f(self):
        return 1

    def g(self):
        return 2
"""
PLACES = ("sglang/m.py", "sglang/m.py:A", "sglang/m.py:A.f", "sglang/m.py:A.g")


@pytest.fixture
def site(tmp_path, monkeypatch):
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/m.py").write_text(MODULE)
    sources = tmp_path / "sources.json"
    sources.write_text(json.dumps(dict.fromkeys(PLACES)))
    monkeypatch.setattr(guard, "SOURCES", sources)
    assert guard.main(["guard", str(tmp_path), "--refresh"]) == 0
    return tmp_path


def test_the_same_sources_pass(site):
    assert guard.differences(site) == []
    assert guard.main(["guard", str(site)]) == 0
    assert all(json.loads(guard.SOURCES.read_text()).values())


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("VALUE = 1", "VALUE = 2", PLACES[:1]),
        ("return 1", "return 3", PLACES[:3]),
        ("    @property\n", "", PLACES[:3]),
        ("return 2", "return 3", (*PLACES[:2], PLACES[3])),
        ("def g", "def h", (*PLACES[:2], PLACES[3])),
    ],
)
def test_a_change_is_told_where_it_is(site, old, new, wrong):
    path = site / "sglang/m.py"
    path.write_text(MODULE.replace(old, new))
    assert guard.differences(site) == list(wrong)
    assert guard.main(["guard", str(site)]) == 1


def test_a_missing_file_differs(site):
    (site / "sglang/m.py").unlink()
    assert guard.differences(site) == list(PLACES)


def test_check_says_what_differs_and_what_to_do(site, monkeypatch):
    monkeypatch.setattr(guard, "site_of_sglang", lambda: site)
    guard.check()
    (site / "sglang/m.py").write_text("")
    with pytest.raises(ValueError, match=r"Different: sglang/m\.py, .* Use --speculative-algorithm DFLASH"):
        guard.check()


def test_sources_json_has_a_hash_for_every_place():
    sources = json.loads(guard.SOURCES.read_text())
    assert len(sources) > 20
    assert all(len(value) == 64 for value in sources.values())
