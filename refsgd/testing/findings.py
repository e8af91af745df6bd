"""The result of a check, and the invariants that every run holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isgenerator
from typing import Any

import numpy as np

from refsgd.effects import Array, Deployment
from refsgd.experiment.arguments import Usage
from refsgd.experiment.result import final_parameters, parameters_sha256
from refsgd.problems import Problem
from refsgd.problems.layers import equal
from refsgd.runtimes.explorer import Counterexample
from refsgd.runtimes.world import Stuck
from refsgd.trace import Computed, Run

RATE = 0.125  #: learning rate of every check: a power of two, so that steps of integers are exact

Small = Callable[[Problem, int, int], Deployment]  #: of a problem, a number of workers and of steps


class NotChecked(Exception):
    """A check does not apply; the message says why."""


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, whether it held (None: does not apply), and the observation.

    Parameters
    ----------
    name : str
        Name of the check.
    held : bool or None
        None: it does not apply.
    text : str
        The observation; for a failure, its first line says what is wrong.
    schedule : list of int or None
        The shortest schedule that fails, where the check follows schedules.
    found : Counterexample or None
        That schedule with its events.
    """

    name: str
    held: bool | None
    text: str
    schedule: list[int] | None = None
    found: Counterexample | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        sign = {True: "ok  ", False: "FAIL", None: "note"}[self.held]
        return f"{sign} {self.name}: {self.text}"


def attempt(name: str, act: Callable[..., str], *arguments: Any) -> Finding:
    """The finding of a check, which raises an error or returns its observation."""
    try:
        return Finding(name, True, act(*arguments))
    except NotChecked as why:
        return Finding(name, None, str(why))
    except Counterexample as found:
        return Finding(name, False, with_cause(str(found), stuck_because(found)), found.schedule, found)
    except Usage as found:
        return Finding(name, False, str(found))
    except AssertionError as error:  # of a judge, which says all
        return Finding(name, False, f"{type(error).__name__}: {error}")
    except Exception as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        return Finding(name, False, f"{type(error).__name__}: {error}" + (f" ({notes})" if notes else ""))


def stuck_because(found: Counterexample) -> str:
    """Why no program can continue at the end of a schedule, in a sentence for one that waits, with its line;
    empty without a deadlock, or if the programs run elsewhere."""
    from refsgd.display.player.states import follow
    from refsgd.display.player.why import Why

    world = found.world
    if not isinstance(found.error, Stuck) or world is None or found.factory is None or not all(
            isgenerator(task.program) for task in world.all_tasks):
        return ""
    trace, now = world.trace(), len(world.events)
    why = Why(trace, follow(trace, found.factory, 0, now))
    waiting = [task.node for task in world.all_tasks if task.effect is not None and not task.index]
    said = [why.sentence(node, 0, now) for node in waiting]
    return "deadlock: " + next((sentence for sentence in said if ";" in sentence), said[0])  # one with a line


def with_cause(text: str, why: str) -> str:
    """The text of a counterexample, with this sentence as its first line, if there is one."""
    return "\n".join([why, *text.splitlines()[1:]]) if why else text


def known_gradients(x0: Array, gradient: Callable[[Array, int, int], Array]) -> Problem:
    """A problem in equal layers whose loss does not matter."""
    return Problem(x0, gradient, lambda x: 0.0, layers=equal(x0.size, gradient))


def hash_of(run: Run) -> str:
    """The hash of a run's final parameters."""
    return parameters_sha256(final_parameters(run))


def ledger(run: Run) -> None:
    """Check that every computed gradient is applied once to each part or marked as dropped, and none is from
    the future.

    Parameters
    ----------
    run : Run
        A finished run.

    Raises
    ------
    AssertionError
        The message names the worker and the two counts.
    """
    trace = run.trace
    updates = trace.marks("update")
    for e in updates:
        if missing := {"part", "version", "reads"} - e.values.keys():
            raise AssertionError(f"{e.node}: Mark(\"update\") without {', '.join(sorted(missing))}; expected "
                                 "part, version, reads=((worker, version read), ...) and x")
    slices = max(1, len({e.node for e in updates if not trace.is_worker(e.node) and e.values["reads"]}))
    for worker, computed in trace.iterations.items():
        dropped = sum(e.values.get("worker") == worker for e in trace.marks("drop"))
        applied = sum(w == worker for e in updates for w, _ in e.values["reads"])
        local = sum(e.work == "update" for e in trace.of(Computed, worker))
        if local == computed:
            continue  # applied to the worker's own replica; its messages to others are not gradients
        lost = worker in trace.dead and applied + dropped < computed * slices  # with its last messages
        if applied + dropped != computed * slices and not lost:
            raise AssertionError(f"{worker} computed {computed} gradients; {applied / slices:g} were applied "
                                 f"to each part and {dropped} marked as dropped; expected every one to be "
                                 "applied exactly once or dropped")
    for worker, tau in trace.staleness:
        if tau < 0:
            raise AssertionError(
                f"{worker}: staleness {tau}; expected a version read that is not newer than the parameters")


def finite(run: Run) -> None:
    """Check that the final parameters are finite numbers.

    Parameters
    ----------
    run : Run
        A finished run.
    """
    if not np.all(np.isfinite(final_parameters(run))):
        raise AssertionError("the final parameters have NaN or infinite entries")


def server_lead(run: Run) -> int:
    """Largest lead in clocks that a server sees when it applies a gradient: the worker's count minus the
    slowest worker's.

    Parameters
    ----------
    run : Run
        A finished run.

    Returns
    -------
    int
    """
    widest = 0
    for node in run.trace.updates:
        clocks = {worker: 0 for worker in run.trace.workers if worker not in run.trace.dead}
        for e in run.trace.marks("update"):
            if e.node == node:
                for worker in (worker for worker, _ in e.values["reads"] if worker in clocks):
                    clocks[worker] += 1
                    widest = max(widest, clocks[worker] - min(clocks.values()))
    return widest
