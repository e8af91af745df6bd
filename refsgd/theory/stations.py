"""What messages between workers and parameter servers pass: links and processors that serve first come, first served.

Each message passes a server's incoming link (g = w/K seconds if it carries a slice), its processor (u) and its outgoing
link (g), so with h the time at which a head reaches the incoming link

    in = max(in, h) + g,    busy = max(busy, in) + u,    out = max(out, busy) + g

and an answer is with its worker at out + latency + (K-1) g.  Serving the heads in order of time is all there is to
it; many replicas are served side by side, one message each at a time.

References
----------
Lindley, "The theory of queues with a single server", Proc. Camb. Phil. Soc. 48, 1952: each of the three lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refsgd.laws import Law
from refsgd.theory.prediction import check_count, check_time

Values = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Network:
    """What messages meet: K servers, w seconds of the whole model on a link, latency of a message, law of an update.

    Parameters
    ----------
    servers : int
        K, at least 1.
    transfer : float
        w, seconds of the whole vector on one link.
    latency : float
        Seconds until the first byte of a message arrives.
    update : Law, optional
        Seconds of one update of all parameters.
    """

    servers: int = 1
    transfer: float = 0.0
    latency: float = 0.0
    update: Law | None = None

    def __post_init__(self) -> None:
        check_count("servers", self.servers)
        check_time("transfer", self.transfer)
        check_time("latency", self.latency)


class Stations:
    """Incoming link, processor and outgoing link of the servers, in `replicas` runs at once.

    Parameters
    ----------
    network : Network
    replicas, workers : int
    messages : int
        Of one replica, at most.
    asking : {0, 1}
        What a worker waits for from its sending on: 0 its push, 1 its request.
    rng : Generator
        Draws the times of updates.
    """

    def __init__(self, network: Network, replicas: int, workers: int, messages: int, asking: int, rng: np.random.Generator) -> None:
        self.g, self.transfer, self.latency, self.servers = network.transfer / network.servers, network.transfer, network.latency, network.servers
        self.update, self.rng, self.rows = network.update, rng, np.arange(replicas)
        self.heads = np.full((replicas, workers, 2), math.inf)  # when each worker's push, request reaches the incoming link
        self.line = np.full((replicas, messages + 1), math.inf)  # when those that have passed it are with the servers, in order
        self.whose = np.zeros((replicas, messages + 1), int)  # twice the worker, + 1 for a request
        self.first, self.end = np.zeros(replicas, int), np.zeros(replicas, int)  # of the line
        self.incoming, self.busy, self.outgoing = (np.zeros(replicas) for _ in range(3))
        self.asking, self.queued = asking, np.zeros(replicas)  # 0: a worker waits from its push on, 1: from its request on

    def heads_first(self) -> tuple[Counts, Counts] | None:
        """Replicas in which a head comes before the next arrival, and twice the worker (+ 1: a request); it joins the line."""
        heads = self.heads.reshape(len(self.rows), -1)
        head = heads.min(axis=1)
        row = np.nonzero((head <= self.line[self.rows, self.first]) & np.isfinite(head))[0]
        if not len(row):
            return None
        which = heads[row].argmin(axis=1)
        heads[row, which] = math.inf
        self.incoming[row] = np.maximum(self.incoming[row], head[row]) + self.g * (which % 2 == 0)
        self.queued[row] += np.where(which % 2 == self.asking, self.incoming[row] - self.g * (which % 2 == 0) - head[row], 0.0)
        place = self.end[row]
        self.line[row, place], self.whose[row, place] = self.incoming[row], which
        self.end[row] += 1
        # A request has no bytes: it arrives in the moment in which the message before it is through, and the lower rank comes first.
        tie = (place > self.first[row]) & (self.line[row, place - 1] == self.incoming[row]) & (self.whose[row, place - 1] > which)
        one, before = row[tie], place[tie] - 1
        self.whose[one, before], self.whose[one, before + 1] = which[tie], self.whose[one, before]
        return row, which

    def serve(self) -> tuple[Mask, Counts, Mask]:
        """Take the next arrival of every replica: which have one, whose it is, whether it is a push."""
        arrival, which = self.line[self.rows, self.first], self.whose[self.rows, self.first]
        live = np.isfinite(arrival)
        self.first += live
        push = live & (which % 2 == 0)
        self.queued += np.where(live & (which % 2 == self.asking), np.maximum(self.busy - arrival, 0.0), 0.0)
        self.busy = np.where(live, np.maximum(self.busy, arrival), self.busy)
        if self.update is not None:
            self.busy += push * self.update.sample(self.rng, len(push))
        return live, which // 2, push

    def answer(self, released: Mask) -> Values:
        """When each released worker has its answer; they leave in worker order.

        Summed as a link sums: with fixed times messages tie, and the last digit of each sum decides who comes first.

        Parameters
        ----------
        released : array of bool, (replicas, workers)

        Returns
        -------
        float64, (replicas, workers)
            Seconds; of no meaning for those that are not released.
        """
        place = np.cumsum(released, axis=1)
        leaves, count = np.maximum(self.outgoing, self.busy), place[:, -1]
        self.queued += count * (leaves - self.busy) + self.g * count * (count - 1) / 2
        self.outgoing = np.where(released.any(axis=1), leaves + self.g * count, self.outgoing)
        return np.asarray(leaves[:, None] + self.g * (place - 1) + self.latency + self.g * self.servers)
