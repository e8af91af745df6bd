"""The properties of one algorithm, read from the models at which its workers compute gradients.

Every gradient is a unit vector of its own, so a model shows which gradients it contains, and how often.
Names of nodes, classes and number of messages, and helper programs do not count.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted
from refsgd.effects import Array, Deployment
from refsgd.experiment.arguments import Usage
from refsgd.experiment.result import final_parameters, replicas
from refsgd.problems import Problem, quadratic
from refsgd.problems.chain import Block, Chain
from refsgd.problems.layers import equal
from refsgd.runtimes.explorer import explore, walk
from refsgd.runtimes.simulator import simulate
from refsgd.testing.findings import RATE, NotChecked, hash_of
from refsgd.trace import Computed, Run

Judge = Callable[[int, int, Array], None]  #: of a worker, its step, and contents of the model that it reads
Deploy = Callable[..., Deployment]
Property = tuple[str, Callable[[], str]]  #: its name, and the check, which says what it has seen
BEGUN, WALKS = 120, 30  #: beginnings of schedules to follow of a small case, and random ones beyond them
INF = float("inf")


class Misread(AssertionError):
    """A gradient is computed at a model that the algorithm does not allow, or a result is wrong."""


class Gate(NamedTuple):
    """How far a worker may be ahead of the slowest: it waits at `upper` clocks, and never below `lower`."""

    lower: float
    upper: float
    options: Mapping[str, Any]


def _gates(name: str, options: Mapping[str, Any]) -> list[Gate]:
    """The gates by which an algorithm is checked: those of its options, or small ones; [] if it has none."""
    if name in ("asp", "hogwild"):
        return [Gate(INF, INF, options)]
    if name == "ssp":
        slacks = [options["staleness"]] if "staleness" in options else [0, 1]
        return [Gate(s, s, {**options, "staleness": s}) for s in slacks]
    if name == "dssp":
        pairs = [(0, 1), (1, 1)] if not options else [(options.get("lower", 3), options.get("upper", 15))]
        return [Gate(lower, upper, {"lower": lower, "upper": upper}) for lower, upper in pairs]
    return []


def traced(workers: int, steps: int, judge: Judge) -> Problem:
    """A problem whose gradients are unit vectors; `judge` sees each model at which one is computed."""
    def gradient(x: Array, rank: int, t: int) -> Array:
        if not (0 <= rank < workers and 0 <= t < steps):
            raise Misread(f"a gradient of worker {rank} in step {t}; expected workers 0 to {workers - 1}, "
                          f"steps 0 to {steps - 1}")
        judge(rank, t, contents(x, workers))
        g: Array = np.eye(1, workers * steps, rank * steps + t, np.float32)[0]
        return g

    return Problem(np.zeros(workers * steps, np.float32), gradient, lambda x: 0.0,
                   layers=equal(workers * steps, gradient))


def contents(x: Array, workers: int) -> Array:
    """How often a model contains each gradient: (workers, steps)."""
    return np.asarray(np.round(-x / np.float32(RATE), 4) + np.float32(0), np.float32).reshape(workers, -1)


def _named(counts: Array) -> str:
    """Contents in words, e.g. ``gradient 0 of worker 1 (0.5 times)``."""
    times = {(w, t): "" if counts[w, t] == 1 else f" ({counts[w, t]:g} times)"
             for w, t in zip(*np.nonzero(counts))}
    return ", ".join(f"gradient {t} of worker {w}{often}" for (w, t), often in times.items()) or "no gradient"


# -- algorithms with a gate ----------------------------------------------------------------------------------


def _once(rank: int, t: int, counts: Array) -> None:
    """Each gradient counts once, with the full rate."""
    for w, c in zip(*np.nonzero((counts != 0) & (counts != 1))):
        raise Misread(f"worker {rank} computes gradient {t} at a model that contains gradient {c} of worker "
                      f"{w} {counts[w, c]:g} times; expected once, with the full learning rate")


def _own(rank: int, t: int, counts: Array) -> None:
    """A worker reads its own updates."""
    if not counts[rank, :t].all():
        lost = int(np.argmin(counts[rank, :t] != 0))
        raise Misread(f"worker {rank} computes gradient {t} at a model without its own gradient {lost}; "
                      "expected all its earlier ones")


def _bounded(slack: float) -> Judge:
    def judge(rank: int, t: int, counts: Array) -> None:
        for w in range(len(counts)) if t > slack else ():
            before = int(t - slack)
            if not counts[w, :before].all():
                lost = int(np.argmin(counts[w, :before] != 0))
                raise Misread(f"worker {rank} computes gradient {t} at a model without gradient {lost} of "
                              f"worker {w}; a slack of {slack:g} requires all up to step {before - 1}")

    return judge


def _explored(deploy: Deploy, options: Mapping[str, Any], workers: int, steps: int, judge: Judge,
              at_end: Callable[[Run], None]) -> int:
    """Follow every schedule of a small case, or many; the number of schedules."""
    def small() -> Deployment:
        return deploy(traced(workers, steps, judge), workers, steps, SGD(RATE), **options)

    report = explore(small, at_end, most=BEGUN)
    return report.runs if report.complete else report.runs + walk(small, at_end, runs=WALKS).runs


def _all_there(workers: int) -> Callable[[Run], None]:
    def at_end(run: Run) -> None:
        counts = contents(final_parameters(run), workers)
        for w, c in zip(*np.nonzero(counts != 1)):
            raise Misread(f"the result contains gradient {c} of worker {w} {counts[w, c]:g} times; expected "
                          "once, with the full learning rate")

    return at_end


def _nothing(*_: Any) -> None:
    """Allow everything."""


def _gated(deploy: Deploy, gates: list[Gate]) -> Iterator[Property]:
    cases = [(gate, *sizes) for sizes in ((2, 1), (2, 2), (2, 3), (3, 2)) for gate in gates]
    judges: dict[str, Callable[[Gate], Judge]] = {
        "staleness bound": lambda gate: _bounded(gate.upper), "each gradient once": lambda _: _once,
        "own updates": lambda _: _own}

    def read(*names: str) -> str:
        ends, runs = "each gradient once" in names, 0
        for gate, workers, steps in cases:
            def judge(rank: int, t: int, counts: Array, gate: Gate = gate) -> None:
                for name in names:
                    judges[name](gate)(rank, t, counts)

            runs += _explored(deploy, gate.options, workers, steps, judge,
                              _all_there(workers) if ends else _nothing)
        return f"in {counted(runs, 'schedule')}"

    @cache
    def together() -> str:
        """What is said if all of them hold: one exploration is enough then."""
        try:
            return read(*judges)
        except Exception:
            return ""

    for name in judges if gates[0].upper < INF else list(judges)[1:]:
        yield name, lambda name=name: together() or read(name)  # type: ignore[misc]
    yield "no needless wait", lambda: _waits_no_longer(deploy, gates)


def _progress(deploy: Deploy, slow: int, workers: int, steps: int, **options: Any) -> list[list[int]]:
    """Gradients that each other worker has begun when the slow one ends its first, its second, ..."""
    machine = Machine(compute="fixed(1)",  # type: ignore[arg-type]
                      speeds=tuple(0.001 if w == slow else 1 for w in range(workers)))
    run = simulate(deploy(traced(workers, steps, _nothing), workers, steps, SGD(RATE), **options), machine)
    nodes: dict[str, list[Computed]] = {}
    for e in run.trace.of(Computed):
        if e.gradient_ended:
            nodes.setdefault(e.node, []).append(e)
    if not nodes:
        raise Misread("no gradient was computed; expected yield Compute(problem.gradient, x, rank, t)")
    slowest = max(nodes, key=lambda n: max(e.time - e.start for e in nodes[n]))
    return [sorted(sum(e.start < end.time - 0.5 for e in nodes[n]) for n in nodes if n != slowest)
            for end in nodes[slowest]]


def _ahead(found: list[list[int]], least: list[list[int]], most: list[list[int]], slow: int,
           said: str) -> None:
    """Compare the progress of fast workers with what is allowed."""
    none: list[int] = []
    for k, (have, low, high) in enumerate(itertools.zip_longest(found, least, most, fillvalue=none)):
        if len(have) != len(low) or any(not a <= h <= b for h, a, b in zip(have, low, high)):
            expected = f"{low}" if low == high else f"{low} to {high}"
            raise Misread(f"when worker {slow}, 1000 times slower, ends its gradient {k}, the others have "
                          f"begun {have} gradients; expected {expected}{said}")


def _waits_no_longer(deploy: Deploy, gates: list[Gate]) -> str:
    """Check that a fast worker goes as far ahead of a slow one as the gate allows."""
    for gate, workers in itertools.product(gates, (2, 3)):
        for slow, steps in itertools.product(range(workers), (1, 5)):
            low, high = ([[int(min(steps, k + s + 1))] * (workers - 1) for k in range(steps)]
                         for s in (gate.lower, gate.upper))
            slack = f"{gate.lower:g}" if gate.lower == gate.upper else f"{gate.lower:g} to {gate.upper:g}"
            _ahead(_progress(deploy, slow, workers, steps, **gate.options), low, high, slow,
                   f" with a slack of {slack}")
    return "a fast worker begins every gradient that it may"


# -- any other algorithm: the models that it may read, and what no schedule changes --------------------------


@dataclass
class Models:
    """What the workers of an algorithm read and what it ends with, in the schedules of a small case.

    What is the same in all of the catalogue's schedules is a promise: the result of a synchronous algorithm,
    the mean of replicas that average in pairs, the sum of replicas and centre.
    """

    reads: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    finals: set[bytes] = field(default_factory=set)
    sums: set[bytes | None] = field(default_factory=set)  #: of servers and replicas; None: they return none
    complete: bool = False

    @property
    def one(self) -> bool:
        """Whether all schedules agree."""
        return self.complete and all(len(known) == 1 for known in self.reads.values())

    @property
    def conserved(self) -> bytes | None:
        """The sum of servers and replicas, if that is the same in all schedules and the result is not."""
        return min(self.sums) if len(self.finals) > 1 == len(self.sums) else None  # type: ignore[type-var]


def _sum(run: Run, workers: int) -> bytes | None:
    servers, own = replicas(run)
    if not servers or len(own) < workers:
        return None
    return contents(np.concatenate(servers) + sum(own), workers).tobytes()


def _models(deploy: Deploy, options: Mapping[str, Any], workers: int, steps: int) -> Models:
    models = Models()

    def judge(rank: int, t: int, counts: Array) -> None:
        models.reads.setdefault((rank, t), set()).add(counts.tobytes())

    def at_end(run: Run) -> None:
        models.finals.add(contents(final_parameters(run), workers).tobytes())
        models.sums.add(_sum(run, workers))

    def small() -> Deployment:
        return deploy(traced(workers, steps, judge), workers, steps, SGD(RATE), **options)

    models.complete = explore(small, at_end, most=8 * BEGUN).complete
    if not models.complete:
        walk(small, at_end, runs=WALKS)
    return models


class Case(NamedTuple):
    """A small case, and what is known of the catalogue's algorithm in it."""

    options: Mapping[str, Any]
    workers: int
    steps: int
    known: Models


def _cases(deploy: Deploy, name: str, options: Mapping[str, Any]) -> Iterator[Case]:
    """Small cases: of an algorithm with a period, also those in which replicas are averaged soon."""
    takes = inspect.signature(deploy).parameters.keys() & inspect.signature(CATALOGUE[name]).parameters.keys()
    periods = (1, 2) if "period" in takes - options.keys() else ()
    for own in [{**options, "period": p} for p in periods] or [dict(options)]:
        for workers, steps in ((2, 1), (2, 2), (3, 2), (3, 3))[:4 if periods else 3]:
            with suppress(ValueError):
                models = _models(CATALOGUE[name], own, workers, steps)
                if models.complete or len(models.finals) == 1 or models.conserved:
                    yield Case(own, workers, steps, models)


def _like(deploy: Deploy, name: str, options: Mapping[str, Any]) -> Iterator[Property]:
    cases = list(_cases(deploy, name, options))
    one = all(case.known.one for case in cases)

    def known_to_be(counts: Array, known: set[bytes], what: str) -> None:
        if counts.tobytes() not in known:
            more = f", or {counted(len(known) - 1, 'other model')}" if len(known) > 1 else ""
            raise Misread(f"{what} contains {_named(counts)}; with {name} it contains "
                          f"{_shown(known, len(counts))}{more}")

    def explored(read: bool) -> str:
        runs = 0
        for own, workers, steps, known in cases:
            def judge(rank: int, t: int, counts: Array, known: Models = known) -> None:
                known_to_be(counts, known.reads[rank, t],
                            f"the model at which worker {rank} computes gradient {t}")

            def at_end(run: Run, known: Models = known, workers: int = workers) -> None:
                if known.complete or len(known.finals) == 1:
                    known_to_be(contents(final_parameters(run), workers), known.finals, "the result")
                if known.conserved and (held := _sum(run, workers)):
                    known_to_be(np.frombuffer(held, np.float32).reshape(workers, -1), {known.conserved},
                                "the sum of all servers and replicas")

            if not read or known.complete:
                runs += _explored(deploy, own, workers, steps, judge if read else _nothing,
                                  _nothing if read else at_end)
        return f"as {name}'s, in {counted(runs, 'schedule')}"

    def result() -> str:
        said = explored(False)
        if one:
            _arrives(deploy, name, options)
        return said

    def reached() -> str:
        for own, workers, steps, known in cases:
            if not known.complete:
                continue
            mine = _models(deploy, own, workers, steps)
            for (rank, t), models in known.reads.items():
                if mine.complete and (never := models - mine.reads.get((rank, t), set())):
                    raise Misread(f"worker {rank} never computes gradient {t} at a model that contains "
                                  f"{_shown(never, workers)}; with {name} it does in some schedule")
        return f"all of {name}'s are reached"

    yield "models read", lambda: explored(True)
    yield "result", result
    yield "models reached", reached
    yield "same bits", lambda: _same_bits(deploy, name, options, one)
    yield "no needless wait", lambda: _waits_as(deploy, name, options)


def _squares(d: int) -> Problem:
    """A net of d weights, x_0^2 x_1^2 ..., that should be 2: each gradient depends on all weights."""
    def forward(x: Array, a: Array, rows: Any) -> tuple[Array, Array]:
        return x**2 * a, a

    def backward(x: Array, a: Array, above: Array) -> tuple[Array, Array]:
        return 2 * x * a * above, x**2 * above

    def gradient(x: Array, rank: int, t: int) -> Array:
        out = np.prod(x**2)
        return np.asarray((out - 2) * 2 * out / x, np.float32)

    blocks = [Block(f"x{k}", slice(k, k + 1), 1, 4, forward, backward) for k in range(d)]
    return Problem(np.ones(d, np.float32), gradient, lambda x: 0.0, layers=equal(d, gradient),
                   chain=Chain(blocks, lambda rows: np.ones(1, np.float32), lambda out, rows: out - 2))


def _arrives(deploy: Deploy, name: str, options: Mapping[str, Any]) -> None:
    """Check that one gradient arrives whole, sooner or later, and that the stages of a net use one version
    of their weights forward and backward; where schedules do not matter."""
    def first(x: Array, rank: int, t: int) -> Array:
        return np.array([1, -8, 4, 2], np.float32) * np.float32(1 + rank) * np.float32(t == 0)

    cases = [(Problem(np.zeros(4, np.float32), first, lambda x: 0.0, layers=equal(4, first)), 2, 12,
              "12 steps in which only the first gradient is not 0")]
    if "stages" in inspect.signature(CATALOGUE[name]).parameters:
        cases += [(_squares(n), n, 4, "4 batches of the net x0^2 x1^2 ... = 2") for n in (2, 3)]
    for problem, workers, steps, case in cases:
        theirs, mine = (final_parameters(simulate(f(problem, workers, steps, SGD(RATE), **options)))
                        for f in (CATALOGUE[name], deploy))
        if not np.allclose(mine, theirs, atol=1e-4):
            raise Misread(f"after {case}, the parameters are {np.round(mine, 4).tolist()}; with {name} they "
                          f"are {np.round(theirs, 4).tolist()}")


def _shown(known: set[bytes], workers: int) -> str:
    return _named(np.frombuffer(min(known), np.float32).reshape(workers, -1))


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
    for slow, workers in ((0, 2), (1, 2), (1, 4)):
        theirs = _progress(CATALOGUE[name], slow, workers, 4, **options)
        _ahead(_progress(deploy, slow, workers, 4, **options), theirs, theirs, slow, f", as with {name}")
    return f"a fast worker goes as far ahead of a slow one as with {name}"


def _same_rule(deploy: Deploy, name: str, options: Mapping[str, Any], workers: int) -> str:
    """Check momentum and a decaying rate against the catalogue's algorithm, where schedules do not matter."""
    steps, sgd = 4, SGD(RATE, momentum=0.5, schedule=lambda t: 0.5 ** (t // 2))

    def of(function: Deploy) -> Array:
        run = simulate(function(traced(workers, steps, _nothing), workers, steps, sgd, **options))
        return contents(final_parameters(run), workers)

    try:
        theirs = of(CATALOGUE[name])
    except ValueError as error:
        raise NotChecked(f"not checked: {error}") from None
    mine = of(deploy)
    if not np.allclose(mine, theirs, atol=1e-3):
        raise Misread("with momentum 0.5 and a rate that halves every 2 updates, the result contains "
                      f" {_named(mine)}; expected {_named(theirs)}: x, v = sgd.step(x, v, g, t) with "
                      "t the number of updates so far")
    return f"momentum and schedule as {name}'s"


#: algorithms that are not compared: no schedules of several workers, or too many for a few seconds
NOT_COMPARED = ("sequential", "sandblaster", "gosgd", "pair-averaging")


def names_of(name: str) -> list[str]:
    """The names of an algorithm's properties."""
    own = ["models read", "result", "models reached", "same bits"]
    if gates := _gates(name, {}):
        own = ["staleness bound"] * (gates[0].upper < INF) + ["each gradient once", "own updates"]
    return [*own, "no needless wait", "update rule"]


def options_for(name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with which a function that should be this algorithm is checked in general."""
    if name in NOT_COMPARED:
        raise Usage(f"{name} cannot be compared; expected one of "
                    + ", ".join(each for each in CATALOGUE if each not in NOT_COMPARED))
    gates = _gates(name, options)
    return gates[-1].options if gates else options


def properties(deploy: Deploy, name: str, options: Mapping[str, Any]) -> Iterator[Property]:
    """The properties of an algorithm of the catalogue, to be checked of a function that should be it."""
    gates = _gates(name, options)
    yield from _gated(deploy, gates) if gates else _like(deploy, name, options)
    alone = gates[0].options if gates else options
    yield "update rule", lambda: _same_rule(deploy, name, alone, 1 if gates else 2)
