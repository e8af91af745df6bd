"""What a program keeps does not grow with the number of iterations: whatever is no longer needed is
forgotten."""

import inspect

import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.parts import Servers, Shard
from refsgd.algorithms.replica import Replica
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.problems import quadratic
from refsgd.runtimes.simulator import Simulator
from tests.wrong import wrong_deployment

STEPS = 36
SIMILAR = Machine(compute="exponential(1)", latency=0.1, update="fixed(0.05)", speeds=(1, 0.9, 1.1))
OPTIONS = [{"staleness": 2, "refresh": refresh} for refresh in ("fresh", "lazy", "eager")]
CASES = [*[("ssp", options) for options in OPTIONS], ("dynsgd", {"staleness": 2}),
         ("consgd", {"staleness": 2}), ("dssp", {"lower": 1, "upper": 4}),
         ("downpour", {"push_every": 3, "fetch_every": 2}), ("easgd", {"mode": "sync"}),
         ("gosgd", {"p": 0.5}), ("softsync", {"splitting": 1}), ("sandblaster", {"history": 0}),
         ("decoupled-diloco", {"fragments": 1, "period": 1}),
         *[(name, {}) for name in CATALOGUE
           if name not in ("ssp", "dynsgd", "consgd", "dssp", "downpour", "gosgd", "softsync", "sandblaster",
                           "decoupled-diloco")]]


def items(value):
    """How many objects a variable holds, in containers and in what a node's programs share."""
    if isinstance(value, dict):
        return sum(map(items, value.values()))
    if isinstance(value, (list, tuple, set)):
        return sum(map(items, value))
    return items(vars(value)) if isinstance(value, Replica | Shard | Servers) else 1


def hold_memory(deployment, steps=STEPS):
    """Whatever a program's variables hold in the last third of a run, they have held as much in the first."""
    world, sizes = Simulator(deployment, SIMILAR, observe=1), []
    for _ in world:
        sizes.append(max((items(inspect.getgeneratorlocals(p.program)) for p in world.all_tasks), default=0))
    third = len(sizes) // 3
    # Random times may make a queue a little longer, but not by one in each of so many iterations.
    assert max(sizes[-third:]) <= max(
        sizes[:third]) + steps // 10, f"from {max(sizes[:third])} to {max(sizes[-third:])} objects"


@pytest.mark.parametrize(("name", "options"), CASES)
def test_programs_forget(name, options):
    workers = 1 if name == "sequential" else 3
    steps = 200 if name in ("ringleader", "decoupled-diloco") else STEPS  # their rounds differ more in length
    hold_memory(CATALOGUE[name](quadratic(d=6, workers=workers), workers, steps, SGD(0.01), **options), steps)


@pytest.mark.parametrize(("name", "right", "wrong", "options"), [
    ("ssp", "mine = {t: step for t, step in mine.items() if t >= min(r.own for r in row.values())}", "pass",
     OPTIONS[1]),
    ("dynsgd", "shard.state = v, {c: m for c, m in means.items() if c >= slowest}", "pass", {"staleness": 2}),
    ("dynsgd", "images = {c: b for c, b in images.items() if c >= slowest}", "pass", {"staleness": 2}),
    ("gosgd", "replica.queue = []", "pass", {"p": 0.5}),
    ("downpour", "accrued, reads, examples = np.zeros_like(x), [], 0",
     "accrued, examples = np.zeros_like(x), 0", {}),
])
def test_a_program_that_never_forgets_is_caught(name, right, wrong, options):
    with pytest.raises(AssertionError, match="objects"):
        hold_memory(wrong_deployment(CATALOGUE[name], right, wrong)(quadratic(d=6, workers=3), 3, STEPS,
                                                                    SGD(0.01), **options))
