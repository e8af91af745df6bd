"""Plot of one worker's exchange: what it computes, sends and receives for each layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.font_manager import FontProperties

from refsgd.display.plots.colors import axes_or_current, color_of_work
from refsgd.trace import Computed, Sent, Trace

MESSAGE_COLOR = "#555555"  #: messages that belong to no part, such as those of a ring
SIZE = "x-small"  #: of the letters in a bar
Bar = tuple[float, float, Sequence[str], str]  #: start, end, labels, the longest first, colour


def layers(trace: Trace, ax: Axes | None = None, start: float = 0.0, end: float | None = None,
           node: str | None = None) -> Axes:
    """Three rows of one worker, by default the first: pieces of its gradients, messages out, messages in.

    Each bar has the number of its layer or part, and its colour: dark for the first, light for the last.
    """
    ax = axes_or_current(ax)
    node = trace.workers[0] if node is None else node
    end = trace.seconds if end is None else end
    rows = {"computes": _computed(trace, node), "sends": _served(trace, node, True),
            "receives": _served(trace, node, False)}
    ax.set(xlim=(0, end - start), ylim=(2.5, -0.5), yticks=range(3), yticklabels=list(rows),
           xlabel="seconds" if not start else f"seconds after {start:.4g}")
    ax.set_title(node, loc="left", fontsize="medium")
    for row, found in enumerate(rows.values()):
        for a, b, labels, color in found:
            a, b = max(a, start) - start, min(b, end) - start
            if b > a:
                ax.broken_barh([(a, b - a)], (row - 0.35, 0.7), color=color, linewidth=0.3, edgecolor="white")
                write(ax, a, b, row, labels, color)
    return ax


def _computed(trace: Trace, node: str) -> list[Bar]:
    """The computations of a node, with the pieces of its gradients."""
    found = [e for e in trace.of(Computed, node) if e.time > e.start]
    pieces = [e.piece for e in found if e.piece]
    colors, after = colors_of(1 + max((piece[1] for piece in pieces), default=0)), iter(pieces[1:])
    bars: list[Bar] = []
    for e in found:
        next_piece = next(after, None) if e.piece else None
        # a forward pass through all layers at once
        at_once = next_piece and e.what == "forward" and next_piece[0] == "backward"
        bars.append((e.start, e.time, [e.what], color_of_work(e)) if e.piece is None or at_once else
                    (e.start, e.time, [e.what, str(e.piece[1])], colors[e.piece[1]]))
    return bars


def _served(trace: Trace, node: str, out: bool) -> list[Bar]:
    """When a node's outgoing or incoming link carries each message."""
    part, colors = trace.parts, colors_of(1 + max(trace.parts.values(), default=0))
    sent = {(e.node, e.to, e.number): e.start for e in trace.of(Sent)}
    bars: list[Bar] = []
    for t in trace.transits:
        if node != (t.src if out else t.to) or t.src == t.to:
            continue
        seconds = t.nbytes / trace.wire(t.src, t.to)[1]
        begin = sent[t.src, t.to, t.number] if out else t.arrival - seconds
        number = part.get(t.to if out else t.src)
        bars.append((begin, begin + seconds, [t.message], MESSAGE_COLOR) if number is None else
                    (begin, begin + seconds, [f"{t.message} {number}", str(number)], colors[number]))
    return bars


def colors_of(count: int) -> list[str]:
    """Colours from dark to light."""
    return [to_hex(colormaps["viridis"](0.1 + 0.8 * k / max(1, count - 1))) for k in range(count)]


def write(ax: Axes, a: float, b: float, row: float, labels: Sequence[str], color: str) -> None:
    """Write the first label that fits into the bar from a to b, if any does."""
    low, high = ax.get_xlim()
    pixels = ax.get_window_extent().width * (b - a) / (high - low)
    points = FontProperties(size=SIZE).get_size_in_points()
    def wide(label: str) -> float:
        return (0.62 * len(label) + 0.3) * points * ax.figure.dpi / 72
    label = next((label for label in labels if wide(label) <= pixels), None)
    if label is not None:
        light = float(np.dot((0.21, 0.72, 0.07), to_rgb(color))) > 0.45
        ax.text((a + b) / 2, row, label, ha="center", va="center", fontsize=SIZE, clip_on=True,
                color="black" if light else "white")
