"""Short unpaced runs of the real runtime on this computer, and the machine whose simulation is like them.

A gradient in a run takes longer than one in a loop: its batch is gathered, its parameters have just been
written, neighbours use the same caches and memory, and programs and transports spend time on every message.
So its price is the pace of `sequential`, crowding that of `independent` with more processes, and the overhead
of a message is fitted to the pace of runs, those of a short net too: long gradients vary by more than it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from refsgd.cluster.distributions import Distribution
from refsgd.cluster.links import Link, Overhead
from refsgd.cluster.machine import Machine
from refsgd.effects import Array
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.problems import Problem
from refsgd.problems.data.sets import Dataset
from refsgd.problems.problem import classification
from refsgd.problems.shapes import in_shape_only
from refsgd.trace import Computed, Event, Marked, Sent, Trace
from refsgd.trace.events import began

IMAGES = 4096  #: at least this many images, so that batches are gathered from a set as large as a real one
WARM = 0.2  #: share of the steps that a run is given to warm up
LEVELS = 64  #: bins of the distribution of a gradient's time
SILENT, SERVED = "independent", "bsp"  #: no messages; an update by the mean of all gradients
CODED = "dgc"  #: every gradient is encoded once, and decoded by all
SHORT = ("tiny", 8)  #: a net and a batch beside whose gradients messages are not short
FITTED = ("bsp", "allreduce", "asp", "adpsgd")  #: a server twice, an all-reduce, and pairs with handlers
CHECKED = ("dpsgd", "ssp")  #: runs that are predicted, and take no part in the fit


class Pace(NamedTuple):
    """A run, and how long its iterations take."""

    algorithm: str
    net: str
    batch: int
    workers: int
    seconds: float  #: of an iteration, after warming up
    predicted: float = 0.0  #: the simulator's
    fitted: bool = False  #: whether the machine follows from this run, among others

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.seconds - 1


@lru_cache(maxsize=16)
def problem_of(net: str, batch: int, workers: int) -> Problem:
    """A net on random images, as many as full batches need."""
    from refsgd.problems.nn import nets

    built, rng = nets.build(net), np.random.default_rng(0)
    built.compile()
    share = batch * workers
    count = share * -(-IMAGES // share)
    images = rng.standard_normal((count, *built.input_shape), np.float32)
    labels = rng.integers(0, built.classes, count)
    return classification(Dataset("random", images, labels, images[:1], labels[:1], built.classes), built,
                          workers, batch)


def run(algorithm: str, problem: Problem, workers: int, steps: int, transport: str = "processes") -> Trace:
    """The trace of an unpaced run."""
    experiment = prepare(algorithm, problem, workers=workers, steps=steps, machine=Machine(), lr=0.01)
    return perform(experiment, transport, observe=0).trace


def pace(trace: Trace) -> float:
    """Seconds of an iteration of the workers after warming up."""
    warm = trace.after(int(WARM * min(trace.iterations.values())))
    return len(warm.rates) / warm.iteration_rate


def between_gradients(trace: Trace) -> Array:
    """The seconds from one gradient's start to the next, less the updates in between, of all workers."""
    found = list[float]()
    for worker in trace.workers:
        starts, own, took = list[float](), 0.0, updates(trace, worker)
        for e in trace.of(Computed, worker):
            if e.work == "gradient":
                starts.append(e.start - own)  # on a clock that stands still during updates
            elif e.work == "update":
                own += next(took)
            else:
                own += e.time - e.start
        found += [b - a for a, b in list(pairwise(starts))[int(WARM * len(starts)):]]
    return np.array(found)


def updates(trace: Trace, node: str | None = None) -> Iterator[float]:
    """The seconds of each update with what the program reports of it: until it goes on to another effect."""
    after = dict[tuple[str, int], Event]()
    found = list[float]()
    for e in reversed(trace.events):
        if isinstance(e, Computed) and e.work == "update" and node in (None, e.node):
            following = after.get((e.node, e.program))
            found.append((began(following) if following else e.time) - e.start)
        if not isinstance(e, Marked):
            after[e.node, e.program] = e
    return reversed(found)


def noise(samples: Iterable[Array]) -> Distribution:
    """The distribution of times relative to their means, by the means of equally likely bins."""
    relative = np.sort(np.concatenate([each / each.mean() for each in samples]))
    bins = np.array([part.mean() for part in np.array_split(relative, min(LEVELS, len(relative)))])
    return Distribution("empirical", tuple((bins / bins.mean()).tolist()))


def update_price(runs: Iterable[tuple[Trace, int]]) -> tuple[float, float]:
    """The seconds of an update and those for each byte that it reads, from runs and the bytes of each."""
    from scipy.optimize import nnls

    rows = []
    for trace, nbytes in runs:
        took = list(updates(trace))
        rows.append((statistics.median(took[int(WARM * len(took)):]), nbytes * 1e-6))
    seconds, sizes = np.array(rows).T
    terms = np.stack([np.ones(len(rows)), sizes * (len({*sizes}) > 1)], axis=1)
    fixed, per_megabyte = nnls(terms / seconds[:, None], np.ones(len(rows)))[0]  # relative to each run
    return float(fixed), float(per_megabyte) * 1e-6


def codec_price(trace: Trace, d: int, crowding: Sequence[float]) -> float:
    """The seconds for each byte of a gradient that one program encodes or decodes; here all do at once."""
    took = [e.time - e.start for e in trace.of(Computed) if e.work == "codec"]
    return statistics.fmean(took[int(WARM * len(took)):]) / (4 * d) / crowding[:len(trace.workers)][-1]


def crowding(paces: Sequence[tuple[int, float]]) -> tuple[float, ...]:
    """The factor for each number of programs up to the most that ran, from the pace of some numbers."""
    counts, seconds = zip(*paces, strict=True)
    factors = np.interp(np.arange(1, counts[-1] + 1), counts, np.array(seconds) / seconds[0])
    return tuple(np.maximum.accumulate(np.maximum(factors, 1.0)).round(4).tolist())


def predicted(machine: Machine, algorithm: str, net: str, batch: int, workers: int,
              steps: int = 100) -> float:
    """Seconds of an iteration of a simulated run."""
    problem = in_shape_only(problem_of(net, batch, workers), [batch] * workers)
    experiment = prepare(algorithm, problem, workers=workers, steps=steps, machine=machine)
    return pace(perform(experiment, "simulator", observe=0).trace)


def ends(trace: Trace) -> tuple[float, float]:
    """Seconds that a message keeps its sender, and from then to the arrival; medians."""
    keeps, sent = list[float](), dict[tuple[str, str, int], float]()
    following = dict[tuple[str, int], Event]()
    for e in reversed(trace.events):
        key = e.node, e.program
        if isinstance(e, Sent) and key in following:
            sent[e.node, e.to, e.number] = began(following[key])
            keeps.append(sent[e.node, e.to, e.number] - e.time)
        following[key] = e
    ways = [m.arrival - sent[m.src, m.to, m.number] for m in trace.transits
            if (m.src, m.to, m.number) in sent]
    return statistics.median(keeps), max(statistics.median(ways), 0.0)


def with_messages(machine: Machine, traces: Sequence[Trace], measured: Sequence[Pace],
                  short: Distribution) -> Machine:
    """The machine with the latency that traces show, and the overhead that fits the pace of some runs.

    What a message costs its receiver does not show in a trace: the transport copies it, and what is computed
    from it finds nothing in the caches.  The crowding of one program more than cores is fitted, too.
    """
    from scipy.optimize import minimize

    keeps, ways = zip(*map(ends, traces), strict=True)
    inside = Link(min(ways))
    full = machine.cores is not None and max(p.workers for p in measured) + 1 > machine.cores

    def of(scale: Array) -> Machine:
        fixed, per_byte = np.abs(scale[:2]) * (max(*keeps, 1e-5), 1e-10)
        over = (round(machine.crowding[-1] * (1 + abs(float(scale[2]))), 4),) if full else ()
        return machine.with_(overhead=Overhead(float(fixed), float(per_byte)), inside=inside,
                             crowding=machine.crowding + over)

    def misfit(scale: Array) -> float:
        here = of(scale)
        return sum(math.log(predicted(here.with_(compute=short) if p[1:3] == SHORT else here, *p[:4])
                            / p.seconds) ** 2 for p in measured)

    start = [1.0, 1.0, 0.2] if full else [1.0, 1.0]
    return of(minimize(misfit, start, method="Nelder-Mead", options={"maxfev": 40, "xatol": 0.05,
                                                                     "fatol": 1e-5}).x)
