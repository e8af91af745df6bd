"""The result of a runtime: the trace of a run, with its metrics, and the values that programs returned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

from refsgd.trace import metrics, moments
from refsgd.trace.events import Computed, Crashed, Event, Marked, Polled, Received, Sent, Transit, taken
from refsgd.trace.export import to_chrome

E = TypeVar("E", bound=Event)
NOTHING = "", "", 0  # a message without a sender


class Use(NamedTuple):
    """The time in which a link serves a message."""

    link: int  #: index in the machine's network
    start: float
    end: float
    src: str
    to: str


@dataclass
class Trace:
    """The events of one run in order of time, and the metrics computed from them (`refsgd.trace.metrics`).

    Parameters
    ----------
    events : list of Event
    nodes : sequence of str
        All nodes in the deployment's order.
    seconds : float
        When the last main program returned.
    latency, bandwidth : float
        Of the emulated links [s, bytes/s], to distinguish transfer from queueing; 0 and inf if unpaced.
    lateness : dict of str to dict
        Lateness of each node's real process, by metric; empty in virtual time.
    roles : mapping of str to str
        "worker" or "server" of each node; a node that is not listed is a worker.
    links : list of Use
        When each link served which message, on machines with placed nodes, inside links or groups.
    wires : mapping of (str, str) to (float, float)
        Latency and bandwidth between two nodes, where they differ from `latency` and `bandwidth`.
    hosts : mapping of str to str
        The host of each node, if `links` is kept; else empty.
    shared_links : mapping of int to str
        Names of those of `links` that several nodes or hosts share, by index.
    inboxes : mapping of (str, str, int) to float, optional
        Arrival of each message in an inbox, by sender, receiver and number; estimated if not given.
    """

    events: list[Event]
    nodes: Sequence[str]
    seconds: float
    latency: float = 0.0
    bandwidth: float = float("inf")
    lateness: dict[str, dict[str, float]] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    links: list[Use] = field(default_factory=list)
    wires: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    shared_links: Mapping[int, str] = field(default_factory=dict)
    inboxes: Mapping[tuple[str, str, int], float] | None = None

    def wire(self, src: str, to: str) -> tuple[float, float]:
        """Latency and bandwidth between two nodes; 0 and inf if unpaced.

        Parameters
        ----------
        src, to : str
            Nodes.

        Returns
        -------
        tuple of float
        """
        return self.wires.get((src, to), (self.latency, self.bandwidth))

    def is_worker(self, node: str) -> bool:
        """Whether a node is a worker.

        Parameters
        ----------
        node : str
            Its name.

        Returns
        -------
        bool
        """
        return self.roles.get(node) != "server"

    def __post_init__(self) -> None:
        metrics.number_updates(self.events)

    def of(self, kind: type[E], node: str | None = None) -> list[E]:
        """Events of one kind, of all nodes or of one.

        Parameters
        ----------
        kind : type
            A class of `refsgd.trace.events`, e.g. `Computed`.
        node : str, optional
            Its name.

        Returns
        -------
        list of `kind`
            In order of time.
        """
        found = cast("list[E]", self._by_kind.get(kind, []))
        return found.copy() if node is None else [e for e in found if e.node == node]

    @cached_property
    def _by_kind(self) -> dict[type, list[Event]]:
        kinds: dict[type, list[Event]] = defaultdict(list)
        for event in self.events:
            kinds[type(event)].append(event)
        return kinds

    def marks(self, name: str) -> list[Marked]:
        """Marks of one name.

        Parameters
        ----------
        name : str
            Of the mark.

        Returns
        -------
        list of Marked
            In order of time.
        """
        return [e for e in self.of(Marked) if e.name == name]

    @property
    def gradients(self) -> list[Computed]:
        """Gradients computed, in order of time; one computed in pieces starts with its first piece, or with
        the trace if that was before."""
        found, began = [], defaultdict[tuple[str, int], dict[int, float]](dict)
        for e in self.of(Computed):
            if e.piece is not None:
                begun, number = began[e.node, e.program], e.piece[1]
                if e.piece[3]:
                    begun[number] = e.start
                if e.gradient_ended:  # several batches may have begun, but micro-batches of one only
                    start = begun.pop(number) if number in begun else begun.popitem()[1] if begun else 0.0
                    found.append(e._replace(start=start, piece=None))
            elif e.work == "gradient":
                found.append(e)
        return found

    @property
    def not_finite(self) -> str:
        """The first gradient with numbers that are not finite, in words; empty if there is none."""
        computed = self.of(Computed)
        first = next((k for k, e in enumerate(computed) if e.finite is False), None)
        if first is None:
            return ""
        node = computed[first].node
        step = sum(e.gradient_ended for e in computed[:first] if e.node == node)
        return f"the gradient of {node} in step {step}"

    @property
    def workers(self) -> list[str]:
        """Nodes with the role of a worker."""
        return [n for n in self.nodes if self.is_worker(n)]

    @cached_property
    def parts(self) -> dict[str, int]:
        """The part of the parameters that each server has updated, or each worker where there are no
        servers; empty if they are not divided."""
        held = {e.node: e.values["part"] for e in self.marks("update") if "part" in e.values}
        servers = {node: part for node, part in held.items() if not self.is_worker(node)}
        found = servers or held
        return found if len(set(found.values())) > 1 else {}

    @cached_property
    def transits(self) -> list[Transit]:
        """All messages that were received, in order of reception."""
        sent = {(e.node, e.to, e.number): e for e in self.of(Sent)}
        out = []
        for e in self.events:
            if isinstance(e, Received | Polled) and (s := sent.get(taken(e) or NOTHING)) is not None:
                out.append(Transit(s.node, e.node, s.message, s.number, s.nbytes, s.time, s.start, e.arrival,
                                   e.time))
        return out

    def after(self, steps: int) -> Trace:
        """The trace from the moment on at which every worker had completed some iterations; that is its 0.

        Parameters
        ----------
        steps : int
            Iterations of each worker that are left out.

        Returns
        -------
        Trace
            Without the occupation of links.
        """
        done = defaultdict[str, list[float]](list)
        for e in self.gradients:
            done[e.node].append(e.time)
        begin = max((done[w][steps - 1] for w in self.workers if len(done[w]) >= steps > 0), default=0.0)
        later = {taken(e) for e in self.events if isinstance(e, Received | Polled) and e.time >= begin}

        def moved(event: Event) -> Event:
            times = {name: max(getattr(event, name) - begin, 0.0)
                     for name in {"time", "start", "since", "arrival"} & {*event._fields}
                     if getattr(event, name) is not None}
            return event._replace(**times)

        def since(event: Event) -> bool:
            """Whether it ends after that moment; what ends then and had begun before, such as the last
            gradient that is left out, does not."""
            return event.time > begin or (event.time == begin and getattr(event, "start", begin) == begin)

        kept = [moved(e) for e in self.events if since(e) or isinstance(e, Crashed)
                or (isinstance(e, Sent) and (e.node, e.to, e.number) in later)]
        return replace(self, events=kept, seconds=self.seconds - begin, links=[], inboxes=None)

    bytes_sent = cached_property(metrics.bytes_sent)
    messages = cached_property(metrics.messages)
    updates = cached_property(metrics.updates)
    iterations = cached_property(metrics.iterations)
    dead = cached_property(metrics.dead)
    attendance = cached_property(metrics.attendance)
    completed = cached_property(metrics.completed)
    rates = cached_property(metrics.rates)
    iteration_rate = cached_property(metrics.iteration_rate)
    applied = cached_property(metrics.applied)
    images = metrics.images
    images_per_second = cached_property(metrics.images_per_second)
    staleness = cached_property(metrics.staleness)
    staleness_histogram = cached_property(metrics.staleness_histogram)
    outstanding_age = cached_property(metrics.outstanding_age)
    gaps = cached_property(metrics.gaps)
    clock_gap = cached_property(metrics.clock_gap)
    lead = cached_property(metrics.lead)
    replica_spread = cached_property(moments.replica_spread)
    busy = cached_property(metrics.busy)
    idle_ratio = cached_property(metrics.idle_ratio)
    to_chrome = to_chrome


@dataclass
class Run:
    """The result of a runtime: the trace and the return value of every main program.

    Parameters
    ----------
    trace : Trace
    values : dict of str to object
        Return values of main programs, by node.
    """

    trace: Trace
    values: dict[str, Any]
