"""Every schedule of a small case, by re-execution in a `refsgd.runtimes.world.World`.

Not every order matters, so not every order is tried: beside what a world does not offer, a schedule that
reaches a known state is not followed further.  A state is known by what each program was told so far
(programs are functions of that), what lies in each inbox, and in which order.

The idea is Dijkstra's re-execution as in Godefroid's VeriSoft ("Model checking for programming languages
using VeriSoft", POPL 1997).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from refsgd.effects import Factory
from refsgd.runtimes.programs import ForgottenYield
from refsgd.runtimes.world import World
from refsgd.trace import Run
from refsgd.trace.diagram import diagram

Check = Callable[[Run], None]


class Counterexample(AssertionError):
    """A schedule under which a check failed; `schedule` replays it, `text` shows it."""

    def __init__(self, error: BaseException, schedule: Sequence[int], text: str) -> None:
        self.error, self.schedule, self.text = error, list(schedule), text
        super().__init__(f"{type(error).__name__}: {error}\nschedule {list(schedule)}\n{text}")


@dataclass
class Exploration:
    """What an exploration saw.

    Attributes
    ----------
    runs : int
        Schedules followed to their end.
    states : int
        Different states at which there was something to pick.
    complete : bool
        Whether every schedule was covered.
    finals : dict
        How many schedules ended with each value of `observe`.
    """

    runs: int = 0
    states: int = 0
    complete: bool = True
    finals: dict[Any, int] = field(default_factory=dict)


def follow(factory: Factory, schedule: Sequence[int] = (),
           check: Check | None = None) -> tuple[World, list[int], BaseException | None]:
    """Run one schedule to its end, first actions where it says no more; the world, the alternatives at each
    pick, and what went wrong.
    """
    world, widths = None, []
    try:
        world = World(factory)
        while actions := world.enabled():
            widths.append(len(actions))
            world.perform(schedule[len(widths) - 1] if len(widths) <= len(schedule) else 0)
        if check is not None:
            check(world.run())
    except Exception as error:
        if world is None:
            raise
        return world, widths, error
    return world, widths, None


def shrink(factory: Factory, schedule: Sequence[int], check: Check | None,
           error: BaseException) -> tuple[list[int], BaseException]:
    """A short schedule that fails in the same way: shorter first, then smaller picks."""
    best = list(schedule)

    def fails(candidate: list[int]) -> BaseException | None:
        found = follow(factory, candidate, check)[2]
        return found if type(found) is type(error) else None

    length = 0
    while length < len(best):  # first actions after a prefix
        found = fails(best[:length])
        if found is not None:
            best, error = best[:length], found
            break
        length = length + 1 if length < 32 else length * 2
    improved = True
    while improved:
        improved = False
        for i in reversed(range(len(best))):
            for candidate in ([*best[:i], *best[i + 1:]],
                              *([*best[:i], smaller, *best[i + 1:]] for smaller in range(best[i]))):
                found = fails(candidate)
                if found is not None:
                    best, error, improved = candidate, found, True
                    break
            if improved:
                break
    while best and best[-1] == 0:
        best.pop()
    return best, error


def _counterexample(factory: Factory, schedule: Sequence[int], check: Check | None,
                    error: BaseException) -> Counterexample:
    short, error = shrink(factory, schedule, check, error)
    world = follow(factory, short, check)[0]
    return Counterexample(error, short, diagram(world.events, world.nodes))


def explore(factory: Factory, check: Check | None = None, *, observe: Callable[[Run], Any] | None = None,
            max_runs: int = 100_000) -> Exploration:
    """Follow every schedule of a deployment."""
    report, seen, schedule = Exploration(), set(), list[int]()
    while True:
        world, widths, picks = World(factory), list[int](), list[int]()
        ended = True
        try:
            while actions := world.enabled():
                if len(picks) >= len(schedule):
                    state = world.state()
                    if state in seen:
                        ended = False
                        break
                    seen.add(state)
                widths.append(len(actions))
                picks.append(schedule[len(picks)] if len(picks) < len(schedule) else 0)
                world.perform(picks[-1])
            if ended:
                report.runs += 1
                if check is not None:
                    check(world.run())
                if observe is not None:
                    value = observe(world.run())
                    report.finals[value] = report.finals.get(value, 0) + 1
        except ForgottenYield:
            raise  # wrong in every schedule
        except Exception as error:
            raise _counterexample(factory, picks, check, error) from error
        report.states = len(seen)
        while picks and picks[-1] == widths[-1] - 1:
            picks.pop()
            widths.pop()
        if not picks:
            return report
        schedule = [*picks[:-1], picks[-1] + 1]
        if report.runs >= max_runs:
            report.complete = False
            return report


def walk(factory: Factory, check: Check | None = None, *, runs: int = 100, seed: int = 0) -> Exploration:
    """Random schedules, for cases too large to `explore`; the same parameters and errors."""
    report, rng = Exploration(complete=False), random.Random(seed)
    for _ in range(runs):
        schedule = [rng.randrange(1 << 20) for _ in range(64)]
        world, picks = World(factory), list[int]()
        try:
            while actions := world.enabled():
                picks.append(schedule[len(picks) % 64] % len(actions) if len(picks) < 64
                             else rng.randrange(len(actions)))
                world.perform(picks[-1])
            report.runs += 1
            if check is not None:
                check(world.run())
        except ForgottenYield:
            raise  # wrong in every schedule
        except Exception as error:
            raise _counterexample(factory, picks, check, error) from error
    return report
