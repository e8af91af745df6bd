"""Several panels on one page, as the command line writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from refsgd.plots.drawn import DrawnComparison, DrawnRun, DrawnSweep
from refsgd.plots.runs import accuracy_against_time, idle_by_cause, resources, staleness_histogram
from refsgd.plots.runs import sweep as draw_sweep
from refsgd.plots.traces import timeline


def _figure(width: float, height: float) -> Figure:
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the format follows from the name.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    path : Path
        Ends in .png, .pdf or .svg.
    """
    figure.savefig(path, dpi=150)


def _timelines(results: Mapping[str, DrawnRun], ax: Axes, iterations: int = 6) -> Axes:
    """The first iterations of every result under each other on one time axis."""
    traces = {name: r.trace for name, r in results.items() if r.trace is not None and r.measured["seconds"]}
    if not traces:
        ax.set_axis_off()
        return ax
    window = iterations * max(results[name].measured["seconds_per_iteration"] for name in traces)
    lane, labels = 0, {}
    for name, trace in traces.items():
        nodes = list(trace.nodes)[:12]
        timeline(trace, ax, 0.0, window, lane, nodes)
        labels.update({lane + i: f"{name.split()[0]} {node}" for i, node in enumerate(nodes)})
        lane += len(nodes) + 1
    ax.set_yticks(list(labels), list(labels.values()), fontsize=7)
    ax.set_xlabel("seconds   (blue: gradient, grey: update, orange: waiting, lines: messages)")
    return ax


def comparison(found: DrawnComparison) -> Figure:
    """Accuracy against time, idleness by cause, staleness, and a timeline, of what was measured.

    Parameters
    ----------
    found : Comparison

    Returns
    -------
    matplotlib.figure.Figure
    """
    results = found.results
    lanes = sum(len(r.trace.nodes) + 1 for r in results.values() if r.trace is not None)
    figure = _figure(13 if found.hard is None else 17, 4.2 + 0.19 * max(lanes, 8))
    columns = 3 if found.hard is None else 4
    grid = figure.add_gridspec(2, columns, height_ratios=[3.6, 0.19 * max(lanes, 8)])
    panels = [figure.add_subplot(grid[0, i]) for i in range(columns)]
    accuracy_against_time(results, panels[0]).set_title("accuracy against time", loc="left", fontsize=10)
    idle_by_cause(results, panels[1]).set_title("why workers wait", loc="left", fontsize=10)
    if found.hard is not None:
        accuracy_against_time(found.hard.results, panels[3])
        panels[3].set_title("8 workers, shards by label (simulated)", loc="left", fontsize=10)
    parallel = {name: r for name, r in results.items() if r.workers > 1}
    staleness_histogram(parallel, panels[2]).set_title("how old gradients are", loc="left", fontsize=10)
    bottom = _timelines(results, figure.add_subplot(grid[1, :]))
    bottom.set_title("the first iterations", loc="left", fontsize=10)
    where = "simulated" if found.runtime == "simulator" else f"measured on OS processes ({found.runtime})"
    figure.suptitle(f"{where};  {found.machine};  seed {found.seed}", fontsize=10)
    return figure


def run(result: DrawnRun) -> Figure:
    """The same panels for one result.

    Parameters
    ----------
    result : Result

    Returns
    -------
    matplotlib.figure.Figure
    """
    watched = "resources" in result.measured
    figure = _figure(11, 9 if watched else 6)
    grid = figure.add_gridspec(3 if watched else 2, 3)
    results = {result.algorithm: result}
    accuracy_against_time(results, figure.add_subplot(grid[0, 0]))
    idle_by_cause(results, figure.add_subplot(grid[0, 1]))
    staleness_histogram(results, figure.add_subplot(grid[0, 2]))
    _timelines(results, figure.add_subplot(grid[1, :]), 8)
    if watched:
        resources(result, figure.add_subplot(grid[2, :2]))
        resources(result, figure.add_subplot(grid[2, 2]), "memory")
    return figure


def sweep_figure(found: DrawnSweep) -> Figure:
    """One panel with `refsgd.plots.sweep`.

    Parameters
    ----------
    found : Sweep

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = _figure(7, 4.5)
    draw_sweep(found, figure.add_subplot())
    return figure
