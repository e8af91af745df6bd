"""What the papers' tests share: problems on which wrong variants part, and a look inside programs."""

from collections.abc import Callable, Iterator

import numpy as np

from refsgd.cluster.machine import Machine
from refsgd.effects import Deployment, Node
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem
from refsgd.runtimes.simulator import Simulator, simulate
from refsgd.trace import Returned

RANDOM = Machine(compute="exponential(1)", latency=0.1, bandwidth=500.0)
FREE = Machine(compute="exponential(1)")
LOCKSTEP = Machine(compute="fixed(1)")


def curved(d: int = 6, workers: int = 4, seed: int = 0, dtype=np.float32) -> Problem:
    """Not quadratic, and of another curvature for every worker: g_i(x) = (1 + i) tanh(x - c_i) + noise(i,
    t)."""
    centers = np.random.default_rng([seed, 1]).standard_normal((workers, d))

    def gradient(x, rank, t):
        noise = 0.3 * np.random.default_rng([seed, 2, rank, t]).standard_normal(d)
        return ((1 + rank) * np.tanh(x - centers[rank]) + noise).astype(dtype)

    return Problem(np.zeros(d, dtype), gradient,
                   lambda x: float(np.sum(np.logaddexp(x - centers, centers - x))))


def ragged(workers: int = 4, dtype=np.float32) -> Problem:
    """As `curved`, with shares of 0 to 3 images; the gradient of an empty share is zero."""
    problem = curved(workers=workers, dtype=dtype)

    def gradient(x, rank, t):
        return problem.gradient(x, rank, t) * dtype((rank + t) % 4 > 0)

    return Problem(problem.x0, gradient, problem.loss, images=lambda rank, t: (rank + t) % 4)


def constant(g: Callable[[int, int], float], d: int = 2, dtype=np.float32) -> Problem:
    """A gradient that does not depend on x: every entry is g(rank, t)."""
    return Problem(np.zeros(d, dtype), lambda x, rank, t: np.full(d, g(rank, t), dtype), lambda x: 0.0)


def recorded(problem: Problem) -> tuple[Problem, list]:
    """The same problem, and a list that fills with (rank, t, x, g) in the order of computing."""
    seen: list = []

    def gradient(x, rank, t):
        g = problem.gradient(x, rank, t)
        seen.append((rank, t, x, g))
        return g

    return Problem(problem.x0, gradient, problem.loss, images=problem.images), seen


def final(deployment: Deployment, machine: Machine = RANDOM, seed: int = 0):
    return final_parameters(simulate(deployment, machine, seed))


class Watched:
    """A program whose effects, with their answers, are told to a function; `x` is its local variable of
    that name."""

    def __init__(self, program, told):
        self.program, self.told, self.effect, self.value = program, told, None, None

    def __call__(self):
        answer = None
        while True:
            try:
                self.effect = self.program.send(answer)
            except StopIteration as stop:
                self.effect, self.value = None, stop.value
                return stop.value
            answer = yield self.effect
            self.told(self.effect, answer)

    @property
    def local(self):
        """Local variables while it is suspended; of the outermost function of a chain of sub-programs."""
        return self.program.gi_frame.f_locals if self.program.gi_frame is not None else {"x": self.value}


def moments(deployment: Deployment, told: Callable, machine: Machine,
            seed: int) -> Iterator[dict[str, Watched]]:
    """Run a deployment and stop after every effect; `told(node, effect, answer)` hears of each."""
    def hear(name):
        return lambda effect, answer: told(name, effect, answer)

    watched = {name: Watched(node.main, hear(name)) for name, node in deployment.items()}
    sim = Simulator({name: Node(program(), deployment[name].handlers) for name, program in watched.items()}, machine, seed)
    while sim.advance():
        if all(p.program.gi_frame is None or p.effect is not None for p in watched.values()):
            yield watched


def steady(trace):
    """When the first worker ends, and the updates and the dropped gradients until then."""
    end = min(e.time for e in trace.of(Returned) if trace.is_worker(e.node))
    return end, *([e for e in trace.marks(name) if e.time < end] for name in ("update", "drop"))
