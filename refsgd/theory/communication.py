"""What servers, partners and sparse vectors cost on the links, and the strategies that name such patterns.

The links, the letters and what is assumed of them: `refsgd.theory.exchange`.

References
----------
Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
Jiang et al., "A unified architecture for accelerating distributed DNN training", OSDI 2020: servers beside workers.
Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018: partners.
Lin et al., "Deep gradient compression", ICLR 2018: sparse vectors.
"""

from __future__ import annotations

import math
from typing import Literal

from refsgd.theory.collectives import allreduce
from refsgd.theory.exchange import Exchange, Link, nothing_sent, priced, sizes
from refsgd.theory.prediction import DomainError, check_count, check_time

Order = Literal["index", "rotated"]


def parameter_server(workers: int, nbytes: float, link: Link, *, servers: int = 1, order: Order = "index",
                     collocated: bool = False, update: float = 0.0) -> Exchange:
    """All workers push to K servers, which update when the last push is in, and answer all.

    Parameters
    ----------
    workers, servers : int
        n, K.
    nbytes : float
        M; each server holds M/K.
    link : Link
        Latency and bandwidth.
    order : {"index", "rotated"}
        Slices sent 0..K-1 and answers 1..n, or each sender starting with its own index.
    collocated : bool
        Server k lives with worker k; covered for K = 1 and for K = n, rotated.
    update : float
        Seconds of one update.

    Returns
    -------
    Exchange

    Notes
    -----
    Index order: server 0 is busy n w/K, each further server ends w/K later, and the last answer leaves (n-1) w/K
    after the first and is followed by nothing: ((2n-1)/K + 1) w, for every n and K.  Rotated with n >= K: every
    link is busy from the first moment, n w/K each way.  n < K: at most w each way.
    """
    n, m = sizes(workers, nbytes)
    k, u = check_count("servers", servers), check_time("update", update)
    w, a = link.wire(m), link.latency
    total, source = 2.0 * n * m, "Li et al. 2014; Jiang et al. 2020"
    if collocated:
        if k not in (1, n) or (k == n > 1 and order != "rotated"):
            raise DomainError(f"{k} servers on the nodes of {n} workers, {order} order; the formula assumes one server, "
                              "or a server on every node and rotated order")
        if n == 1:
            return priced(u, "exact", 0.0, 0.0, 0.0, "u: one node", source, 0.0, 0.0, u)
        share = 2 * (n - 1) / k
        busiest = (n - 1) * m if k == 1 else 2 * (n - 1) / n * m
        return priced(2 * a + share * w + u, "exact", 2 * a, share * w, 0.0, "2 alpha + 2 (n-1)/K w + u", source,
                      busiest, 2.0 * (n - 1) * m, u)
    busiest = max(m, n * m / k)
    if order == "rotated":
        share = 2 * max(n / k, 1.0)
        return priced(2 * a + share * w + u, "exact" if n >= k else "bound", 2 * a, share * w, 0.0,
                      "2 alpha + 2 max(n/K, 1) w + u", source, busiest, total, u)
    share = (2 * n - 1) / k + 1
    return priced(2 * a + share * w + u, "exact", 2 * a, share * w, 0.0, "2 alpha + ((2n-1)/K + 1) w + u", source,
                  busiest, total, u)


def pull(workers: int, nbytes: float, link: Link, *, collocated: bool = False, asked: bool = False) -> Exchange:
    """One server sends the model to all workers (a forward pass): n transfers, n-1 if one worker lives with it.

    Parameters
    ----------
    workers : int
        n, at least 1.
    nbytes : float
        M, bytes of the whole vector, >= 0.
    link : Link
        Latency, bandwidth and cost of reducing.
    collocated : bool
        Whether the server shares the node of a worker, whose transfer then is none.
    asked : bool
        Whether a request without payload comes first, which costs another latency.

    Returns
    -------
    Exchange
    """
    n, m = sizes(workers, nbytes)
    remote = n - 1 if collocated else n
    if not remote:
        return nothing_sent()
    latency = link.latency * (2 if asked else 1)
    wire = remote * link.wire(m)
    return priced(latency + wire, "exact", latency, wire, 0.0, "alpha + (n or n-1) w", "definition", remote * m, remote * m)


def gossip_exchange(nbytes: float, link: Link) -> Exchange:
    """AD-PSGD: the asker sends x and waits for the average, 2 (alpha + w); the asked waits for nothing.

    Parameters
    ----------
    nbytes : float
        M, bytes of the whole vector, >= 0.
    link : Link
        Latency, bandwidth and cost of reducing.

    Returns
    -------
    Exchange
    """
    _, m = sizes(1, nbytes)
    w = link.wire(m)
    return priced(2 * (link.latency + w), "exact", 2 * link.latency, 2 * w, 0.0,
                  "2 (alpha + w); askers at one partner queue", "Lian et al., ICML 2018", m, 2 * m)


def sparse_bytes(parameters: int, ratio: float, workers: int = 1) -> dict[str, float]:
    """Bytes of deep gradient compression: k = ceil(ratio x parameters) values and indices of 4 bytes each.

    Parameters
    ----------
    parameters : int
        d, at least 1.
    ratio : float
        Share of the entries that are sent, in (0, 1].
    workers : int
        n, at least 1.

    Returns
    -------
    dict
        "push": 8 k up; "answer": up to min(8 n k, M) down; "allgather": 8 k (n-1) per node, n rho times what a
        ring allreduce of the dense vector sends.
    """
    d, n = check_count("parameters", parameters, 0), check_count("workers", workers)
    if not 0 < ratio <= 1:
        raise DomainError(f"ratio {ratio}; the formula assumes a share in (0, 1]")
    k = math.ceil(ratio * d * (1 - 1e-12))  # a product rounded upwards does not count
    return {"push": 8.0 * k, "answer": min(8.0 * n * k, 4.0 * d), "allgather": 8.0 * k * (n - 1)}


def sparse_gather(workers: int, parameters: int, ratio: float, link: Link) -> Exchange:
    """All-gather of k values and indices from everybody to everybody, rotated: alpha + (n-1) 8 k beta.

    Parameters
    ----------
    workers : int
        n, at least 1.
    parameters : int
        d, at least 1.
    ratio : float
        Share of the entries that are sent, in (0, 1].
    link : Link
        Latency, bandwidth and cost of reducing.

    Returns
    -------
    Exchange
    """
    n, m = sizes(workers, sparse_bytes(parameters, ratio)["push"])
    if n == 1:
        return nothing_sent()
    wire = (n - 1) * link.wire(m)
    return priced(link.latency + wire, "exact", link.latency, wire, 0.0, "alpha + (n-1) 8 k beta, k = ceil(ratio d)",
                  "Lin et al., ICLR 2018", (n - 1) * m, n * (n - 1) * m)


def strategy(name: str, workers: int, nbytes: float, link: Link, *, update: float = 0.0) -> Exchange:
    """The strategies that the TU Delft thesis of 2019 measures, by its names.

    independent, replicated: nothing between nodes; distributed-replicated: backward as one collocated server;
    distributed-all-reduce: PSCPU; collective-all-reduce, horovod: ring; caffe2: halving-doubling.

    Parameters
    ----------
    name : str
        The thesis' name of the strategy.
    workers : int
        n, at least 1.
    nbytes : float
        M, bytes of the whole vector, >= 0.
    link : Link
        Latency, bandwidth and cost of reducing.
    update : float
        Seconds of one update.

    Returns
    -------
    Exchange
    """
    n, m = sizes(workers, nbytes)
    if name in ("independent", "replicated"):
        return nothing_sent()
    if name in ("distributed-replicated", "parameter-server"):
        return parameter_server(n, m, link, collocated=True, update=update)
    known = {"distributed-all-reduce": "pscpu", "collective-all-reduce": "ring", "horovod": "ring",
             "caffe2": "halving-doubling"}
    if name not in known:
        raise DomainError(f"strategy {name!r}; expected independent, replicated, parameter-server, "
                          f"distributed-replicated, {', '.join(known)}")
    return allreduce(known[name], n, m, link)
