"""Plots that compare results, given by their names in the legend, and formulas with runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

from refsgd.cluster.prices import mean_gradient
from refsgd.display.plots.colors import CAUSE_COLORS, LINES, MARKERS, axes_or_current, color_of, with_labels
from refsgd.trace import CAUSES
from refsgd.trace.metrics import METRICS

BELOW = 36  #: points from an axis to a legend below its label

if TYPE_CHECKING:  # these import this package
    from refsgd.experiment.result import Result
    from refsgd.experiment.sweep import Sweep


def _styled(results: Mapping[str, Result]) -> Iterator[tuple[Result, dict[str, Any]]]:
    """Each result and the style of its line."""
    for i, (name, result) in enumerate(results.items()):
        yield result, {"label": name, "color": color_of(result.algorithm), "linestyle": LINES[i % 4]}


def _curves(results: Mapping[str, Result], ax: Axes | None, column: int, xlabel: str) -> Axes:
    """Test accuracy (or loss, if there is none) against a column of the history, a line per result."""
    ax, ylabel = axes_or_current(ax), ""
    for result, style in _styled(results):
        values = [100 * h[4] if result.accuracy else h[3] for h in result.history]
        ax.plot([h[column] for h in result.history], values, marker="o", markersize=2.5, **style)
        sample = result.problem.get("samples", {}).get("test")
        ylabel = "test accuracy, %" + (f" ({sample})" if sample else "") if result.accuracy else "loss"
    return with_labels(ax, xlabel, ylabel)


def accuracy_against_time(results: Mapping[str, Result], ax: Axes | None = None) -> Axes:
    """Test accuracy [%] (or loss, if there is none) against seconds, a line per result."""
    return _curves(results, ax, 0, "seconds")


def accuracy_against_updates(results: Mapping[str, Result], ax: Axes | None = None) -> Axes:
    """Test accuracy [%] (or loss, if there is none) against updates, however long they take."""
    return _curves(results, ax, 1, "updates")


def idle_by_cause(results: Mapping[str, Result], ax: Axes | None = None) -> Axes:
    """Share of time [%] without computing a gradient, by cause: a bar per result, a tick for its formula."""
    ax = axes_or_current(ax)
    left = [0.0] * len(results)
    for cause in CAUSES:
        shares = [100 * r.measured["idle_by_cause"].get(cause, 0.0) for r in results.values()]
        if max(shares, default=0.0) > 0.05:
            ax.barh(list(results), shares, left=left, color=CAUSE_COLORS[cause], label=cause)
        left = [a + b for a, b in zip(left, shares)]
    _bars_of(results, ax, left, "idle_ratio", 100.0, "{:.0f} %")
    ax.set_xlabel(f"{METRICS['idle_ratio'].label}, %")
    if ax.get_legend_handles_labels()[0]:  # below the bars, which it would cover; axes differ in height
        below = ScaledTranslation(0, -BELOW / 72, ax.figure.dpi_scale_trans)
        ax.legend(fontsize="small", ncols=3, loc="upper center", bbox_to_anchor=(0.5, 0), frameon=False,
                  bbox_transform=ax.transAxes + below)
    return ax


def _bars_of(results: Mapping[str, Result], ax: Axes, lengths: Sequence[float], figure: str, scale: float,
             pattern: str) -> None:
    """Label horizontal bars with names and values, and draw a tick at the value of each formula."""
    values, label = [_predicted(result, figure) for result in results.values()], "formula"
    ends = [max(length, scale * (value or 0.0)) for length, value in zip(lengths, values, strict=True)]
    most = max([*ends, 1e-9])
    for y, (far, length, value) in enumerate(zip(ends, lengths, values, strict=True)):
        if value is not None:
            ax.plot([scale * value] * 2, [y - 0.45, y + 0.45], color="black", linewidth=1.6, label=label)
            label = "_formula"
        ax.text(far + 0.02 * most, y, pattern.format(length), va="center", fontsize="small")
    ax.set_yticks(range(len(results)), list(results))
    ax.set(xlim=(0, most * 1.3), ylim=(len(results) - 0.4, -0.6))


def iteration_times(results: Mapping[str, Result], ax: Axes | None = None) -> Axes:
    """Milliseconds per iteration, a bar per result, a tick for its formula."""
    ax = axes_or_current(ax)
    times = [1e3 * r.measured["seconds_per_iteration"] for r in results.values()]
    ax.barh(list(results), times, color="#C4C8CE")  # not the colour of a cause
    _bars_of(results, ax, times, "seconds_per_iteration", 1e3, "{:.1f}")
    ax.set_xlabel("time per iteration, ms")
    return ax


def staleness_histogram(results: Mapping[str, Result], ax: Axes | None = None) -> Axes:
    """Share of gradients [%] by the number of updates that they missed, a step line per result."""
    ax, largest = axes_or_current(ax), 1
    for result, style in _styled(results):
        counts = {int(k): v for k, v in result.measured["staleness_histogram"].items()}
        if total := sum(counts.values()):
            top = max(counts)
            largest = max(largest, top)
            ax.stairs([100 * counts.get(k, 0) / total for k in range(top + 1)],
                      [k - 0.5 for k in range(top + 2)], linewidth=1.6, **style)
    ax.set_xlim(-0.6, min(largest, 25) + 0.6)
    return with_labels(ax, "staleness, updates", "gradients, %", grid=False)


def replica_spread(results: Mapping[str, Result], ax: Axes | None = None) -> Axes:
    """`Trace.replica_spread` against seconds, a line per result that has replicas."""
    ax = axes_or_current(ax)
    for result, style in _styled(results):
        if result.trace is None:
            raise ValueError("plot 'replica_spread' of a result read from JSON, which has no trace; expected "
                             "one that run() or replay() returned")
        if found := [(t, d) for t, d in result.trace.replica_spread if d > 0]:
            ax.plot(*zip(*found), linewidth=1.4, **style)
    ax.set_yscale("log")
    return with_labels(ax, "seconds", "consensus distance")


def _predicted(result: Result, figure: str) -> float | None:
    found: Mapping[str, Any] = result.predicted.get(figure, {})
    return found.get("value")


def throughput_against_workers(results: Iterable[Result], ax: Axes | None = None) -> Axes:
    """Images per second against workers: runs as points, formulas as lines, the ideal in grey."""
    ax = axes_or_current(ax)
    results = sorted(results, key=lambda r: r.workers)
    for i, name in enumerate(dict.fromkeys(r.label for r in results)):
        mine = [r for r in results if r.label == name]
        color = color_of(mine[0].algorithm)
        line = [(r.workers, p) for r in mine if (p := _predicted(r, "images_per_second")) is not None]
        if line:
            ax.plot(*zip(*line), LINES[i % 4], color=color, linewidth=1.2)
        for runtime in dict.fromkeys(r.runtime for r in mine):
            seen = [(r.workers, r.measured["images_per_second"]) for r in mine if r.runtime == runtime]
            ax.plot(*zip(*seen), MARKERS.get(runtime, "o"), color=color, markersize=4.5,
                    label=f"{name}, {runtime}")
    if results and (mean := mean_gradient(results[0].machine)):
        most, each = results[-1].workers, results[0].problem["batch"] / mean
        ax.plot([0, most], [0, most * each], color="#BBBBBB", linewidth=1, zorder=0, label="no waiting")
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    return with_labels(ax, "workers", METRICS["images_per_second"].unit)


def predicted_against_measured(results: Mapping[str, Result], ax: Axes | None = None,
                               figure: str = "seconds_per_iteration") -> Axes:
    """One metric, run against formula; on the grey diagonal they are equal.  Bounds are drawn hollow."""
    known = [name for name, metric in METRICS.items() if metric.of and metric.predicted and not metric.by]
    if figure not in known:
        raise ValueError(f"metric {figure!r}; expected one of {', '.join(known)}")
    ax, seen, metric = axes_or_current(ax), [], METRICS[figure]
    for name, result in results.items():
        value = _predicted(result, figure)
        if value is None:
            continue
        color = color_of(result.algorithm)
        value, measured = metric.scale * value, metric.scale * result.measured[figure]
        seen += [value, measured]
        hollow = result.predicted[figure]["kind"] == "bound"
        ax.plot([value], [measured], MARKERS.get(result.runtime, "o"), color=color, label=name, markersize=6,
                markerfacecolor="none" if hollow else color)
    if seen:
        ends = [min(seen) * 0.95, max(seen) * 1.05]
        ax.plot(ends, ends, color="#BBBBBB", linewidth=1, zorder=0)
    label = " ".join(metric.head.split()) if metric.scale != 1 else metric.label
    return with_labels(ax, f"{label}, predicted", f"{label}, run")


def sweep(found: Sweep, ax: Axes | None = None) -> Axes:
    """The formulas of several algorithms over one quantity, with their crossings."""
    ax = axes_or_current(ax)
    for i, (name, points) in enumerate(found.curves.items()):
        if known := [(x, y) for x, y in zip(found.values, points) if y is not None]:
            ax.plot(*zip(*known), LINES[i % 4], color=color_of(name), label=name, linewidth=1.6)
    for a, b, x in found.crossings:
        pairs = [(p, q) for p, q in zip(found.values, found.curves[a]) if q is not None]
        xs, ys = zip(*pairs)
        y = float(np.interp(x, xs, ys))
        ax.plot([x], [y], "o", color="none", markeredgecolor="#333333", markersize=8)
        ax.annotate(f"{a} / {b} at {x:.3g}", (x, y), textcoords="offset points", xytext=(6, -10),
                    fontsize="x-small")
    if found.values[0] > 0 and found.values[-1] / found.values[0] > 50:
        ax.set_xscale("log")
    return with_labels(ax, found.quantity, f"{METRICS[found.metric].label}, {found.unit}")
