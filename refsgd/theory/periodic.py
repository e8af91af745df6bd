"""Algorithms that communicate now and then: local SGD, EASGD, Downpour.

References
----------
Stich, "Local SGD converges fast and communicates little", ICLR 2019.
Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD", NIPS 2015.
Dean et al., "Large scale distributed deep networks", NIPS 2012, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from refsgd.machine import Law
from refsgd.theory import server
from refsgd.theory.communication import Exchange
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


def easgd(laws: Sequence[Law], period: int, *, servers: int = 1, transfer: float = 0.0, latency: float = 0.0,
          update: Law | None = None) -> Prediction:
    """Seconds per iteration of asynchronous EASGD that waits for its exchange: ASP with sums of H times for T.

    Parameters
    ----------
    laws : sequence of Law
    period : int
        H, iterations between exchanges.
    servers, transfer, latency, update
        As in `refsgd.theory.server.asp`; `update` is that of the centre.
    """
    h = check_count("period", period)
    cycle = server.asp([sum_law(law, h)[0] for law in laws], servers=servers, transfer=transfer, latency=latency, update=update)
    mean = mean_time(laws)
    terms = {k: v / h for k, v in cycle.terms.items()}
    return Prediction(cycle.value / h, "s", cycle.kind, {**terms, "compute E[T]": mean}, f"ASP with {h} T for T, over {h}",
                      "Zhang et al. 2015; " + cycle.source, cycle.assumptions, lower=None if cycle.lower is None else cycle.lower / h)


def downpour(laws: Sequence[Law], fetch_every: int, *, transfer: float = 0.0, latency: float = 0.0, update: Law | None = None,
             push_every: int = 1) -> Prediction:
    """Seconds per iteration of Downpour SGD with one server: E[T] + fetch wait / n_fetch.

    A push does not wait.  A fetch asks without payload behind the push that precedes it: w of that push on the
    wire, 2 latency, w of the model, and the update; contention comes in by mean-value analysis.
    """
    f, p = check_count("fetch_every", fetch_every), check_count("push_every", push_every)
    w, a, u = check_time("transfer", transfer), check_time("latency", latency), update_mean(update)
    mean = mean_time(laws)
    behind = w + u if p == 1 or f % p == 0 else 0.0
    wait = 2 * a + w + behind
    service = max(w / f, w / p, u / p)  # per iteration, on the busiest of in, out and processor
    alone = mean + wait / f
    rate, _ = server.mean_value_analysis(len(laws), max(alone, service), service)
    value = max(len(laws) / rate, alone)
    return Prediction(value, "s", "exact" if w == 0 and update is None else "approximation",
                      {"compute E[T]": mean, "transfer": wait / f - behind / f * (u / (w + u) if w + u else 0.0),
                       "update": u / f if behind else 0.0, "queueing": value - alone},
                      "E[T] + (2 latency + w + own push + update)/n_fetch, queueing by mean-value analysis", "Dean et al. 2012",
                      "one server; a fetch waits, a push does not")
