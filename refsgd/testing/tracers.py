"""The properties of one algorithm, read from the models at which its workers compute gradients.

Every gradient is a unit vector of its own, so a model shows which gradients it contains, and how often.
Names of nodes, classes and number of messages, and helper programs do not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted
from refsgd.effects import Array, Deployment
from refsgd.experiment.result import final_parameters, replicas
from refsgd.problems import Problem
from refsgd.runtimes.explorer import explore, walk
from refsgd.runtimes.simulator import simulate
from refsgd.testing.findings import RATE, known_gradients, named_case
from refsgd.trace import Computed, Run

Judge = Callable[[int, int, Array], None]  #: of a worker, its step, and contents of the model that it reads
Deploy = Callable[..., Deployment]
Property = tuple[str, Callable[[], str]]  #: its name, and the check, which says what it has seen
BEGUN, WALKS = 120, 30  #: beginnings of schedules to follow of a small case, and random ones beyond them
INF = float("inf")
CLOCKS = ((1, 0.53, 0.11), (1, 0.34, 0.1))  #: speeds of three workers, in each order
THREE = (3, 2)  #: workers and steps of the largest small case


class Misread(AssertionError):
    """A gradient is computed at a model that the algorithm does not allow, or a result is wrong."""


class Gate(NamedTuple):
    """How far a worker may be ahead of the slowest: it waits at `upper` clocks, and never below `lower`."""

    lower: float
    upper: float
    options: Mapping[str, Any]


def gates_of(name: str, options: Mapping[str, Any]) -> list[Gate]:
    """The gates by which an algorithm is checked: those of its options, or small ones; [] if it has none."""
    function = CATALOGUE[name]
    facts, whole = facts_of(function, options), {**(function.__kwdefaults__ or {}), **options}
    if facts.gate is None:
        return []
    given = {key: whole[key] for case in facts.tight for key in case}
    cases = facts.tight if facts.tight and not given.keys() & options.keys() else [given]
    return [Gate(*facts.gate({**whole, **case}), {**options, **case}) for case in cases]


def traced(workers: int, steps: int, judge: Judge) -> Problem:
    """A problem whose gradients are unit vectors; `judge` sees each model at which one is computed.

    The first entry has no gradient, so that the number of entries is no multiple of that of workers.
    """
    def gradient(x: Array, rank: int, t: int) -> Array:
        if not (0 <= rank < workers and 0 <= t < steps):
            raise Misread(f"a gradient of worker {rank} in step {t}; expected workers 0 to {workers - 1}, "
                          f"steps 0 to {steps - 1}")
        judge(rank, t, contents(x, workers))
        g: Array = np.eye(1, workers * steps + 1, rank * steps + t + 1, np.float32)[0]
        return g

    return known_gradients(np.zeros(workers * steps + 1, np.float32), gradient)


def contents(x: Array, workers: int) -> Array:
    """How often a model contains each gradient: (workers, steps)."""
    return np.asarray(np.round(-x[1:] / np.float32(RATE), 4) + np.float32(0), np.float32).reshape(workers, -1)


def ends(run: Run) -> list[Array]:
    """The model of the servers, or else of each replica, at the end: their mean could hide a difference."""
    servers, own = replicas(run)
    return own if own and not servers else [final_parameters(run)]


def named(counts: Array) -> str:
    """Contents in words, e.g. ``gradient 0 of worker 1 (0.5 times)``."""
    times = {(w, t): "" if counts[w, t] == 1 else f" ({counts[w, t]:g} times)"
             for w, t in zip(*np.nonzero(counts))}
    return ", ".join(f"gradient {t} of worker {w}{often}" for (w, t), often in times.items()) or "no gradient"


def differs(found: Array, expected: Array) -> str:
    """The first difference of two contents, in words."""
    w, t = (int(i) for i in np.argwhere(~np.isclose(found, expected, atol=1e-3))[0])
    have, want = ("once" if count == 1 else f"{count:.4g} times" if count else ""
                  for count in (float(found[w, t]), float(expected[w, t])))
    said = f"contains gradient {t} of worker {w} {have}" if have else f"lacks gradient {t} of worker {w}"
    return f"{said}; expected {f'it {want}' if want else 'a model without it'}"


# -- algorithms with a gate ----------------------------------------------------------------------------------


def _once(gate: Gate, rank: int, t: int, counts: Array) -> None:
    """Each gradient counts once, with the full rate."""
    for w, c in zip(*np.nonzero((counts != 0) & (counts != 1))):
        raise Misread(f"worker {rank} computes gradient {t} at a model that contains gradient {c} of worker "
                      f"{w} {counts[w, c]:g} times; expected once, with the full learning rate")


def _own(gate: Gate, rank: int, t: int, counts: Array) -> None:
    """A worker reads its own updates."""
    if not counts[rank, :t].all():
        lost = int(np.argmin(counts[rank, :t] != 0))
        raise Misread(f"worker {rank} computes gradient {t} at a model without its own gradient {lost}; "
                      "expected all its earlier ones")


def _own_soon(deploy: Deploy, gate: Gate) -> str:
    """Without a bound own updates may be late, but if messages take no time, only the last one."""
    def judge(rank: int, t: int, counts: Array) -> None:
        if t:
            _own(gate, rank, t - 1, counts)

    machine = Machine(compute="fixed(1)", speeds=(1, 0.7))  # type: ignore[arg-type]
    simulate(deploy(traced(2, 4, judge), 2, 4, SGD(RATE), **gate.options), machine)
    return "are read, or all but the last"


def _bounded(gate: Gate, rank: int, t: int, counts: Array) -> None:
    """A worker waits where it would be too far ahead."""
    slack = gate.upper
    for w in range(len(counts)) if t > slack else ():
        before = int(t - slack)
        if not counts[w, :before].all():
            lost = int(np.argmin(counts[w, :before] != 0))
            raise Misread(f"worker {rank} computes gradient {t} at a model without gradient {lost} of "
                          f"worker {w}; with a slack of {slack:g} it must wait for gradient "
                          f"{before - 1} of every worker")


def explore_small(deploy: Deploy, options: Mapping[str, Any], workers: int, steps: int, judge: Judge,
                  at_end: Callable[[Run], None]) -> int:
    """Follow every schedule of a small case, or many; the number of schedules."""
    def small(steps: int = steps, workers: int = workers) -> Deployment:
        return deploy(traced(workers, steps, judge), workers, steps, SGD(RATE), **options)

    with named_case(small, steps, workers, options):
        report = explore(small, at_end, most=BEGUN)
        return report.runs if report.complete else report.runs + walk(small, at_end, runs=WALKS).runs


def _all_there(workers: int, run: Run) -> None:
    """The result contains each gradient once."""
    counts = contents(final_parameters(run), workers)
    for w, c in zip(*np.nonzero(counts != 1)):
        raise Misread(f"the result contains gradient {c} of worker {w} {counts[w, c]:g} times; expected "
                      "once, with the full learning rate")


def three_clocks(deploy: Deploy, options: Mapping[str, Any], judge: Judge) -> None:
    """Run three workers, no two of which have one speed: with two, who is answered is no question."""
    orders = [speeds for clocks in CLOCKS for speeds in itertools.permutations(clocks)]
    cases = [(time, each) for time in ("fixed(1)", "exponential(1)") for each in orders]
    for time, speeds in cases:
        machine = Machine(compute=time, speeds=speeds)  # type: ignore[arg-type]
        simulate(deploy(traced(3, 8, judge), 3, 8, SGD(RATE), **options), machine)


def nothing(*_: Any) -> None:
    """Allow everything."""


def gated(deploy: Deploy, gates: list[Gate]) -> Iterator[Property]:
    """The properties of an algorithm with these gates."""
    cases = [(gate, *sizes) for sizes in ((2, 1), (2, 2), (2, 3), THREE) for gate in gates]
    judges = {"staleness bound": _bounded, "each gradient once": _once, "own updates": _own}
    if gates[0].upper == INF:
        judges = {"each gradient once": _once}

    def read(*names: str) -> str:
        all_there, runs = "each gradient once" in names, 0
        for gate, workers, steps in cases:
            def judge(rank: int, t: int, counts: Array, gate: Gate = gate) -> None:
                for name in names:
                    judges[name](gate, rank, t, counts)

            runs += explore_small(deploy, gate.options, workers, steps, judge,
                                  partial(_all_there, workers) if all_there else nothing)
            if (workers, steps) == THREE:
                three_clocks(deploy, gate.options, judge)
        return f"in {counted(runs, 'schedule')}"

    @cache
    def together() -> str:
        """The observation if all of them hold: one exploration is enough then."""
        try:
            return read(*judges)
        except Exception:
            return ""

    for name in judges:
        yield name, lambda name=name: together() or read(name)  # type: ignore[misc]
    if gates[0].upper == INF:
        yield "own updates", lambda: _own_soon(deploy, gates[0])
    yield "lead of fast workers", lambda: _waits_no_longer(deploy, gates)


def progress(deploy: Deploy, slow: int, workers: int, steps: int, **options: Any) -> list[list[int]]:
    """Gradients that each other worker has begun when the slow one ends its first, its second, ..."""
    machine = Machine(compute="fixed(1)",  # type: ignore[arg-type]
                      speeds=tuple(0.001 if w == slow else 1 for w in range(workers)))
    run = simulate(deploy(traced(workers, steps, nothing), workers, steps, SGD(RATE), **options), machine)
    nodes: dict[str, list[Computed]] = {}
    for e in run.trace.of(Computed):
        if e.gradient_ended:
            nodes.setdefault(e.node, []).append(e)
    if not nodes:
        raise Misread("no gradient was computed; expected yield Compute(problem.gradient, x, rank, t)")
    slowest = max(nodes, key=lambda n: max(e.time - e.start for e in nodes[n]))
    return [sorted(sum(e.start < end.time - 0.5 for e in nodes[n]) for n in nodes if n != slowest)
            for end in nodes[slowest]]


def ahead(found: list[list[int]], least: list[list[int]], most: list[list[int]], slow: int,
          said: str) -> None:
    """Compare the progress of fast workers with what is allowed; options of `run` say on which machine."""
    def of(begun: list[int]) -> str:
        return " and ".join(map(str, begun if len({*begun}) > 1 else begun[:1])) or "none"

    none: list[int] = []
    speeds = ["0.001" if w == slow else "1" for w in range(len(most[0]) + 1)]
    where = f"with --workers {len(speeds)} --steps {len(most)} --compute 1 --speeds {','.join(speeds)}"
    for k, (have, low, high) in enumerate(itertools.zip_longest(found, least, most, fillvalue=none)):
        if len(have) != len(low) or any(not a <= h <= b for h, a, b in zip(have, low, high)):
            expected = of(low) if low == high else f"{of(low)} to {of(high)}"
            why = "they go too far ahead" if any(h > b for h, b in zip(have, high)) else "they wait too long"
            raise Misread(f"when worker {slow} ends gradient {k}, the others have begun {of(have)}; expected "
                          f"{expected}{said}: {why}; {where}")


def _waits_no_longer(deploy: Deploy, gates: list[Gate]) -> str:
    """Check that a fast worker goes as far ahead of a slow one as the gate allows."""
    for gate, workers in itertools.product(gates, (2, 3)):
        for slow, steps in itertools.product(range(workers), (1, 5)):
            low, high = ([[int(min(steps, k + s + 1))] * (workers - 1) for k in range(steps)]
                         for s in (gate.lower, gate.upper))
            slack = f"{gate.lower:g}" if gate.lower == gate.upper else f"{gate.lower:g} to {gate.upper:g}"
            ahead(progress(deploy, slow, workers, steps, **gate.options), low, high, slow,
                  " since nobody waits" if gate.lower == INF else f" with a slack of {slack}")
    return "a fast worker begins every gradient that it may"
