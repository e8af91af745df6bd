"""Hogwild!: workers share one vector, and nobody takes a lock."""

from refsgd.effects import Add, Cell, Compute, Load, Mark, Node


def worker(rank, shared, problem, steps, sgd):
    for t in range(steps):
        x = yield Load(shared, 0)
        g = yield Compute(problem.gradient, x, rank, t)
        step = -sgd.rate(t) * g
        # shared += step: reads the vector, adds, writes the vector
        yield Add(shared, 0, step, atomic=False)
        yield Mark("update", part=0, t=t, x=x + step)
    return shared


def hogwild(problem, workers, steps, sgd):
    shared = Cell(problem.x0)
    return {f"worker{i}": Node(worker(i, shared, problem, steps, sgd), cells=[shared])
            for i in range(workers)}
