# SPDX-License-Identifier: Apache-2.0
"""Suites, runs, start-up, comparison and advice of the benchmark harness."""

import json
import math
from pathlib import Path

import pytest

from imagebuild.bench.compare import compare, compare_text
from imagebuild.bench.gate import compare_answers, equal_start
from imagebuild.bench.load import MARK, Job, read_line, to_run
from imagebuild.bench.recommend import advice, choices
from imagebuild.bench.references import read_references
from imagebuild.bench.report import report_text
from imagebuild.bench.result import read_result, save
from imagebuild.bench.runs import Folder, jobs, with_warm_up
from imagebuild.bench.startup import read_startup
from imagebuild.bench.stats import figure, holm, welch
from imagebuild.bench.suite import read_suite
from imagebuild.catalog import project_root
from imagebuild.errors import IntegrityError, ManifestError
from tests.benchsuites import arm_of, result_of, run_of, suite_text

ROOT = project_root()
DATA = Path(__file__).parent.parent / "data" / "bench"


def suite(tmp_path, **change):
    path = tmp_path / "timed.yaml"
    path.write_text(suite_text(**change))
    return read_suite(path)[0]


# Suites


def test_every_suite_of_the_project_can_be_read_and_names_services_that_exist():
    services = (ROOT / "compose" / "recipes" / "k26.yaml").read_text()
    found, prompts = read_suite(ROOT / "images" / "bench" / "k26.yaml")
    assert {len(p.split()) >= 8 for p in prompts} == {True}
    for arm in found.arms:
        assert f"- name: {arm.compose_service}\n" in services


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arms": [{"name": "a", "layout": "x"}, {"name": "a", "layout": "x"}]}, "is there twice"),
        ({"arms": [{"name": "a", "layout": "x", "same_as": "b"}]}, "must name an arm before"),
        ({"lengths": [{"output": 8}]}, "give input without prompts"),
        ({"gate": {"equal_tokens": 0, "prompts": [{"text": "a"}]}}, "0 needs a reason"),
        ({"gate": {"tokens": 4, "equal_tokens": 8, "prompts": [{"text": "a"}]}}, "more than the tokens"),
        ({"gate": {"prompts": [{"begins": "a"}]}}, "give one of text and ids"),
    ],
)
def test_a_suite_that_makes_no_sense_is_refused(tmp_path, change, message):
    with pytest.raises(ManifestError, match=message):
        suite(tmp_path, **change)


def test_a_suite_that_is_not_there_names_those_that_are(tmp_path):
    (tmp_path / "one.yaml").write_text("")
    with pytest.raises(ManifestError, match="no such suite") as caught:
        read_suite(tmp_path / "two.yaml")
    assert caught.value.hint == "suites there: one"


# Runs


def test_repeats_are_the_outer_loop_and_each_cell_is_warmed_up_once(tmp_path):
    found = suite(tmp_path)
    names = [job.id for job in with_warm_up(list(jobs(found, found.arms[0])))]
    assert names == [
        "i8-o8-c1-r1-warm", "i8-o8-c1-r1", "i8-o8-c4-r1-warm", "i8-o8-c4-r1", "i8-o8-c1-r2", "i8-o8-c4-r2",
    ]  # fmt: skip


def test_an_arm_with_a_limit_leaves_out_its_cells(tmp_path):
    found = suite(tmp_path)
    small = found.arms[0].model_copy(update={"max_concurrency": 1})
    assert {job.concurrency for job in jobs(found, small)} == {1}


def test_a_run_with_a_failed_request_is_done_again_and_gives_no_figure(tmp_path):
    found = suite(tmp_path, concurrency=[1], repeats=2)
    folder = Folder(tmp_path / "out", found, ())
    first, second = jobs(found, found.arms[0])
    folder.add_run("plain", first, run_of(10))
    folder.add_run("plain", second, run_of(10, failed=1, error="HTTP 503"))
    assert folder.todo(found.arms[0]) == [second]
    folder.add_arm(arm_of("plain", {}))
    [arm] = folder.arms()
    assert (len(arm.cells[0].runs), len(arm.cells[0].good)) == (2, 1)


def test_a_folder_of_another_suite_is_refused(tmp_path):
    Folder(tmp_path / "out", suite(tmp_path), ())
    with pytest.raises(IntegrityError, match="another suite"):
        Folder(tmp_path / "out", suite(tmp_path), ("other prompts",))


def test_a_line_of_the_real_load_generator_becomes_a_run():
    value = json.loads((DATA / "driver-line.json").read_text())
    found = read_line(MARK + json.dumps(value))
    assert found is not None
    run = to_run(Job(found[0], 4, 8, 16, 65, 1), found[1], (5, 6))
    assert (run.requests, run.failed, run.input_tokens, run.output_tokens) == (8, 0, 128, 520)
    # 65 tokens: one of the prefill, then 16 chunks of 4, 20 ms apart; 300 ms before the first
    assert run.accept_length == 4
    assert run.ttft_ms.median == pytest.approx(300, rel=0.02)
    assert run.itl_ms.mean == pytest.approx(5, rel=0.02)
    assert run.user_tokens_per_s == pytest.approx(200, rel=0.02)
    assert run.tokens_per_s == pytest.approx(4 * 65 / 0.62, rel=0.04)
    assert run.gpu_memory_mib == (5, 6)
    assert read_line("INFO: something else") is None


def test_a_run_without_a_result_has_failed_whole():
    run = to_run(Job("x", 4, 8, 16, 65, 1), {"result": None, "errors": 1, "error": "boom"}, ())
    assert (run.failed, run.error) == (8, "boom")


# Start-up

LOG = """\
2026-12-01T15:00:00.000000000Z SGLang image
2026-12-01T15:00:30.500000000Z [2026-12-01 15:00:30 TP0] Load weight begin. avail mem=139.10 GB
2026-12-01T15:00:31.000000000Z [2026-12-01 15:00:31 TP1] Load weight begin. avail mem=139.10 GB
2026-12-01T15:04:30.500000000Z [2026-12-01 15:04:30 TP1] Load weight end. elapsed=240.0 s, type=Kimi
2026-12-01T15:04:31.500000000Z [2026-12-01 15:04:31 TP0] Load weight end. elapsed=241.0 s, type=Kimi
2026-12-01T15:05:00.000000000Z [2026-12-01 15:05:00 TP0] Capture target decode CUDA graph begin. x
2026-12-01T15:05:40.000000000Z [2026-12-01 15:05:40 TP0] Capture target decode CUDA graph end. elapsed=40 s
2026-12-01T15:06:00.250000000Z [2026-12-01 15:06:00] The server is fired up and ready to roll!
"""


def test_the_start_up_is_read_from_the_log():
    found = read_startup(LOG.splitlines(), 362.0)
    assert (found.load_begin, found.load, found.graphs_begin, found.graphs) == (30.5, 241.0, 300.0, 40.0)
    assert (found.ready, found.first_token) == (360.25, 362.0)


def test_a_log_without_times_says_nothing():
    assert read_startup(["Traceback", "no time here"]).model_dump(exclude_none=True) == {}


# Statistics: expected values by scipy 1.18


def test_welch_as_scipy_has_it():
    assert welch([1, 2, 3], [4, 5, 7]) == pytest.approx(0.041914517471454034, rel=1e-9)
    assert welch([10, 10.1, 9.9, 10.05], [10.02, 9.95, 10.08, 10]) == pytest.approx(1.0)
    assert welch([5, 5, 5], [5, 5, 5]) == 1.0
    assert welch([5, 5, 5], [6, 6, 6]) == 0.0


def test_holm_keeps_the_order_and_never_falls():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_a_figure_is_the_median_and_half_the_range():
    found = figure([90, 100, 120])
    assert (found.median, found.count) == (100, 3)
    assert math.isclose(found.spread, 0.15)


# Comparison


def verdicts(old, new):
    return {c.measure: c.verdict for c in compare(result_of(arm_of("a", old)), result_of(arm_of("a", new)))}


def test_a_clear_change_is_told_in_its_direction():
    found = verdicts({1: [100, 101, 99]}, {1: [80, 81, 79]})
    assert found == {
        "tokens_per_s": "worse", "user_tokens_per_s": "worse", "ttft_ms": "noise", "itl_ms": "worse",
    }  # fmt: skip
    assert verdicts({1: [80, 81, 79]}, {1: [100, 101, 99]})["itl_ms"] == "better"


def test_noise_is_no_change():
    assert set(verdicts({1: [100, 110, 90]}, {1: [95, 108, 88]}).values()) == {"noise"}


def test_a_certain_change_smaller_than_the_harness_sees_is_noise():
    assert verdicts({1: [100, 100.01, 99.99]}, {1: [101, 101.01, 100.99]})["tokens_per_s"] == "noise"


def test_two_repeats_cannot_tell():
    assert set(verdicts({1: [100, 100]}, {1: [50, 50]}).values()) == {"unknown"}


def test_a_fault_in_one_cell_of_many_survives_the_correction():
    old = {users: [100.0, 101, 99] for users in range(1, 41)}
    new = {**old, 7: [70.0, 70.5, 69.5]}
    changes = compare(result_of(arm_of("a", old)), result_of(arm_of("a", new)))
    assert {(c.concurrency, c.measure) for c in changes if c.verdict == "worse"} == {
        (7, "tokens_per_s"), (7, "user_tokens_per_s"), (7, "itl_ms"),
    }  # fmt: skip
    assert "3 worse, 0 better" in compare_text(
        changes, result_of(arm_of("a", old)), result_of(arm_of("a", new))
    )


def test_what_cannot_be_compared_is_said():
    one = result_of(arm_of("a", {1: [1.0]}))
    with pytest.raises(ManifestError, match="no arm and cell in common"):
        compare(one, result_of(arm_of("b", {1: [1.0]})))
    with pytest.raises(ManifestError, match="no comparison"):
        compare(one, result_of(arm_of("a", {1: [1.0]}), prompts="text"))


# Advice and report


def test_advice_names_the_fastest_arm_for_each_range_of_users():
    few = {1: [60.0, 61, 62], 8: [200.0, 201, 202], 64: [300.0, 301, 302]}
    many = {1: [20.0, 21, 22], 8: [100.0, 101, 102], 64: [500.0, 501, 502]}
    first, second = advice(result_of(arm_of("ddtree", few), arm_of("plain", many)))
    assert "with 1 to 8 users take **ddtree**: 61 at 1, 201 at 8 tok/s" in first
    assert "its slowest repeat beats" in first
    assert "with 64 users take **plain**" in second


def test_advice_says_when_it_is_not_certain():
    [line] = advice(result_of(arm_of("a", {1: [60.0, 50, 62]}), arm_of("b", {1: [58.0, 59, 57]})))
    assert "there it is not certain" in line


def test_an_arm_that_answers_wrongly_is_never_recommended():
    found = choices(result_of(arm_of("a", {1: [90.0]}, passed=False), arm_of("b", {1: [10.0]})))
    assert [choice.arm for choice in found] == ["b"]


def test_the_report_has_every_figure_and_keeps_those_of_others_apart():
    result = result_of(
        arm_of("a", {1: [60.0, 61, 62]}, speculation="dflash"), arm_of("b", {1: [9.0]}, passed=False)
    )
    references = read_references(ROOT / "images" / "bench" / "references.yaml")
    text = report_text(result, references, [("a plot", "plot.png")])
    own, _, others = text.partition("## Figures of others")
    assert "| a | 1 | 61.0 ± 1.6 % |" in own
    assert "b answered wrongly" in own
    assert "random token ids" in own
    assert "![a plot](plot.png)" in own
    for point in references.points:
        assert point.source in others and point.source not in own


def test_a_result_is_read_as_it_was_written_and_other_versions_are_refused(tmp_path):
    result = result_of(arm_of("a", {1: [60.0]}))
    save(tmp_path / "result.json", result)
    assert read_result(tmp_path) == result
    text = (tmp_path / "result.json").read_text().replace('"schema": 1', '"schema": 2')
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ManifestError, match="format 2"):
        read_result(tmp_path)
    (tmp_path / "result.json").write_text("[]")
    with pytest.raises(ManifestError, match="not a benchmark result"):
        read_result(tmp_path)


# The gate


def test_answers_are_compared_up_to_the_tokens_that_must_agree(tmp_path):
    spec = suite(tmp_path).gate
    assert equal_start("x", [1, 2, 3], [1, 2, 4], 2).passed
    assert not equal_start("x", [1, 2, 3], [1, 2, 4], 3).passed
    [check] = compare_answers(spec, "plain", ((1,) * 8,), ())
    assert not check.passed
