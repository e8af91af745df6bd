"""Races: the time that each algorithm takes to one target, at its own learning rate, over several seeds."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

from refsgd.algorithms import ALONE, COMPARED
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.cluster.prices import own
from refsgd.experiment.arguments import Usage, check_whole
from refsgd.experiment.compare import Turn, prepared
from refsgd.experiment.computer.limits import usable_cores
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.functions import Algorithm, listed, source_sha256
from refsgd.experiment.options.problems import ABSTRACT, DEFAULT_DATA
from refsgd.experiment.prepare import DEFAULT_MACHINE, Experiment, Say, Training, prepare
from refsgd.experiment.race import runs, tune
from refsgd.experiment.race.entries import Entry, Interrupted, Race, check_paced, ordered, paced
from refsgd.experiment.race.target import Heat, Point, Target, crossing, kept_models, to_target
from refsgd.experiment.race.tune import Asked
from refsgd.trace.schema import json_text

WORKERS = 8  #: of a race, unless their number is given
#: arguments that sequential SGD has in common with the others, for the reference lines
ALIKE = ("data", "net", "momentum", "weight_decay", "optimiser", "validation", "start", "schedule", "warmup")
#: rates that a tuning tries, on average; what a run costs by what the first run of a tuning does
RATES, TYPICAL = 5.2, 0.85
SMALL = 100_000  #: parameters of a net whose rates are those of `tune.START`
#: arguments of a run that a race sets itself, and what to give instead
REFUSED = {"lr": "a race tunes the rate; expected rates, such as 0.1,0.2",
           "runtime": "a race is simulated; expected measure, for one run of each as processes besides",
           "steps": "a race ends at the target; expected passes, at most",
           "epochs": "a race ends at the target; expected passes, at most",
           "seed": "a race has several; expected seeds, their number",
           "evaluations": "a race has its own; expected cadence, in passes"}


class Plan(NamedTuple):
    """The rules that all algorithms of a race have in common."""

    target: Target
    seeds: list[int]  #: of the runs that are shown
    tuning: list[int]  #: of the runs that find a rate, which are others
    rates: tuple[float, ...]
    passes: float
    cadence: float
    common_rate: float | None


class Entrant:
    """One algorithm of a race, with its runs."""

    def __init__(self, turn: Turn, plan: Plan) -> None:
        self.turn, self.plan = turn, plan
        e, self.label = turn.experiment, turn.label
        for holds, why in (
                (e.facts.portions, "its steps are a line search's, not a rate's"),
                (e.facts.minimises, "it goes to the minimum along each coordinate, whatever the rate"),
                (e.training is not None and e.training.schedule == "cosine",
                 "a cosine schedule needs the length of a run, which ends at the target")):
            if holds:
                raise Usage(f"{e.name} in a race: {why}; expected other algorithms")
        epoch = int(e.problem.describe.get("steps_per_epoch", 100))
        self.per_pass = epoch * e.replicas
        self.every, self.most = max(1, round(plan.cadence * self.per_pass)), plan.passes * self.per_pass
        # however unequal the workers, none of them ends before all have computed the most
        self.steps = ceil(self.most * e.workers / e.replicas)
        self.value = plan.target.of(e)
        self.named = bool(e.arguments is not None and e.algorithm)  #: whether a file can say what it is

    def experiment(self, rate: float, seed: int, steps: int) -> Experiment:
        """Its experiment at a rate."""
        return prepare(self.turn.algorithm, **{**self.turn.arguments, "lr": rate, "seed": seed,
                                               "steps": steps})

    def run(self, asked: Asked) -> Heat:
        """One of its runs."""
        return to_target(self.experiment(asked.rate, asked.seed, self.steps), self.plan.target, self.value,
                         self.every, asked.most, "cut off" if asked.cut else "passes")

    def program(self) -> runs.Program:
        """Its runs: those of the tuning, those that are shown, and those at the common rate."""
        plan, e = self.plan, self.turn.experiment
        start = tune.start_of(e.facts, e.workers, e.own, e.problem.describe["parameters"] < SMALL)
        tried = yield from tune.tuning(start, plan.tuning, self.most, plan.rates)
        rate = tune.chosen(tried)

        def shown(rate: float) -> list[Asked]:
            return [Asked(rate, seed, self.most, False) for seed in plan.seeds]

        heats = yield shown(rate)
        common = (yield shown(plan.common_rate)) if plan.common_rate else []
        given = {"algorithm": e.algorithm, **self.turn.arguments} if self.named else {}
        return paced(Entry(self.label, given, e.workers, rate, dict(tried), heats, self.per_pass,
                           common=common))

    def measured(self, row: Entry) -> float:
        """Seconds to the target of one run as processes at its own rate; infinite if it did not reach it."""
        if not math.isfinite(row.passes):
            return math.inf
        e = self.experiment(row.rate, self.plan.seeds[0], ceil(1.5 * row.passes * self.per_pass
                                                               / self.turn.experiment.replicas))
        trace = perform(e, "processes").trace
        points = [Point(0.0, 0, self.value(e.problem.x0))]
        points += [Point(seconds, 0, self.value(x)) for seconds, x in kept_models(trace, e.problem.x0)]
        found = crossing(points, self.plan.target)
        return found[0] if found else math.inf


def race(algorithms: Algorithm | Iterable[Algorithm] = COMPARED, *, target: str = "loss=0.1", seeds: int = 7,
         tuning: int = 2, rates: Sequence[float] | None = None, passes: float = 10.0, cadence: float = 1 / 8,
         common_rate: float | None = None, measure: bool = False, jobs: int = 1,
         resume: str | None = None, budget: float | None = None,
         options: Mapping[str, Mapping[str, Any]] | None = None,
         progress: Callable[[str, float], None] | None = None, say: Say | None = None,
         **arguments: Any) -> Race:
    """Find each algorithm's learning rate, and then the time that it takes to one target, over several seeds.

    The same grid of rates, number of seeds and limits hold for all, and the seeds that are shown are others
    than those of the tuning.  Runs are simulated with real gradients.

    Parameters
    ----------
    algorithms : iterable of str or callable
        As in `compare`.
    target : str
        ``loss=V``, of at most 512 training images (``loss=0.1``), or ``validation=V``, an accuracy, with
        `validation` a share of the images.
    seeds : int
        How many runs of each algorithm are shown, 3 to 99 (7).
    tuning : int
        How many other runs are made at each rate that is tried, 1 to 9 (2).
    rates : sequence of float, optional
        The rates to try for all, in place of factors of 2, then of 1.4 near the best.
    passes : float
        Over the data, after which a run has not reached the target (10).
    cadence : float
        Passes between evaluations, in (0, 1] (0.125).
    common_rate : float, optional
        Also show the time of each at this rate.
    measure : bool
        Also run each once as processes at its rate.
    jobs : int
        Processes that make runs (of the command: as many as cores); with 1, this one does.
    resume : str, optional
        A log of runs, written during the race; those that it already has are not repeated.
    budget : float, optional
        Seconds of processor time (of the command: 300); a race that is estimated to take more is refused.
    options : dict
        As in `compare`.
    progress : callable, optional
        Called with a text and the share of the runs that are done.
    say : callable, optional
        As in `run`; gets the estimate.
    **arguments
        As in `run`; 8 workers by default.

    Returns
    -------
    Race

    Raises
    ------
    Usage
        For a target that is met at the start, for example.
    Interrupted
        On Ctrl-C; has the rows that are complete.
    """
    plan = _plan(target, seeds, tuning, rates, passes, cadence, common_rate)
    for name, why in REFUSED.items():
        if arguments.get(name) is not None:
            raise Usage(f"{name} {arguments[name]}: {why}")
    check_whole(1, jobs=jobs)
    arguments.setdefault("workers", WORKERS)
    machine = arguments.get("machine") or DEFAULT_MACHINE
    check_paced(machine)
    field = _Field([Entrant(turn, plan) for turn in
                    prepared(listed(algorithms), options or {}, arguments.pop("stated", ()), arguments)],
                   plan, machine, arguments)
    if resume and (own := [e.label for e in field.all if not e.named]):
        raise Usage(f"resume with {own[0]}, whose problem or function is your own, which no log can name; "
                    "expected FILE.py:FUNCTION, data and net")
    sources = {e.label: source_sha256(e.turn.experiment.algorithm)[:16] for e in field.all if resume}
    said = {name: value for name, value in arguments.items() if name not in ("machine", "problem")}
    asked = json_text([str(plan.target), plan.passes, plan.cadence, machine.to_json(),
                       repr(sorted(said.items()))])  # which differs if the runs of two races do
    log = runs.Log(resume, hashlib.sha256(asked.encode()).hexdigest()[:16], sources)
    expected = field.announced(log, budget, jobs, say)
    count = itertools.count(1)

    def done(number: int, asked: Asked, heat: Heat) -> None:
        if progress:
            progress(f"{field.all[number].label} at {asked.rate:.3g}, seed {asked.seed}",
                     min(1.0, next(count) / expected))

    try:
        runs.carried_out([e.program() for e in field.all], [e.label for e in field.all],
                         lambda number, asked: field.all[number].run(asked), log, jobs, done,
                         lambda number, row: field.complete.update({row.label: row}))
        for entrant in field.entrants if measure else ():
            row = field.complete[entrant.label]
            if progress:
                progress(f"{row.label}: running as processes", 1.0)
            field.complete[row.label] = replace(row, measured=entrant.measured(row))
    except KeyboardInterrupt:
        raise Interrupted(field.race()) from None
    return field.race()


class _Field:
    """All that run in a race: the entrants, and SGD on one worker with two batches for reference lines."""

    def __init__(self, entrants: list[Entrant], plan: Plan, machine: Machine,
                 arguments: Mapping[str, Any]) -> None:
        self.entrants, self.plan, self.machine = entrants, plan, machine
        self.largest = max(entrants, key=lambda e: e.turn.experiment.workers)
        self.complete = dict[str, Entry]()  #: rows by label
        self.beside, self.batches = list[Entrant](), self.largest.turn.experiment.batches
        of_images = arguments.get("data", DEFAULT_DATA).partition(":")[0] not in ABSTRACT
        if arguments.get("problem") is None and of_images:  # others have no batches
            alike = {name: arguments[name] for name in ALIKE if name in arguments}
            alike["machine"] = machine.for_workers(1)
            # with the batch of a worker and with that of all
            for batch in (max(1, round(sum(self.batches) / len(self.batches))), sum(self.batches)):
                text = ALONE if batch == arguments.get("batch", Training.batch) else f"{ALONE} batch={batch}"
                turn, = prepared([text], {}, (), {**alike, "batch": batch})
                self.beside.append(Entrant(turn, plan))
        labels = {e.label for e in entrants}
        self.all = entrants + [e for e in self.beside if e.label not in labels]

    def race(self) -> Race:
        """The race, as far as it is complete."""
        rows = [self.complete[e.label] for e in self.entrants if e.label in self.complete]
        return Race(self.plan.target, self.machine, ordered(rows), self.plan.seeds, self.plan.tuning,
                    self._lines(), self.largest.turn.experiment.problem.describe, self.plan.common_rate)

    def _lines(self) -> dict[str, float]:
        """The reference lines, from sequential runs with two batches."""
        from refsgd.theory.phenomena import speedup  # with scipy, which takes half a second

        known = [self.complete[e.label] for e in self.beside if e.label in self.complete]
        machine, workers = self.largest.turn.experiment.priced, len(self.batches)
        times = [time.mean for i in range(workers) if isinstance(time := own(machine, i), Distribution)]
        if len(known) < 2 or len(times) < workers or not all(math.isfinite(row.passes) for row in known):
            return {}
        alone, together = [row.passes * row.per_pass for row in known]
        found = {"linear speed-up of sequential SGD": speedup.linear(alone, times)}
        batch, whole = sum(self.batches) / workers, sum(self.batches)
        if workers > 1:
            least, critical = speedup.noise_scale(batch, alone, whole, together)
            if least > 0:
                found["optimal order of minibatch SGD"] = speedup.optimal_order(least, critical, batch, times)
        return found

    def announced(self, log: runs.Log, budget: float | None, jobs: int, say: Say | None) -> float:
        """Make some first runs and say how long the race takes by them; returns the expected number of runs,
        or refuses a race above the budget."""
        plan, e = self.plan, self.largest.turn.experiment
        self.largest.value(e.problem.gradient(e.problem.x0, 0, 0))  # loads kernels
        took = []
        wide = [each for each in self.entrants if each.turn.experiment.workers == e.workers]
        for first in {each.label: each for each in (wide[0], wide[len(wide) // 2], wide[-1])}.values():
            asked, began = next(first.program())[0], time.process_time()
            if log.find(first.label, asked) is None:
                log.keep(first.label, asked, first.run(asked))
                took.append(time.process_time() - began)
        seconds = TYPICAL * sum(took) / max(1, len(took))
        shown = len(plan.seeds) * (2 if plan.common_rate else 1)
        each = (len(plan.rates) or RATES) * len(plan.tuning) + shown
        count = each * len(self.all)
        total = seconds * count
        if say and took:
            say(f"{count:.0f} runs, about {total:.0f} s of processor time" + (
                f", {total / min(jobs, usable_cores()):.0f} s in {jobs} processes" if jobs > 1 else ""))
        if budget is not None and total > budget:
            raise Usage(f"a race of {count:.0f} runs would take about {total:.0f} s of processor time, more "
                        f"than the budget of {budget:g} s; expected --budget {ceil(total)}, or fewer runs: "
                        "--seeds 5, --tuning 1, or a target that is reached earlier")
        return count


def _plan(target: str, seeds: int, tuning: int, rates: Sequence[float] | None, passes: float, cadence: float,
          common_rate: float | None) -> Plan:
    """The checked rules of a race."""
    for name, value, low, high in (("seeds", seeds, 3, 99), ("tuning", tuning, 1, 9)):
        check_whole(low, **{name: value})
        if value > high:
            raise Usage(f"{name} {value}; expected at most {high}")
    if not 0 < cadence <= 1:
        raise Usage(f"cadence {cadence}; expected passes in (0, 1]")
    if not 0 < passes < math.inf:
        raise Usage(f"passes {passes}; expected a number > 0")
    if rates is not None and not (rates and all(0 < rate < math.inf for rate in rates)):
        raise Usage(f"rates {', '.join(map(str, rates)) or 'none'}; expected at least one, all > 0")
    return Plan(Target.read(target), [*range(tuning, tuning + seeds)], [*range(tuning)],
                tuple(dict.fromkeys(rates or ())), passes, cadence, common_rate)
