"""``algorithm-nodes``: at the top of an algorithm's page, its nodes and messages as a drawing, and one worked number.

Both come from a run of four workers, the same on every page: a model of 4 MB, links of 1 Gbit/s, gradients of 50 ms on
average.  The drawing shows which nodes sent which messages; so a server, a ring, gossip and stages are drawn in one style.
"""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from algorithm_page import Directive, values_of
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted
from refsgd.experiment.prepare import Experiment, prepare
from refsgd.problems import quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Added, Sent, Trace
from refsgd.trace.metrics import measure

MACHINE = Machine(compute="exponential(0.05)", latency=1e-4, bandwidth=125e6)  # type: ignore[arg-type]
STEPS, WORKERS, NET = 20, 4, "shapes:1000000"
BLUE = "#0072b2"  #: of workers, in Okabe and Ito's palette; servers are grey
SHARED = "shared memory"
WIDTH, BOX = 560, (112, 30)  #: of the drawing, and of a node, in pixels


class Message(NamedTuple):
    """Messages of one class from nodes of one role to those of another."""

    kind: str
    src: str
    to: str
    count: float  # in an iteration
    nbytes: float  # the mean


def messages(trace: Trace, steps: int) -> list[Message]:
    """What was sent in an iteration, by class and roles."""
    found = defaultdict[tuple[str, str, str], list[int]](list)
    for e in trace.of(Sent):
        found[e.message, *(role(trace, node) for node in (e.node, e.to))].append(e.nbytes)
    return [Message(kind, src, to, len(sizes) / steps, sum(sizes) / len(sizes))
            for (kind, src, to), sizes in found.items()]


def role(trace: Trace, node: str) -> str:
    """The name of a node without its number."""
    return node.rstrip("0123456789.") or node


def places(trace: Trace) -> dict[str, tuple[float, float]]:
    """Servers in a row above workers; stages in a row; peers on a circle."""
    workers = [node for node in trace.nodes if trace.is_worker(node)]
    others = [node for node in trace.nodes if not trace.is_worker(node)] + [SHARED] * bool(trace.of(Added))
    stages = workers[0].startswith("stage")
    if not others and not stages and len(workers) > 2:
        turn = 2 * math.pi / len(workers)
        return {node: (WIDTH / 2 + 150 * math.cos(turn * (i - 1.5)), 86 + 56 * math.sin(turn * (i - 1.5)))
                for i, node in enumerate(workers)}
    rows = [(others, 24.0), (workers, 140.0 if others else 40.0)]
    return {node: (WIDTH * (i + 0.5) / len(row), y) for row, y in rows for i, node in enumerate(row)}


def drawing(trace: Trace, label: str) -> str:
    """The nodes, and an arrow for each pair of which one has sent to the other."""
    at, pairs = places(trace), {(e.node, e.to) for e in trace.of(Sent)}
    pairs |= {pair for e in trace.of(Added) for pair in ((e.node, SHARED), (SHARED, e.node))}
    height = max(y for _, y in at.values()) + 28
    lines = []
    for a, b in sorted({tuple(sorted(pair)) for pair in pairs}):
        (x1, y1), (x2, y2) = (edge(at[p], at[q]) for p, q in ((a, b), (b, a)))
        ends = "".join(f' marker-{where}="url(#tip)"' for where, pair in (("end", (a, b)), ("start", (b, a))) if pair in pairs)
        lines.append(f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}"{ends}/>')
    boxes = []
    for node, (x, y) in at.items():
        fill = BLUE if node != SHARED and trace.is_worker(node) else "#404040"
        boxes.append(f'<rect x="{x - BOX[0] / 2:.0f}" y="{y - BOX[1] / 2:.0f}" width="{BOX[0]}" height="{BOX[1]}" rx="7" '
                     f'fill="{fill}"/><text x="{x:.0f}" y="{y + 5:.0f}">{html.escape(node)}</text>')
    tip = ('<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
           'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>')
    return (f'<svg class="algorithm-nodes" role="img" aria-label="{html.escape(label, quote=True)}" '
            f'viewBox="0 0 {WIDTH} {height:.0f}">{tip}<g stroke="currentColor" stroke-width="1.5">{"".join(lines)}</g>'
            f'<g fill="#ffffff" text-anchor="middle" font-size="14">{"".join(boxes)}</g></svg>')


def edge(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Where the line from the middle of a node to that of another leaves its box."""
    (x, y), dx, dy = a, b[0] - a[0], b[1] - a[1]
    share = min((BOX[0] / 2 + 4) / abs(dx) if dx else math.inf, (BOX[1] / 2 + 4) / abs(dy) if dy else math.inf)
    return x + share * dx, y + share * dy


def number(experiment: Experiment, trace: Trace) -> str:
    """One worked number: the time of an iteration, how much of it is waiting, and the bytes sent."""
    predicted = {key: p.value for key, p in experiment.predictions().items() if "bound" not in p.kind}
    seconds = predicted.get("seconds_per_iteration", trace.seconds / experiment.steps)
    idle = predicted.get("idle_ratio", measure(trace)["idle_ratio"])
    sent = predicted.get("bytes_per_iteration", sum(trace.bytes_sent.values()) / experiment.steps)
    model, others = 4 * experiment.problem.x0.size, sum(not trace.is_worker(node) for node in trace.nodes)
    who = counted(experiment.workers, "worker") + (f" and {counted(others, 'server')}" if others else "")
    return (f"**In numbers.** {who}; a model of {model / 1e6:.3g} MB, which takes {model / 125e3:.3g} ms on a link of "
            f"1 Gbit/s (125 MB/s); gradients of 50 ms on average. An iteration takes **{seconds * 1e3:.0f} ms**, "
            f"a worker waits {idle * 100:.0f} % of the time, and {size(sent)}.")


def size(nbytes: float) -> str:
    """Bytes that are sent, in words."""
    return f"all nodes together send {nbytes / 1e6:.3g} MB" if nbytes else "nothing is sent"


def table(found: Sequence[Message]) -> str:
    """The messages, in a line each."""
    return "\n".join(f"* `{m.kind}`, {m.src} to {m.to}: {m.count:.3g} an iteration, {m.nbytes / 1e6:.3g} MB each" for m in found)


class Nodes(Directive):
    """``algorithm-nodes``."""

    option_spec: ClassVar[dict[str, Any]] = {"options": directives.unchanged, "net": directives.unchanged,
                                             "values": directives.flag}

    def make(self) -> list[nodes.Node]:
        """The drawing, the list of messages, and the number."""
        name, o = self.name_of_algorithm(), self.options
        workers = 1 if facts_of(CATALOGUE[name]).single else WORKERS
        problem = quadratic(d=1_000_000, workers=workers) if "values" in o else None  # what looks at gradients
        experiment = prepare(name, problem, workers=workers, steps=STEPS, machine=MACHINE, **(
            {} if problem else {"net": o.get("net", NET)}), **values_of(o.get("options", "")))
        trace = simulate(experiment.deploy, experiment.priced, 0).trace
        found = messages(trace, STEPS)
        said = f"Nodes of {name} and their messages: " + "; ".join(
            f"{m.kind} from {m.src} to {m.to}" for m in found) + "." * bool(found)
        if trace.of(Added):
            said = f"Nodes of {name}: all read and write one shared memory."
        figure = nodes.raw("", drawing(trace, said), format="html")
        return [figure, *self.markdown(number(experiment, trace)), *(self.markdown(table(found)) if found else [])]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("algorithm-nodes", Nodes)
    return {"version": refsgd.__version__, "parallel_read_safe": True, "parallel_write_safe": True}
