"""What servers, partners and sparse vectors cost on the links, and the strategies that name such patterns.

The links, the letters and what is assumed of them: `refsgd.theory.phenomena.exchange`.

References
----------
Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
Jiang et al., "A unified architecture for accelerating distributed DNN training", OSDI 2020: servers beside
workers. Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018: partners.
Lin et al., "Deep gradient compression", ICLR 2018: sparse vectors.
"""

from __future__ import annotations

import math

from refsgd.theory.phenomena.exchange import Exchange, Link, nothing_sent, priced, sizes
from refsgd.theory.prediction import DomainError, check_count


def pull(workers: int, nbytes: float, link: Link, *, colocated: bool = False,
         asked: bool = False) -> Exchange:
    """One server sends the model to all workers (a forward pass): n transfers, n-1 if one worker lives with
    it.
    """
    n, m = sizes(workers, nbytes)
    remote = n - 1 if colocated else n
    if not remote:
        return nothing_sent()
    latency = link.latency * (2 if asked else 1)
    wire = remote * link.wire(m)
    return priced(latency + wire, "exact", latency, wire, 0.0, "alpha + (n or n-1) w", "definition",
                  remote * m, remote * m)


def sparse_bytes(parameters: int, ratio: float, workers: int = 1) -> dict[str, float]:
    """Bytes of deep gradient compression: k = ceil(ratio x parameters) values and indices of 4 bytes each.

    "push": 8 k up; "answer": up to min(8 n k, M) down; "allgather": 8 k (n-1) per node, n rho times what
    a ring allreduce of the dense vector sends.
    """
    d, n = check_count("parameters", parameters, 0), check_count("workers", workers)
    if not 0 < ratio <= 1:
        raise DomainError(f"ratio {ratio}; the formula assumes a share in (0, 1]")
    k = math.ceil(ratio * d * (1 - 1e-12))  # a product rounded upwards does not count
    return {"push": 8.0 * k, "answer": min(8.0 * n * k, 4.0 * d), "allgather": 8.0 * k * (n - 1)}


def sparse_gather(workers: int, parameters: int, ratio: float, link: Link) -> Exchange:
    """All-gather of k values and indices from everybody to everybody, rotated: alpha + (n-1) 8 k beta."""
    n, m = sizes(workers, sparse_bytes(parameters, ratio)["push"])
    if n == 1:
        return nothing_sent()
    wire = (n - 1) * link.wire(m)
    return priced(link.latency + wire, "exact", link.latency, wire, 0.0,
                  "alpha + (n-1) 8 k beta, k = ceil(ratio d)",
                  "Lin et al., ICLR 2018", (n - 1) * m, n * (n - 1) * m)
