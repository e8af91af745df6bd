"""The result of a check, and the invariants that every run holds.

Parameters
----------
run : Run
    A finished run.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted
from refsgd.effects import Array, Deployment
from refsgd.experiment.arguments import Usage
from refsgd.experiment.result import final_parameters, parameters_sha256
from refsgd.problems import Problem
from refsgd.problems.layers import equal
from refsgd.runtimes.explorer import Counterexample, explore
from refsgd.runtimes.programs import in_words
from refsgd.runtimes.world import Stuck
from refsgd.trace import Chosen, Computed, Received, Run, Sent

RATE = 0.125  #: learning rate of every check: a power of two, so that steps of integers are exact

AT_FIRST = "; one that counts in several updates is marked at the first only"
SIGNS = {True: "ok  ", False: "FAIL", None: "note"}
#: messages take no time, and no two gradients end together: one order of arrival, whatever the messages
UNEQUAL = Machine(compute="fixed(1)", speeds=(1, 0.7, 0.45))  # type: ignore[arg-type]

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
        return f"{SIGNS[self.held]} {self.name}: {self.text}"


def attempt(name: str, act: Callable[..., str], *arguments: Any) -> Finding:
    """The finding of a check, which raises an error or returns its observation."""
    try:
        return Finding(name, True, act(*arguments))
    except NotChecked as why:
        return Finding(name, None, str(why))
    except Counterexample as found:
        return Finding(name, False, in_full(found, stuck_because(found)), found.schedule, found)
    except Usage as found:
        return Finding(name, False, str(found))
    except (Exception, SystemExit) as error:
        return Finding(name, False, in_words(error))


def stuck_because(found: Counterexample) -> str:
    """The deadlock at the end of a schedule in a sentence; empty if it ended otherwise."""
    from refsgd.display.player.why import deadlock

    if found.world is None or found.factory is None or not isinstance(found.error, Stuck):
        return ""
    return deadlock(found.world, found.factory, found.error)


def in_full(found: Counterexample, why: str) -> str:
    """The text of a counterexample: in the first line this sentence, if there is one, and the case."""
    first, *details = str(found).splitlines()
    case = f"; with {found.case}" if found.case else ""
    return "\n".join([f"{why or first}{_answered_twice(found)}{case}", *details])


def _answered_twice(found: Counterexample) -> str:
    """The worker that a server has sent more answers than it has got messages from it, if there is one."""
    asked, sent = Counter[tuple[str, str]](), Counter[tuple[str, str, str]]()
    for e in found.world.events if found.world and isinstance(found.error, AssertionError) else ():
        if isinstance(e, Received):
            asked[e.node, e.src] += 1
        elif isinstance(e, Sent) and asked[e.node, e.to]:  # not the first model
            sent[e.node, e.to, e.message] += 1
            if sent[e.node, e.to, e.message] > asked[e.node, e.to]:
                return (f"; {e.node} seems to answer {e.to} twice: it has sent one {e.message} more than it "
                        "has got messages from it")
    return ""


def _served(found: Counterexample) -> bool:
    """Whether it is a deadlock in which no server has returned: then a line keeps it from answering."""
    return isinstance(found.error, Stuck) and found.world is not None and all(
        task.effect is not None or task.index or found.world.roles[task.node] != "server"
        for task in found.world.all_tasks)


@contextmanager
def named_case(case: Callable[[int, int], Deployment], steps: int, workers: int,
               options: Mapping[str, Any]) -> Iterator[None]:
    """Name the case of a counterexample; a deadlock in which a server has returned is explained by that of
    one or two more steps, if none has there."""
    try:
        yield
    except Counterexample as found:
        for longer in (steps + 1, steps + 2) if isinstance(found.error, Stuck) and not _served(found) else ():
            try:
                explore(lambda longer=longer: case(longer, workers), most=20)  # type: ignore[misc]
            except Counterexample as other:
                if _served(other):
                    found, steps = other, longer
                    break
        found.case = ", ".join([counted(workers, "worker"), counted(steps, "step"),
                                *(f"{key}={value}" for key, value in options.items())])
        raise found from None


def _cause(text: str) -> str:
    """What failures with one cause have in common."""
    first = text.partition("\n")[0]
    return "deadlock" if "deadlock" in first.lower() else re.sub(
        r"\d+(\.\d+)?", "#", re.split("; (expected|in program|with) ", first)[0])


def once(found: Iterable[Finding]) -> list[Finding]:
    """The findings, in which each cause and each schedule is told once; a schedule explains a cause best."""
    found, causes, details = list(found), dict[str, str](), dict[str, str]()
    told = dict[str, Finding]()
    for each in sorted(found, key=lambda finding: finding.schedule is None):
        told[each.name] = each
        if each.held is False and (first := causes.setdefault(_cause(each.text), each.name)) != each.name:
            told[each.name] = replace(each, text=f"fails as '{first}' does", schedule=None, found=None)
        elif each.held is False and each.schedule is not None:
            sentence, _, more = each.text.partition("\n")
            if (first := details.setdefault(more, each.name)) != each.name:
                told[each.name] = replace(each, text=f"{sentence}\nin the schedule of '{first}'", found=None)
    return [told[each.name] for each in found]


def known_gradients(x0: Array, gradient: Callable[[Array, int, int], Array]) -> Problem:
    """A problem in equal layers whose loss does not matter."""
    return Problem(x0, gradient, lambda x: 0.0, layers=equal(x0.size, gradient))


def hash_of(run: Run) -> str:
    """The hash of a run's final parameters."""
    return parameters_sha256(final_parameters(run))


class Finals:
    """The different results of the schedules of one case, by what programs have drawn in them."""

    def __init__(self, alike: bool) -> None:
        self.alike = alike  #: whether schedules with the same draws must agree
        self.of = defaultdict[tuple[Any, ...], set[str]](set)

    def add(self, run: Run) -> None:
        """Keep the result of a run; raises AssertionError if it may not be another one."""
        drawn = sorted((e.node, e.program, i, repr(e.option)) for i, e in enumerate(run.trace.of(Chosen)))
        found = self.of[tuple((node, program, option) for node, program, _, option in drawn)]
        found.add(hash_of(run))
        if self.alike and len(found) > 1:
            same = " that drew the same" if drawn else ""
            raise AssertionError(f"two schedules{same} ended with different parameters; expected the same "
                                 "bits, as its facts say that it is timeless")

    def __str__(self) -> str:
        results = len(set[str]().union(*self.of.values()))
        return f"{results}{f', of {len(self.of)} different draws' if len(self.of) > 1 else ''}"


def ledger(run: Run) -> None:
    """Check that as many gradients are marked, as applied to each part or as dropped, as each worker has
    computed, and that none is from the future.

    A trace does not show which gradient it was: if another is marked again in its place, the counts agree.

    Raises
    ------
    AssertionError
        The message names the worker and the counts.
    """
    trace = run.trace
    updates = trace.marks("update")
    for e in updates:
        if missing := {"part", "version", "reads"} - e.values.keys():
            raise AssertionError(f"{e.node}: Mark(\"update\") without {', '.join(sorted(missing))}; expected "
                                 "part, version, reads=((worker, version read), ...) and x")
    readers = defaultdict[str, set[str]](set)
    for e in updates:
        if not trace.is_worker(e.node):
            readers[e.node] |= {w for w, _ in e.values["reads"]}
    for worker, computed in trace.iterations.items():
        slices = max(1, len(_parts(worker, readers)))
        dropped = sum(e.values.get("gradients", 1) for e in trace.marks("drop")
                      if e.values.get("worker") == worker)
        applied = sum(w == worker for e in updates for w, _ in e.values["reads"])
        local = sum(e.work == "update" for e in trace.of(Computed, worker))
        if local == computed:
            continue  # applied to the worker's own replica; its messages to others are not gradients
        lost = worker in trace.dead and applied + dropped < computed * slices  # with its last messages
        if applied + dropped != computed * slices and not lost:
            raise AssertionError(f"{worker} computed {computed} gradients; {applied / slices:g} were applied "
                                 f"to each part and {dropped} marked as dropped; expected every one to be "
                                 "applied exactly once or dropped"
                                 + AT_FIRST * (applied + dropped > computed * slices))
    for worker, tau in trace.staleness:
        if tau < 0:
            raise AssertionError(
                f"{worker}: staleness {tau}; expected a version read that is not newer than the parameters")


def _parts(worker: str, readers: Mapping[str, set[str]]) -> set[str]:
    """The parts that a worker's gradients concern: those that share workers, directly or by others; stages
    have parts of their own."""
    nodes, group = set[str](), {worker}
    while new := {node for node, workers in readers.items() if workers & group} - nodes:
        nodes |= new
        group |= set[str]().union(*(readers[node] for node in new))
    return nodes


def finite(run: Run) -> None:
    """Check that the final parameters are finite numbers."""
    if not np.all(np.isfinite(final_parameters(run))):
        raise AssertionError("the final parameters have NaN or infinite entries")


def same_type(run: Run, x0: Array) -> None:
    """Check that parameters keep the type of the problem's."""
    for node, x in [*((e.node, e.values.get("x")) for e in run.trace.marks("update")), *run.values.items()]:
        if (found := getattr(getattr(x, "x", x), "dtype", x0.dtype)) != x0.dtype:
            raise AssertionError(f"the parameters of {node} become {found}; expected {x0.dtype}, as "
                                 "problem.x0: write x.dtype.type(number) around numbers of NumPy")


def server_lead(run: Run) -> int:
    """Largest lead in clocks that a server sees when it applies a gradient: the worker's count minus the
    slowest worker's.

    Returns
    -------
    int
    """
    widest = 0
    for node in (node for node in run.trace.updates if not run.trace.is_worker(node)):
        clocks = {worker: 0 for worker in run.trace.workers if worker not in run.trace.dead}
        for e in run.trace.marks("update"):
            if e.node == node:
                for worker in (worker for worker, _ in e.values["reads"] if worker in clocks):
                    clocks[worker] += 1
                    widest = max(widest, clocks[worker] - min(clocks.values()))
    return widest
