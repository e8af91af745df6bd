"""Metrics simulated on request, where a formula is missing or doubted: means of simulated runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from refsgd.experiment.arguments import Usage
from refsgd.experiment.evaluation import count_images, flat, measure
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.memory import with_sizes
from refsgd.experiment.prepare import Experiment
from refsgd.problems.shapes import in_shape_only
from refsgd.theory.estimate import Estimate, sampling
from refsgd.theory.prediction import FIGURES, Figures, Prediction

RUNS = 4  #: with consecutive seeds, starting from the experiment's
UNITS = {"images_per_second": "images/s", "updates": "updates", "bytes_per_iteration": "bytes",
         "bytes_sent": "bytes", "idle_ratio": "1", "idle_by_cause": "1", "staleness_mean": "updates",
         "staleness_max": "updates", "clock_gap_max": "iterations", "lead_max": "iterations"}


def simulated(experiment: Experiment) -> Figures:
    """Means of each metric over simulated runs, shape-only unless the algorithm reads its vectors."""
    shape = in_shape_only(experiment.problem, [max(b, 1) for b in experiment.batches])
    try:
        runs, problem = _runs(replace(experiment, problem=shape)), "a shape-only problem"
    except Usage:
        runs, problem = _runs(experiment), "the given problem"
    first = experiment.seed
    formula = f"mean of {RUNS} runs on {problem}, seeds {first} to {first + RUNS - 1}"
    found = Figures()
    for name in FIGURES:
        mean = Estimate.of(np.array([run[name] for run in runs], float))
        terms = sampling(mean.error)
        if name == "idle_by_cause":
            causes = sorted({cause for run in runs for cause in run["causes"]})
            terms = {cause: float(np.mean([run["causes"].get(cause, 0.0) for run in runs]))
                     for cause in causes}
        found[name] = Prediction(mean.value, UNITS.get(name, "s"), "simulated", terms, formula,
                                 "the simulator")
    return with_sizes(experiment, found)


def _runs(experiment: Experiment) -> list[dict[str, Any]]:
    """The metrics of each run."""
    out = []
    for seed in range(experiment.seed, experiment.seed + RUNS):
        trace = perform(replace(experiment, seed=seed), "simulator").trace
        count_images(experiment, trace)
        found = flat(measure(trace))
        out.append({**found, "bytes_per_iteration": found["bytes_sent"] / max(experiment.steps, 1),
                    "idle_by_cause": found["idle_ratio"], "causes": found["idle_by_cause"],
                    "clock_gap_max": found["clock_gap"]["max"], "lead_max": found["lead"]["max"]})
    return out
