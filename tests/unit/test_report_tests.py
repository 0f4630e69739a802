# SPDX-License-Identifier: Apache-2.0
"""The last line of scripts/test never looks like a pass when something failed or was left out."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

main = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "report_tests.py"))["main"]
OK = '<testcase classname="t" name="a"/>'
BAD = '<testcase classname="t" name="b"><failure message="no"/></testcase>'
ERROR = '<testcase classname="t" name="e"><error message="no"/></testcase>'


def skip(reason):
    return f'<testcase classname="t" name="s"><skipped message="{reason}"/></testcase>'


@pytest.fixture
def report(tmp_path, capsys):
    """Run the report over (stage, result, reason, cases); returns exit status, all lines, the last line."""

    def run(*stages, strict=False):
        lines = []
        for stage, result, reason, cases in stages:
            lines.append(f"{stage}\t{result}\t5\t60\t{reason}\n")
            if cases is not None:
                (tmp_path / f"{stage}.xml").write_text(
                    f"<testsuites><testsuite>{cases}</testsuite></testsuites>"
                )
        (tmp_path / "stages.tsv").write_text("".join(lines))
        status = main([*(["--strict"] if strict else []), str(tmp_path), "345"])
        text = capsys.readouterr().out
        return status, text, text.splitlines()[-1].strip("= ")

    return run


def test_stages_are_summed(report):
    status, text, last = report(
        ("unit", "ok", "", OK * 3), ("engine", "ok", "", OK + skip("needs GPU of Hopper"))
    )
    assert (status, last) == (0, "4 passed, 1 skipped in 345.00s (0:05:45)")
    assert "skipped: t::s: needs GPU of Hopper" in text
    assert "unit     ok              3      0       0        5      60" in text


@pytest.mark.parametrize("cases", [OK + BAD, OK + ERROR])
def test_a_failed_test_fails(report, cases):
    status, _, last = report(("unit", "failed", "exit status 1", cases))
    assert status == 1 and last.startswith(("1 failed, 1 passed in", "1 passed, 1 error in"))


def test_a_failed_stage_without_a_failed_test_is_an_error(report):
    status, text, last = report(("lint", "failed", "exit status 1", None), ("unit", "ok", "", OK))
    assert (status, last) == (1, "1 passed, 1 error in 345.00s (0:05:45)")
    assert "failed: lint: exit status 1" in text


def test_a_stage_that_was_left_out_is_told(report):
    status, text, _ = report(("unit", "ok", "", OK), ("engine", "left out", "needs root", None))
    assert status == 0 and "left out: engine: needs root" in text


def test_strict_allows_skips_for_a_gpu_only(report):
    assert report(("unit", "ok", "", OK + skip("needs GPU")), strict=True)[0] == 0
    status, text, _ = report(("unit", "ok", "", OK + skip("no docker here")), strict=True)
    assert status == 1 and "skipped: t::s: no docker here" in text
    assert report(("unit", "ok", "", OK + skip("no docker here")))[0] == 0


def test_a_cut_off_report_is_an_error(report):
    status, _, last = report(("unit", "ok", "", "<testcase"))
    assert status == 1 and "1 error" in last
