"""A comparison with one algorithm of the catalogue: the models that its workers may read, its results, and
what no schedule changes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted
from refsgd.effects import Array, Deployment
from refsgd.experiment.arguments import Usage
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, quadratic
from refsgd.problems.chain import Block, Chain, Rows
from refsgd.problems.problem import with_batches
from refsgd.runtimes.explorer import explore, walk
from refsgd.runtimes.simulator import simulate
from refsgd.testing import tracers
from refsgd.testing.findings import RATE, UNEQUAL, NotChecked, hash_of, known_gradients
from refsgd.testing.rules import other_rules
from refsgd.testing.tracers import Deploy, Misread, Property, contents, ends, nothing, traced
from refsgd.trace import Run

#: values of an option at which few steps show what it does
SMALL = {"period": (1, 2), "staleness": (0, 1)}


@dataclass
class Models:
    """What the workers of an algorithm read and what it ends with, in the schedules of a small case.

    Anything that is the same in all of the catalogue's schedules is a promise: the result of a synchronous
    algorithm, the mean of replicas that average in pairs.
    """

    reads: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    finals: set[bytes] = field(default_factory=set)
    weights: dict[int, set[float]] = field(default_factory=dict)  #: of gradients, by their staleness
    served: bool = True  #: whether an update has left each model that is read
    complete: bool = False

    @property
    def one(self) -> bool:
        """Whether all schedules agree."""
        return self.complete and all(len(known) == 1 for known in self.reads.values())


def _weights(run: Run, reads: Mapping[tuple[int, int], Array]) -> Iterator[tuple[int, float]]:
    """True staleness and weight of each gradient: marked updates show the version of the model it is from."""
    if not reads or not (marks := run.trace.marks("update")):
        return
    first = np.zeros_like(next(iter(reads.values())))
    if any(getattr(e.values.get("x"), "size", 0) != first.size + 1 for e in marks):
        return  # models in parts
    versions = [first, *(contents(e.values["x"], len(first)) for e in marks)]
    for (rank, t), counts in reads.items():
        read = [i for i, version in enumerate(versions) if np.array_equal(version, counts)]
        applied = [i for i, version in enumerate(versions) if version[rank, t]]
        if not read:
            raise Misread(f"the model at which worker {rank} computes gradient {t} contains "
                          f"{tracers.named(counts)}; expected what an update has left, or the first model")
        if applied:
            yield applied[0] - 1 - read[0], float(versions[-1][rank, t])


def _models(deploy: Deploy, options: Mapping[str, Any], workers: int, steps: int) -> Models:
    models, last = Models(), dict[tuple[int, int], Array]()

    def judge(rank: int, t: int, counts: Array) -> None:
        models.reads.setdefault((rank, t), set()).add(counts.tobytes())
        last[rank, t] = counts

    def at_end(run: Run) -> None:
        models.finals.update(contents(x, workers).tobytes() for x in ends(run))
        try:
            for staleness, weight in _weights(run, last):
                models.weights.setdefault(staleness, set()).add(weight)
        except Misread:
            models.served = False

    def small() -> Deployment:
        last.clear()
        return deploy(traced(workers, steps, judge), workers, steps, SGD(RATE), **options)

    models.complete = explore(small, at_end, most=8 * tracers.BEGUN).complete
    if not models.complete:
        walk(small, at_end, runs=tracers.WALKS)
    return models


class Case(NamedTuple):
    """A small case, and what is known of the catalogue's algorithm in it."""

    options: Mapping[str, Any]
    workers: int
    steps: int
    known: Models


def _small(deploy: Deploy, name: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options, and small values of one that both functions take and that is not given."""
    takes = inspect.signature(deploy).parameters.keys() & inspect.signature(CATALOGUE[name]).parameters.keys()
    own = [{**options, key: value} for key in SMALL if key in takes - options.keys() for value in SMALL[key]]
    return own or [dict(options)]


def _cases(deploy: Deploy, name: str, options: Mapping[str, Any]) -> Iterator[Case]:
    for own in _small(deploy, name, options):
        one = True
        for workers, steps in ((2, 1), (2, 2), (3, 2), (3, 3)):
            if steps == 3 and not one:
                continue
            with suppress(ValueError):
                models = _models(CATALOGUE[name], own, workers, steps)
                one &= models.one
                if models.complete or len(models.finals) == 1:
                    yield Case(own, workers, steps, models)


def known_to_be(counts: Array, known: set[bytes], what: str, name: str) -> None:
    """Compare a model with those of the catalogue's algorithm."""
    if counts.tobytes() not in known:
        models = [np.frombuffer(model, np.float32).reshape(counts.shape) for model in known]
        nearest = min(models, key=lambda model: (int(np.sum(model != counts)), model.tobytes()))
        raise Misread(f"{what} {tracers.differs(counts, nearest)}, as with {name}")


def _read(deploy: Deploy, name: str, cases: list[Case]) -> str:
    """Check the models at which gradients are computed."""
    runs = 0
    for own, workers, steps, known in cases:
        def judge(rank: int, t: int, counts: Array, known: Models = known) -> None:
            known_to_be(counts, known.reads[rank, t],
                        f"the model at which worker {rank} computes gradient {t}", name)

        if known.complete:
            runs += tracers.explore_small(deploy, own, workers, steps, judge, nothing)
    return f"as {name}'s, in {counted(runs, 'schedule')}"


def _ends(deploy: Deploy, name: str, cases: list[Case]) -> str:
    """Check the results, and what no schedule changes."""
    runs = 0
    for own, workers, steps, known in cases:
        def at_end(run: Run, known: Models = known, workers: int = workers) -> None:
            for x in ends(run):
                known_to_be(contents(x, workers), known.finals, "the result", name)

        runs += tracers.explore_small(deploy, own, workers, steps, nothing, at_end)
    return f"as {name}'s, in {counted(runs, 'schedule')}"


def _served(deploy: Deploy, name: str, cases: list[Case]) -> str:
    """Check that each model that is read is one of the server's, and each weight one for its staleness."""
    runs, last, known = 0, dict[tuple[int, int], Array](), dict[int, set[float]]()
    for case in cases:
        for staleness, weights in case.known.weights.items():
            known.setdefault(staleness, set()).update(weights)

    def judge(rank: int, t: int, counts: Array) -> None:
        last[rank, t] = counts

    def at_end(run: Run) -> None:
        for staleness, weight in _weights(run, last):
            expected = known.get(staleness, {weight})
            if not np.isclose(weight, list(expected), atol=1e-3).any():
                raise Misread(f"a gradient that is {counted(staleness, 'update')} old counts {weight:g} "
                              f"times; with {name} it counts {min(expected):g} times")

    for own, workers, steps, _ in cases:
        last.clear()
        runs += tracers.explore_small(deploy, own, workers, steps, judge, at_end)
    return f"the server's, weighted as by {name}, in {counted(runs, 'schedule')}"


def _reached(deploy: Deploy, name: str, cases: list[Case]) -> str:
    for own, workers, steps, known in cases:
        if not known.complete:
            continue
        mine = _models(deploy, own, workers, steps)
        for (rank, t), models in known.reads.items():
            if mine.complete and (never := models - mine.reads.get((rank, t), set())):
                first = np.frombuffer(min(never), np.float32).reshape(workers, -1)
                raise Misread(f"worker {rank} never computes gradient {t} at a model that contains "
                              f"{tracers.named(first)}; with {name} it does in some schedule")
    return f"all of {name}'s are reached"


def _like(deploy: Deploy, name: str, options: Mapping[str, Any]) -> Iterator[Property]:
    cases = list(_cases(deploy, name, options))
    one = all(case.known.one for case in cases)
    # without a bound, a model may be newer or older than the catalogue's worker would read
    served = (not one and all(case.known.served for case in cases) and _marks_models(deploy, options)
              and any(max(case.known.weights, default=0) > 0 for case in cases)
              and "staleness" not in inspect.signature(CATALOGUE[name]).parameters)

    def result() -> str:
        exact = [case for case in cases if not served or len(case.known.finals) == 1]
        said = _ends(deploy, name, exact)
        if one:
            _arrives(deploy, name, options)
            _weighs(deploy, name, options)
        else:
            _same_arrivals(deploy, name, options)
        return said

    yield "models read", lambda: (_served if served else _read)(deploy, name, cases)
    yield "result", result
    yield "models reached", lambda: _reached(deploy, name, cases)
    yield "same bits", lambda: _same_bits(deploy, name, options, one)
    yield "lead of fast workers", lambda: _waits_as(deploy, name, options)
    yield "update rule", lambda: _same_rule(deploy, name, options, 1 if served else 2)


def _marks_models(deploy: Deploy, options: Mapping[str, Any]) -> bool:
    """Whether the programs mark whole models, which show when each gradient is applied."""
    try:
        run = simulate(deploy(quadratic(d=3, workers=2), 2, 1, SGD(RATE), **options))
    except Exception:
        return False  # the other checks say so
    return {np.shape(e.values.get("x", ())) for e in run.trace.marks("update")} == {(3,)}


def squares(d: int) -> Problem:
    """A net of d weights, x_0^2 x_1^2 ..., fitted to 4 examples: each gradient depends on all weights."""
    def inputs(rows: Rows) -> Array:
        return np.asarray(np.arange(rows.first, rows.end, dtype=np.float32) / 2, np.float32)

    def forward(x: Array, a: Array, rows: Rows) -> tuple[Array, Array]:
        return x**2 * a, a

    def backward(x: Array, a: Array, above: Array) -> tuple[Array, Array]:
        return np.array([np.sum(2 * x * a * above)], np.float32), x * x * above

    def loss_gradient(out: Array, rows: Rows) -> Array:
        return np.asarray((out - 2 * inputs(rows)) / rows.total, np.float32)

    def gradient(x: Array, rank: int, t: int) -> Array:
        return np.zeros_like(x)  # of the whole net, which no stage computes

    blocks = [Block(f"x{k}", slice(k, k + 1), 1, 4, forward, backward) for k in range(d)]
    problem = replace(known_gradients(np.ones(d, np.float32), gradient), describe={"net": "squares"},
                      chain=Chain(blocks, inputs, loss_gradient))
    return with_batches(problem, (4,) * d)


def _arrives(deploy: Deploy, name: str, options: Mapping[str, Any]) -> None:
    """Check that one gradient arrives whole, sooner or later, and that the stages of a net use one version
    of their weights forward and backward; where schedules do not matter."""
    def first(x: Array, rank: int, t: int) -> Array:
        return np.array([1, -8, 4, 2], np.float32) * np.float32(1 + rank) * np.float32(t == 0)

    cases = [(known_gradients(np.zeros(4, np.float32), first), 2, 12,
              "12 steps in which only the first gradient is not 0")]
    if facts_of(CATALOGUE[name], options).staged:
        cases += [(squares(n), n, 4, f"4 batches of the net {' '.join(f'x{k}^2' for k in range(n))}")
                  for n in (2, 3)]
    for problem, workers, steps, case in cases:
        theirs, mine = (final_parameters(simulate(f(problem, workers, steps, SGD(RATE), **options)))
                        for f in (CATALOGUE[name], deploy))
        if not np.allclose(mine, theirs, atol=1e-4):
            raise Misread(f"after {case}, the parameters are {np.round(mine, 4).tolist()}; with {name} they "
                          f"are {np.round(theirs, 4).tolist()}")


def _weighs(deploy: Deploy, name: str, options: Mapping[str, Any]) -> None:
    """Check the result with unequal batches."""
    plain = traced(3, 4, nothing)
    unequal = with_batches(plain, (3, 1, 2))

    timeless = facts_of(CATALOGUE[name], options).timeless  # else the mean alone is the same

    def of(function: Deploy, problem: Problem) -> list[Array]:
        run = simulate(function(problem, 3, 4, SGD(RATE), **options), UNEQUAL)
        return ends(run) if timeless else [final_parameters(run)]

    with suppress(ValueError):  # not on three workers
        theirs, mine = of(CATALOGUE[name], unequal), of(deploy, unequal)
        if _alike(mine, theirs):
            return
        if _alike(mine, of(CATALOGUE[name], plain)):
            raise Misread("gradients of unequal batches are averaged with equal weights; expected the mean "
                          "over all images, of which problem.images(rank, t) are a worker's")
        raise Misread("with batches of 3, 1 and 2 images the result "
                      f"{tracers.differs(contents(mine[0], 3), contents(theirs[0], 3))}, as with {name}")


def _same_arrivals(deploy: Deploy, name: str, options: Mapping[str, Any]) -> None:
    """Check the result with gradients that depend on the model and have entries in common, in one order of
    arrival, unless the function reads other models than the catalogue's there."""
    def of(function: Deploy) -> tuple[dict[tuple[int, int], bytes], list[Array]]:
        reads = dict[tuple[int, int], bytes]()

        def judge(rank: int, t: int, counts: Array) -> None:
            reads[rank, t] = counts.tobytes()

        runs = [simulate(function(each, 3, 4, SGD(RATE), **options), UNEQUAL)
                for each in (traced(3, 4, judge), quadratic(d=3, workers=3))]
        return reads, ends(runs[1])

    with suppress(ValueError):  # not on three workers
        (reads, theirs), (own, mine) = of(CATALOGUE[name]), of(deploy)
        if reads == own and not _alike(mine, theirs):
            found, expected = (np.round(x[0], 4).tolist() for x in (mine, theirs))
            raise Misread(f"on a quadratic, 4 steps of 3 workers end at {found}; with {name} and the same "
                          f"order of arrival at {expected}")


def _alike(mine: list[Array], theirs: list[Array]) -> bool:
    """Whether each model of one list is in the other: a server's may be that of every replica."""
    return all(any(np.allclose(x, y, atol=1e-4) for y in others) for own, others in (
        (mine, theirs), (theirs, mine)) for x in own)


def _same_bits(deploy: Deploy, name: str, options: Mapping[str, Any], one: bool) -> str:
    """Check that the order of arrival changes no bit, where it changes none in the catalogue."""
    problem, machine = quadratic(d=9, workers=3), Machine(compute="exponential(1)")  # type: ignore[arg-type]

    def found(function: Deploy) -> set[str]:
        return {hash_of(simulate(function(problem, 3, 4, SGD(0.1), **options), machine, seed))
                for seed in range(8)}

    if not one or len(found(CATALOGUE[name])) > 1:
        raise NotChecked(f"{name}'s result depends on the order of arrival")
    if len(seen := found(deploy)) > 1:
        raise Misread(f"8 orders of arrival give {len(seen)} different results, to the bit; expected one: "
                      "add gradients in the order of workers, never in the order of arrival")
    return "the same in 8 orders of arrival"


def _waits_as(deploy: Deploy, name: str, options: Mapping[str, Any]) -> str:
    for own, (slow, workers) in product(_small(deploy, name, options), ((0, 2), (1, 2), (1, 4))):
        theirs = tracers.progress(CATALOGUE[name], slow, workers, 4, **own)
        mine = tracers.progress(deploy, slow, workers, 4, **own)
        # a synchronous algorithm's steps are one after another: to wait for all is its right
        least = [[min(begun, k + 2) for begun in row] for k, row in enumerate(theirs)]
        tracers.ahead(mine, least if facts_of(CATALOGUE[name], own).timeless else theirs, theirs, slow,
                      f", as with {name}")
    return f"a fast worker goes as far ahead of a slow one as with {name}"


def _same_rule(deploy: Deploy, name: str, options: Mapping[str, Any], workers: int) -> str:
    """Check momentum and a decaying rate against the catalogue's algorithm, in one order of arrival."""
    steps, sgd = 4, SGD(RATE, momentum=0.5, schedule=StepDecay(2, 0.5))

    def of(function: Deploy, sgd: SGD) -> Array:
        run = simulate(function(traced(workers, steps, nothing), workers, steps, sgd, **options), UNEQUAL)
        return contents(final_parameters(run), workers)

    try:
        theirs = of(CATALOGUE[name], sgd)
    except ValueError as error:
        raise NotChecked(f"not checked: {error}") from None
    mine = of(deploy, sgd)
    if not np.allclose(mine, theirs, atol=1e-3):
        cause = next((said for said, wrong in other_rules(sgd, workers)
                      if np.allclose(mine, of(CATALOGUE[name], wrong), atol=1e-3)),
                     _moved(mine, theirs))
        raise Misread(f"{cause}; the rule is x, v = sgd.step(x, v, g, t), t the number of updates so far")
    return f"momentum and schedule as {name}'s"


def _moved(mine: Array, theirs: Array) -> str:
    """The first gradient that counts otherwise than by the rule, in words."""
    w, t = (int(i) for i in np.argwhere(~np.isclose(mine, theirs, atol=1e-3))[0])
    return (f"with a momentum of 0.5 and a rate that is halved every 2 updates, gradient {t} of worker {w} "
            f"has moved the result by {mine[w, t]:.4g} times rate * gradient; expected {theirs[w, t]:.4g}")


#: algorithms that are compared: there are schedules of several workers, and not too many for a few seconds
COMPARED = [name for name, function in CATALOGUE.items() if facts_of(function).compared]


def names_of(name: str) -> list[str]:
    """The names of an algorithm's properties."""
    own = ["models read", "result", "models reached", "same bits"]
    if gates := tracers.gates_of(name, {}):
        own = ["staleness bound"] * (gates[0].upper < tracers.INF) + ["each gradient once", "own updates"]
    return [*own, "lead of fast workers", "update rule"]


def options_for(name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with which a function that should be this algorithm is checked in general."""
    if name not in COMPARED:
        raise Usage(f"{name} cannot be compared; expected one of {', '.join(COMPARED)}")
    gates = tracers.gates_of(name, options)
    return gates[-1].options if gates else options


def properties(deploy: Deploy, name: str, options: Mapping[str, Any]) -> Iterator[Property]:
    """The properties of an algorithm of the catalogue, to be checked of a function that should be it."""
    if gates := tracers.gates_of(name, options):
        yield from tracers.gated(deploy, gates)
        yield "update rule", lambda: _same_rule(deploy, name, gates[0].options, 1)
    else:
        yield from _like(deploy, name, options)
