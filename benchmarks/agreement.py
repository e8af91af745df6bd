"""Algorithms of today compared with public implementations and with figures of their papers.

``python -m benchmarks.agreement`` (PyTorch) computes both sides of every comparison and writes docs/agreement.md;
``tests/papers/test_agreement.py`` computes them again.  Of public code only facts are used: what a test of it expects, or
what a rule says, written out in a few lines.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms.averaging import diloco
from refsgd.algorithms.federated import fedasync, fedavg, fedbuff, scaffold
from refsgd.algorithms.server import async_rl, k_async, rennala, ringmaster, softsync, staleness_aware
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Deployment
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Returned, Sent

PAGE = Path(__file__).parents[1] / "docs" / "agreement.md"
RANDOM = Machine(compute="exponential(1)")  # type: ignore[arg-type]
A, C = np.array([1.0, 3.0, 2.0, 0.5]), np.array([[0.0, 1], [1, -1], [2, 0.5], [-1, 2]])  #: curvatures and optima of four clients


class Figures(NamedTuple):
    """Both sides of a comparison."""

    theirs: Sequence[float]
    ours: Sequence[float]

    @property
    def difference(self) -> float:
        """The largest one, relative to the largest figure."""
        theirs, ours = np.array(self.theirs, float), np.array(self.ours, float)
        assert theirs.shape == ours.shape and theirs.size
        return float(np.abs(theirs - ours).max() / np.abs(theirs).max())


class Comparison(NamedTuple):
    """A line of the page."""

    algorithms: str
    what: str
    source: str  #: in Markdown
    within: float  #: the largest difference that is claimed; 0: equal
    compute: Callable[[], Figures]
    needs: str = ""  #: a package


def quadratics(dtype: Any = np.float32) -> Problem:
    """Four clients, each with an optimum of its own."""
    return Problem(np.full(2, 4, dtype), lambda x, rank, t: (A[rank] * (x - C[rank])).astype(dtype), lambda x: 0.0)


def constant(g: float, start: float = 0.0) -> Problem:
    """The same gradient everywhere."""
    return Problem(np.full(1, start, np.float32), lambda x, rank, t: np.full_like(x, g), lambda x: 0.0)


# -- outer optimisers ----------------------------------------------------------------------------------------------


def torchft() -> Figures:
    """The model before each step; the gradient is 2, the inner rate 1, the outer 2, a round has six steps."""
    recorded = [1, -1, -3, -5, -7, -9, -23, -25, -27, -29, -31, -33, -47, -49, -51, -53]
    seen = list[float]()

    def gradient(x: Any, rank: int, t: int) -> Any:
        if rank == 0:
            seen.append(float(x[0]))
        return np.full_like(x, 2)

    problem = Problem(np.ones(1, np.float32), gradient, lambda x: 0.0)
    simulate(diloco.diloco(problem, 2, len(recorded), SGD(1), period=6, outer_lr=2, outer_momentum=0))
    return Figures(recorded, seen)


def in_torch(outer: dict[str, Any], inner: dict[str, Any], rounds: int, period: int, mu: float = 0.0) -> list[float]:
    """Four replicas with an optimiser each; the outer optimiser's gradient is the old model minus the mean of the new ones."""
    import torch

    model = torch.full((2,), 4.0, requires_grad=True)
    optimiser = torch.optim.SGD([model], **outer)
    replicas = [torch.full((2,), 4.0, requires_grad=True) for _ in A]
    optimisers = [torch.optim.SGD([replica], **inner) for replica in replicas]
    for _ in range(rounds):
        for replica, own, a, c in zip(replicas, optimisers, A, C):
            replica.data.copy_(model.data)
            for _ in range(period):
                own.zero_grad()
                loss = a / 2 * ((replica - torch.tensor(c, dtype=torch.float32)) ** 2).sum()
                (loss + mu / 2 * ((replica - model.detach()) ** 2).sum()).backward()
                own.step()
        model.grad = model.detach() - sum(replica.detach() for replica in replicas) / len(replicas)
        optimiser.step()
    return [float(v) for v in model.detach()]


def outer(form: Any, lr: float, momentum: float) -> Figures:
    """Ten rounds of five steps, with momentum inside as well."""
    theirs = in_torch({"lr": lr, "momentum": momentum, "nesterov": form == "nesterov"}, {"lr": 0.02, "momentum": 0.5}, 10, 5)
    ours = final_parameters(simulate(diloco.diloco(quadratics(), 4, 50, SGD(0.02, 0.5), period=5, outer_lr=lr,
                                                   outer_momentum=momentum, form=form)))
    return Figures(theirs, ours.tolist())


# -- federated -----------------------------------------------------------------------------------------------------


def flower() -> Figures:
    """Clients of 1, 2 and 1 examples return 2, 1 and 2."""
    returned = (2, 1, 2)
    problem = Problem(np.zeros(1, np.float32), lambda x, rank, t: x - np.float32(returned[rank]), lambda x: 0.0,
                      images=lambda rank, t: (1, 2, 1)[rank])
    return Figures([1.5], final_parameters(simulate(fedavg.fedavg(problem, 3, 1, SGD(1), period=1))).tolist())


def proximal() -> Figures:
    """Ten rounds of five steps, whose loss has the term mu/2 times the squared distance from the round's model."""
    theirs = in_torch({"lr": 1.0}, {"lr": 0.05}, 10, 5, mu=0.5)
    return Figures(theirs, final_parameters(simulate(fedavg.fedavg(quadratics(), 4, 50, SGD(0.05), period=5, mu=0.5))).tolist())


def option_ii() -> Figures:
    """The model after each of 20 rounds of two clients, with c_i from the move, as algorithm 1 has it."""
    rate, period, m = 0.05, 5, 2
    trace = simulate(scaffold.scaffold(quadratics(np.float64), 4, 100, SGD(rate), period=period, sampled=m)).trace
    x, c, own, theirs = np.full(2, 4.0), np.zeros(2), np.zeros((4, 2)), list[float]()
    for e in trace.marks("update"):
        drawn = [int(w.removeprefix("worker")) for w, _ in e.values["reads"]]
        ends = np.repeat(x[None], m, axis=0)
        for _ in range(period):
            ends = ends - rate * (A[drawn, None] * (ends - C[drawn]) - own[drawn] + c)
        new = own[drawn] - c + (x - ends) / (period * rate)
        x, c = x + (ends - x).mean(axis=0), c + m / 4 * (new - own[drawn]).mean(axis=0)
        own[drawn] = new
        theirs.append(float(x[0]))
    return Figures(theirs, [float(e.values["x"][0]) for e in trace.marks("update")])


def flsim() -> Figures:
    """Both clients begin at M = 1; one goes to 3, the other to 1.5, and M_A + M_B - M is left."""
    ends = (3.0, 1.5)
    problem = Problem(np.ones(1, np.float32), lambda x, rank, t: x - np.float32(ends[rank]), lambda x: 0.0)
    found = simulate(fedbuff.fedbuff(problem, 2, 1, SGD(1), period=1, buffer=1, weight="constant"))
    return Figures([ends[0] + ends[1] - 1], final_parameters(found).tolist())


def weights(rule: Callable[[int], float], weight: Any) -> Figures:
    """The weight of each move by its staleness; all moves are 1."""
    trace = simulate(fedbuff.fedbuff(constant(-1), 8, 30, SGD(1), period=1, buffer=1, weight=weight), RANDOM, observe=999).trace
    return steps_of(trace, rule, 9)


def steps_of(trace: Any, rule: Callable[[int], float], most: int) -> Figures:
    """How far the updates with each staleness have moved the model, beside what a rule says."""
    found, before = dict[int, float](), 0.0
    for e in trace.marks("update"):
        ((_, version),) = e.values["reads"]
        found[e.values["version"] - version], before = float(e.values["x"][0]) - before, float(e.values["x"][0])
    taus = [tau for tau in sorted(found) if tau <= most]
    return Figures([rule(tau) for tau in taus], [found[tau] for tau in taus])


def mixing() -> Figures:
    """The model after each answer of two clients; alpha = 0.6, staleness weight (1 + tau)^-0.5, mixed with the newest model."""
    trace = simulate(fedasync.fedasync(constant(-1), 3, 5, SGD(1), period=1), RANDOM).trace
    models, theirs = [0.0], list[float]()
    for e in trace.marks("update"):
        ((_, version),) = e.values["reads"]
        alpha = 0.6 * (1 + e.values["version"] - version) ** -0.5
        models.append((1 - alpha) * models[-1] + alpha * (models[version] + 1))
        theirs.append(models[-1])
    return Figures(theirs, [float(e.values["x"][0]) for e in trace.marks("update")])


# -- servers -------------------------------------------------------------------------------------------------------


def capacity() -> Figures:
    """Samples that may have been begun: batches of 4 and a bound of 2 at versions 0 and 5."""
    def begun(size: int, ahead: int, version: int, workers: int) -> int:
        deployment = async_rl.async_rl(constant(1), workers, 1, SGD(0.1), ahead=ahead, gradients=size)
        trace = simulate(deployment, Machine(compute="fixed(1)", update="fixed(100)")).trace  # type: ignore[arg-type]
        end = trace.marks("update")[version].time
        return sum(isinstance(e, Sent) and e.message == "Job" and e.time < end for e in trace.events)

    return Figures([12, 32], [begun(4, 2, 0, 40), begun(4, 2, 5, 40)])


def delay_adaptive() -> Figures:
    """How far a gradient of 1 moves the model by its delay, with a rate of 1 and four workers, of which one is slow."""
    machine = RANDOM.with_(speeds=(4, 4, 4, 0.5))
    trace = simulate(staleness_aware.staleness_aware(constant(-1), 4, 60, SGD(1), rule="mishchenko"), machine, observe=999).trace
    return steps_of(trace, lambda tau: 4 / max(4, tau), 40)


def rennala_updates() -> Figures:
    """Seconds of the first twenty updates: ten workers that take 1 to 10 s, batches of ten."""
    batch, events = 10, [(float(i), i, 0) for i in range(1, 11)]  # when a gradient ends, whose, of which version
    version, found, times = 0, 0, list[float]()
    while len(times) < 20:
        now, i, of = heapq.heappop(events)
        found += of == version
        if found == batch:
            version, found = version + 1, 0
            times.append(now)
        heapq.heappush(events, (now + i, i, version))
    machine = Machine(compute="fixed(1)", speeds=tuple(1 / i for i in range(1, 11)))  # type: ignore[arg-type]
    trace = simulate(rennala.rennala(constant(1), 10, 200, SGD(0.001), gradients=batch), machine).trace
    return Figures(times, [e.time for e in trace.marks("update")][:20])


def per_update(deployment: Deployment, end: float = 1200.0) -> float:
    """Seconds of an update, until a time at which all workers still have gradients to give."""
    trace = simulate(deployment, RANDOM, 1, observe=1).trace
    assert end < min(e.time for e in trace.of(Returned) if trace.is_worker(e.node))
    return end / sum(e.time < end for e in trace.marks("update"))


def harmonic(n: int) -> float:
    """1 + 1/2 + ... + 1/n."""
    return sum(1 / k for k in range(1, n + 1))


def k_async_times() -> Figures:
    """Eight workers with exponential times of mean 1: K = 1, 2, 4 and 8."""
    runs = (k_async.k_async(constant(1), 8, 1500, SGD(0.0), gradients=k) for k in (1, 2, 4, 8))
    return Figures([harmonic(8) - harmonic(8 - k) for k in (1, 2, 4, 8)], list(map(per_update, runs)))


def k_batch_async_times() -> Figures:
    """The same, where every worker is answered at once."""
    runs = (softsync.softsync(constant(1), 8, 1500, SGD(0.0), splitting=8 // k) for k in (1, 2, 4, 8))
    return Figures([k / 8 for k in (1, 2, 4, 8)], list(map(per_update, runs)))


def window(threshold: int, workers: int = 64) -> tuple[float, float]:
    """The bound on R consecutive updates, and the longest, with times of the square root of i."""
    times = np.sqrt(np.arange(1, workers + 1))
    m = np.arange(1, workers + 1)
    bound = 2 * np.min(m / np.cumsum(1 / times) * (1 + threshold / m))
    machine = Machine(compute="fixed(1)", speeds=tuple(1 / times))  # type: ignore[arg-type]
    trace = simulate(ringmaster.ringmaster(constant(1), workers, 60, SGD(0.001), threshold=threshold), machine, observe=1).trace
    ends = [0.0, *(e.time for e in trace.marks("update") if e.time < 60)]  # until the first worker ends
    return float(bound), max(b - a for a, b in zip(ends, ends[threshold:]))


def link(repository: str, commit: str, path: str) -> str:
    """To a file of a public repository."""
    return f"[{repository.split('/')[1]}](https://github.com/{repository}/blob/{commit}/{path})"


FLSIM = ("facebookresearch/FLSim", "7311f2d")
COMPARISONS = (
    Comparison("diloco", "the model before each of 16 steps, as a regression test has recorded it",
               link("meta-pytorch/torchft", "7eb7087", "test_fixtures/torchft.diloco_regression_test.DiLoCoMockedUpdateTest."
                    "test_diloco_mocked_updates_0.json") + ", second fragment", 0, torchft),
    Comparison("diloco", "ten rounds, the outer optimiser `torch.optim.SGD(0.7, momentum=0.9, nesterov=True)`",
               "PyTorch, run here", 1e-5, lambda: outer("nesterov", 0.7, 0.9), "torch"),
    Comparison("diloco form=heavy-ball", "ten rounds, the outer optimiser `torch.optim.SGD(1, momentum=0.5)`: SlowMo",
               "PyTorch, run here; {cite}`wang2020`", 1e-5, lambda: outer("heavy-ball", 1.0, 0.5), "torch"),
    Comparison("fedavg", "mean of 2, 1 and 2 with 1, 2 and 1 examples, as a test expects it of Flower's mean of losses",
               link("adap/flower", "fdef7af", "framework/py/flwr/server/strategy/aggregate_test.py"), 0, flower),
    Comparison("fedavg mu=0.5", "ten rounds, clients that differentiate the proximal loss",
               "PyTorch, run here, as in " + link("adap/flower", "fdef7af", "baselines/niid_bench/niid_bench/models.py"), 1e-5,
               proximal, "torch"),
    Comparison("scaffold", "the model after each of 20 rounds, two of four clients drawn",
               "{cite}`karimireddy2020`, algorithm 1, option II, written out", 1e-7, option_ii),
    Comparison("fedbuff", "two answers to one model: $M_A + M_B - M$, as a test states it",
               link(*FLSIM, "flsim/trainers/tests/test_async_trainer_weights.py"), 0, flsim),
    Comparison("fedbuff", "weights by staleness: polynomial, exponent 0.5, before a division by that of an average",
               link(*FLSIM, "flsim/utils/async_trainer/async_staleness_weights.py"), 1e-5,
               lambda: weights(lambda tau: (1 + tau) ** -0.5, "polynomial")),
    Comparison("fedbuff", "weights by staleness: hinge at $b = 4$, $a = 10$",
               link("APPFL/APPFL", "0f432f0", "src/appfl/algorithm/aggregator/fedasync_aggregator.py") + "; {cite}`xie2019`", 1e-5,
               lambda: weights(lambda tau: 1 if tau <= 4 else 1 / (10 * (tau - 4) + 1), "hinge")),
    Comparison("fedasync", "the model after each answer", "{cite}`xie2019`, algorithm 1, written out", 1e-5, mixing),
    Comparison("async-rl", "samples that may have been begun, as tests of the gate expect them",
               link("inclusionAI/AReaL", "4aef98d", "tests/test_staleness_manager.py"), 0, capacity),
    Comparison("staleness-aware rule=mishchenko", "the step by its delay: rate times $n / \\max(n, \\tau)$",
               "{cite}`mishchenko2022`, as recalled from public code", 1e-4, delay_adaptive),
    Comparison("rennala", "seconds of 20 updates, ten workers of 1 to 10 s, batch 10",
               "the rule of " + link("k3nfalt/optimal-decentralized-optimization", "a2adb9a",
                                     "code/distributed_optimization_library/asynchronous/algorithm.py") + ", written out", 0,
               rennala_updates),
    Comparison("k-async", "seconds of an update, $n = 8$, $K$ = 1, 2, 4, 8: $H_n - H_{n-K}$", "{cite}`dutta2018`, as recalled",
               0.02, k_async_times),
    Comparison("softsync", "the same for K-batch-async: $K/n$", "{cite}`dutta2018`, as recalled", 0.02, k_batch_async_times),
)
BOUNDED = (1, 4, 16, 64)  #: thresholds of Ringmaster


def some(values: Sequence[float], most: int = 4) -> str:
    """The last of some figures, to four digits."""
    shown = [f"{v + 0.0:.4g}" for v in values]
    return ", ".join(shown if len(shown) <= most else ["..", *shown[-most:]])


def line(each: Comparison) -> str:
    """A row of the table; raises AssertionError if they do not agree."""
    found = each.compute()
    assert found.difference <= each.within, f"{each.algorithms}, {each.what}: {found}"
    theirs, ours = some(found.theirs), some(found.ours)
    near = ("equal" if not each.within else f"the same within {each.within:.0e}" if theirs == ours
            else f"{ours}, within {each.within:.0%}")
    return f"| `{each.algorithms}`: {each.what} | {each.source} | {theirs}; ours: {near} |"


def bound_line(threshold: int) -> str:
    """A row of the table of bounds."""
    bound, longest = window(threshold)
    assert longest <= bound
    return f"| {threshold} | {bound:.2f} | {longest:.2f} |"


def main() -> None:
    """Write the page."""
    rows, bounds = "\n".join(map(line, COMPARISONS)), "\n".join(map(bound_line, BOUNDED))
    PAGE.write_text(f"""# Agreement with others

Does an algorithm compute what its paper and public code compute? Each line compares one with what a test of a public
implementation expects, with PyTorch, or with a rule that is written out in a few lines and shares no code with ours;
the order of arrival and the draws are those of our run. *As recalled* means from memory: the text was not at hand, so check it before
you cite it. Of long lists the last figures are shown; the largest difference of all of them is within what is said, relative to the largest figure.
`python -m benchmarks.agreement` makes this page, and `tests/papers/test_agreement.py` computes each line again. [The museum](museum/index.md) has places where public
code and papers differ.

| algorithm, and what | compared with | figures |
| --- | --- | --- |
{rows}

A paper's bound is an agreement of another kind. {{cite}}`maranjyan2025` bounds the time of $R$ consecutive updates of `ringmaster`,
as recalled, by

$$2 \\min_m \\Bigl(\\frac1m \\sum_{{i \\le m}} \\frac1{{t_i}}\\Bigr)^{{-1}} \\Bigl(1 + \\frac Rm\\Bigr).$$

With 64 workers and $t_i = \\sqrt i$, as in examples of the authors' papers, in seconds:

| $R$ | bound | longest in a run |
| --- | --- | --- |
{bounds}
""", encoding="utf-8")


if __name__ == "__main__":
    main()
