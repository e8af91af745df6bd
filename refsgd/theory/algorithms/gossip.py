"""Predictions for gossip algorithms: GoSGD, Ako, AD-PSGD, pair averaging, D-PSGD, SGP."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from refsgd.cluster.distributions import Distribution
from refsgd.theory.algorithms.peers import apart, fresh, heard_from
from refsgd.theory.estimate import Uncovered
from refsgd.theory.phenomena import gossip, iteration
from refsgd.theory.phenomena.stragglers import mean_of_maximum, sum_of
from refsgd.theory.prediction import DomainError, Figures, Kind, Prediction
from refsgd.theory.setting import RUN, Setting, figures, unbounded

Rounds = list[list[list[int]]]


def gosgd(c: Setting) -> Figures:
    """GoSGD: with probability p a peer sends replica and weight (8 bytes) to a random peer; none waits."""
    p = float(c.option("p", 0.1))
    if not 0 <= p <= 1:
        raise DomainError(f"p {p}; the formula assumes a share between 0 and 1")
    expected = p * c.workers * (c.nbytes + 8) if c.workers > 1 else 0.0
    out = figures(c, *apart(c), c.steps, expected, fresh(), unbounded(c))
    for name in ("bytes_per_iteration", "bytes_sent"):
        kind: Kind = "exact" if p in (0.0, 1.0) or c.workers == 1 else "approximation"
        out[name] = Prediction(out[name].value, "bytes", kind, {"expected": out[name].value},
                               "p n (M + 8), expected", "the message protocol")
    return out


def ako(c: Setting) -> Figures:
    """Ako: one of p partitions to every other peer, all of them in the last iteration; none waits."""
    p = c.whole("partitions", 2)
    if p < 1:
        raise DomainError(f"partitions {p}; the formula assumes at least 1")
    rounds, left = divmod(c.steps - 1, p) if c.steps else (0, 0)
    first = 4 * (c.nbytes // 4 * left // p)  # of a round that ends early: ranges of whole numbers
    sent = c.workers * (c.workers - 1) * (rounds * c.nbytes + first + c.nbytes) if c.steps else 0
    return figures(c, *apart(c), c.steps, sent / max(c.steps, 1), fresh(), unbounded(c))


def _known(graph: str, graphs: Collection[str]) -> None:
    """Raise Uncovered unless the graph is one of these."""
    if graph not in graphs:
        raise Uncovered(f"graph {graph!r} has no formula; expected one of {', '.join(graphs)}")


LOADED = 0.3  # a transfer over a mean gradient, beyond which askers often meet at one partner


def _asking(c: Setting, exchange: float, asks: list[bool], updates: Sequence[float], kind: Kind,
            sent: float, meet: int = 1) -> Figures:
    """Peers whose iteration takes max(T, x) if they ask, otherwise T, and then their update; `meet` of them
    ask the same partner."""
    if sum(asks) > 1 and meet * c.transfer > LOADED * min(time.mean for time in c.times):
        return figures(c, None, None, c.steps, sent, fresh()).without(RUN, "clock_gap_max", "lead_max")
    alone = [time.mean + update for time, update in zip(c.times, updates, strict=True)]
    each = [gossip.mean_of_longer(time, exchange) + update if ask and exchange else free
            for time, update, ask, free in zip(c.times, updates, asks, alone)]
    value, free = (c.workers / math.fsum(1 / t if t else math.inf for t in found) for found in (each, alone))
    update = math.fsum(updates) / c.workers
    step = Prediction(value, "s", kind, {"compute E[T]": free - update, "update": update,
                                         "partner": 0.0 if math.isclose(value, free) else value - free},
                      "n / sum of rates; asking peers E[max(T, x)], asked peers E[T]", "Lian et al. 2018",
                      "asking peers do not meet at one partner")
    drawn = [u.variance if u and any(updates) else 0.0 for u in c.updates]
    run = _slowest(c, each, asks, drawn, (not exchange or not c.transfer) and len(set(updates)) == 1)
    return figures(c, step, run, c.steps, sent, fresh()).without(RUN, "clock_gap_max", "lead_max")


def adpsgd(c: Setting) -> Figures:
    """AD-PSGD: one side of the graph asks; averages overlap with computing; updates take no time."""
    c.check_alone()
    graph = str(c.option("graph", "bipartite"))
    _known(graph, ("bipartite", "bipartite-ring", "ring", "star"))
    asks = [i > 0 if graph == "star" else i % 2 == 1 for i in range(c.workers)]
    x = 2 * (c.machine.latency + c.transfer)
    return _asking(c, x, asks, [0.0] * c.workers, "approximation" if x and sum(asks) > 1 else "exact",
                   2.0 * sum(asks) * c.nbytes, sum(asks) if graph == "star" else 1)


def _slowest(c: Setting, rounds: list[float], asks: list[bool], drawn: list[float],
             exact: bool) -> Prediction:
    """A run in which peers wait only for partners: E[max of sums] of T, or of max(T, x) for asking peers, and
    of updates, whose variances are `drawn`."""
    sums = []
    for time, ask, each, more in zip(c.times, asks, rounds, drawn, strict=True):
        exact = exact and (each == time.mean or (time.family == "fixed" and not (more and c.workers > 1)))
        spread = time.variance * (time.mean / each) ** 2 if ask and math.isfinite(
            time.variance) and each else time.variance
        spread += more
        total, closed = sum_of(time, c.steps)
        exact = exact and closed
        if each != time.mean:
            total = Distribution("fixed", (each * c.steps,))
            if spread > 0 and math.isfinite(spread):
                total = Distribution("gamma", (each * c.steps, c.steps * each * each / spread))
        sums.append(total)
    end = mean_of_maximum(sums)
    return Prediction(end, "s", "exact" if exact else "approximation", {"last": end},
                      "E[max_i of the sum of steps times], asking peers E[max(T, x)]", "Lian et al. 2018")


def pair_averaging(c: Setting) -> Figures:
    """Pair averaging: each peer pulls a random peer's replica while it computes: x = 2 latency + w.

    Each link sends one replica per iteration on average, to random peers.  It is taken as M/D/1, which adds
    rho w/(2 (1 - rho)), with rho at most 1/2.
    """
    c.check_alone()
    w, asks = c.transfer, [c.workers > 1] * c.workers
    rho = min(w / max(iteration.mean_time(c.times) + max(c.own), 2 * c.machine.latency + w),
              0.5) if w and c.workers > 2 else 0.0
    x = 2 * c.machine.latency + w + rho * w / (2 * (1 - rho))
    return _asking(c, x, asks, c.own, "approximation" if w else "exact",
                   float(c.workers * c.nbytes if c.workers > 1 else 0))


def hears(graph: str, n: int) -> Rounds:
    """The in-neighbours of each peer, by round; Uncovered for a graph without a formula."""
    everyone = range(n)
    hops = [1 << k for k in range((n - 1).bit_length())]
    if graph == "one-peer-exponential":
        return [[[(i - hop) % n] for i in everyone] for hop in hops] or [[[]]]
    near: dict[str, Callable[[int], set[int]]] = {
        "ring": lambda i: {(i - 1) % n, (i + 1) % n}, "bipartite-ring": lambda i: {(i - 1) % n, (i + 1) % n},
        "complete": lambda i: set(everyone), "star": lambda i: {0} if i else set(everyone),
        "bipartite": lambda i: {j for j in everyone if (i + j) % 2},
        "exponential": lambda i: {(i + hop) % n for hop in hops} | {(i - hop) % n for hop in hops},
    }
    _known(graph, (*near, "one-peer-exponential"))
    return [[sorted(near[graph](i) - {i}) for i in everyone]]


def _rounds(c: Setting, graph: str, before: bool, extra: int) -> Figures:
    rounds = hears(graph, c.workers)
    messages = sum(len(heard) for heard in rounds[0])
    times = heard_from(c, rounds, c.nbytes + extra, before=before) if messages else apart(c)
    out = figures(c, *times, c.steps, float(messages * (c.nbytes + extra)), fresh())
    return out.without("grows with the distance in the graph; no formula", "clock_gap_max", "lead_max")


def dpsgd(c: Setting) -> Figures:
    """D-PSGD: each peer averages with its neighbours; cta sends before computing, atc after the update."""
    return _rounds(c, str(c.option("graph", "ring")), c.option("order", "cta") == "cta", 0)


def sgp(c: Setting) -> Figures:
    """SGP: push-sum on a directed graph, a replica and 4 bytes of weight after the update."""
    return _rounds(c, str(c.option("graph", "one-peer-exponential")), False, 4)
