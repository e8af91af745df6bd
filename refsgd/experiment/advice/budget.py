"""Simulated metrics of a strategy within a share of a budget of events."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from refsgd.experiment.memory import with_sizes
from refsgd.experiment.prepare import Experiment
from refsgd.runtimes.simulator import Simulator
from refsgd.theory.estimate import Estimate, sampling
from refsgd.theory.prediction import Figures, Prediction
from refsgd.trace import Trace
from refsgd.trace.metrics import METRICS
from refsgd.trace.waiting import waiting_by_cause

PRECISE = 0.01  #: relative standard error at which no more runs are made
FEWEST, MOST = 3, 16  #: runs, if anything is drawn
#: events of a run whose waiting is traced back to its causes, which takes longer than the run; of the short
#: first run
TRACED, BRIEF = 5_000, 20_000


@dataclass
class Budget:
    """The events that simulated runs may have; a number of seconds would give other results each time."""

    left: int


def simulated(e: Experiment, every: int, budget: Budget, limit: int,
              share: int) -> tuple[Figures, int] | None:
    """Metrics of simulated runs, and the number of their steps, a multiple of `every`.

    A first run of `every` steps shows what a step costs; the result is None if it has more than `limit`
    events.  The runs that count are as long as possible and as many as needed, with about `share` events.
    """
    steps, cost = max(1, min(every, e.steps)), 0
    simulator = _simulator(replace(e, steps=steps))
    for cost, _ in enumerate(simulator, 1):
        if cost > limit:
            budget.left -= cost
            return None
    budget.left -= cost
    first = simulator.trace()
    traces, rounds = [first], min(share // (FEWEST * cost), e.steps // steps)
    if rounds > 1:
        steps, cost, traces = steps * rounds, cost * rounds, []
    while not traces or (share > (len(traces) + 1) * cost and len(traces) < MOST):
        traces.append(_simulator(replace(e, steps=steps, seed=e.seed + len(traces))).run().trace)
        budget.left -= len(traces[-1].events)
        mean = Estimate.of(np.array([each.seconds for each in traces]))
        if len(traces) > 1 and mean.error <= PRECISE * mean.value * (len(traces) >= FEWEST):
            break
    found = _means(traces, steps)
    traced = first if len(traces[0].events) > TRACED else traces[0]
    if len(traced.events) <= BRIEF:
        found["idle_by_cause"] = replace(found["idle_ratio"], terms=waiting_by_cause(traced))
    return with_sizes(e, found), steps


def _simulator(e: Experiment) -> Simulator:
    """The simulator of its run."""
    return Simulator(e.deploy(), e.machine, e.seed, observe=0)


def _means(traces: list[Trace], steps: int) -> Figures:
    """The mean of each metric over runs."""
    out, of = Figures(), f"mean over simulated runs: {len(traces)} of {steps} steps"
    for name in ("seconds", "seconds_per_iteration", "bytes_per_iteration", "idle_ratio", "staleness_mean"):
        value = METRICS[name].of or (lambda t: sum(t.bytes_sent.values()) / steps)
        mean = Estimate.of(np.array([value(t) for t in traces], float))
        out[name] = Prediction(mean.value, METRICS[name].unit, "simulated", sampling(mean.error), of,
                               "the simulator")
    return out
