"""Why staggered answers cost less than 2 n transfers: the pictures of docs/server-link.md, drawn from the
simulator.

``python -m benchmarks.server_link`` writes docs/images/server-link-fixed.svg, -random.svg and -servers.svg.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from refsgd.algorithms.server.bsp import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.problems.shapes import shape_only
from refsgd.runtimes.simulator import simulate
from refsgd.theory.phenomena import iteration
from refsgd.trace import Computed, Trace

IMAGES = Path(__file__).parent.parent / "docs" / "images"
D = 1680  # parameters; a number that 1 to 8 servers share evenly
COLOURS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8")


def run(workers: int, steps: int, *, transfer: float, compute: str = "fixed(1)", servers: int = 1,
        rotated: bool = False, latency: float = 0.0,
        seed: int = 0) -> Trace:
    """BSP in the simulator; `transfer`: w, seconds of the whole model on one link.

    Parameters
    ----------
    workers, steps, servers : int
        n, iterations, K.
    transfer, latency : float
        w and alpha [s].
    compute : str
        Distribution of T.
    rotated : bool
        Whether each worker begins with the server of its own number, and each server with the worker of its
        own.
    seed : int
        Of the drawn times.

    Returns
    -------
    Trace
    """
    machine = Machine(compute=compute, latency=latency, bandwidth=4 * D / transfer)  # type: ignore[arg-type]
    return simulate(lambda: bsp(shape_only(D), workers, steps, SGD(lr=0.1), servers=servers, rotated=rotated),
                    machine, seed).trace


def period(trace: Trace, steps: int) -> list[float]:
    """Seconds between successive updates of server 0; the first counts from 0.

    Parameters
    ----------
    trace : Trace
    steps : int
        Updates that it must have.

    Returns
    -------
    list of float
    """
    at = [0.0] + [e.time for e in trace.marks("update") if e.node == "server0"]
    assert len(at) == steps + 1
    return [float(b - a) for a, b in pairwise(at)]


def _number(node: str) -> int:
    return int("".join(c for c in node if c.isdigit()))


def _timeline(ax: Any, trace: Trace, workers: int, servers: int, transfer: float, out: bool) -> None:
    """Rows of gradients, of the servers' incoming and, if told so, outgoing links; a colour for each
    worker."""
    ports = [("in", j) for j in range(servers)] + ([("out", j) for j in range(servers)] if out else [])
    rows = [f"worker {i}" for i in range(workers)] + [f"server {j}: {way}" if servers > 1
                                                      else f"server, {way}" for way, j in ports]
    for i in range(workers):
        for e in trace.of(Computed, f"worker{i}"):
            if e.work == "gradient":
                ax.broken_barh([(e.start, e.time - e.start)], (i - 0.35, 0.7),
                               color=COLOURS[i], alpha=0.35)
    each = transfer / servers
    for t in trace.transits:
        way, server, worker = ("in", t.to, t.src) if t.to.startswith("server") else ("out", t.src, t.to)
        if (way, _number(server)) in ports:
            begin = t.arrival - each if way == "in" else t.start
            y = workers + ports.index((way, _number(server)))
            ax.broken_barh([(begin, each)], (y - 0.35, 0.7), color=COLOURS[_number(worker)],
                           edgecolor="white", linewidth=0.5)
    ax.set_yticks(range(len(rows)), rows, fontsize=8)
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)


def _updates(ax: Any, trace: Trace, labels: list[str]) -> None:
    """Vertical lines at the updates of server 0 and the distance between them."""
    at = [0.0] + [e.time for e in trace.marks("update") if e.node == "server0"]
    for a, b, label in zip(at, at[1:], labels):
        ax.axvline(b, color="0.3", lw=0.8)
        ax.annotate("", (a, -0.85), (b, -0.85), arrowprops={"arrowstyle": "<->", "lw": 0.8, "color": "0.3"},
                    annotation_clip=False)
        ax.text((a + b) / 2, -0.95, label, ha="center", va="bottom", fontsize=8)
    ax.set_ylim(top=-1.5)


def fixed(plt: Any) -> Any:
    """Four workers, one server, equal fixed T: the first iteration starts together, the others staggered.

    Parameters
    ----------
    plt : module
        matplotlib.pyplot.

    Returns
    -------
    matplotlib.figure.Figure
    """
    n, w, trace = 4, 0.25, run(4, 3, transfer=0.25)
    first, second, third = period(trace, 3)
    fig, ax = plt.subplots(figsize=(9, 3), layout="constrained")
    _timeline(ax, trace, n, 1, w, out=True)
    _updates(ax, trace,
             [f"{first:.2f} s = T + n w", f"{second:.2f} s = T + (n + 1) w",
              f"{third:.2f} s = T + (n + 1) w"])
    ax.set_xlabel(
        f"seconds; T = 1 s, w = {w} s, no latency; the textbook's T + 2 n w would be {1 + 2 * n * w:g} s")
    return fig


def random(plt: Any) -> Any:
    """Exponential T: one iteration of the renewal formula, and its mean beside simulation, limits and
    textbook.

    Parameters
    ----------
    plt : module
        matplotlib.pyplot.

    Returns
    -------
    matplotlib.figure.Figure
    """
    w, law = 0.25, Distribution.parse("exponential(1)")
    fig, (ax, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained",
                                    gridspec_kw={"width_ratios": (1.15, 1)})
    n, trace = 4, run(4, 2, transfer=w, compute="exponential(1)", seed=5)
    _timeline(ax, trace, n, 1, w, out=True)
    last = [e.time for e in trace.marks("update")]
    ax.set_xlim(last[0] - 0.1, last[1] + 0.2)
    for t in trace.transits:
        if t.to == "server0" and last[0] < t.start < last[1]:
            ax.plot([t.start, t.start], [_number(t.src) + 0.35, n - 0.35], color=COLOURS[_number(t.src)],
                    lw=0.8, ls=":")
    for x in last:
        ax.axvline(x, color="0.3", lw=0.8)
    ax.set_title(
        "between two updates: answers leave one by one,\neach push comes at S = T + i w and is served at "
        "once", fontsize=9)
    ax.set_xlabel("seconds")
    sizes = range(1, 13)
    steps = [iteration.bsp([law] * n, transfer=w) for n in sizes]
    seen = [
        np.array([np.mean(period(run(n, 100, transfer=w, compute="exponential(1)", seed=s), 100)[1:])
                  for s in range(6)]) for n in sizes]
    right.fill_between(sizes, [p.lower or 0 for p in steps], [p.upper or math.nan for p in steps], color="C0",
                       alpha=0.15, label="proven limits")
    right.plot(sizes, [p.value for p in steps], color="C0", label="renewal formula")
    right.errorbar(sizes, [v.mean() for v in seen], [2 * v.std(ddof=1) / math.sqrt(len(v)) for v in seen],
                   fmt=".", color="C3", label="simulated")
    right.plot(sizes, [iteration.mean_of_maximum([law] * n) + 2 * n * w for n in sizes], color="0.4", ls="--",
               label="textbook: E[max T] + 2 n w")
    right.set(xlabel="workers", ylabel="seconds per iteration")
    right.legend(fontsize=8)
    return fig


def servers(plt: Any) -> Any:
    """Four workers and two servers on own nodes: index order and rotated; K servers beside the textbook for n
    = 8.

    Parameters
    ----------
    plt : module
        matplotlib.pyplot.

    Returns
    -------
    matplotlib.figure.Figure
    """
    n, k, w = 4, 2, 0.5
    fig, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained",
                             gridspec_kw={"width_ratios": (1, 1, 0.7)})
    for ax, rotated in zip(axes, (False, True)):
        trace = run(n, 3, transfer=w, servers=k, rotated=rotated)
        _timeline(ax, trace, n, k, w, out=True)
        _updates(ax, trace, [f"{t:.3g} s" for t in period(trace, 3)])
        ax.set_title("rotated: workers go on almost together" if rotated
                     else "index order: workers go on one by one", fontsize=9)
        ax.set(xlim=(0, 8.2), xlabel="seconds; T = 1 s, w = 0.5 s; arrows: updates of server 0")
    counts, many = range(1, 9), 8
    for rotated, colour, name in ((False, "C0", "index order: (n/K + 1) w"),
                                  (True, "C3", "rotated: min(2 n/K, (n-1)/K + 2) w")):
        seen = [(period(run(many, 12, transfer=w, servers=k, rotated=rotated), 12)[-1] - 1) / w
                for k in counts]
        line = [min(2 * many / k, (many - 1) / k + 2) if rotated else many / k + 1 for k in counts]
        axes[2].plot(counts, line, color=colour, lw=1)
        axes[2].plot(counts, seen, "o", color=colour, ms=4, label=name)
    axes[2].plot(counts, [2 * many / k for k in counts], color="0.4", ls="--", label="textbook: 2 n w/K")
    axes[2].set(xlabel="servers K, 8 workers", ylabel="(iteration - T)/w, long run")
    axes[2].legend(fontsize=7)
    return fig


def main() -> None:
    """Draw all three."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "refsgd"
    for draw in (fixed, random, servers):
        figure = draw(plt)
        figure.savefig(IMAGES / f"server-link-{draw.__name__}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
