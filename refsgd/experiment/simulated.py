"""Metrics simulated where no formula gives them, or on request: means of simulated runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from refsgd.cluster.devices import Device
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.prices import each, on_devices, own
from refsgd.experiment.arguments import Usage
from refsgd.experiment.evaluation import count_images
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.memory import with_sizes
from refsgd.experiment.prepare import Experiment
from refsgd.problems.shapes import in_shape_only
from refsgd.runtimes.simulator import Simulator
from refsgd.theory.estimate import Estimate, sampling
from refsgd.theory.phenomena.iteration import controlled_mean
from refsgd.theory.prediction import Figures, Prediction
from refsgd.trace import Chosen, Computed, Trace
from refsgd.trace.metrics import METRICS, PREDICTED, measure
from refsgd.trace.waiting import waiting_by_cause

EVENTS = 40_000  #: of all runs together, about a second; so the number of runs depends on no clock
LEAST, PRECISE = 4, 0.005  #: runs if times are drawn; the relative standard error that is enough
SHORT = 24  #: steps of a run, at least; one with too many events is continued at its second half's pace
TIMES = "seconds", "seconds_per_iteration"  #: whose errors the luck of the drawn times explains
CAUSE = "idle_by_cause: "  #: before the name of a cause
#: within a budget: fewest and most runs if anything is drawn; the standard error at which no more are made
FEWEST, MOST, ENOUGH = 3, 16, 0.01
#: events of a run whose waiting is traced back to its causes, which takes longer than the run; of the short
#: first run
TRACED, BRIEF = 5_000, 20_000
Metrics = dict[str, float]


def means(experiment: Experiment, names: Collection[str]) -> Figures:
    """Means of some metrics over simulated runs, shape-only unless the algorithm reads its vectors.

    If times are drawn, there are runs of consecutive seeds until standard errors are small or `EVENTS` have
    happened.
    """
    experiment = replace(experiment, steps=max(experiment.steps, 1))
    shape = in_shape_only(experiment.problem, [max(b, 1) for b in experiment.batches])
    try:
        runs, problem = _runs(replace(experiment, problem=shape)), "a shape-only problem"
    except Usage:
        runs, problem = _runs(experiment), "the given problem"
    first, last = experiment.seed, experiment.seed + len(runs) - 1
    formula = f"a run on {problem}" if first == last else (
        f"mean of {len(runs)} runs on {problem}, seeds {first} to {last}")
    found = Figures()
    for name in (name for name in PREDICTED if name in names):
        mean = _mean(runs, "idle_ratio" if name == "idle_by_cause" else name)
        terms = sampling(mean.error)
        if name == "idle_by_cause":
            causes = sorted({key for run in runs for key in run if key.startswith(CAUSE)})
            terms = {key.removeprefix(CAUSE): float(np.mean([run.get(key, 0.0) for run in runs]))
                     for key in causes}
        found[name] = _prediction(name, mean.value, terms, formula)
    return found


def _prediction(name: str, value: float, terms: Mapping[str, float], formula: str) -> Prediction:
    """A metric's mean over simulated runs."""
    return Prediction(value, METRICS[name].unit, "simulated", terms, formula, "the simulator")


def _mean(runs: list[Metrics], name: str) -> Estimate:
    """Mean of a metric; of times, what the luck of the draws explains is taken out by regression."""
    values, luck = (np.array([run[key] for run in runs]) for key in (name, "luck"))
    if name in TIMES and len(runs) >= 3 * LEAST:
        return Estimate(*controlled_mean(values, [(luck, 0.0)]))
    return Estimate.of(values)


def _runs(experiment: Experiment) -> list[Metrics]:
    """The metrics of each run."""
    steps = experiment.steps
    trace = _trace(experiment, min(steps, SHORT))
    fixed = not trace.of(Chosen) and all(time is None or time.family in ("fixed", "replayed") for time in (
        experiment.machine.update, *each(experiment.priced)) if not isinstance(time, Device))
    length = min(steps, max(SHORT, int(EVENTS / (1 if fixed else LEAST) * min(steps, SHORT)
                                       / max(len(trace.events), 1))))
    out, happened = list[Metrics](), 0
    while len(out) < LEAST or happened < EVENTS:
        found = replace(experiment, seed=experiment.seed + len(out))
        trace = _trace(found, length)
        seen = _seen(found, trace)
        half = _seen(found, _trace(found, length // 2)) if length < steps else None
        out.append(_metrics(seen, half, length, steps) | {"luck": _luck(found, trace)})
        happened += len(trace.events)
        if fixed or (len(out) >= LEAST and all(
                mean.error <= PRECISE * abs(mean.value) for name in (*TIMES, "staleness_mean")
                for mean in [_mean(out, name)])):
            break
    return out


def _trace(experiment: Experiment, steps: int) -> Trace:
    return perform(replace(experiment, steps=steps), "simulator", observe=0).trace


def _seen(experiment: Experiment, trace: Trace) -> Metrics:
    """The metrics of a simulated run, idle shares by cause, and the number of ages."""
    count_images(experiment, trace)
    seen = measure(trace)
    causes = {CAUSE + cause: share for cause, share in seen["idle_by_cause"].items()}
    return {name: seen[name] for name in PREDICTED if name in seen and not METRICS[name].by} | causes | {
        "gradients": len(trace.staleness)}


def _metrics(seen: Metrics, half: Metrics | None, length: int, steps: int) -> Metrics:
    """The metrics of a run of all steps: what happened after `half` of the length happens again and again."""
    if half is not None:
        more, first = (steps - length) / (length - length // 2), _totals(half)
        total = {name: value + more * (value - first.get(name, 0.0)) for name, value in _totals(seen).items()}
        seen = {**seen, **total, **{name: total[name] / (total[whole] or 1.0)
                                    for name in total if (whole := _per(name)) != "run"}}
    return {**seen, "bytes_per_iteration": seen["bytes_sent"] / steps}


def _per(name: str) -> str:
    """That of which a metric, a cause's share or the number of gradients is a mean; "run" of a sum."""
    return "run" if name == "gradients" else METRICS[name.partition(":")[0]].per


def _totals(seen: Metrics) -> Metrics:
    """What grows with a run: seconds, updates, bytes, seconds of idleness, the staleness of all updates."""
    return {name: value * seen.get(whole, 1) for name, value in seen.items() if (whole := _per(name))}


def _luck(experiment: Experiment, trace: Trace) -> float:
    """By how much drawn times of whole gradients exceed their means, which explains most of a run's time."""
    if on_devices(experiment.machine) or experiment.facts.staged:
        return 0.0
    excess, count = 0.0, 0
    for rank, worker in enumerate(trace.workers):
        done = [e.time - e.start for e in trace.of(Computed, worker) if e.work == "gradient"]
        time = own(experiment.machine, rank)
        excess += sum(done) - len(done) * (time.mean if isinstance(time, Distribution) else 0.0)
        count += len(done)
    return excess / count if count else 0.0


@dataclass
class Budget:
    """The events that advice may simulate; a number of seconds would give other results each time."""

    left: int

    def runs(self, e: Experiment, every: int, limit: int, share: int) -> tuple[Figures, int] | None:
        """Metrics of simulated runs, and the number of their steps, a multiple of `every`.

        None if a first run of `every` steps has more than `limit` events.  The runs that count are as long as
        possible and as many as needed, with about `share` events.
        """
        steps, cost = max(1, min(every, e.steps)), 0
        simulator = _simulator(replace(e, steps=steps))
        for cost, _ in enumerate(simulator, 1):
            if cost > limit:
                self.left -= cost
                return None
        self.left -= cost
        first = simulator.trace()
        traces, rounds = [first], min(share // (FEWEST * cost), e.steps // steps)
        if rounds > 1:
            steps, cost, traces = steps * rounds, cost * rounds, []
        while not traces or (share > (len(traces) + 1) * cost and len(traces) < MOST):
            traces.append(_simulator(replace(e, steps=steps, seed=e.seed + len(traces))).run().trace)
            self.left -= len(traces[-1].events)
            mean = Estimate.of(np.array([each.seconds for each in traces]))
            if len(traces) > 1 and mean.error <= ENOUGH * mean.value * (len(traces) >= FEWEST):
                break
        found = _means(traces, steps)
        traced = first if len(traces[0].events) > TRACED else traces[0]
        if len(traced.events) <= BRIEF:
            found["idle_by_cause"] = replace(found["idle_ratio"], terms=waiting_by_cause(traced))
        return with_sizes(e, found), steps


def _simulator(e: Experiment) -> Simulator:
    return Simulator(e.deploy(), e.machine, e.seed, observe=0)


def _means(traces: list[Trace], steps: int) -> Figures:
    """The mean of each metric over runs."""
    out, of = Figures(), f"mean over simulated runs: {len(traces)} of {steps} steps"
    for name in ("seconds", "seconds_per_iteration", "bytes_per_iteration", "idle_ratio", "staleness_mean"):
        value = METRICS[name].of or (lambda t: sum(t.bytes_sent.values()) / steps)
        mean = Estimate.of(np.array([value(t) for t in traces], float))
        out[name] = _prediction(name, mean.value, sampling(mean.error), of)
    return out
