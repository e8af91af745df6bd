"""What federated algorithms share: clients train the models that a server gives them for some steps.

A client's velocity is its own and is kept between its jobs, as in local SGD; the papers' plain SGD has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms.facts import Facts
from refsgd.algorithms.parts import Objective, Shard
from refsgd.algorithms.sgd import SGD, mean_gradient
from refsgd.effects import Array, Choose, Compute, Died, Mark, Program, Recv, Send


class Work(NamedTuple):
    """server -> client: train this model."""

    x: Array  # (d,)
    version: int  # updates applied to it so far
    t: int  # the first step, which decides the batch
    steps: int
    control: Any = None  # (d,) in SCAFFOLD: the mean gradient of all clients


class Trained(NamedTuple):
    """client -> server: the model after these steps."""

    x: Array  # (d,)
    examples: int  # in all steps together
    version: int  # of the model with which they began
    control: Any = None  # (d,) in SCAFFOLD: by how much the client's own mean gradient has changed


class Stop(NamedTuple):
    """server -> client: there is no more work."""


Rule = Callable[..., tuple[Array, Any]]  #: of a server: x and its state after models have come
Answers = Sequence[tuple[str, Trained]]  #: clients with what they have sent

CLIENTS = Facts(holds="replica", collects=True,
                because={"": "clients and server exchange models, which are complete only after the update"})


def client(rank: int, server: str, problem: Objective, sgd: SGD, steps: int,
           mu: float = 0.0, partial: bool = False) -> Program[Array]:
    """Train each model that comes until there is no more work; returns the last, (d,).

    In FedProx `mu` pulls back to the model that came, and a `partial` job has a random number of its steps.
    """
    x, v = problem.x0, sgd.start(problem.x0)
    while steps:  # else there is no message at all
        _, job = yield Recv(Work, Stop, src=server)
        if isinstance(job, Stop):
            break
        x, examples = job.x, 0
        done: int = (yield Choose(range(1, job.steps + 1))) if partial else job.steps
        for t in range(job.t, job.t + done):
            g: Array = yield Compute(problem.gradient, x, rank, t)
            if mu:
                g = g + np.float32(mu) * (x - job.x)
            x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
            examples += problem.images(rank, t)
            yield Mark("clock", t=t)
        yield Send(server, Trained(x, examples, job.version))
    return x


def draw(clients: Sequence[str], size: int) -> Program[list[str]]:
    """`size` of the clients at random, in their order; all of them, if there are no more."""
    if size >= len(clients):
        return list(clients)
    left = list(clients)
    for _ in range(size):
        left.remove((yield Choose(left)))
    return [w for w in clients if w not in left]


def ask(clients: Sequence[str], job: Work, living: list[str]) -> Program[Answers]:
    """Give these clients the same work; returns what they send, in order.  A client that dies is no longer
    waited for, and is removed from `living`."""
    for w in clients:
        yield Send(w, job)
    found: dict[str, Trained] = {}
    while any(w in living and w not in found for w in clients):
        w, message = yield Recv(Trained, Died)
        if isinstance(message, Died):
            living.remove(message.node)
        else:
            found[w] = message
    return [(w, found[w]) for w in clients if w in found]


def combine(x: Array, state: Any, models: Sequence[Trained], images: Sequence[int]) -> tuple[Array, Any]:
    """x plus the weighted mean of all moves, bit for bit x if none has moved; a single model itself."""
    return models[0].x if len(models) == 1 else x + mean_move(x, models, images), state


def mean_move(x: Array, models: Sequence[Trained], images: Sequence[int]) -> Array:
    """By how much the models are ahead of x on average, each with a weight."""
    return mean_gradient([y.x - x for y in models], images)


def apply(shard: Shard, answers: Answers, rule: Rule, *given: Any) -> Program[None]:
    """One update of the server, if there are answers: ``x, state = rule(x, state, models, *given)``."""
    if not answers:
        return
    models = [trained for _, trained in answers]
    shard.x, shard.state = yield Compute(rule, shard.x, shard.state, models, *given, kind="update")
    yield from shard.mark(tuple((w, y.version) for w, y in answers), sum(y.examples for y in models))


def stop(clients: Sequence[str]) -> Program[None]:
    """Tell all clients that there is no more work."""
    for w in clients:
        yield Send(w, Stop())
