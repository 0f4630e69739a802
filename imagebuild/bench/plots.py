# SPDX-License-Identifier: Apache-2.0
"""A result → PNG plots, by matplotlib, which only the environment of `scripts/bench report` has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuild.bench.result import Arm, BenchResult, Run
from imagebuild.bench.stats import figure
from imagebuild.errors import PreconditionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^vP*X"


def plot_all(result: BenchResult, folder: Path) -> list[tuple[str, str]]:
    """Write two plots per length below `folder` and return (title, file name) of each.

    Raises PreconditionError without matplotlib.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise PreconditionError(
            "plots need matplotlib, which is not in this environment",
            hint="scripts/bench report brings it; or give --no-plots",
        ) from error
    mpl.use("Agg")
    made = []
    for tokens_in, tokens_out in sorted({(c.input, c.output) for a in result.arms for c in a.cells}):
        name = f"i{tokens_in}-o{tokens_out}"
        what = f"{tokens_in} tokens in, {tokens_out} out" if tokens_in else f"{tokens_out} tokens out"
        for kind, draw in (("throughput", _throughput), ("ttft", _ttft)):
            file = folder / f"{kind}-{name}.png"
            _figure(result, (tokens_in, tokens_out), draw, f"{result.title}\n{what}", file)
            made.append((f"{kind}, {what}", file.name))
    return made


def _figure(
    result: BenchResult, length: tuple[int, int], draw: Callable[..., None], title: str, file: Path
) -> None:
    from matplotlib.figure import Figure

    page = Figure(figsize=(9, 5.5), layout="constrained")
    axes = page.add_subplot()
    for number, arm in enumerate(result.arms):
        if any(cell.good for cell in arm.cells if (cell.input, cell.output) == length):
            style = {"marker": MARKERS[number % len(MARKERS)], "color": f"C{number % 10}", "label": arm.name}
            draw(axes, arm, length, style)
    axes.margins(0.08)
    axes.set_ylim(bottom=0)  # after all arms: it ends the automatic scale
    if draw is _throughput:
        axes.set_xlim(left=0)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    page.savefig(file, dpi=110, metadata={"Software": None})


def _points(
    arm: Arm, length: tuple[int, int], of: Callable[[Run], float]
) -> tuple[list[int], list[float], list[tuple[float, float]]]:
    """Return users, medians, and how far the repeats reach below and above."""
    cells = [c for c in arm.cells if (c.input, c.output) == length and c.good]
    found = [figure([of(run) for run in cell.good]) for cell in cells]
    return (
        [c.concurrency for c in cells],
        [f.median for f in found],
        [(f.median - f.low, f.high - f.median) for f in found],
    )


def _bars(reach: list[tuple[float, float]]) -> list[list[float]]:
    return [[low for low, _ in reach], [high for _, high in reach]]


def _throughput(axes: Axes, arm: Arm, length: tuple[int, int], style: dict[str, Any]) -> None:
    users, x, x_reach = _points(arm, length, lambda run: run.user_tokens_per_s)
    _, y, y_reach = _points(arm, length, lambda run: run.tokens_per_s)
    axes.errorbar(x, y, xerr=_bars(x_reach), yerr=_bars(y_reach), capsize=2, **style)
    for count, at, height in zip(users, x, y, strict=True):
        axes.annotate(str(count), (at, height), textcoords="offset points", xytext=(5, 5), fontsize=8)
    axes.set_xlabel("output tokens per second of each user (number at a point: users)")
    axes.set_ylabel("output tokens per second in all")


def _ttft(axes: Axes, arm: Arm, length: tuple[int, int], style: dict[str, Any]) -> None:
    users, y, reach = _points(arm, length, lambda run: run.ttft_ms.median)
    axes.errorbar(users, y, yerr=_bars(reach), capsize=2, **style)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("users at the same time")
    axes.set_ylabel("time to first token, ms (median)")
