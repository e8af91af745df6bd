"""Figures of several panels, as the command line writes them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from refsgd.cluster.units import counted
from refsgd.display.plots import runs
from refsgd.display.plots.colors import LINES, color_of, figure_of, with_labels
from refsgd.display.plots.resources import What, resources
from refsgd.display.plots.traces import MESSAGE_COLOR, by_host, causes_key, causes_of, timeline
from refsgd.display.races import POINTS, heading, short, times
from refsgd.experiment.race.standing import abridged
from refsgd.trace.waiting import waits

if TYPE_CHECKING:  # these import this package
    from refsgd.experiment.compare import Comparison
    from refsgd.experiment.convergence import Approach
    from refsgd.experiment.race.entries import Race
    from refsgd.experiment.result import Result
    from refsgd.experiment.sweep import Sweep

#: the panels of a run that was watched
WATCHED: dict[What, str] = {"processor": "Processors", "growth": "Memory; dotted: predicted",
                            "messages": "Messages", "sent": "Bytes sent", "received": "Bytes received"}
WIDE = 110  #: characters that fit on a line above the panels
LABELLED = 12  #: most algorithms with a band and a name
STYLES = (":", "--")  #: of the reference lines: linear speed-up, optimal order


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's suffix."""
    figure.savefig(path, dpi=150)


def _timelines(results: Mapping[str, Result], ax: Axes, iterations: int, links: int = 0) -> set[str]:
    """Draw the first iterations of each result, or those around a slack wait; return the causes drawn."""
    traces = {name: r.trace for name, r in results.items() if r.trace is not None and r.measured["seconds"]}
    if not traces:
        ax.set_axis_off()
        return set()
    window = iterations * max(results[name].measured["seconds_per_iteration"] for name in traces)
    held = [w for trace in traces.values() for w in waits(trace)
            if w.cause == "slack" and w.end - w.start > 0.02 * window and w.worker in list(trace.nodes)[:12]]
    first = min(held, key=lambda w: w.end, default=None)
    start = max(0.0, first.start - 0.5 * window) if first and first.end > window else 0.0
    lane, labels, drawn = 0.0, {}, set[str]()
    short = [name.split()[0] for name in traces]
    for name, trace in traces.items():
        of = name.split()[0] if short.count(name.split()[0]) == 1 else name
        nodes = by_host(trace, trace.nodes)[:12]
        timeline(trace, ax, start, start + window, lane, nodes, causes=True, links=links)
        drawn |= causes_of(trace, start, start + window, nodes)
        labels.update({row: f"{of + ' ' if len(traces) > 1 else ''}{label.get_text()}"
                       for row, label in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)})
        lane = max(labels) + 2
    ax.set_yticks(list(labels), list(labels.values()))
    titled(ax, f"{'Iterations around a slack wait' if start else 'The first iterations'}: "
                f"{', '.join(traces)}")
    return drawn


def titled(ax: Axes, title: str, legend: bool = False) -> None:
    """Set a panel's title and remove its legend, unless it stays: others stand below all panels."""
    ax.set_title(title, loc="left")
    if not legend and (found := ax.get_legend()):
        found.remove()


def _key(figure: Figure, results: Mapping[str, Result], timelines: Collection[str]) -> None:
    """Add a legend below all panels, with the causes that occur in the bars or timelines."""
    barred = {cause for r in results.values() for cause, share in r.measured["idle_by_cause"].items()
              if share > 0.0005}
    handles: list[Artist] = [
        *causes_key(barred.union(timelines)),
        Line2D([], [], color="black", linewidth=0, marker="|", markersize=10, markeredgewidth=1.6,
               label="formula"),
        Line2D([], [], color=MESSAGE_COLOR, linewidth=0.8, label="message")]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)


def comparison(found: Comparison) -> Figure:
    """Causes of waiting, iteration times, timelines of at most three algorithms; legible at 800 pixels."""
    results = found.results
    parallel = {name: r for name, r in results.items() if r.workers > 1} or results
    chosen = dict(list(parallel.items())[:3])
    lanes = sum(min(len(r.trace.nodes), 12) + 1 for r in chosen.values() if r.trace is not None)
    heights = [0.6 + 0.26 * max(len(results), 4), 0.5 + 0.17 * max(lanes, 6)]
    figure = figure_of(8, sum(heights) + 1.5)
    grid = figure.add_gridspec(2, 2, height_ratios=heights)
    idle, times, below = (figure.add_subplot(grid[at]) for at in ((0, 0), (0, 1), (1, slice(None))))
    titled(runs.idle_by_cause(results, idle), "Workers wait: how long, and why")
    titled(runs.iteration_times(results, times), "What an iteration takes")
    causes = _timelines(chosen, below, 4)
    where = "Simulated" if found.runtime == "simulator" else "Measured on OS processes"
    figure.suptitle(fill(f"{where}: {found.machine}", WIDE), fontsize=9)
    _key(figure, results, causes)
    return figure


def run(result: Result) -> Figure:
    """Accuracy, waiting, staleness and the first iterations of one result."""
    watched = "resources" in result.measured
    figure = figure_of(9, 11.6 if watched else 6.6)
    grid = figure.add_gridspec(4 if watched else 2, 3)
    results = {result.algorithm: result}
    learning, idle, ages, below = (figure.add_subplot(grid[at])
                                   for at in ((0, 0), (0, 1), (0, 2), (1, slice(None))))
    titled(runs.accuracy_against_time(results, learning), "Learning")
    titled(runs.idle_by_cause(results, idle), "Why workers wait")
    titled(runs.staleness_histogram(results, ages), "Age of the gradients")
    causes = _timelines(results, below, 8, links=12)
    if (crowded := 0.17 * (below.get_ylim()[0] - 15)) > 0:  # many rows of links
        figure.set_figheight(figure.get_figheight() + crowded)
        grid.set_height_ratios([3.2, 3.2 + crowded, 2.5, 2.5][:grid.nrows])
    figure.suptitle(fill(f"{result.label}: {counted(result.workers, 'worker')}, "
                         f"{result.runtime}; {result.machine}", WIDE), fontsize=10)
    _key(figure, results, causes)
    if watched:
        panels = [figure.add_subplot(grid[2 + k // 3, k % 3]) for k in range(len(WATCHED) + 1)]
        for (what, title), ax in zip(WATCHED.items(), panels):
            titled(resources(result, ax, what), title)
        panels[-1].set_axis_off()
        lines, names = max((ax.get_legend_handles_labels() for ax in panels), key=lambda found: len(found[0]))
        panels[-1].legend(lines, names, loc="center", ncols=1 + len(names) // 9, frameon=False)
    return figure


def approach_figure(found: Approach, result: Result) -> Figure:
    """Expected loss on a quadratic as a line and a simulated run as points, against updates and seconds."""
    figure, updates, times = figure_of(9, 4), result.measured["updates"], result.history
    marked, expected = updates / max(1, times[-1][1]), found.expected(int(updates))
    for ax, scale, label, points in zip(
            figure.subplots(1, 2, sharey=True), (1.0, found.pace), ("updates", "seconds"),
            ([marked * row[1] for row in times], [row[0] for row in times])):
        ax.plot(points, [row[3] for row in times], "o", markersize=3, label="simulated run",
                color=color_of(result.algorithm))
        if expected and scale:
            ax.plot([scale * k for k in range(len(expected))], expected, color="black", label="expected")
        ax.axhline(found.target, color="#999999", linestyle=":", label="target")
        ax.set_yscale("log")
        with_labels(ax, label, "loss" if label == "updates" else "")
    return figure


def sweep_figure(found: Sweep) -> Figure:
    """A figure with the single panel `refsgd.display.plots.sweep`."""
    figure = figure_of(7, 4.5)
    runs.sweep(found, figure.add_subplot())
    return figure


def race_curves(race: Race, ax: Axes) -> Axes:
    """Median curves with bands from the first to the last decile, the target, the reference lines, and a
    diamond at each predicted time."""
    edge = times(race.rows[:LABELLED])[-1]
    for i, row in enumerate(race.rows[:LABELLED]):
        at = np.linspace(0, min(edge, max(heat.points[-1].seconds for heat in row.heats)), POINTS)
        low, median, high = row.band(at.tolist())
        color = color_of(row.label.split()[0])
        ax.fill_between(at, low, high, color=color, alpha=0.12, linewidth=0)
        ax.plot(at, median, color=color, linestyle=LINES[i // 8 % len(LINES)], linewidth=1.3)
        if race.trained is None and math.isfinite(row.predicted):
            ax.plot(row.predicted, race.target.value, "D", color=color, markersize=5, zorder=3)
    ax.axhline(race.target.value, color="black", linewidth=0.8)
    for style, (name, value) in zip(STYLES, race.references.items()):
        ax.axvline(value, color="#555555", linestyle=style, linewidth=1, label=name)
    ax.set_yscale("log" if race.target.metric == "loss" else "linear")
    ax.set(xlabel="seconds", ylabel=race.target.metric, xlim=(0, edge))
    ax.grid(alpha=0.3)
    if race.references:
        ax.legend(fontsize="small", frameon=False)
    return ax


def race_bars(race: Race, ax: Axes) -> Axes:
    """Median times with intervals, predicted ones as diamonds, letters; an open bar never arrived."""
    rows, edge = race.rows[:LABELLED], 1.25 * times(race.rows[:LABELLED])[-1]
    for y, row in enumerate(rows):
        color, never = color_of(row.label.split()[0]), not math.isfinite(row.seconds)
        ax.barh(y, edge if never else row.seconds, 0.6, color="none" if never else color, edgecolor=color,
                alpha=1 if never else 0.75)
        low, high, _ = row.interval
        if not never:
            ax.plot([low, min(high, edge)], [y, y], color="black", linewidth=1.2)
        if race.trained is None and row.predicted < edge:
            ax.plot(row.predicted, y, "D", color="white", markeredgecolor="black", markersize=5)
        text = "never" if never else f"{abridged(race.letters[row.label])}   rate {short(row.rate)}"
        right = 0.0 if never else max(row.seconds, high if math.isfinite(high) else 0.0, row.predicted)
        ax.text((0.0 if right != right else right) + 0.02 * edge, y, text, va="center", fontsize=7)
    ax.set_yticks(range(len(rows)), [row.label for row in rows])
    ax.set(xlabel="seconds to the target", xlim=(0, edge), ylim=(len(rows) - 0.4, -0.6))
    ax.grid(alpha=0.3, axis="x")
    return ax


def race_figure(race: Race) -> Figure:
    """Curves on the left, arrivals on the right."""
    some = f", the first {LABELLED} of {len(race.rows)}" if len(race.rows) > LABELLED else ""
    figure = figure_of(10, 1.8 + max(3.0, 0.32 * min(len(race.rows), LABELLED)))
    left, right = figure.subplots(1, 2)
    titled(race_curves(race, left), "Each at its own rate", legend=True)
    titled(race_bars(race, right), f"Who arrives when{some} (diamond: predicted)")
    figure.suptitle(fill(heading(race), WIDE), fontsize=9)
    return figure
