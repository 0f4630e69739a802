# SPDX-License-Identifier: Apache-2.0
"""Rendering, sorting and suggestions of diagnostics."""

from __future__ import annotations

import pytest

from imagebuild.diagnostics import Diagnostic, Diagnostics, Refused, closest, printable, raise_all
from imagebuild.errors import ManifestError


def test_renders_like_a_compiler():
    diagnostic = Diagnostic(
        "images/sm_103/image.yaml", 7, 3, 'unknown key "stak"', ("arch", "stack"), "stack", "  stak: k26"
    )
    assert diagnostic.render() == (
        'images/sm_103/image.yaml:7:3: error: unknown key "stak"\n'
        "      stak: k26\n"
        "      ^\n"
        "  allowed: arch, stack\n"
        '  did you mean "stack"?'
    )


def test_a_whole_file_has_no_place_and_no_caret():
    assert Diagnostic("a.yaml", 0, 0, "no such file").render() == "a.yaml: error: no such file"


def test_caret_stands_below_the_column_after_tabs_and_past_the_end():
    tabbed = Diagnostic("a", 1, 6, "m", source_line="k:\tx yz").render().splitlines()
    assert tabbed[2] == "      \t  ^"
    past = Diagnostic("a", 1, 9, "m", source_line="abc").render().splitlines()
    assert past[2].index("^") == 4 + 8


def test_long_lines_are_cut_around_the_column():
    line = "x" * 500 + "HERE" + "y" * 500
    _, shown, caret = Diagnostic("a", 1, 501, "m", source_line=line).render().splitlines()
    assert len(shown) < 160
    assert shown[caret.index("^") :].startswith("HERE")


def test_an_empty_source_line_is_left_out():
    assert Diagnostic("a", 3, 1, "m").render() == "a:3:1: error: m"


def test_long_lists_of_allowed_values_are_cut():
    text = Diagnostic("a", 0, 0, "m", tuple(f"v{i}" for i in range(30))).render()
    assert text.endswith("v23 and 6 more")


def test_nothing_from_a_file_can_drive_the_terminal():
    text = Diagnostic("a", 1, 1, "m\x1b[31m", ("\x1b]0;x",), "\x9b", source_line="a\x1b[2Jb\u202ec").render()
    assert all(c.isprintable() or c in "\n\t" for c in text)
    assert printable("grün 日本") == "grün 日本"


def test_all_errors_come_at_once_sorted_and_once():
    late, early = Diagnostic("a", 9, 1, "late"), Diagnostic("a", 2, 5, "early")
    error = Diagnostics([late, early, late])
    assert error.diagnostics == (early, late)
    assert str(error) == "a:2:5: error: early\na:9:1: error: late"
    assert isinstance(error, ManifestError)
    assert error.exit_code == 2


def test_raise_all():
    raise_all([])
    with pytest.raises(Diagnostics, match="m") as caught:
        raise_all([Diagnostic("a", 0, 0, "m")], hint="fix it")
    assert str(caught.value).endswith("next: fix it")


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("stak", "stack"),
        ("Arch", "arch"),
        ("exclude-newer", "exclude_newer"),
        ("zzz", None),
        ("", None),
        ("arch", None),
    ],
)
def test_closest(word: str, near: str | None):
    assert closest(word, ["arch", "stack", "exclude_newer"]) == near


def test_refused_is_both_for_the_command_line_and_for_pydantic():
    error = Refused("unknown thing", allowed=["a", "b"], suggestion="a")
    assert isinstance(error, ManifestError)
    assert isinstance(error, ValueError)
    assert str(error) == 'unknown thing; allowed: a, b\n  next: did you mean "a"?'
    assert (error.reason, error.allowed, error.at) == ("unknown thing", ("a", "b"), ())
