"""Plots of one run: timeline, one worker's exchange by layer, staleness over time, bytes between nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox

from refsgd.display.plots.colors import CAUSE_COLORS, WORK_COLOR, axes_or_current, color_of_work, with_labels
from refsgd.trace import CAUSES, Computed, Received, Sent, Trace
from refsgd.trace.waiting import waits

WAIT_COLOR = "#F5C99B"
VISIBLE = 1e-3  #: causes with a smaller share of the timeline are narrower than a pixel and have no key
MESSAGE_COLOR = "#555555"  #: messages that belong to no part, and the links that carry them
GAP = 0.4  #: between hosts, and between nodes and links [rows]
SIZE = "x-small"  #: of the letters in a bar
Bar = tuple[float, float, Sequence[str], str]  #: start, end, labels, the longest first, colour


def timeline(trace: Trace, ax: Axes | None = None, start: float = 0.0, end: float | None = None,
             lane: float = 0, nodes: Sequence[str] | None = None, *, causes: bool = False,
             links: int = 12) -> Axes:
    """Computing (dark) and waiting (light) of each node between two times, messages as thin lines.

    The pieces of a gradient that is computed layer by layer are labelled where there is room.  On a machine
    with placed nodes, nodes are grouped by host, and the `links` busiest shared links have a row each: when
    they are busy, and for what share of the time.
    """
    ax = axes_or_current(ax)
    nodes = by_host(trace, trace.nodes if nodes is None else nodes)
    end = trace.seconds if end is None else end
    place = _rows(trace, nodes, lane)

    spans: dict[tuple[str, str, float], list[tuple[float, float]]] = defaultdict(list)

    def bar(node: str, a: float, b: float, color: str, edge: float = 0.0) -> None:
        a, b = max(start, a), min(end, b)
        if node in place and b > a:
            spans[node, color, edge].append((a - start, b - a))

    _seconds(ax, start, end)
    if causes:
        for wait in waits(trace):
            bar(wait.worker, wait.start, wait.end, CAUSE_COLORS[wait.cause])
    for e in trace.events:
        if isinstance(e, Computed):
            bar(e.node, e.start, e.time, color_of_work(e), 0.3)
            if e.piece is not None and e.node in place and start <= e.start and e.time <= end:
                write(ax, e.start - start, e.time - start, place[e.node],
                      [e.what] if e.what == "forward" else [e.what, str(e.piece[1])], color_of_work(e))
        elif isinstance(e, Received) and e.program == 0 and trace.is_worker(e.node) and not causes:
            bar(e.node, e.since, e.time, WAIT_COLOR)
    for (node, color, edge), found in spans.items():
        ax.broken_barh(found, (place[node] - 0.35, 0.7), color=color, linewidth=edge, edgecolor="white")
    for t in trace.transits:
        if t.src != t.to and t.src in place and t.to in place and t.sent >= start and t.received <= end:
            ax.plot([t.sent - start, t.received - start], [place[t.src], place[t.to]], color=MESSAGE_COLOR,
                    linewidth=0.4, alpha=0.6)
    if causes:
        entry = 11 * FontProperties(size="small").get_size_in_points() * ax.figure.dpi / 72  # about its width
        ax.legend(handles=causes_key(causes_of(trace, start, end, nodes)), fontsize="small",
                  ncols=max(2, int(ax.figure.bbox.width / entry)), loc="lower right",
                  bbox_to_anchor=(1.0, 1.0), frameon=False)  # a title stands on the left
    last = max(place.values(), default=lane - 1)
    served = _link_rows(trace, ax, start, end, last + 1 + GAP, links)
    ax.set_yticks([*place.values(), *served.values()], [*nodes, *(trace.shared_links[k] for k in served)])
    ax.set_ylim(max(served.values(), default=last) + 0.5, -0.5)
    if trace.hosts:
        ax.tick_params(axis="y", labelsize=8)
        _brackets(trace, ax, place)
    return ax


def _seconds(ax: Axes, start: float, end: float) -> None:
    """Let the horizontal axis show the time between two moments."""
    ax.set(xlim=(0, end - start), xlabel="seconds" if not start else f"seconds after {start:.4g}")


def by_host(trace: Trace, nodes: Sequence[str]) -> list[str]:
    """The nodes, those of a host together; in the given order if the trace has no hosts."""
    return [node for found in _hosts(trace, nodes).values() for node in found]


def _hosts(trace: Trace, nodes: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        found[trace.hosts.get(node, node)].append(node)
    return found


def _rows(trace: Trace, nodes: Sequence[str], lane: float) -> dict[str, float]:
    """The row of each node, with a gap before and after each host of several nodes."""
    place: dict[str, float] = {}
    apart = False
    for host, found in _hosts(trace, nodes).items():
        lane += GAP * bool(place and (apart or found != [host]))
        apart = found != [host]
        for node in found:
            place[node] = lane
            lane += 1
    return place


def _brackets(trace: Trace, ax: Axes, place: Mapping[str, float]) -> None:
    """Draw the name of each host of several nodes, and a line along its nodes, left of their names."""
    def beside(renderer: Any) -> Bbox:
        x0, y0, x1, y1 = (ax.yaxis.get_tightbbox(renderer) or ax.bbox).extents
        return Bbox.from_extents(x0 - renderer.points_to_pixels(3), y0, x1, y1)

    for host, nodes in _hosts(trace, list(place)).items():
        if nodes != [host]:
            first, last = place[nodes[0]], place[nodes[-1]]
            ax.annotate("", (0, first - 0.35), (0, last + 0.35), (beside, "data"), (beside, "data"),
                        {"arrowstyle": "-", "linewidth": 0.8, "color": MESSAGE_COLOR, "shrinkA": 0,
                         "shrinkB": 0})
            ax.annotate(host, (0, (first + last) / 2), (-4, 0), (beside, "data"), "offset points",
                        ha="right", va="center", fontsize="small")


def _link_rows(trace: Trace, ax: Axes, start: float, end: float, row: float, most: int) -> dict[int, float]:
    """Draw when the shared links are busy, and for what share of the time; return each link's row."""
    until = min(end, trace.seconds)
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for use in trace.links:
        a, b = max(start, use.start), min(until, use.end)
        if use.link in trace.shared_links and b > a:
            spans[use.link].append((a - start, b - a))
    busy = {link: sum(width for _, width in found) for link, found in spans.items()}
    busiest = sorted(busy, key=lambda link: (-busy[link], link))[:most]
    place = {link: row + i for i, link in enumerate(sorted(busiest))}
    for link, at in place.items():
        ax.broken_barh(spans[link], (at - 0.25, 0.5), color=MESSAGE_COLOR, linewidth=0)
        ax.annotate(f"{100 * busy[link] / (until - start):.0f} %", (1, at), (3, 0),
                    ax.get_yaxis_transform(), "offset points", ha="left", va="center", fontsize="small")
    return place


def causes_of(trace: Trace, start: float = 0.0, end: float | None = None,
              nodes: Collection[str] | None = None) -> set[str]:
    """The causes visible in a timeline; ``update`` and ``codec`` also if only servers spend time on them."""
    end, nodes = trace.seconds if end is None else end, trace.nodes if nodes is None else nodes
    shown = dict.fromkeys(CAUSES, 0.0)
    spans = [(wait.cause, wait.worker, wait.start, wait.end) for wait in waits(trace)]
    spans += [("codec" if e.work == "codec" else "update", e.node, e.start, e.time)
              for e in trace.of(Computed) if e.work != "gradient"]
    for cause, node, a, b in spans:
        if node in nodes:
            shown[cause] += max(0.0, min(end, b) - max(start, a))
    return {cause for cause, seconds in shown.items() if seconds > VISIBLE * (end - start)}


def causes_key(causes: Collection[str] = CAUSES) -> list[Patch]:
    """Legend entries for the colours of a timeline."""
    works = ("update", "codec", "overhead")
    waits_for = [Patch(color=CAUSE_COLORS[c], label=c if c in works else f"waits: {c}") for c in CAUSES
                 if c in causes]
    return [Patch(color=WORK_COLOR, label="computing"), *waits_for]


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
    _seconds(ax, start, end)
    ax.set(ylim=(2.5, -0.5), yticks=range(3), yticklabels=list(rows))
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


def staleness_over_time(trace: Trace, ax: Axes | None = None, bins: int = 24) -> Axes:
    """Staleness over time: a histogram per interval as a column, the mean as a line."""
    ax = axes_or_current(ax)
    seen = [(e.time, e.values["version"] - read) for e in trace.marks("update")
            for _, read in e.values.get("reads", ())]
    if not seen:
        raise ValueError("no update of this trace says what it read; expected marks with reads, as in every "
                         "algorithm of the catalogue")
    times, ages = np.asarray([t for t, _ in seen]), np.asarray([tau for _, tau in seen])
    edges, rows = np.linspace(0, trace.seconds, bins + 1), np.arange(ages.max() + 2) - 0.5
    counts, _, _ = np.histogram2d(times, ages, [edges, rows])
    columns = counts.sum(axis=1)
    shares = 100 * counts / np.maximum(columns, 1)[:, None]
    mesh = ax.pcolormesh(edges, rows, shares.T, cmap="Blues", vmin=0)
    mean = (counts * np.arange(ages.max() + 1)).sum(axis=1)[columns > 0] / columns[columns > 0]
    ax.plot((edges[:-1] + edges[1:])[columns > 0] / 2, mean, color="#D55E00", linewidth=1.6, label="mean")
    ax.figure.colorbar(mesh, ax=ax, label="gradients, %")
    return with_labels(ax, "seconds", "staleness, updates", grid=False)


def communication(trace: Trace, ax: Axes | None = None) -> Axes:
    """Bytes between nodes: a row per sender, a column per receiver; with numbers for up to 12 nodes."""
    ax = axes_or_current(ax)
    sent = Counter[tuple[str, str]]()
    for e in trace.of(Sent):
        sent[e.node, e.to] += e.nbytes
    nodes = list(trace.nodes)
    table = np.asarray([[sent[a, b] for b in nodes] for a in nodes], float)
    most = table.max(initial=0.0)
    name, unit = next(((n, u) for n, u in (("MB", 1e6), ("kB", 1e3)) if most >= u), ("bytes", 1.0))
    image = ax.imshow(table / unit, cmap="Blues", vmin=0)
    if len(nodes) <= 12:
        for (i, j), nbytes in np.ndenumerate(table):
            if nbytes:
                ax.text(j, i, f"{nbytes / unit:.3g}", ha="center", va="center", fontsize="x-small",
                        color="white" if nbytes > most / 2 else "black")
    ax.figure.colorbar(image, ax=ax, label=name)
    ax.set_xticks(range(len(nodes)), nodes, rotation=90)
    ax.set_yticks(range(len(nodes)), nodes)
    ax.set(xlabel="to", ylabel="from")
    return ax
