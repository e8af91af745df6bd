"""How long one iteration of a synchronous algorithm takes: the slowest worker, and one model after another.

BSP through K parameter servers on own nodes, each slice of g = w/K seconds on a link, index order.  Server 0
has the last of its n pushes at D; server k has it k g later, because every worker sends its slices one after
the other.  After the update (u) each server answers worker 1, 2, ..., n, so worker i holds the whole model at
D + u + latency + w + (i-1) g and its next push reaches server 0 at D + 2 latency + u + w + (i-1) g + T_i.  An
incoming link that serves the k-th smallest of n arrivals S_(k) in g seconds each is done at
max_k [S_(k) + (n-k+1) g].  Hence, with S_i = T_i + i g,

    iteration = 2 latency + u + w - g + E max_k [S_(k) + (n-k+1) g]

for every law, n and K: each update empties the system, so iterations are independent and equally distributed.
For equal fixed T the maximum is T + (n+1) g: **T + 2 latency + u + w + n w/K**, not the textbook's 2 n w/K:
answers leave one by one, so later pushes meet an emptier link.

References
----------
Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014: the pattern.
Lindley, "The theory of queues with a single server", Proc. Camb. Phil. Soc. 48, 1952: the recursion behind
max_k [S_(k) + (n-k+1) g].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from refsgd.laws import Law
from refsgd.theory.prediction import DomainError, Prediction, check_count, check_law, check_time, kind_of, sampling
from refsgd.theory.stragglers import mean_of_maximum

Values = npt.NDArray[np.float64]

SAMPLES = 2_000_000  # drawn compute times of one Monte Carlo mean, over all workers


def mean_time(laws: Sequence[Law]) -> float:
    """E[T] in seconds, mean over the workers.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker [s].

    Returns
    -------
    float
        Seconds.
    """
    return math.fsum(check_law("compute", law).mean for law in laws) / len(laws)


def update_mean(update: Law | None) -> float:
    """E[u] in seconds; 0 where the machine states no update time.

    Parameters
    ----------
    update : Law or None
        Seconds of one update.

    Returns
    -------
    float
        Seconds.
    """
    return 0.0 if update is None else check_law("update", update).mean


def drain(arrivals: Values, service: float) -> Values:
    """When a link has served all arrivals of each row, `service` seconds each, first come first served.

    Parameters
    ----------
    arrivals : ndarray, (samples, n)
        Seconds.
    service : float
        Seconds of each.

    Returns
    -------
    ndarray, (samples,)
        Seconds.
    """
    n = arrivals.shape[1]
    return np.asarray(np.max(np.sort(arrivals, axis=1) + service * np.arange(n, 0, -1), axis=1))


def controlled_mean(values: Values, controls: Sequence[tuple[Values, float]]) -> tuple[float, float]:
    """Monte Carlo mean and standard error, with control variates whose means are known.

    The regression of `values` on the controls takes out what is known exactly, e.g. the error of the sampled
    E[max T].

    Parameters
    ----------
    values : ndarray, (samples,)
        What is averaged.
    controls : sequence of (ndarray, float)
        Quantities of the same samples, and their known means.

    Returns
    -------
    (float, float)
        Mean and standard error.
    """
    design = [c - mean for c, mean in controls if np.ptp(c) > 0 and math.isfinite(mean)]
    columns = np.stack([np.ones_like(values), *design], axis=1)
    solution, *_ = np.linalg.lstsq(columns, values, rcond=None)
    residual = values - columns @ solution
    return float(solution[0]), float(np.std(residual) / math.sqrt(len(values)))


def bsp_barrier(laws: Sequence[Law], slice_time: float, *, staggered: bool = True, lag: float = 0.0,
                local: bool = False, least: float = 0.0) -> tuple[float, float]:
    """E max_k [S_(k) + (n-k+1) g] + lag: from the first answer to the last push, and its standard error.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker.
    slice_time : float
        g, seconds of one slice on one link.
    staggered : bool
        S_i = T_i + i g (the steady state); False: all start together, S_i = T_i.
    lag : float
        Latencies between [s]; what worker 0 saves when `local`.
    local : bool
        Worker 0 lives with the server and uses no link.
    least : float
        Until then the link has other work [s]: half duplex.

    Returns
    -------
    tuple of float
        Seconds and standard error; 0 where the mean is exact (fixed times, or nothing on the link).
    """
    n = len(laws)
    remote = n - 1 if local else n
    if remote == 0:
        return mean_of_maximum(laws), 0.0
    if slice_time == 0 and (lag == 0 or not local):
        return lag + mean_of_maximum(laws), 0.0
    fixed = all(law.family == "fixed" for law in laws)
    rows = 1 if fixed else max(SAMPLES // (8 * n), 500)
    rng = np.random.default_rng(20170)
    times = np.stack([law.sample(rng, rows) for law in laws], axis=1)
    offsets = slice_time * np.arange(1, remote + 1) * staggered
    ends = lag + drain(times[:, n - remote:] + offsets, slice_time)
    if local:
        ends = np.maximum(ends, times[:, 0])
    ends = np.maximum(ends, least)
    if fixed:
        return float(ends[0]), 0.0
    controls = [(times.max(axis=1), mean_of_maximum(laws)), (times.mean(axis=1), mean_time(laws))]
    return controlled_mean(ends, controls)


def behind(laws: Sequence[Law], slice_time: float, local: bool = False) -> float:
    """Seconds from a worker's own gradient to the last one, mean over workers: E max S_i - E[S_i], S_i = T_i + i g.

    Workers that are answered later start later, so even equal fixed times leave (n-1)/2 g of waiting for
    others that still compute.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker [s].
    slice_time : float
        g, seconds between two answers.
    local : bool
        Whether one worker shares the server's node and needs no link.

    Returns
    -------
    float
        Seconds.
    """
    if slice_time == 0:
        return mean_of_maximum(laws) - mean_time(laws)
    fixed = all(law.family == "fixed" for law in laws)
    rng = np.random.default_rng(20170)
    rows = 1 if fixed else max(SAMPLES // (8 * len(laws)), 500)
    times = np.stack([law.sample(rng, rows) for law in laws], axis=1)
    starts = times + slice_time * np.arange(0 if local else 1, len(laws) + (0 if local else 1))
    last, mean = starts.max(axis=1), starts.mean(axis=1)
    if fixed:
        return float(last[0] - mean[0])
    controls = [(times.max(axis=1), mean_of_maximum(laws)), (times.mean(axis=1), mean_time(laws))]
    return max(controlled_mean(last - mean, controls)[0], 0.0)


def bsp(laws: Sequence[Law], *, servers: int = 1, transfer: float = 0.0, latency: float = 0.0,
        update: Law | None = None, collocated: bool = False) -> Prediction:
    """Seconds per iteration of BSP through parameter servers, full duplex, index order.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker.
    servers : int
        K, a barrier for each slice.
    transfer : float
        w: seconds of the whole model on one link.
    latency : float
        Of one message [s].
    update : Law or None
        Of one server.
    collocated : bool
        Server k lives with worker k.

    Returns
    -------
    Prediction
        Terms: waiting for workers that still compute is straggling (`behind`), the rest beyond an uncontended
        exchange and the update is queueing.  Exact on own nodes (module docstring) and for one collocated server (worker 0 uses no link; the last
        of the others decides unless worker 0 is slower: T + 2 latency + u + n w for fixed T).  Collocated and
        K = n, rotated from the own node: E[max T] + 2 latency + u + 2 (n-1)/n w, exact for equal fixed T,
        in which all stay in step, else an approximation.  Collocated with 1 < K < n: an approximation.
        Several servers with random update times: an approximation.
    """
    n, k = check_count("workers", len(laws)), check_count("servers", servers)
    w, alpha = check_time("transfer", transfer), check_time("latency", latency)
    u, mean = update_mean(update), mean_time(laws)
    slowest = mean_of_maximum(laws)
    exact = k == 1 or update is None or update.family == "fixed"
    error = 0.0
    fixed = all(law.family == "fixed" for law in laws)
    if collocated and k == n > 1:
        total = slowest + 2 * alpha + u + 2 * (n - 1) / n * w
        exact = exact and (w == 0 or (fixed and len(set(laws)) == 1))
        formula = "E[max T] + 2 latency + u + 2 (n-1)/n w"
    elif collocated:
        barrier, error = bsp_barrier(laws, w / k, lag=2 * alpha + w - w / k, local=True)
        total, exact = barrier + u, exact and k == 1
        formula = "E max(T_0, 2 latency + max_k [S_(k) + (n-k) w]) + u, S_i = T_i + i w, i = 1..n-1"
    else:
        barrier, error = bsp_barrier(laws, w / k, lag=2 * alpha + w - w / k)
        total = barrier + u
        formula = "2 latency + u + (1 - 1/K) w + E max_k [S_(k) + (n-k+1) w/K], S_i = T_i + i w/K"
    alone = 0.0 if collocated and n == 1 else 2 * alpha + (1 + 1 / k) * w
    stepped = collocated and k == n  # all stay in step: no answer is later than another
    straggling = min(slowest - mean if stepped else behind(laws, w / k, collocated), max(total - mean - u, 0.0))
    transfer_term = min(alone, max(total - mean - straggling - u, 0.0))
    terms = {"compute E[T]": mean, "straggling": straggling, "transfer": transfer_term, "update": u,
             "queueing": max(total - mean - straggling - u - transfer_term, 0.0), **sampling(error)}
    spread = slowest + 2 * alpha + u + (n / k + 1) * w
    return Prediction(
        total, "s", kind_of(exact, error), terms, formula,
        "renewal argument; Lindley 1952", "independent times; full duplex; slices of equal size; first come first served",
        lower=None if collocated else max(mean + 2 * alpha + u + (n / k + 1) * w,
                                          slowest + 2 * alpha + u + (1 + 1 / k) * w),
        upper=None if collocated or not exact else spread)


def bsp_run(laws: Sequence[Law], steps: int, *, servers: int = 1, transfer: float = 0.0, latency: float = 0.0,
            update: Law | None = None, collocated: bool = False, duplex: str = "full") -> Prediction:
    """Seconds of a whole BSP run of `steps` iterations, from the common start to the last answer.

    The first iteration starts together (S_i = T_i), the last answer leaves n-1 slices after the first one:
    (n-1) w/K more than `steps` times the iteration for fixed T.  Parameters as in `bsp`.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker [s].
    steps : int
        Iterations of each worker, >= 0.
    servers : int
        K, at least 1.
    transfer : float
        w, seconds of the whole vector on one link.
    latency : float
        Seconds until the first byte of a message arrives.
    update : Law, optional
        Seconds of one update; none by default.
    collocated : bool
        Whether server k shares the node of worker k.
    duplex : {"full", "half"}
        Whether links carry both directions at once.

    Returns
    -------
    Prediction
        Seconds of the run.
    """
    n, k = check_count("workers", len(laws)), check_count("servers", servers)
    check_count("steps", steps, 0)
    step = bsp(laws, servers=servers, transfer=transfer, latency=latency, update=update, collocated=collocated)
    if duplex == "half":
        step = bsp_duplex(laws, "half", transfer=transfer, latency=latency, update=update_mean(update), collocated=collocated)
    if steps == 0:
        return Prediction(0.0, "s", "exact", {}, "no iteration")
    w, alpha, u = transfer, latency, update_mean(update)
    if collocated and k == n > 1:
        total = steps * step.value
    elif collocated:
        first, _ = bsp_barrier(laws, w / k, staggered=False, lag=alpha + w - w / k, local=True)
        total = first + u + (steps - 1) * step.value + (alpha + (n - 1) * w / k if n > 1 else 0.0)
    else:
        first, _ = bsp_barrier(laws, w / k, staggered=False, lag=alpha)
        total = first + (steps - 1) * step.value + u + alpha + w + (n - 1) * w / k
    terms = {"iterations": steps * step.value, "first and last": total - steps * step.value, **sampling(steps * step.error)}
    return Prediction(total, "s", step.kind, terms,
                      "first barrier + (steps - 1) iterations + last answers", step.source, step.assumptions)


def bsp_duplex(laws: Sequence[Law], link: str, *, transfer: float = 0.0, latency: float = 0.0, update: float = 0.0,
               collocated: bool = False) -> Prediction:
    """Seconds per iteration of BSP with one server on links that are not used both ways at once.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker.
    link : {"full", "half", "serial"}
        full: see `bsp`.  half: both directions of a node's link share one first-come link.  serial: a
        barrier before computing, so that nobody starts before the last answer is in.
    transfer, latency, update : float
        w, alpha, u [s].
    collocated : bool
        The server lives with worker 0, which uses no link.

    Returns
    -------
    Prediction

    Notes
    -----
    half: the answers of an update occupy the server's link for r w, r workers being remote, before the first push;
    then it serves pushes.  So with S_i = T_i + i w an iteration is u + E max(2 r w, 2 latency + max_k [S_(k) + (r-k+1) w]),
    exact for every law; equal fixed T: max(T + 2 latency + (r+1) w, 2 r w) + u.  serial: T + 2 latency + u + 2 r w,
    for random T an upper bound with E[max T], since those that end first push while others compute.
    """
    n, w = check_count("workers", len(laws)), check_time("transfer", transfer)
    a, u = check_time("latency", latency), check_time("update", update)
    if link == "full":
        return bsp(laws, transfer=w, latency=a, update=Law("fixed", (u,)), collocated=collocated)
    if link not in ("half", "serial"):
        raise DomainError(f"link {link!r}; expected full, half or serial")
    mean, slowest, error, remote = mean_time(laws), mean_of_maximum(laws), 0.0, n - collocated
    equal = len(set(laws)) == 1 and laws[0].family == "fixed"
    if not remote:
        value, formula = mean + u, "E[T] + u"
    elif link == "half":
        barrier, error = bsp_barrier(laws, w, lag=2 * a, local=collocated, least=2 * remote * w)
        value, formula = barrier + u, "u + E max(2 r w, 2 latency + max_k [S_(k) + (r-k+1) w]), S_i = T_i + i w"
    else:
        value, formula = slowest + 2 * a + u + 2 * remote * w, "E[max T] + 2 latency + u + 2 r w"
    exact = equal or link == "half"
    transfer_term = min(2 * (a + w) * (remote > 0), value - slowest - u)
    terms = {"compute E[T]": mean, "straggling": slowest - mean, "transfer": transfer_term, "update": u,
             "queueing": value - slowest - u - transfer_term, **sampling(error)}
    return Prediction(value, "s", kind_of(True, error) if exact else "bound", terms, formula, "renewal argument",
                      f"{link} duplex; one server" if link == "half" else "a barrier before computing; one server",
                      bound="" if exact else "upper")


def allreduce(laws: Sequence[Law], exchange: Prediction, update: Law | None = None) -> Prediction:
    """Seconds per iteration of allreduce SGD: E[max T] + exchange + update.

    Exact for equal fixed times (all start the exchange together and end it together).  For random times early
    ranks already send: an upper bound for the ring, and an approximation for others, from 24 % high to 3 % low.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each rank.
    exchange : Prediction
        Seconds of the collective when all start together.
    update : Law or None
        Every rank updates its own replica.

    Returns
    -------
    Prediction
    """
    mean, slowest = mean_time(laws), mean_of_maximum(laws)
    u = update_mean(update) if update is None or update.family == "fixed" else mean_of_maximum([update] * len(laws))
    equal = len(set(laws)) == 1 and laws[0].family == "fixed" and (update is None or update.family == "fixed")
    exact = (equal or len(laws) == 1 or exchange.value == 0) and exchange.kind == "exact"
    value = slowest + exchange.value + u
    return Prediction(value, "s", "exact" if exact else "approximation",
                      {"compute E[T]": mean, "straggling": slowest - mean, "transfer": exchange.value, "update": u},
                      f"E[max T] + {exchange.formula} + u", exchange.source, exchange.assumptions, lower=slowest)
