"""What an exchange costs, and the link that it is counted on: one latency, one bandwidth, one price of
adding.

All nodes start together.  A message of m bytes takes alpha + m beta uncontended (alpha the latency, beta = 1
/ bandwidth); a node's outgoing and incoming link each serve one message at a time, full duplex, cut-through,
on a switch that never blocks.  w = M beta is the whole vector on one link, gamma the seconds to reduce a
byte.  A node forwards a message only when all of it has arrived.

The patterns that are counted so: `refsgd.theory.phenomena.collectives` (no node but the workers) and
`refsgd.theory.phenomena.communication` (servers, partners, sparse vectors).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from refsgd.theory.prediction import DomainError, Kind, Prediction, check_count, check_time


@dataclass(frozen=True)
class Link:
    """What a message costs: latency [s], bandwidth [bytes/s], reduction [s/byte]."""

    latency: float = 0.0
    bandwidth: float = math.inf
    reduction: float = 0.0

    def __post_init__(self) -> None:
        check_time("latency", self.latency)
        check_time("reduction", self.reduction)
        if not self.bandwidth > 0:
            raise DomainError(f"bandwidth {self.bandwidth} bytes/s; the formula assumes a number > 0")

    def wire(self, nbytes: float) -> float:
        """Seconds of a message of this size on a link, without the latency."""
        return nbytes / self.bandwidth


@dataclass(frozen=True)
class Exchange:
    """What one exchange costs: its time, the bytes of the busiest node, the bytes of all nodes together."""

    time: Prediction
    busiest: float
    total: float


def priced(value: float, kind: Kind, latency: float, wire: float, reduce: float, formula: str, source: str,
           busiest: float, total: float, other: float = 0.0,
           side: Literal["lower", "upper"] = "upper") -> Exchange:
    """An exchange from its terms, with the assumptions that all of them share."""
    terms = {"latency": latency, "wire": wire}
    if reduce:
        terms["reduction"] = reduce
    if other:
        terms["update"] = other
    time = Prediction(value, "s", kind, terms, formula, source,
                      "all start together; full duplex; non-blocking switch; first come first served",
                      bound=side if kind == "bound" else "")
    return Exchange(time, busiest, total)


def sizes(workers: int, nbytes: float) -> tuple[int, float]:
    """The number of workers and of bytes, if a formula can take them."""
    n = check_count("workers", workers)
    if not nbytes >= 0 or math.isinf(nbytes):
        raise DomainError(f"nbytes {nbytes}; the formula assumes a finite number of bytes >= 0")
    return n, float(nbytes)


def nothing_sent() -> Exchange:
    """The exchange of a node that is alone."""
    return priced(0.0, "exact", 0.0, 0.0, 0.0, "one node: nothing is sent", "definition", 0.0, 0.0)
