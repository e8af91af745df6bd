"""Post-run evaluation: loss, accuracy and the metrics computed from the trace.

An algorithm never computes a loss; it marks its updates, and a runtime keeps some of their parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from refsgd.effects import Array, ranks
from refsgd.experiment.prepare import Experiment
from refsgd.experiment.result import (
    Result,
    average,
    final_parameters,
    measure,
    parameters_sha256,
    predicted_to_json,
    replicas,
    schedule_sha256,
)
from refsgd.problems import Problem
from refsgd.trace import Run, Trace

EVALUATIONS = 20  #: rows of a history, besides its end


def evaluate(experiment: Experiment, runtime: str, run: Run, evaluations: int = EVALUATIONS) -> Result:
    """Metrics, history and hashes of a finished run."""
    problem = experiment.problem
    if problem.describe.get("shape_only"):
        return _timed(experiment, runtime, run)
    x = final_parameters(run)
    servers, workers = replicas(run)
    trace = run.trace
    accuracy = {}
    if problem.accuracy is not None:
        accuracy = {part: problem.accuracy(x, part) for part in ("train", "test")}
    spread = average(workers) if workers else x
    distance = float(
        np.mean(
            [np.sum((w - spread) ** 2, dtype=float) for w in workers])) if not servers and workers else 0.0
    loss = problem.loss(x)
    rank = ranks(experiment.deploy())
    points = history(trace, problem, rank, evaluations) if evaluations else []
    if not evaluations or (points and trace.seconds > points[-1][0]):
        every = sum(trace.updates.values()) if not servers else max(trace.updates.values(), default=0)
        images = sum(problem.images(rank[w], t) for w in trace.workers for t in range(trace.iterations[w]))
        points.append([trace.seconds, every, images, loss, accuracy.get("test", float("nan"))])
    described = problem.describe or {"parameters": int(x.size), "bytes": 4 * int(x.size),
                                     "batch": experiment.batch}
    return Result(
        experiment.name, experiment.options, described, experiment.machine, runtime, experiment.workers,
        sum(not trace.is_worker(node) for node in trace.nodes), experiment.steps, experiment.seed,
        measure(trace, experiment.batch), predicted_to_json(experiment.predictions()),
        points, accuracy, loss, distance,
        parameters_sha256(x), schedule_sha256(trace), trace, x, experiment.deploy)


def _timed(experiment: Experiment, runtime: str, run: Run) -> Result:
    """The result of a run without contents: times, bytes, staleness."""
    return Result(
        experiment.name, experiment.options, experiment.problem.describe, experiment.machine, runtime,
        experiment.workers,
        sum(not run.trace.is_worker(node) for node in run.trace.nodes), experiment.steps, experiment.seed,
        measure(run.trace, experiment.batch),
        predicted_to_json(experiment.predictions()), [], {}, float("nan"), float("nan"), "",
        schedule_sha256(run.trace), run.trace,
        deploy=experiment.deploy)


def history(trace: Trace, problem: Problem, rank: Mapping[str, int],
            points: int = EVALUATIONS) -> list[list[float]]:
    """[seconds, updates, images, loss, test accuracy] at some updates, evaluated after the run.

    Fewer than `points` where an evaluation looks at many images.
    Slices of one version are joined; replicas of one iteration are averaged, after a death those of the
    living.
    """
    points = min(points, max(4, 60_000 // problem.describe.get("evaluated", 1)))
    versions: dict[int, dict[str, tuple[float, Array]]] = {}
    for e in trace.marks("update"):
        if "x" in e.values:
            versions.setdefault(e.values.get("t", e.values["version"]), {})[e.node] = (e.time, e.values["x"])
    emitters = [n for n in trace.nodes if any(n in found for found in versions.values())]
    last = {n: max(v for v, found in versions.items() if n in found) for n in emitters if n in trace.dead}
    whole = [(v, found) for v, found in sorted(versions.items())
             if all(n in found or v > last.get(n, v) for n in emitters)]
    picked = whole[:: max(1, -(-len(whole) // points))] if whole else []
    counts = dict.fromkeys(trace.workers, 0)
    ends, images = [], []
    for gradient in trace.gradients:
        ends.append(gradient.time)
        images.append(problem.images(rank[gradient.node], counts[gradient.node]))
        counts[gradient.node] += 1
    order = np.argsort(ends, kind="stable")
    times, total = np.asarray(ends)[order], np.cumsum(np.asarray(images)[order]) if images else np.zeros(0)
    rows = []
    for version, found in picked:
        when = max(t for t, _ in found.values())
        parts = [found[n][1] for n in emitters if n in found]
        x = average(parts) if trace.is_worker(emitters[0]) else np.concatenate(parts)
        done = int(np.searchsorted(times, when, side="right"))
        updates = version + 1
        if trace.is_worker(emitters[0]):
            updates *= sum(n not in trace.dead for n in emitters)
            updates += sum(min(version + 1, trace.updates.get(n, 0)) for n in trace.dead)
        test = problem.accuracy(x, "test") if problem.accuracy is not None else float("nan")
        rows.append([when, updates, int(total[done - 1]) if done else 0, problem.loss(x), test])
    return rows
