"""Explores every schedule of a small case, by re-execution in a `refsgd.runtimes.world.World`.

A schedule that reaches a known state is not followed further: programs are functions of the answers that
they have received, so these and the contents of each inbox, in order, identify a state.  The idea is
Dijkstra's, as in Godefroid's VeriSoft ("Model checking for programming languages using VeriSoft", POPL 1997).
An error before the first pick needs no schedule: it is raised as it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from refsgd.effects import Factory
from refsgd.runtimes.programs import ForgottenYield, in_words
from refsgd.runtimes.world import World
from refsgd.trace import Run
from refsgd.trace.diagram import diagram

Check = Callable[[Run], None]


class Counterexample(AssertionError):
    """A schedule under which a check failed; `schedule` replays it, `text` shows it, `world` is where it
    ended, a deployment of `factory`; `case` is that deployment in words, if they are known."""

    case = ""

    def __init__(self, error: BaseException, schedule: Sequence[int], text: str, world: World | None = None,
                 factory: Factory | None = None) -> None:
        self.error, self.schedule, self.text = error, list(schedule), text
        self.world, self.factory = world, factory
        picks = f"{self.schedule}, then the first action each time" if schedule else (
            "[]: the first action each time")
        super().__init__(f"{in_words(error)}\nschedule {picks}\n{text}")


@dataclass
class Exploration:
    """The result of an exploration."""

    runs: int = 0  #: schedules followed to their end
    states: int = 0  #: different states with a choice
    complete: bool = True  #: whether every schedule was covered
    finals: dict[Any, int] = field(default_factory=dict)  #: schedules that ended with each value of `observe`


def follow(factory: Factory, schedule: Sequence[int] = (),
           check: Check | None = None) -> tuple[World, Exception | None]:
    """Run one schedule to its end, continuing with first actions; returns the world and the error, if any."""
    world, picks = World(factory), iter(schedule)
    try:
        while world.enabled():
            world.perform(next(picks, 0))
        if check is not None:
            check(world.run())
    except Exception as error:
        return world, error
    return world, None


def _smaller(schedule: list[int]) -> Iterator[list[int]]:
    """Schedules that are a step shorter, or make one smaller pick; the last picks first."""
    for i in reversed(range(len(schedule))):
        for put in ([], *([pick] for pick in range(schedule[i]))):
            yield [*schedule[:i], *put, *schedule[i + 1:]]


def shrink(factory: Factory, schedule: Sequence[int], check: Check | None, error: Exception) -> list[int]:
    """A short schedule that fails in the same way: shorter first, then smaller picks."""
    def fails(candidate: list[int]) -> bool:
        return type(follow(factory, candidate, check)[1]) is type(error)

    best = list(schedule)
    lengths = [*range(32), *(2**k for k in range(5, len(best).bit_length()))]
    prefixes = (best[:length] for length in lengths if length < len(best))  # continue with first actions
    best = next(filter(fails, prefixes), best)
    while (better := next(filter(fails, _smaller(best)), None)) is not None:
        best = better
    while best and best[-1] == 0:
        best.pop()
    return best


@contextmanager
def _shown(factory: Factory, picks: Sequence[int], check: Check | None) -> Iterator[None]:
    """Convert an error into a `Counterexample` with a short schedule, unless it is a forgotten yield, which
    fails in every one."""
    try:
        yield
    except ForgottenYield:
        raise
    except Exception as error:
        short = shrink(factory, picks, check, error)
        world, found = follow(factory, short, check)
        text = diagram(world.events, world.nodes)
        raise Counterexample(found or error, short, text, world, factory) from error


def explore(factory: Factory, check: Check | None = None, *, observe: Callable[[Run], Any] | None = None,
            max_runs: int = 100_000, most: int | None = None) -> Exploration:
    """Follow every schedule of a deployment, or `most` beginnings, also those that lead to a known state."""
    report, seen, schedule, begun = Exploration(), set(), list[int](), 0
    while True:
        begun += 1
        world, widths, picks = World(factory), list[int](), list[int]()
        with _shown(factory, picks, check):
            while actions := world.enabled():
                if len(picks) >= len(schedule):
                    state = world.state()
                    if state in seen:
                        break
                    seen.add(state)
                widths.append(len(actions))
                picks.append(schedule[len(picks)] if len(picks) < len(schedule) else 0)
                world.perform(picks[-1])
            else:
                report.runs += 1
                if check is not None:
                    check(world.run())
                if observe is not None:
                    value = observe(world.run())
                    report.finals[value] = report.finals.get(value, 0) + 1
        report.states = len(seen)
        while picks and picks[-1] == widths[-1] - 1:
            picks.pop()
            widths.pop()
        if not picks:
            return report
        schedule = [*picks[:-1], picks[-1] + 1]
        if report.runs >= max_runs or begun == most:
            report.complete = False
            return report


def walk(factory: Factory, check: Check | None = None, *, runs: int = 100, seed: int = 0) -> Exploration:
    """Random schedules, for cases too large to `explore`; the same parameters and errors."""
    report, rng = Exploration(complete=False), random.Random(seed)
    for _ in range(runs):
        world, picks = World(factory), list[int]()
        with _shown(factory, picks, check):
            while actions := world.enabled():
                picks.append(rng.randrange(len(actions)))
                world.perform(picks[-1])
            report.runs += 1
            if check is not None:
                check(world.run())
    return report
