"""The model at a moment: which parameters a run keeps, and how those of several nodes are put together.

The model at a moment consists of the newest parameters that each node had then, and not of those with equal
numbers of iterations, which never existed together where nodes are not equally fast.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, frexp
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refsgd.trace.events import Added, Event, Marked

if TYPE_CHECKING:
    from refsgd.trace.run import Trace

FINEST = 2.0**-40  #: first distance of the moments at which parameters are kept [s]


def _time(mark: Marked, count: int) -> float:
    """When a mark was made; where no time passes, the count-th has its own."""
    return mark.time or count * FINEST


@dataclass(slots=True)
class _Kept:
    """The number of a node's marks of one name, and those that keep their `x`, by the moment after them."""

    count: int = 0
    distance: float = 0.0  #: of the moments [s]; 0 while all marks are kept
    marks: dict[int, Marked] = field(default_factory=dict)

    def moment(self, mark: Marked, count: int) -> int:
        """The first moment that is not before a mark, which is the count-th."""
        return ceil(_time(mark, count) / self.distance) if self.distance else count

    def spread(self) -> None:
        """Give marks that were all kept their moments, at a distance at which none is replaced but by one of
        the same time."""
        times = [_time(mark, count) for count, mark in self.marks.items()]
        least = min((b - a for a, b in pairwise(times)), default=FINEST)
        self.distance = 2.0 ** (frexp(max(least, FINEST))[1] - 1)
        marks, self.marks = self.marks, {}
        for count, mark in marks.items():
            self.put(self.moment(mark, count), mark)

    def put(self, moment: int, mark: Marked) -> None:
        """Keep the newest mark before a moment."""
        if (older := self.marks.pop(moment, None)) is not None:
            del older.values["x"]
        self.marks[moment] = mark


class Thinner:
    """Keeps `x` in at most `limit` marks per name and node: in all of them, or else in the newest before
    evenly spaced moments.

    The distance of the moments is a power of two, and doubles whenever a node holds more than `limit`.  All
    nodes, in whichever process, thus have the moments of the coarsest in common, and `moments` finds there
    what each of them held.  Where no time passes, marks are counted.  The marks themselves stay.
    """

    def __init__(self, limit: int = 64) -> None:
        self.limit = limit
        self._kept: dict[tuple[str, str], _Kept] = defaultdict(_Kept)

    def __call__(self, event: Event) -> None:
        """Process the next event of a run."""
        if not isinstance(event, Marked) or "x" not in event.values:
            return
        if not self.limit:
            del event.values["x"]
            return
        kept = self._kept[event.node, event.name]
        kept.count += 1
        kept.put(kept.moment(event, kept.count), event)
        if len(kept.marks) > self.limit and not kept.distance:
            kept.spread()
        while len(kept.marks) > self.limit:
            marks, kept.marks, kept.distance = kept.marks, {}, 2 * kept.distance
            for number, mark in marks.items():
                kept.put((number + 1) // 2, mark)


def thin(events: Iterable[Event], limit: int = 64) -> None:
    """Drop `x` from all but `limit` marks per name and node, in place; see `Thinner`.

    >>> marks = [Marked(float(v), "server0", 0, "update", {"version": v, "x": v}) for v in range(100)]
    >>> thin(marks, 4)
    >>> [e.values["version"] for e in marks if "x" in e.values]
    [32, 64, 96, 99]
    """
    look = Thinner(limit)
    for event in events:
        look(event)


class Moment(NamedTuple):
    """The parameters of all nodes from a given time on, until one of them changes its own."""

    seconds: float
    span: tuple[float, float]  #: its begin and end [s], or the numbers of these marks where no time passes
    nodes: list[str]  #: those that live and mark parameters at any time, in the deployment's order
    newest: dict[str, Any]  #: `x` of those that have marked any, in the order of their marks
    marks: Counter[str]  #: how many marks each node has made, with those of the dead


def moments(trace: Trace, marks: Iterable[Marked]) -> Iterator[Moment]:
    """The moments of a run at which the newest of each node's `marks` still has its `x`.

    A worker that dies is left out from then on; the part of a server that dies stays as it is.  Where no time
    passes, each mark is a moment of its own.
    """
    marks = list(marks)
    kinds = {(e.node, e.name) for e in marks if "x" in e.values}
    nodes = [n for n in trace.nodes if n in {node for node, _ in kinds}]
    steps: list[tuple[float, int, str, Marked | None]] = [
        (e.time if trace.seconds else i, i, e.node, e) for i, e in enumerate(marks)]
    steps += [(trace.dead[n], -1, n, None) for n in nodes if n in trace.dead and trace.is_worker(n)]
    steps.sort(key=lambda step: step[:2])
    newest, count = dict[str, Any](), Counter[str]()
    ends = [*(time for time, *_ in steps[1:]), trace.seconds or len(steps)]
    for (time, _, node, mark), end in zip(steps, ends):  # one more, if there are none
        if mark is None:
            newest.pop(node, None)
            nodes = [n for n in nodes if n != node]
        else:
            count[node] += 1
            if node in nodes and (node, mark.name) in kinds:
                newest.pop(node, None)  # the newest comes last
                newest[node] = mark.values.get("x")
        if (end > time or mark is steps[-1][-1]) and newest and all(x is not None for x in newest.values()):
            yield Moment(time if trace.seconds else 0.0, (time, end), nodes, dict(newest), count.copy())


def replica_spread(trace: Trace) -> list[tuple[float, float]]:
    """(seconds, consensus distance) at the moments whose replicas were kept; see `Thinner`.

    The consensus distance is (1/n) sum_i |x_i - mean|^2 over the newest parameters of the living workers,
    from their marks with ``t`` and ``x``.  Empty unless two workers mark replicas.
    """
    if trace.of(Added):  # all workers share one vector
        return []
    marks, out = [e for e in trace.of(Marked) if trace.is_worker(e.node) and "t" in e.values], []
    for moment in moments(trace, marks):
        if len(moment.newest) == len(moment.nodes):
            each = joined((trace.parts.get(n, 0), moment.newest[n]) for n in moment.nodes)
            if len(each) > 1:
                x = np.stack(each).astype(float)
                out.append((moment.seconds, float(np.sum((x - x.mean(axis=0)) ** 2) / len(each))))
    return out


def joined(parts: Iterable[tuple[int, Any]]) -> list[Any]:
    """The vectors of replicas, of which numbered parts are given, those of a part in the replicas' order.

    A part that is at several places of the vector is a tuple: first come the first places of all parts.

    >>> joined([(1, np.array([2])), (0, np.array([1])), (0, np.array([3])), (1, np.array([4]))])
    [array([1, 2]), array([3, 4])]
    """
    held = defaultdict(list)
    for part, x in parts:
        held[part].append(x if isinstance(x, tuple) else (x,))
    whole = [[x for places in zip(*parts, strict=True) for x in places]
             for parts in zip(*(held[part] for part in sorted(held)), strict=True)]
    return [np.concatenate(each) if len(each) > 1 else each[0] for each in whole]
