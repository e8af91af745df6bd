"""Algorithms that communicate now and then: local SGD, EASGD, Downpour.

References
----------
Stich, "Local SGD converges fast and communicates little", ICLR 2019.
Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD", NIPS 2015.
Dean et al., "Large scale distributed deep networks", NIPS 2012, section 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from refsgd.laws import Law
from refsgd.theory import server
from refsgd.theory.exchange import Exchange
from refsgd.theory.iteration import mean_time, update_mean
from refsgd.theory.prediction import Prediction, check_count, check_time
from refsgd.theory.stragglers import mean_of_maximum, sum_law


def local_sgd(laws: Sequence[Law], period: int, exchange: Exchange, update: Law | None = None) -> Prediction:
    """Seconds per iteration of local SGD: (E[max of the sums of H times] + exchange)/H + update.

    The barrier is met by sums of H times, whose spread grows with sqrt(H) only: straggling shrinks with the
    period as well as the exchange.

    Parameters
    ----------
    laws : sequence of Law
    period : int
        H, iterations between exchanges.
    exchange : Exchange
        Seconds and bytes of the averaging.
    update : Law or None
        Of a worker's own update, every iteration.

    Returns
    -------
    Prediction
    """
    h, u, mean = check_count("period", period), update_mean(update), mean_time(laws)
    sums = [sum_law(law, h) for law in laws]
    slowest = mean_of_maximum([law for law, _ in sums]) / h
    fixed = all(law.family == "fixed" for law in laws)
    quiet = exchange.time.value == 0
    exact = all(e for _, e in sums) and (update is None or update.family == "fixed") and (
        quiet or (fixed and len(set(laws)) == 1)) and exchange.time.kind == "exact"
    each = exchange.time.value / h
    return Prediction(slowest + each + u, "s", "exact" if exact else "approximation",
                      {"compute E[T]": mean, "straggling": slowest - mean, "transfer": each, "update": u},
                      "(E[max_i sum_{h<=H} T_ih] + exchange)/H + u", "Stich 2019", "independent times; a barrier every H iterations")


def fetching(laws: Sequence[Law], *, servers: int = 1, transfer: float = 0.0, latency: float = 0.0, update: Law | None = None,
             fetch_every: float = 1, push_every: float = 1, behind: float = 0.0) -> Prediction:
    """Seconds per iteration where a fetch waits for the model and a push waits for nothing.

    A fetch asks without payload: 2 latency + w; `behind` is the share of fetches that follow a push of the
    same worker at once and wait for its w and its update too.  Contention by mean-value analysis on the busiest
    of the server's incoming link, processor and outgoing link.

    Parameters
    ----------
    laws : sequence of Law
        Seconds between two exchanges over `fetch_every`: the compute time of an iteration.
    servers, transfer, latency, update
        K; w of the whole model; of a message; of one server update.
    fetch_every, push_every : float
        Iterations between two fetches, two pushes.
    behind : float
        Between 0 and 1.

    Returns
    -------
    Prediction
    """
    n, k, u, mean = check_count("workers", len(laws)), check_count("servers", servers), update_mean(update), mean_time(laws)
    w, a = check_time("transfer", transfer), check_time("latency", latency)
    exchange = (2 * a + w + behind * w) / fetch_every
    waits = behind * u / fetch_every
    rounds = [law.mean + exchange + waits for law in laws]
    alone = n / math.fsum(1 / r if r else math.inf for r in rounds)
    service = max(w / k / min(fetch_every, push_every), u / push_every)
    value = alone
    if service and n > 1:
        rate, _ = server.mean_value_analysis(n, max(alone, service), service)
        # A fetch behind an own push also waits for pushes that came while its own was served.
        behind_others = behind / fetch_every * (n - 1) / n * min(rate * service, 1.0) * w / k
        value = max(n / rate, alone) + behind_others
    return Prediction(value, "s", "approximation" if w or u else "exact",
                      {"compute E[T]": mean, "transfer": exchange, "update": waits, "queueing": value - alone},
                      "E[T] + (2 latency + w, after an own push + w + u)/n_fetch, queueing by mean-value analysis",
                      "Dean et al. 2012; Zhang et al. 2015", "a fetch waits, a push does not")


def easgd(laws: Sequence[Law], period: int, *, servers: int = 1, transfer: float = 0.0, latency: float = 0.0,
          update: Law | None = None) -> Prediction:
    """Seconds per iteration of asynchronous EASGD: every H iterations a fetch of the centre, then a force back.

    The worker waits for the centre, 2 latency + w, but not for its force, which it has applied itself.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker [s].
    period : int
        H, iterations between two exchanges, at least 1.
    servers : int
        K, at least 1.
    transfer : float
        w, seconds of the whole vector on one link.
    latency : float
        Seconds until the first byte of a message arrives.
    update : Law, optional
        Seconds of one update; none by default.

    Returns
    -------
    Prediction
    """
    h = check_count("period", period)
    return fetching(laws, servers=servers, transfer=transfer, latency=latency, update=update, fetch_every=h, push_every=h)


def downpour(laws: Sequence[Law], fetch_every: int, *, servers: int = 1, transfer: float = 0.0, latency: float = 0.0,
             update: Law | None = None, push_every: int = 1) -> Prediction:
    """Seconds per iteration of Downpour SGD: E[T] + fetch wait / n_fetch; a fetch follows a push in 1/n_push of all
    cases where the two periods have no common divisor, else never.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker [s].
    fetch_every : int
        Iterations between two fetches.
    servers : int
        K, at least 1.
    transfer : float
        w, seconds of the whole vector on one link.
    latency : float
        Seconds until the first byte of a message arrives.
    update : Law, optional
        Seconds of one update; none by default.
    push_every : int
        Iterations between two pushes.

    Returns
    -------
    Prediction
    """
    f, p = check_count("fetch_every", fetch_every), check_count("push_every", push_every)
    behind = 1 / p if math.gcd(f, p) == 1 else 0.0
    return fetching(laws, servers=servers, transfer=transfer, latency=latency, update=update, fetch_every=f, push_every=p, behind=behind)
