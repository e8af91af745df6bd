"""Parameter servers with queues *and* gates: the closed network of links, drawn message by message.

Mean-value analysis (`refsgd.theory.server`) knows queues but no gate, the recursion of `refsgd.theory.ssp` knows the
gate but no queue.  Together they have no closed form, yet the network is small: messages pass the servers' links and
processors (`refsgd.theory.stations`) in order of time, and a gate (`refsgd.theory.gates`) decides who goes on when.

References
----------
Lindley, "The theory of queues with a single server", Proc. Camb. Phil. Soc. 48, 1952: the queues.
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013: the gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from refsgd.laws import Law
from refsgd.theory.gates import Eager, Fetching, Fresh, Granting, Lazy
from refsgd.theory.prediction import check_count, check_law
from refsgd.theory.ssp import Path, check_slack
from refsgd.theory.stations import Network, Stations, Values

MESSAGES = 6_000  # of one replica, at most: a longer run is continued at its pace
DRAWS = 60_000  # drawn compute times, over all replicas

_GATES: dict[str, type[Fresh]] = {"fresh": Fresh, "lazy": Lazy, "eager": Eager}


def parameter_server(laws: Sequence[Law], network: Network, staleness: float, steps: int, refresh: str = "fresh") -> Path:
    """SSP(s) through queues: seconds per clock, end of the run, staleness, reads; s = infinity, fresh: ASP.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker.
    network : Network
    staleness : float
        s >= 0, may be infinite.
    steps : int
        Clocks of each worker, at least 1.
    refresh : {"fresh", "lazy", "eager"}
        As in `refsgd.theory.ssp.recursion`.

    Returns
    -------
    Path
        Exact for one server up to the standard error of its Monte Carlo mean; with several, the order in which
        pushes reach one is taken for all.
    """
    s = check_slack(staleness)
    return _path(laws, network, steps, lambda at, times, _: _GATES[refresh](s, at, times), asking=refresh == "lazy")


def granting(laws: Sequence[Law], network: Network, lower: int, upper: int, steps: int) -> Path:
    """Dynamic SSP through queues: a worker that hits the bound is granted the clocks after which its wait is shortest.

    Parameters
    ----------
    laws, network, steps
        As in `parameter_server`.
    lower, upper : int
        Slack in clocks, 0 <= lower <= upper.

    Returns
    -------
    Path
    """
    low, high = check_count("lower", lower, 0), check_count("upper", upper, 0)
    return _path(laws, network, steps, lambda at, times, _: Granting(low, high, at, times), asking=False)


def fetching(laws: Sequence[Law], network: Network, steps: int, *, fetch_every: int = 1, push_every: int = 1, elastic: bool = False,
             own: Sequence[Law | None] = ()) -> Path:
    """Workers that fetch the model at t = 0, `fetch_every`, ... and wait for it, and push without waiting.

    Parameters
    ----------
    laws, network, steps
        As in `parameter_server`.
    fetch_every, push_every : int
        Iterations; pushes come after t = 0, `push_every`, ... and the last one (Downpour).
    elastic : bool
        Pushes come right after each fetch instead (EASGD).
    own : sequence of Law or None
        Of each worker's own update after a gradient.

    Returns
    -------
    Path
        Its staleness counts all updates between fetch and application, own ones too; mean over gradients (elastic: forces).
    """
    f, p = check_count("fetch_every", fetch_every), check_count("push_every", push_every)
    return _path(laws, network, steps, lambda at, times, after: Fetching(at, times, after, f, p, elastic), asking=True, own=own)


def _path(laws: Sequence[Law], network: Network, steps: int, make: Callable[[Stations, Values, Values], Fresh], *, asking: bool,
          own: Sequence[Law | None] = ()) -> Path:
    n = check_count("workers", len(laws))
    check_count("steps", steps)
    every = [check_law("compute", law) for law in laws] + [law for law in (network.update, *own) if law is not None]
    random = any(law.family != "fixed" for law in every)
    clocks = max(min(steps, MESSAGES // n), min(steps, 40))
    replicas = max(4, min(256, DRAWS // (n * clocks))) if random else 1
    run = _draw(laws, network, clocks, replicas, make, asking, own)
    long = run if clocks >= 120 else _draw(laws, network, 160, max(4, min(256, DRAWS // (160 * n))) if random else 1, make, asking, own)
    pace = float(np.mean(long.pace))

    def error(values: Values) -> float:
        return float(np.std(values) / math.sqrt(len(values)))

    return Path(pace, error(long.pace), float(np.mean(run.end)) + (steps - clocks) * pace, float(np.mean(run.age)), float(np.mean(run.reads)),
                True, float(np.mean(long.queued)), error(run.end) + (steps - clocks) * error(long.pace), error(run.age))


@dataclass
class _Run:
    """Of each replica: long-run seconds per clock, end of the run, mean staleness; per clock and worker: requests, queueing."""

    pace: Values
    end: Values
    age: Values
    reads: Values
    queued: Values


def _draw(laws: Sequence[Law], network: Network, clocks: int, replicas: int, make: Callable[[Stations, Values, Values], Fresh], asking: bool,
          own: Sequence[Law | None]) -> _Run:
    """Serve message by message; all arrays are (replicas, workers) unless said otherwise."""
    n, rng = len(laws), np.random.default_rng(1983)
    at = Stations(network, replicas, n, (1 + asking) * (n * clocks + n), int(asking), rng)
    times = np.stack([law.sample(rng, replicas * clocks).reshape(replicas, clocks) for law in laws], axis=2)
    after = np.zeros_like(times)
    for i, law in enumerate(own):
        if law is not None:
            after[:, :, i] = law.sample(rng, replicas * clocks).reshape(replicas, clocks)
    gate = make(at, times, after)
    age, reads, last = np.zeros(replicas), np.zeros(replicas), np.zeros(replicas)
    while True:
        while (found := at.heads_first()) is not None:
            row, which = found
            gate.leave(row[which % 2 == 0], which[which % 2 == 0] // 2)
        live, who, push = at.serve()
        if not live.any():
            break
        mine = np.zeros((replicas, n), bool)
        mine[at.rows, who] = live
        row, col = at.rows[push], who[push]
        age[row] += gate.age(row, col)
        gate.version[row] += 1
        gate.done[row, col] += 1
        last[row], reads = at.busy[row], reads + (live & ~push)
        gate.arrive(mine, mine & push[:, None])
    low, high = clocks // 4, max(3 * clocks // 4, clocks // 4 + 1)
    spent = np.maximum((gate.ends[:, high - 1] - gate.ends[:, low - 1]) / (high - low), 1e-300) if low else gate.ends[:, -1] / clocks
    each = float(n) / np.sum(1 / spent, axis=1)
    end = np.maximum(np.maximum(last, gate.final.max(axis=1)), gate.ends.max(axis=(1, 2)))
    return _Run(each, end, age / (n * gate.read_for), reads / (n * clocks), at.queued / (n * clocks))
