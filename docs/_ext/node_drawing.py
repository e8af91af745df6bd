"""Draws nodes and their messages: a server, a ring, gossip, stages and a shared memory, all in one style.

Pages of algorithms, the front page and slides draw with it; a drawing of an algorithm comes from a run.
"""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from refsgd.cluster.machine import Machine
from refsgd.experiment.prepare import Experiment, prepare
from refsgd.problems import Problem
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Added, Sent, Trace

MACHINE = Machine(compute="exponential(0.05)", latency=1e-4, bandwidth=125e6)  # type: ignore[arg-type]
STEPS, WORKERS, NET = 16, 4, "shapes:1000000"  # whole rounds of 8 steps
BLUE, GREY = "#0072b2", "#505050"  #: workers, in Okabe and Ito's palette, and all others
SHARED = "shared memory"
LETTER, HEIGHT, GAP = 14, 30, (16, 36)  #: of the text, of a node, and between nodes in two rows or in one, in pixels


def watched(name: str, problem: Problem | None = None, **options: Any) -> tuple[Experiment, Trace]:
    """An algorithm's run of a few iterations, by default of four workers and a model of 4 MB."""
    chosen: dict[str, Any] = {"workers": WORKERS, "steps": STEPS, "machine": MACHINE}
    experiment = prepare(name, problem, **chosen | ({} if problem else {"net": NET}) | options)
    return experiment, simulate(experiment.deploy, experiment.priced, 0).trace


def drawn(name: str, label: str, short: bool = False, **options: Any) -> str:
    """The drawing of an algorithm of the catalogue."""
    return drawing(watched(name, **options)[1], label, short)


def drawing(trace: Trace, label: str, short: bool = False) -> str:
    """The nodes of a run, and an arrow from each one that sent a message to its receiver."""
    workers = [node for node in trace.nodes if trace.is_worker(node)]
    others = [node for node in trace.nodes if not trace.is_worker(node)] + [SHARED] * bool(trace.of(Added))
    pairs = {(e.node, e.to) for e in trace.of(Sent) if e.node != e.to}  # not between programs of a node
    pairs |= {pair for e in trace.of(Added) for pair in ((e.node, SHARED), (SHARED, e.node))}
    return sketch(workers, pairs, label, others, short)


def sketch(workers: Sequence[str], pairs: Collection[tuple[str, str]], label: str, others: Sequence[str] = (),
           short: bool = False) -> str:
    """Workers, in blue, below other nodes, in grey, and an arrow for each pair of a sender and a receiver.

    Workers among themselves stand on a circle, or in a row if they are stages.  In a `short` drawing a worker
    has only its number.
    """
    name = {node: node.lstrip("abcdefghijklmnopqrstuvwxyz") if short and node in workers else
            node.rstrip("0") if short and len(others) == 1 else node for node in (*others, *workers)}
    wide = {node: max(34, 9 * len(text) + 14) for node, text in name.items()}
    at, width, height = places(workers, others, wide)
    lines, boxes = [], []
    for a, b in sorted({tuple(sorted(pair)) for pair in pairs}):
        (x1, y1), (x2, y2) = edge(at[a], at[b], wide[a]), edge(at[b], at[a], wide[b])
        ends = "".join(f' marker-{where}="url(#tip)"' for where, pair in (("end", (a, b)), ("start", (b, a))) if pair in pairs)
        lines.append(f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}"{ends}/>')
    for node, (x, y) in at.items():
        boxes.append(f'<rect x="{x - wide[node] / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{wide[node]}" height="{HEIGHT}" '
                     f'rx="7" fill="{BLUE if node in workers else GREY}"/>'
                     f'<text x="{x:.0f}" y="{y + 5:.0f}">{html.escape(name[node])}</text>')
    tip = ('<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
           'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>')
    return (f'<svg class="algorithm-nodes" role="img" aria-label="{html.escape(label, quote=True)}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" style="--width: {width:.0f}">{tip}'
            f'<g stroke="currentColor" stroke-width="1.5">{"".join(lines)}</g>'
            f'<g fill="#ffffff" text-anchor="middle" font-size="{LETTER}">{"".join(boxes)}</g></svg>')


def places(workers: Sequence[str], others: Sequence[str],
           wide: Mapping[str, int]) -> tuple[dict[str, tuple[float, float]], float, float]:
    """The middle of each node, by their widths, and the width and height of the drawing."""
    n, margin = len(workers), HEIGHT / 2 + 4
    if not others and n > 2 and not workers[0].startswith("stage"):
        box = max(wide.values())
        a, b = box / 2 + 20 + 14 * n, 40 + 7 * n
        turns = [2 * math.pi * i / n - math.pi * (1 / 2 + 1 / n) for i in range(n)]
        found = {node: (a * math.cos(turn), b * math.sin(turn)) for node, turn in zip(workers, turns)}
        left, top = min(x for x, _ in found.values()) - box / 2 - 4, min(y for _, y in found.values()) - margin
        right, bottom = max(x for x, _ in found.values()) + box / 2 + 4, max(y for _, y in found.values()) + margin
        return {node: (x - left, y - top) for node, (x, y) in found.items()}, right - left, bottom - top
    rows = {margin: others, margin + 100 * bool(others): workers}
    pitch = {y: max(wide[node] for node in row) + GAP[not others] for y, row in rows.items()}
    width = max(len(row) * pitch[y] for y, row in rows.items()) - GAP[not others] + 8
    return ({node: (width / 2 + (i - (len(row) - 1) / 2) * pitch[y], y) for y, row in rows.items() for i, node in enumerate(row)},
            width, max(rows) + margin)


def edge(a: tuple[float, float], b: tuple[float, float], wide: float) -> tuple[float, float]:
    """Where the line from the middle of a node to that of another leaves its box."""
    (x, y), dx, dy = a, b[0] - a[0], b[1] - a[1]
    share = min((wide / 2 + 4) / abs(dx) if dx else math.inf, (HEIGHT / 2 + 4) / abs(dy) if dy else math.inf)
    return x + share * dx, y + share * dy
