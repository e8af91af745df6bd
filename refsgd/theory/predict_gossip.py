"""Figures of gossip algorithms: GoSGD, AD-PSGD, pair averaging, D-PSGD, SGP."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
from scipy import special

from refsgd.laws import Law
from refsgd.theory import gossip, iteration
from refsgd.theory.peers import alone, free, fresh, heard_from
from refsgd.theory.prediction import Kind, Prediction, check_share
from refsgd.theory.setting import Figures, Setting, clocks, count, figures
from refsgd.theory.stragglers import mean_of_maximum, sum_law

Rounds = list[list[list[int]]]


def gosgd(c: Setting) -> Figures:
    """With probability p a peer sends its replica and 8 bytes of weight to a random other; nobody waits.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    p = check_share("p", float(c.options.get("p", 0.1)))
    step = alone(c)
    expected = p * c.workers * (c.nbytes + 8) if c.workers > 1 else 0.0
    out = figures(c, step, free(c, step, own=1), c.steps, expected)
    for name in ("bytes_per_iteration", "bytes_sent"):
        kind: Kind = "exact" if p in (0.0, 1.0) or c.workers == 1 else "approximation"
        out[name] = Prediction(out[name].value, "bytes", kind, {"expected": out[name].value}, "p n (M + 8), expected",
                               "the message protocol")
    return {**out, **fresh(), **clocks(c, math.inf, math.inf, "no bound but the length of the run")}


def _sides(graph: str, n: int) -> list[bool] | None:
    """Which peers ask: the side of rank 0 answers.  None for a graph whose sides are not known here."""
    if graph in ("bipartite", "bipartite-ring", "ring"):
        return [i % 2 == 1 for i in range(n)]
    return [i > 0 for i in range(n)] if graph == "star" else None


def _joined(c: Setting, exchange: float, asks: list[bool], update: float, kind: Kind) -> Prediction:
    """Peers that ask need max(T, x), the others T; all then update."""
    each = [gossip.mean_of_longer(law, exchange) if ask and exchange else law.mean for law, ask in zip(c.laws, asks, strict=True)]
    rates = [1 / (t + update) if t + update else math.inf for t in each]
    value, mean = c.workers / math.fsum(rates), iteration.mean_time(c.laws)
    return Prediction(value, "s", kind, {"compute E[T]": mean, "update": update, "partner": max(value - mean - update, 0.0)},
                      "n / sum of rates; those that ask E[max(T, x)], those asked E[T]", "Lian et al. 2018",
                      "those that ask do not meet at one partner")


def adpsgd(c: Setting) -> Figures:
    """The side of rank 0 answers, the other asks; averaging beside the computing; an update takes no time.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    asks = _sides(str(c.options.get("graph", "bipartite")), c.workers)
    if asks is None:
        return {}
    x = 2 * (c.machine.latency + c.transfer)
    step = _joined(c, x, asks, 0.0, "approximation" if x and sum(asks) > 1 else "exact")
    total = 2.0 * sum(asks) * c.nbytes
    out = figures(c, step, _slowest(c, x, asks, 0.0), c.steps, total)
    if c.steps:
        side = sum(asks) / c.workers
        served = side * _served(c, x, asks)
        out["staleness_mean"] = Prediction(side + served, "updates", "approximation", {"own averages": side, "asked for": served},
                                           "askers/n (1 + share of the asks that reach a peer which still computes)", "Lian et al. 2018",
                                           "sums of times taken as normal; askers do not meet at one partner")
    return out


def _served(c: Setting, exchange: float, asks: list[bool]) -> float:
    """Share of an asker's requests that come while the peer it asks still has gradients to compute.

    An average that a passive peer serves after its last gradient makes none stale.  Request k comes after k rounds of
    max(T, x) and x/2, the peer ends after `steps` times T: P(the one sum < the other), both taken as normal.
    """
    k = np.arange(c.steps)
    pairs = Counter((asker, asked) for asker, asking in zip(c.laws, asks, strict=True) if asking
                    for asked, other in zip(c.laws, asks, strict=True) if not other)
    shares = {}
    for asker, asked in pairs:
        each = gossip.mean_of_longer(asker, exchange) if exchange else asker.mean
        ahead = c.steps * asked.mean - k * each - exchange / 2
        spread = np.sqrt(sum(count * law.variance for count, law in ((c.steps, asked), (k, asker)) if math.isfinite(law.variance)))
        shares[asker, asked] = float(np.mean(np.where(spread > 0, special.ndtr(ahead / np.maximum(spread, 1e-300)), ahead > 0)))
    return sum(count * shares[pair] for pair, count in pairs.items()) / max(pairs.total(), 1)


def _slowest(c: Setting, exchange: float, asks: list[bool], update: float) -> Prediction:
    """A run in which nobody waits but for partners: the last of the sums, longer by E[max(T, x)] - E[T] for those that ask."""
    sums, exact = [], True
    for law, ask in zip(c.laws, asks, strict=True):
        each = (gossip.mean_of_longer(law, exchange) if ask and exchange else law.mean) + update
        exact = exact and (law.family == "fixed" or each == law.mean)
        spread = law.variance * (law.mean / each) ** 2 if ask and math.isfinite(law.variance) and each else law.variance
        total, closed = sum_law(law, max(c.steps, 1))
        exact = exact and closed
        if each != law.mean:
            total = Law("fixed", (each * c.steps,))
            if spread > 0 and math.isfinite(spread):
                total = Law("gamma", (each * max(c.steps, 1), max(c.steps, 1) * each * each / spread))
        sums.append(total)
    end = mean_of_maximum(sums) if c.steps else 0.0
    quiet = (not exchange or not c.transfer) and (not update or len(set(c.own)) == 1)
    return Prediction(end, "s", "exact" if exact and quiet else "approximation", {"last": end},
                      "E[max_i of the sum of steps times], those that ask E[max(T, x)]", "Lian et al. 2018")


def pair_averaging(c: Setting) -> Figures:
    """Everybody pulls a random peer's replica beside the computing and averages it in: x = 2 latency + w.

    Each link sends one replica an iteration on average, to random askers: as M/D/1, which adds rho w/(2 (1 - rho)), rho at most 1/2.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    w, u = c.transfer, max(c.own)
    asks = [c.workers > 1] * c.workers
    rho = min(w / max(iteration.mean_time(c.laws) + u, 2 * c.machine.latency + w), 0.5) if w and c.workers > 2 else 0.0
    x = 2 * c.machine.latency + w + rho * w / (2 * (1 - rho))
    step = _joined(c, x, asks, u, "approximation" if w or len(set(c.own)) > 1 else "exact")
    out = figures(c, step, _slowest(c, x, asks, u), c.steps, float(c.workers * c.nbytes if c.workers > 1 else 0))
    for name in ("staleness_mean", "staleness_max"):
        out[name] = count(float(c.workers > 1 and c.steps > 0), "updates", "the average that is joined counts as a change")
    return out


def hears(graph: str, n: int) -> Rounds | None:
    """Whom each peer hears from, by round; None for a graph that is not known here.

    Parameters
    ----------
    graph : str
        Name of a graph.
    n : int
        Number of nodes.

    Returns
    -------
    list of list of list of int, or None
        For each step of a cycle whom each node hears; None for an unknown name.
    """
    everyone = range(n)
    if n == 1:
        return [[[]]]
    hops = [1 << k for k in range((n - 1).bit_length())]
    if graph == "one-peer-exponential":
        return [[[(i - hop) % n] for i in everyone] for hop in hops]
    near: dict[str, Callable[[int], set[int]]] = {
        "ring": lambda i: {(i - 1) % n, (i + 1) % n}, "bipartite-ring": lambda i: {(i - 1) % n, (i + 1) % n},
        "complete": lambda i: set(everyone), "star": lambda i: {0} if i else set(everyone),
        "bipartite": lambda i: {j for j in everyone if (i + j) % 2},
        "exponential": lambda i: {(i + hop) % n for hop in hops} | {(i - hop) % n for hop in hops},
    }
    return [[sorted(near[graph](i) - {i}) for i in everyone]] if graph in near else None


def _rounds(c: Setting, graph: str, before: bool, extra: int) -> Figures:
    rounds = hears(graph, c.workers)
    if rounds is None:
        return {}
    messages = sum(len(heard) for heard in rounds[0])
    if not messages:
        step = alone(c)
        return {**figures(c, step, free(c, step, own=1), c.steps, 0.0), **fresh()}
    step, run = heard_from(c, rounds, (c.nbytes + extra) / c.machine.bandwidth, before=before)
    return {**figures(c, step, run, c.steps, float(messages * (c.nbytes + extra))), **fresh()}


def dpsgd(c: Setting) -> Figures:
    """Each peer averages with its neighbours; cta sends before computing, atc after the update.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    return _rounds(c, str(c.options.get("graph", "ring")), c.options.get("order", "cta") == "cta", 0)


def sgp(c: Setting) -> Figures:
    """Push-sum on a directed graph: replica and 4 bytes of weight, after the update.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    return _rounds(c, str(c.options.get("graph", "one-peer-exponential")), False, 4)


GOSSIP = {"gosgd": gosgd, "adpsgd": adpsgd, "pair-averaging": pair_averaging, "dpsgd": dpsgd, "sgp": sgp}
