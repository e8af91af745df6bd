"""Local SGD: every `period` steps each peer takes the mean of all replicas."""

from typing import NamedTuple

import numpy as np

from refsgd.effects import Compute, Mark, Node, Recv, Send


class Replica(NamedTuple):
    x: np.ndarray


def peer(rank, peers, problem, steps, sgd, period):
    x, v = problem.x0, sgd.start(problem.x0)
    others = [p for i, p in enumerate(peers) if i != rank]
    for t in range(steps):
        g = yield Compute(problem.gradient, x, rank, t)
        x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
        if (t + 1) % period == 0 or t == steps - 1:
            for p in others:
                yield Send(p, Replica(x))
            replicas = [x]
            for _ in others:
                _, (y,) = yield Recv(Replica)
                replicas.append(y)
            x = sum(replicas) / np.float32(len(peers))
        yield Mark("update", part=0, version=t, t=t, reads=((peers[rank], t),), x=x)
    return x


def local_sgd(problem, workers, steps, sgd, *, period: int = 4):
    peers = [f"peer{i}" for i in range(workers)]
    return {p: Node(peer(i, peers, problem, steps, sgd, period))
            for i, p in enumerate(peers)}
