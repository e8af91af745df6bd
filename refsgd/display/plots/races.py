"""A race as a picture: loss against seconds, and who arrives when."""

from __future__ import annotations

import math
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from refsgd.display.plots.colors import LINES, color_of, figure_of
from refsgd.display.plots.figures import WIDE, titled
from refsgd.display.races import POINTS, heading, short, times
from refsgd.experiment.race.standing import abridged

if TYPE_CHECKING:
    from refsgd.experiment.race.entries import Race

LABELLED = 12  #: most algorithms with a band and a name
STYLES = (":", "--")  #: of the reference lines: linear speed-up, optimal order


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
