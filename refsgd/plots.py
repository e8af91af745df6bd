"""Pictures, in colours that a colour-blind reader can tell apart; every function takes `ax` and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from refsgd.algorithms import CATALOGUE
from refsgd.comparison import Comparison
from refsgd.result import Result
from refsgd.sweep import Sweep
from refsgd.trace import CAUSES, Trace

#: Okabe and Ito's palette; an algorithm has the same colour everywhere.
COLORS = {"sequential": "#000000", "bsp": "#0072B2", "asp": "#D55E00", "ssp": "#009E73", "easgd": "#CC79A7",
          "allreduce": "#E69F00", "gosgd": "#56B4E9", "adpsgd": "#7B4173"}
MORE = ("#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7B4173", "#637939", "#5254A3", "#BD9E39")
CAUSE_COLORS = {"transfer": "#56B4E9", "queueing": "#E69F00", "straggling": "#D55E00", "slack": "#009E73",
                "partner": "#CC79A7", "update": "#999999"}
WORK_COLOR = "#0072B2"
LINES = ("-", "--", "-.", ":")


def color_of(algorithm: str) -> str:
    """The colour of an algorithm, the same in every picture."""
    names = list(CATALOGUE)
    return COLORS.get(algorithm) or MORE[names.index(algorithm) % len(MORE) if algorithm in names else 0]


def _figure(width: float, height: float) -> Figure:
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the format follows from the name."""
    figure.savefig(path, dpi=150)


def accuracy_against_time(results: Mapping[str, Result], ax: Axes) -> Axes:
    """Test accuracy (or loss, where there is none) against seconds, a line per result."""
    for i, (name, result) in enumerate(results.items()):
        has_accuracy = bool(result.accuracy)
        times = [h[0] for h in result.history]
        values = [100 * h[4] if has_accuracy else h[3] for h in result.history]
        ax.plot(times, values, LINES[i % 4], color=color_of(result.algorithm), label=name, marker="o", markersize=2.5)
        ax.set_ylabel("test accuracy, %" if has_accuracy else "loss")
    ax.set_xlabel("seconds")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)
    return ax


def idle_by_cause(results: Mapping[str, Result], ax: Axes) -> Axes:
    """Share of the time in which a worker computes no gradient, stacked by cause."""
    names = list(results)
    left = [0.0] * len(names)
    for cause in CAUSES:
        shares = [100 * r.measured["idle_by_cause"].get(cause, 0.0) for r in results.values()]
        if max(shares, default=0.0) > 0.05:
            ax.barh(names, shares, left=left, color=CAUSE_COLORS[cause], label=cause)
        left = [a + b for a, b in zip(left, shares)]
    for y, total in enumerate(left):
        ax.text(total + 0.5, y, f"{total:.1f} %", va="center", fontsize=8)
    ax.set_xlim(0, max([*left, 1.0]) * 1.25)
    ax.invert_yaxis()
    ax.set_xlabel("idle share of a worker's time, %")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=8)
    return ax


def staleness_histogram(results: Mapping[str, Result], ax: Axes) -> Axes:
    """How many updates a gradient missed, as shares, a step line per result."""
    largest = 1
    for i, (name, result) in enumerate(results.items()):
        counts = {int(k): v for k, v in result.measured["staleness"]["histogram"].items()}
        total = sum(counts.values())
        if not total:
            continue
        top = max(counts)
        largest = max(largest, top)
        heights = [100 * counts.get(k, 0) / total for k in range(top + 1)]
        ax.stairs(heights, [k - 0.5 for k in range(top + 2)], color=color_of(result.algorithm), label=name,
                  linestyle=LINES[i % 4], linewidth=1.6)
    ax.set_xlim(-0.6, min(largest, 25) + 0.6)
    ax.set_xlabel("staleness, updates")
    ax.set_ylabel("gradients, %")
    ax.legend(fontsize=8)
    return ax


def timeline(trace: Trace, ax: Axes, start: float = 0.0, end: float | None = None, lane: int = 0,
             nodes: Sequence[str] | None = None) -> Axes:
    """Computing (dark) and waiting (light) of each node between two times, messages as thin lines.

    Lanes go downwards from `lane`; the caller labels them with `nodes`.
    """
    nodes = list(nodes if nodes is not None else trace.nodes)
    end = trace.seconds if end is None else end
    place = {node: lane + i for i, node in enumerate(nodes)}
    for e in trace.events:
        if e.node not in place:
            continue
        if e.kind == "compute" and e.time > start and e.data["start"] < end:
            color = WORK_COLOR if e.data["work"] == "gradient" else CAUSE_COLORS["update"]
            a, b = max(start, e.data["start"]), min(end, e.time)
            ax.broken_barh([(a - start, b - a)], (place[e.node] - 0.35, 0.7), color=color, linewidth=0.3, edgecolor="white")
        elif e.kind == "receive" and e.program == 0 and e.time > start and e.data["since"] < min(end, e.time):
            a, b = max(start, e.data["since"]), min(end, e.time)
            if e.node.startswith("server"):
                continue
            ax.broken_barh([(a - start, b - a)], (place[e.node] - 0.35, 0.7), color="#F5C99B", linewidth=0)
    for t in trace.transits:
        if t.src in place and t.to in place and t.sent >= start and t.received <= end:
            ax.plot([t.sent - start, t.received - start], [place[t.src], place[t.to]], color="#555555", linewidth=0.4, alpha=0.6)
    return ax


def _timelines(results: Mapping[str, Result], ax: Axes, iterations: int = 6) -> Axes:
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
    ax.invert_yaxis()
    ax.set_xlim(0, window)
    ax.set_xlabel("seconds   (blue: gradient, grey: update, orange: waiting, lines: messages)")
    return ax


def comparison(found: Comparison) -> Figure:
    """Accuracy against time, idleness by cause, staleness, and a timeline, of what was measured."""
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


def run(result: Result) -> Figure:
    """The same panels for one result."""
    figure = _figure(11, 6)
    grid = figure.add_gridspec(2, 3)
    results = {result.algorithm: result}
    accuracy_against_time(results, figure.add_subplot(grid[0, 0]))
    idle_by_cause(results, figure.add_subplot(grid[0, 1]))
    staleness_histogram(results, figure.add_subplot(grid[0, 2]))
    _timelines(results, figure.add_subplot(grid[1, :]), 8)
    return figure




def sweep(found: Sweep, ax: Axes) -> Axes:
    """Curves of several algorithms over one quantity; crossings are marked."""
    for i, (name, points) in enumerate(found.curves.items()):
        known = [(x, y) for x, y in zip(found.values, points) if y is not None]
        if known:
            ax.plot(*zip(*known), LINES[i % 4], color=color_of(name), label=name, linewidth=1.6)
    for a, b, x in found.crossings:
        pairs = [(p, q) for p, q in zip(found.values, found.curves[a]) if q is not None]
        y = float(np.interp(x, [p for p, _ in pairs], [q for _, q in pairs]))
        ax.plot([x], [y], "o", color="none", markeredgecolor="#333333", markersize=8)
        ax.annotate(f"{a} / {b} at {x:.3g}", (x, y), textcoords="offset points", xytext=(6, -10), fontsize=7)
    if found.values[0] > 0 and found.values[-1] / found.values[0] > 50:
        ax.set_xscale("log")
    ax.set_xlabel(found.quantity)
    ax.set_ylabel(f"{found.figure.replace('_', ' ')}, {found.unit}")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)
    return ax


def sweep_figure(found: Sweep) -> Figure:
    """One panel with `sweep`."""
    figure = _figure(7, 4.5)
    sweep(found, figure.add_subplot())
    return figure
