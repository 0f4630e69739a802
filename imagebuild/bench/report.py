# SPDX-License-Identifier: Apache-2.0
"""A result → report.md: what was measured on what, tables of every figure, and what to take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from imagebuild.bench.recommend import advice
from imagebuild.bench.references import References
from imagebuild.bench.result import Arm, BenchResult, Cell, Run
from imagebuild.bench.stats import figure


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return a Markdown table; all columns but the first `left` ones are aligned to the right."""
    marks = ["---" if index < left else "---:" for index in range(len(head))]
    lines = [head, marks, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _with_spread(values: Sequence[float]) -> str:
    """Return `123 ± 2 %`: the median and half the range, or the value alone of one repeat."""
    found = figure(values)
    return _number(found.median) + (f" ± {100 * found.spread:.1f} %" if found.count > 1 else "")


COLUMNS: tuple[tuple[str, Callable[[Run], float | None]], ...] = (
    ("tok/s", lambda run: run.tokens_per_s),
    ("tok/s per user", lambda run: run.user_tokens_per_s),
    ("TTFT ms", lambda run: run.ttft_ms.median),
    ("TTFT p99 ms", lambda run: run.ttft_ms.p99),
    ("ITL ms", lambda run: run.itl_ms.median),
    ("accept length", lambda run: run.accept_length),
    ("KV %", lambda run: None if run.kv_usage is None else 100 * run.kv_usage),
    ("GPU GiB", lambda run: max(run.gpu_memory_mib) / 1024 if run.gpu_memory_mib else None),
)


def _cell_row(arm: Arm, cell: Cell) -> list[str]:
    row = [arm.name, str(cell.concurrency)]
    for _, of in COLUMNS:
        values = [value for run in cell.good if (value := of(run)) is not None]
        row.append(_with_spread(values) if values else "-")
    failed = sum(1 for run in cell.runs if run.failed)
    return [*row, f"{len(cell.good)}" + (f" ({failed} failed)" if failed else "")]


def _lengths(result: BenchResult) -> list[tuple[int, int]]:
    return sorted({(cell.input, cell.output) for arm in result.arms for cell in arm.cells})


def _arm_rows(result: BenchResult) -> Iterable[list[str]]:
    for arm in result.arms:
        gate = f"{sum(c.passed for c in arm.gate)} of {len(arm.gate)}"
        image = arm.image_digest.removeprefix("sha256:")[:12] or "not known"
        yield [arm.name, arm.layout, arm.speculation, arm.version, image, gate]


def _startup_rows(result: BenchResult) -> Iterable[list[str]]:
    for arm in result.arms:
        s = arm.startup
        steps = (s.load_begin, s.load, s.graphs_begin, s.graphs, s.ready, s.first_token)
        if any(step is not None for step in steps):
            yield [arm.name, *("-" if step is None else f"{step:.1f}" for step in steps)]


def _reference_rows(references: References) -> Iterable[list[str]]:
    for point in references.points:
        length = f"{point.input}/{point.output}" if point.output else "not noted"
        yield [
            f"{point.engine}, {point.setting}", point.gpus, point.model, length, str(point.concurrency),
            _number(point.tokens_per_s), point.source,
        ]  # fmt: skip


def report_text(result: BenchResult, references: References | None, plots: Sequence[tuple[str, str]]) -> str:
    """Return the report as Markdown; `plots` are (title, file name)."""
    parts = [f"# {result.title}", _preface(result), "## Recommendation", _recommendation(result)]
    for title, name in plots:
        parts.append(f"![{title}]({name})")
    head = ["arm", "users", *(name for name, _ in COLUMNS), "repeats"]
    for tokens_in, tokens_out in _lengths(result):
        what = f"{tokens_in} tokens in, {tokens_out} out" if tokens_in else f"{tokens_out} tokens out"
        rows = [
            _cell_row(arm, cell)
            for arm in result.arms
            for cell in arm.cells
            if (cell.input, cell.output) == (tokens_in, tokens_out)
        ]
        parts += [f"## {what}", "Median over the repeats ± half their range.", table(head, rows)]
    columns = ["arm", "layout", "speculation", "SGLang", "image", "gate"]
    parts += ["## What was measured", table(columns, _arm_rows(result), left=6)]
    if startup := list(_startup_rows(result)):
        columns = ["arm", "load begins", "loading", "graphs begin", "graphs", "ready", "first token"]
        parts += ["## Start-up, seconds", table(columns, startup)]
    if references is not None:
        columns = ["engine, setting", "GPUs", "model", "in/out", "users", "tok/s", "source"]
        text = "Measured by others, with other prompts, lengths and versions: orders of magnitude only."
        parts += ["## Figures of others", text, table(columns, _reference_rows(references), left=4)]
    return "\n\n".join(parts) + "\n"


def _preface(result: BenchResult) -> str:
    lines = [
        f"Suite `{result.suite}` ({result.suite_digest[:12]}), model `{result.model}`, {result.created}, "
        f"load by `{result.load_generator}`."
    ]
    if not result.complete:
        lines.append("**Not complete: cells are missing.**")
    lines += [
        f"**{arm.name} answered wrongly, so it has no figures.**" for arm in result.arms if not arm.passed
    ]
    if result.prompts == "random-ids" and any(arm.speculation != "none" for arm in result.arms):
        lines.append(
            "Prompts were random token ids: a drafter guesses text better, so speculation is shown too slow."
        )
    return " ".join(lines)


def _recommendation(result: BenchResult) -> str:
    found = advice(result)
    return "\n".join(f"* {line}" for line in found) if found else "None: no arm has a figure."
