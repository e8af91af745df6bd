"""Small deployments for the tests of the real runtimes; no algorithm of the library is needed here."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, NamedTuple

import numpy as np

from refsgd.effects import Compute, Mark, Node, Recv, Send


class Push(NamedTuple):
    grad: Any


class Model(NamedTuple):
    x: Any


class Never(NamedTuple):
    pass


def gradient(x, rank, t):
    """Cheap, and pure in (x, rank, step)."""
    return (x * np.float32(0.5) + np.float32(rank - t)).astype(np.float32)


def worker(rank, server, x, steps, gradient=gradient):
    for t in range(steps):
        g = yield Compute(gradient, x, rank, t)
        yield Send(server, Push(g))
        _, (x,) = yield Recv(Model, src=server)
    return x


def server(workers, x, steps):
    for t in range(steps):
        grads = {}
        for _ in workers:
            src, push = yield Recv(Push)
            grads[src] = push.grad
        x = x - np.float32(0.1) * sum(grads[w] for w in workers) / np.float32(len(workers))
        yield Mark("update", version=t, reads=[(w, t) for w in workers], x=x)
        for w in workers:
            yield Send(w, Model(x))
    return x


def exchange(n=4, d=100, steps=50, gradient=gradient):
    """A parameter server that waits for all."""
    workers, x = [f"worker{i}" for i in range(n)], np.zeros(d, np.float32)
    return {"server0": Node(server(workers, x, steps), role="server")} | {
        w: Node(worker(i, "server0", x, steps, gradient)) for i, w in enumerate(workers)}


def long_gradient(x, rank, t):
    """From the fourth step on a minute of sleeping outside the driver's reach."""
    if t > 3:
        time.sleep(60)
    return x


def bad_gradient(x, rank, t):
    """Worker 2 fails at step 5."""
    if rank == 2 and t == 5:
        raise FloatingPointError("NaN in layer 3")
    return x


def killed_gradient(x, rank, t):
    """Worker 1 is killed at step 5."""
    if rank == 1 and t == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return x
