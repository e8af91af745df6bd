"""``algorithm-nodes``: at the top of an algorithm's page, its nodes and messages as a drawing, and one worked number.

Both come from a run of four workers, the same on every page: a model of 4 MB, links of 1 Gbit/s, gradients of 50 ms on
average.  The drawing (`node_drawing`) shows which nodes sent which messages.  ``algorithm-drawing`` has the drawing alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from algorithm_page import Directive, values_of
from docutils import nodes
from docutils.parsers.rst import directives
from node_drawing import STEPS, WORKERS, drawing, drawn, watched
from sphinx.application import Sphinx

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.cluster.units import counted
from refsgd.experiment.prepare import Experiment
from refsgd.problems import quadratic
from refsgd.trace import Added, Sent, Trace
from refsgd.trace.metrics import measure


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
        if e.node != e.to:  # not between programs of a node
            found[e.message, *(role(trace, node) for node in (e.node, e.to))].append(e.nbytes)
    return [Message(kind, src, to, len(sizes) / steps, sum(sizes) / len(sizes))
            for (kind, src, to), sizes in found.items()]


def role(trace: Trace, node: str) -> str:
    """The name of a node without its number."""
    return node.rstrip("0123456789.") or node


def number(experiment: Experiment, trace: Trace) -> str:
    """One worked number: the time of an iteration, how much of it is waiting, and the bytes sent."""
    predicted = {key: p.value for key, p in experiment.predictions().items() if "bound" not in p.kind}
    seconds = predicted.get("seconds_per_iteration", trace.seconds / experiment.steps)
    idle = predicted.get("idle_ratio", measure(trace)["idle_ratio"])
    sent = sum(trace.bytes_sent.values()) / experiment.steps  # as listed below it, also where chance decides
    model, others = 4 * experiment.problem.x0.size, sum(not trace.is_worker(node) for node in trace.nodes)
    who = counted(experiment.workers, "worker") + (f" and {counted(others, 'server')}" if others else "")
    who += "".join(f", {name} {value}" for name, value in experiment.own.items() if type(value) is int and value > 1)
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
        net = {"net": o["net"]} if "net" in o else {}
        experiment, trace = watched(name, problem, workers=workers, **net, **values_of(o.get("options", "")))
        found = messages(trace, STEPS)
        said = f"Nodes of {name} and their messages: " + "; ".join(
            f"{m.kind} from {m.src} to {m.to}" for m in found) + "." * bool(found)
        if trace.of(Added):
            said = f"Nodes of {name}: all read and write one shared memory."
        figure = nodes.raw("", drawing(trace, said), format="html")
        return [figure, *self.markdown(number(experiment, trace)), *(self.markdown(table(found)) if found else [])]


class Drawing(Directive):
    """``algorithm-drawing NAME``: the drawing alone, small; the directive's body is its text alternative."""

    option_spec: ClassVar[dict[str, Any]] = {"options": directives.unchanged}

    def make(self) -> list[nodes.Node]:
        """The drawing."""
        options = values_of(self.options.get("options", ""))
        return [nodes.raw("", drawn(self.name_of_algorithm(), " ".join(self.content), short=True, **options), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("algorithm-nodes", Nodes)
    app.add_directive("algorithm-drawing", Drawing)
    return {"version": refsgd.__version__, "parallel_read_safe": True, "parallel_write_safe": True}
