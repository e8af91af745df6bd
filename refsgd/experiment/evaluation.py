"""Post-run evaluation: loss, accuracy and the metrics computed from the trace.

An algorithm never computes a loss; it marks its updates, and a runtime keeps some of their parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import nan
from typing import Any, cast

import numpy as np

from refsgd.effects import Array, ranks
from refsgd.experiment import result
from refsgd.experiment.options.exchanges import largest_server
from refsgd.experiment.prepare import Experiment
from refsgd.experiment.result import Result, WhenAsked, average, final_parameters, replicas
from refsgd.problems import Problem
from refsgd.trace import Added, Crashed, Run, Trace, joined
from refsgd.trace.metrics import measure, number_images
from refsgd.trace.moments import Moment, moments

EVALUATIONS = 20  #: rows of a history, not counting its end


def evaluations_of(problem: Problem, most: int = EVALUATIONS) -> int:
    """How many intermediate parameters are evaluated: fewer if each evaluation takes many images."""
    return min(most, max(4, 60_000 // int(problem.describe.get("evaluated", 1))))


def evaluate(experiment: Experiment, runtime: str, run: Run, evaluations: int = EVALUATIONS,
             warmup: int = 0) -> Result:
    """Metrics, history and hashes of a finished run; only times, bytes and staleness for a shape-only net."""
    problem, trace = experiment.problem, run.trace
    x, accuracy, loss, distance, rows = None, dict[str, float](), nan, nan, list[list[float]]()
    count_images(experiment, trace)
    rank = ranks(experiment.nodes)
    servers_of_run = {rank[node] for node in trace.nodes if not trace.is_worker(node)}
    if not problem.describe.get("shape_only"):
        x = final_parameters(run)
        servers, workers = replicas(run)
        if evaluations:  # first: its last parameters may be the final ones
            rows = history(trace, problem, evaluations_of(problem, evaluations))
        if problem.accuracy is not None:
            accuracy = {part: problem.accuracy(x, part) for part in ("train", "test", "validation")
                        if part != "validation" or part in problem.describe}
        loss, distance = problem.loss(x), 0.0
        if workers and not servers:
            mean = average(workers)
            distance = float(np.mean([np.sum((w - mean) ** 2, dtype=float) for w in workers]))
        end = [trace.seconds, _updates(trace, trace.updates), trace.images(), loss, accuracy.get("test", nan)]
        rows = [*(row for row in rows if row[:2] != end[:2]), end]
    measured = measure(trace, warmup)
    if (share := largest_server(problem, experiment.servers)) is not None:
        measured["largest_server"] = share
    shown = x is not None and not np.isfinite(x).all()
    if broken := trace.not_finite or "the final parameters" * shown:
        measured["not_finite"] = broken
        why = ("the run diverged, or the data have such numbers: lower the learning rate (--lr)" if shown
               else "the final parameters have only those, so what was computed did not arrive")
        warnings.warn(f"{broken}: numbers that are not finite; expected finite ones: {why}", RuntimeWarning,
                      stacklevel=4)
    return Result(
        experiment.name, experiment.told, problem.describe, experiment.machine, runtime,
        experiment.workers, len(servers_of_run), experiment.steps,
        experiment.seed, measured, WhenAsked(dict if trace.of(Crashed) else experiment.predicted),
        rows, accuracy, loss, distance, "" if x is None else result.parameters_sha256(x),
        result.schedule_sha256(trace), trace, x, experiment.deploy)


def count_images(experiment: Experiment, trace: Trace) -> None:
    """Complete the marks of updates that do not say how many images they applied."""
    # the replicas of a pipeline come first among the ranks; its stages have their shares of the data
    rank, images = ranks(experiment.nodes), experiment.problem.images
    number_images(trace, lambda worker, t: images(rank[worker] % experiment.replicas, t))


def _updates(trace: Trace, marks: Mapping[str, int]) -> int:
    """The updates of a model, of which each node has marked so many of its part or of its replica."""
    if any(not trace.is_worker(node) for node in marks):
        return max(marks.values(), default=0)
    return sum(marks.values()) // max(1, len(set(trace.parts.values())))


def joined_model(newest: Mapping[str, Any], x0: Array, replicas: bool, parts: Mapping[str, int],
                 shared: bool) -> Array | None:
    """The parameters of a moment, from the newest of each node, the last to change its own at the end.

    They are the vector in `shared` memory, the servers' parts, or the mean of the `replicas`, which are `x0`
    before their first update; of replicas that are divided, nodes have `parts`.  None if a part is missing.
    """
    if shared:
        return cast("Array", list(newest.values())[-1])
    found = {node: x0 if x is None and replicas and not parts else x for node, x in newest.items()}
    if any(x is None for x in found.values()):
        return None
    if replicas:
        return average(joined((parts.get(node, 0), x) for node, x in found.items()))
    return np.concatenate(list(found.values()))


def model(trace: Trace, x0: Array, moment: Moment) -> Array | None:
    """The parameters at a moment."""
    newest = dict(moment.newest) if trace.of(Added) else {n: moment.newest.get(n) for n in moment.nodes}
    return joined_model(newest, x0, trace.is_worker(moment.nodes[0]), trace.parts, bool(trace.of(Added)))


def history(trace: Trace, problem: Problem, points: int) -> list[list[float]]:
    """[seconds, updates, images, loss, test accuracy] at up to `points` evenly spaced moments."""
    known = list(moments(trace, trace.marks("update")))
    chosen = dict[int, Moment]()
    for goal in (known[-1].span[1] * (k + 1) / points for k in range(points) if known):
        i = min(range(len(known)), key=lambda i: (max(known[i].span[0] - goal, goal - known[i].span[1]), -i))
        chosen[i] = known[i]
    rows = []
    for moment in chosen.values():
        x = model(trace, problem.x0, moment)
        if x is not None:
            test = problem.accuracy(x, "test") if problem.accuracy is not None else nan
            rows.append([moment.seconds, _updates(trace, moment.marks), trace.images(moment.seconds),
                         problem.loss(x), test])
    return rows
