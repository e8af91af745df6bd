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

from refsgd.cluster.distributions import Distribution
from refsgd.theory.phenomena import server
from refsgd.theory.phenomena.collectives import Exchange
from refsgd.theory.phenomena.iteration import mean_time, update_mean
from refsgd.theory.phenomena.stragglers import mean_of_maximum, sum_of
from refsgd.theory.prediction import Prediction, check_count, check_time


def local_sgd(times: Sequence[Distribution], period: int, exchange: Exchange,
              update: Distribution | None = None) -> Prediction:
    """Seconds per iteration of local SGD: (E[max of the sums of H times] + exchange)/H + update.

    The barrier is met by sums of H times, whose spread grows with sqrt(H) only: straggling shrinks with the
    period as well as the exchange.
    """
    h, u, mean = check_count("period", period), update_mean(update), mean_time(times)
    sums = [sum_of(time, h) for time in times]
    slowest = mean_of_maximum([time for time, _ in sums]) / h
    fixed = all(time.family == "fixed" for time in times)
    quiet = exchange.time.value == 0
    exact = all(e for _, e in sums) and (update is None or update.family == "fixed") and (
        quiet or (fixed and len(set(times)) == 1)) and exchange.time.kind == "exact"
    each = exchange.time.value / h
    return Prediction(slowest + each + u, "s", "exact" if exact else "approximation",
                      {"compute E[T]": mean, "straggling": slowest - mean, "transfer": each, "update": u},
                      "(E[max_i sum_{h<=H} T_ih] + exchange)/H + u", "Stich 2019",
                      "independent times; a barrier every H iterations")


def fetching(times: Sequence[Distribution], *, servers: int = 1, transfer: float = 0.0, latency: float = 0.0,
             update: Distribution | None = None,
             fetch_every: float = 1, push_every: float = 1, behind: float = 0.0) -> Prediction:
    """Seconds per iteration where a fetch waits for the model and a push waits for nothing.

    A fetch asks without payload: 2 latency + w; `behind` is the share of fetches that follow a push of the
    same worker at once and wait for its w and its update too.  Contention by mean-value analysis on the
    busiest of the server's incoming link, processor and outgoing link.
    """
    n, k, u, mean = check_count("workers", len(times)), check_count("servers",
                                                                   servers), update_mean(update), mean_time(
                                                                       times)
    w, a = check_time("transfer", transfer), check_time("latency", latency)
    exchange = (2 * a + w + behind * w) / fetch_every
    waits = behind * u / fetch_every
    rounds = [time.mean + exchange + waits for time in times]
    alone = n / math.fsum(1 / r if r else math.inf for r in rounds)
    service = max(w / k / min(fetch_every, push_every), u / push_every)
    value = alone
    if service and n > 1:
        rate, _ = server.mean_value_analysis(n, max(alone, service), service)
        # A fetch behind an own push also waits for pushes that came while its own was served.
        behind_others = behind / fetch_every * (n - 1) / n * min(rate * service, 1.0) * w / k
        value = max(n / rate, alone) + behind_others
    return Prediction(value, "s", "approximation" if w or u else "exact",
                      {"compute E[T]": mean, "transfer": exchange, "update": waits,
                       "queueing": value - alone},
                      "E[T] + (2 latency + w, after an own push + w + u)/n_fetch, queueing by mean-value "
                      "analysis",
                      "Dean et al. 2012; Zhang et al. 2015", "a fetch waits, a push does not")


def easgd(times: Sequence[Distribution], period: int, *, servers: int = 1, transfer: float = 0.0,
          latency: float = 0.0,
          update: Distribution | None = None) -> Prediction:
    """Seconds per iteration of asynchronous EASGD: every H iterations a fetch of the centre, then a force
    back.

    The worker waits for the centre, 2 latency + w, but not for its force, which it has applied itself.
    """
    h = check_count("period", period)
    return fetching(times, servers=servers, transfer=transfer, latency=latency, update=update, fetch_every=h,
                    push_every=h)


def downpour(times: Sequence[Distribution], fetch_every: int, *, servers: int = 1, transfer: float = 0.0,
             latency: float = 0.0,
             update: Distribution | None = None, push_every: int = 1) -> Prediction:
    """Seconds per iteration of Downpour SGD: E[T] + fetch wait / n_fetch; a fetch follows a push in 1/n_push
    of all cases where the two periods have no common divisor, else never.
    """
    f, p = check_count("fetch_every", fetch_every), check_count("push_every", push_every)
    behind = 1 / p if math.gcd(f, p) == 1 else 0.0
    return fetching(times, servers=servers, transfer=transfer, latency=latency, update=update, fetch_every=f,
                    push_every=p, behind=behind)
