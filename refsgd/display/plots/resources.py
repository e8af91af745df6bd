"""What processes use over time, by process and by strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from refsgd.display.plots.colors import BLUE, LINES, VERMILION, axes_or_current, figure_of
from refsgd.trace.resources import FIRST, column, per_second

if TYPE_CHECKING:  # it imports this package
    from refsgd.experiment.result import Result

What = Literal["processor", "memory", "growth", "written", "reads", "writes", "sent", "received", "messages"]


class Series(NamedTuple):
    """One series of each process: its column, whether that is drawn by second, its scale, its label."""

    column: str
    rate: bool
    scale: float
    label: str


SERIES: dict[What, Series] = {
    "processor": Series("cpu", False, 1.0, "cores"),
    "memory": Series("rss", False, 1e-6, "resident memory, MB"),
    "growth": Series("grown", False, 1e-6, "growth of memory, MB"),
    "written": Series("written", True, 1e-6, "written, MB/s"),
    "reads": Series("reads", True, 1.0, "reads, 1/s"),
    "writes": Series("writes", True, 1.0, "writes, 1/s"),
    "sent": Series("bytes_sent", True, 1e-6, "sent, MB/s"),
    "received": Series("bytes_received", True, 1e-6, "received, MB/s"),
    "messages": Series("messages_sent", True, 1.0, "messages sent, 1/s")}
FIVE: tuple[What, ...] = ("processor", "growth", "sent", "received", "messages")


def used_by(result: Result) -> Mapping[str, Any]:
    """The record of each process; raises ValueError for a run that was not watched."""
    if "resources" not in result.measured:
        raise ValueError("the run was not watched; expected one with monitor=True (--monitor)")
    return result.measured["resources"]  # type: ignore[no-any-return]


def points(used: Mapping[str, Any], what: What) -> tuple[list[float], list[float]]:
    """Times and values of a series of one process; none where its runtime has no such column."""
    name, rate, scale, _ = SERIES[what]
    if name not in used.get("columns", FIRST):
        return [], []
    values = (per_second if rate else column)(used, name)
    return column(used, "time"), [scale * value for value in values]


def resources(result: Result, ax: Axes | None = None, what: What = "processor") -> Axes:
    """Resource use of each process against the seconds of the timeline; a dotted line at the growth that is
    predicted."""
    ax = axes_or_current(ax)
    for i, (node, used) in enumerate(used_by(result).items()):
        (times, values), color = points(used, what), f"C{i % 10}"
        if times and not (SERIES[what].rate and not any(values)):  # the launcher sends nothing
            ax.plot(times, values, LINES[i % 4], label=node, lw=1, color=color)
        if what == "growth" and used.get("predicted") is not None:
            ax.axhline(1e-6 * used["predicted"], color=color, ls=":", lw=0.8)
    ax.set(xlabel="seconds", ylabel=SERIES[what].label)
    ax.set_ylim(bottom=0)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize="small", ncols=2)
    return ax


def _mean(each: Sequence[tuple[list[float], list[float]]]) -> tuple[list[float], list[float]]:
    """The mean of series that were sampled together, over those that have not ended."""
    times = max((times for times, _ in each), key=len, default=[])
    return times, [float(np.mean([v for v in row if v is not None]))
                   for row in zip_longest(*(values for _, values in each))]


def resources_figure(results: Mapping[str, Result]) -> Figure:
    """Five series of each strategy, a row for each: the mean of its workers and that of its servers; dotted:
    the memory that is predicted."""
    figure = figure_of(10, 0.9 + 1.25 * len(results))
    grid = figure.subplots(len(results), len(FIVE), squeeze=False, sharex="row", sharey="col")
    shown = {"worker": ("workers, mean", BLUE), "server": ("servers, mean", VERMILION)}
    for (name, result), row in zip(results.items(), grid, strict=True):
        for what, ax in zip(FIVE, row, strict=True):
            for role, (_, color) in shown.items():
                mine = [used for used in used_by(result).values() if used.get("role") == role]
                found = [each for used in mine if (each := points(used, what))[0]]
                ax.plot(*_mean(found), color=color, lw=1)
                most = max((used["predicted"] or 0 for used in mine), default=0)
                if what == "growth" and most:
                    ax.axhline(1e-6 * most, color=color, ls=":", lw=1)
            ax.tick_params(labelsize=7)
        row[0].set_title(name, loc="left", fontsize=9)
    for what, top, low in zip(FIVE, grid[0], grid[-1], strict=True):
        low.set(xlabel="seconds")
        top.annotate(SERIES[what].label, (0.5, 1), (0, 18), xycoords="axes fraction", ha="center",
                     textcoords="offset points", fontsize=9, fontweight="bold")
        top.set_ylim(bottom=0)
    key = [*((label, color, "-") for label, color in shown.values()), ("predicted peak", "black", ":")]
    figure.legend(handles=[Line2D([], [], color=color, ls=line, lw=1, label=label)
                           for label, color, line in key], loc="outside lower center", ncols=3, frameon=False)
    return figure
