"""What algorithms share whose one server has the whole model and keeps gradients of several workers."""

from __future__ import annotations

from refsgd.algorithms.facts import Facts, depends
from refsgd.algorithms.parts import Model, Objective, Push, some
from refsgd.effects import Array, Compute, Mark, Program, Recv, Send

LAST = -1  # the version of a model after which no gradient is needed


def worker(rank: int, server: str, problem: Objective, most: int) -> Program[Array]:
    """Compute a gradient, push it, pull a model, until it is the last; returns it, (d,)."""
    x, version = problem.x0, 0
    for t in range(most):
        g: Array = yield Compute(problem.gradient, x, rank, t)
        yield Send(server, Push(g, problem.images(rank, t), version))
        _, (x, version) = yield Recv(Model, src=server)
        yield Mark("clock", t=t)
        if version == LAST:
            break
    return x


def first_half(workers: int, gradients: int | None) -> int:
    """K, by default half of the workers; raises ValueError if there are not that many."""
    size = (workers + 1) // 2 if gradients is None else gradients
    return some(workers, size, "gradients") if workers > 0 else size


#: one server, which keeps gradients; how many updates there are depends on the end of the run
ONE_SERVER = Facts(
    because={"": "its server has the whole model: several parts would each keep gradients of other workers"},
    mean_of=lambda workers, options: first_half(workers, options["gradients"]), updates=depends,
    holds="pushed", collects=True, lost="the gradient that it was computing")
