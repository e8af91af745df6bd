"""The museum of wrong code: what its pages show and what its tests check.

An exhibit is a program of `PROGRAMS` that trains and is wrong.  Its page has an ordinary run; a small case,
in Python that defines ``deploy()`` and ``check(run)`` or ``always(run)`` and calls the exhibit ``program``;
and a diff that corrects it.
"""

from __future__ import annotations

import heapq
import linecache
import random
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import experiments
from experiments import ROOT, Source

import refsgd
from refsgd.effects import Factory
from refsgd.runtimes.explorer import Check, Counterexample, Exploration, explore
from refsgd.runtimes.world import World
from refsgd.trace.diagram import diagram

PROGRAMS = ROOT / "docs" / "museum" / "programs"
#: an ordinary cluster: fast links, workers that differ little
ORDINARY = {"compute": "lognormal(0.02,0.05)", "latency": 0.001, "bandwidth": 50e6}


def source_of(name: str) -> Source:
    """The text of an exhibit."""
    path = PROGRAMS / f"{name}.py"
    return Source(name, path, tuple(path.read_text(encoding="utf-8").splitlines(keepends=True)))


def program(name: str, text: str = "") -> ModuleType:
    """An exhibit as a module, by default as it stands."""
    source = source_of(name)
    filename = str(source.path.relative_to(ROOT)) + (" (corrected)" if text else "")
    text = text or "".join(source.lines)
    linecache.cache[filename] = len(text), None, text.splitlines(keepends=True), filename
    module = ModuleType(name)
    exec(compile(text, filename, "exec"), vars(module))
    return module


def corrected(name: str, diff: str) -> ModuleType:
    """An exhibit with the lines of a diff replaced."""
    return program(name, experiments.apply(source_of(name), experiments.parse(diff)[0]))


def algorithm(module: ModuleType) -> Callable[..., Any]:
    """Its deployment function, which is the last one in the file."""
    return [f for f in vars(module).values()
            if callable(f) and getattr(f, "__code__", None) and f.__globals__ is vars(module)][-1]


class Case(NamedTuple):
    """A small deployment, what must hold at its end, and what must hold after each of its events."""

    deploy: Factory
    check: Check
    always: Check


def case(module: ModuleType, code: str) -> Case:
    """The case that the code of a page describes: ``deploy()`` and ``check(run)`` or ``always(run)``."""
    outcome = experiments.perform(code, program=module)
    if outcome.failure or "deploy" not in outcome.values or not {"check", "always"} & outcome.values.keys():
        raise ValueError(f"no case: {outcome.failure or 'expected deploy() and check(run) or always(run)'}")
    always = outcome.values.get("always", lambda run: None)
    return Case(outcome.values["deploy"], outcome.values.get("check", always), always)


def shortest(deploy: Factory, check: Check, always: Check) -> Counterexample | None:
    """The counterexample with the fewest events: schedules in the order of their lengths, each state once."""
    seen, queue = set(), [(0, list[int]())]
    while queue:
        _, schedule = heapq.heappop(queue)
        world = World(deploy, every=True)
        try:
            for pick in schedule:
                world.perform(pick)
            always(world.run())
            actions = world.enabled()
            if not actions:
                check(world.run())
        except Exception as error:
            return Counterexample(error, schedule, diagram(world.events, world.nodes), world, deploy)
        if (state := world.state()) in seen:
            continue
        seen.add(state)
        for i in range(len(actions)):
            heapq.heappush(queue, (len(world.events) + 1, [*schedule, i]))
    return None


def broken(name: str, code: str) -> Counterexample:
    """The shortest counterexample of an exhibit; raises ValueError if every schedule holds."""
    found = shortest(*case(program(name), code))
    if found is None:
        raise ValueError(f"{name}: no schedule breaks the check; expected a counterexample")
    return found


def figures(name: str, code: str) -> str:
    """What code that calls an exhibit ``program`` prints; raises ValueError if it fails."""
    outcome = experiments.perform(code, program=program(name))
    if outcome.failure is not None:
        raise ValueError(f"{name}: the figures fail: {experiments.complaint(outcome.failure)}")
    return outcome.printed


def share_broken(name: str, code: str, runs: int = 1000) -> float:
    """The share of random schedules of an exhibit's case that break it."""
    deploy, check, _ = case(program(name), code)
    rng, failed = random.Random(0), 0
    for _ in range(runs):
        world = World(deploy)
        try:
            while actions := world.enabled():
                world.perform(rng.randrange(len(actions)))
            check(world.run())
        except Exception:
            failed += 1
    return failed / runs


def holds(name: str, code: str, diff: str) -> Exploration:
    """What the explorer says of the corrected exhibit; raises if it is wrong, too."""
    deploy, check, _ = case(corrected(name, diff), code)
    return explore(deploy, check)


def train(function: Any, options: str = "", **machine: Any) -> refsgd.Result:
    """An ordinary run on the digits, with options such as ``workers=3 lr=0.1``."""
    given = {key: float(value) if re.search(r"[.e]", value) else int(value)
             for key, value in (word.split("=") for word in options.split())}
    return refsgd.run(function, **{"workers": 4, "epochs": 5, "data": "digits", "seed": 0, **given},
                      machine=refsgd.Machine(**(ORDINARY | machine)))
