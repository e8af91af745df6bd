"""Colours, axes and figures that all plots share."""

from __future__ import annotations

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from refsgd.algorithms import CATALOGUE, COMPARED
from refsgd.trace import Computed

#: Okabe and Ito's palette, with a purple in place of the yellow
BLACK, BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, PURPLE = PALETTE = (
    "#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7B4173")
COLORS = dict(zip(COMPARED, PALETTE, strict=True))  #: of the algorithms that are compared most often
#: Tol's muted palette, for the others; lines of the same colour differ in style
MORE = ("#332288", "#999933", "#882255", "#44AA99", "#8C6D31", "#AA4499", "#117733", "#CC6677", "#637939")
CAUSE_COLORS = {"transfer": SKY, "queueing": ORANGE, "straggling": VERMILION, "slack": GREEN, "partner": PINK,
                "update": "#999999", "codec": "#F0E442", "overhead": PURPLE}
WORK_COLOR = BLUE
FORWARD_COLOR = "#004B75"  #: the forward pass of a gradient that is computed layer by layer
LINES = ("-", "--", "-.", ":")
MARKERS = {"simulator": "o", "processes": "s", "tcp": "^", "mpi": "v", "torch": "<", "replay": "D"}


def color_of(algorithm: str) -> str:
    """The colour of an algorithm, the same in every plot.

    >>> color_of("bsp"), color_of("bsp") == color_of("asp")
    ('#0072B2', False)
    """
    others = [name for name in CATALOGUE if name not in COLORS]
    return COLORS.get(algorithm) or MORE[others.index(algorithm) % len(MORE) if algorithm in others else 0]


def color_of_work(e: Computed) -> str:
    """The colour of a computation."""
    if e.work == "gradient":
        return FORWARD_COLOR if e.piece and e.piece[0] == "forward" else WORK_COLOR
    return CAUSE_COLORS["codec" if e.work == "codec" else "update"]


def axes_or_current(ax: Axes | None) -> Axes:
    """`ax`, or pyplot's current axes, which a notebook shows."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.gca()


def with_labels(ax: Axes, x: str, y: str, grid: bool = True) -> Axes:
    """Label the axes, and add a legend if a line has a label."""
    ax.set(xlabel=x, ylabel=y)
    if grid:
        ax.grid(alpha=0.3)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize="small")
    return ax


def figure_of(width: float, height: float) -> Figure:
    """An empty figure in the style of all."""
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        return Figure(figsize=(width, height), layout="constrained")
