"""Puts algorithm, problem, machine and runtime together: `run`, `predict`, `replay`."""

from __future__ import annotations

import inspect
import json
import os
import time
import typing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD, parse_schedule
from refsgd.effects import Array, Deployment
from refsgd.machine import Machine
from refsgd.phantom import phantom
from refsgd.problems import Problem, classification, integer_gradients, quadratic
from refsgd.result import (
    Result,
    average,
    final_parameters,
    measure,
    parameters_sha256,
    predicted_to_json,
    replicas,
    schedule_sha256,
)
from refsgd.runtimes import replay as replaying
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Run, Trace, is_worker

__all__ = ["Experiment", "Result", "Usage", "predict", "prepare", "replay", "run"]

RUNTIMES = ("simulator", "processes", "tcp")
#: Machine of the comparison and of a run for which nothing is said: a small cluster with some jitter.
DEFAULT_MACHINE = Machine(compute="lognormal(0.015,0.5)", latency=0.001, bandwidth=50e6)  # type: ignore[arg-type]
DEFAULT_LR, DEFAULT_MOMENTUM, DEFAULT_BATCH, DEFAULT_EPOCHS = 0.15, 0.0, 16, 5.5

Algorithm = str | Callable[..., Deployment]
Say = Callable[[str], None]


class Usage(ValueError):
    """Wrong use: says what was found and what was expected."""


def deployment_function(algorithm: Algorithm) -> tuple[str, Callable[..., Deployment]]:
    """Name and function of an algorithm of the catalogue, or of a reader's own function."""
    if callable(algorithm):
        return getattr(algorithm, "__name__", "algorithm"), algorithm
    if algorithm not in CATALOGUE:
        raise Usage(f"algorithm {algorithm!r} is unknown; expected one of {', '.join(CATALOGUE)}")
    return algorithm, CATALOGUE[algorithm]


def options_of(function: Callable[..., Deployment]) -> dict[str, inspect.Parameter]:
    """The algorithm's own options: the keyword-only parameters of its deployment function, with resolved types."""
    hints = typing.get_type_hints(function)
    return {name: p.replace(annotation=hints.get(name, p.annotation))
            for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}


def has_servers(function: Callable[..., Deployment]) -> bool:
    """Whether a deployment function has parameter servers."""
    return "servers" in inspect.signature(function).parameters


def build_problem(data: str, net: str, workers: int, batch: int, seed: int, shards: str) -> Problem:
    """The problem that ``--data`` and ``--net`` name; see `refsgd.problems`."""
    if data == "quadratic":
        return quadratic(workers=workers, noise=0.1, seed=seed)
    if data == "integers":
        return integer_gradients(workers=workers, seed=seed)
    if net.startswith("phantom:"):
        return phantom(_parameters(net), batch)
    if shards not in ("iid", "by-label"):
        raise Usage(f"shards {shards!r}; expected iid or by-label")
    if batch < 1:
        raise Usage(f"batch {batch}; expected at least 1 image per worker")
    from refsgd.data import load
    from refsgd.nn import nets

    if net.partition(":")[0] not in nets.NAMES:
        raise Usage(f"net {net!r} is unknown; expected one of {', '.join(nets.NAMES)}, or phantom:P")
    dataset = load(data)
    try:
        built = nets.build(net, dataset.train_images.shape[1:])
    except ValueError as error:
        raise Usage(f"{error}; data {data} has images of shape {dataset.train_images.shape[1:]}") from None
    return classification(dataset, built, workers, batch, seed, shards == "by-label")


def _parameters(net: str) -> int:
    """The number in ``phantom:P``."""
    try:
        return int(net.removeprefix("phantom:"))
    except ValueError:
        raise Usage(f"net {net!r}; expected phantom: and a number of parameters, e.g. phantom:25557032") from None


@dataclass(frozen=True)
class Experiment:
    """One algorithm with everything it needs, not yet run; `prepare` makes it."""

    name: str
    function: Callable[..., Deployment]
    options: dict[str, Any]
    problem: Problem
    machine: Machine
    workers: int
    servers: int
    steps: int
    batch: int
    seed: int
    sgd: SGD
    arguments: dict[str, Any] | None = None  # what `prepare` was told, as JSON values; None for a problem of the reader's own

    def deploy(self) -> Deployment:
        """A fresh deployment: generator objects that have not run yet."""
        given = {"servers": self.servers, "rotated": self.machine.collocated and self.servers == self.workers}
        taken = inspect.signature(self.function).parameters
        servers = {name: value for name, value in given.items() if name in taken}
        try:
            return self.function(self.problem, self.workers, self.steps, self.sgd, **servers, **self.options)
        except ValueError as error:
            raise Usage(str(error)) from None

    def predictions(self) -> dict[str, Any]:
        """Closed forms for this experiment; empty for an algorithm that has none."""
        from refsgd import theory

        if self.name not in theory.ALGORITHMS or not self.machine.paced:
            return {}
        defaults = {name: p.default for name, p in options_of(self.function).items()}
        return dict(theory.predict(
            self.name, self.machine, workers=self.workers, servers=self.servers, nbytes=4 * self.problem.x0.size,
            batch=self.batch, steps=self.steps, options={**defaults, **self.options}))

    def perform(self, runtime: str) -> Run:
        """Run the programs to their end in one of `RUNTIMES`."""
        if runtime == "simulator":
            return simulate(self.deploy, self.machine, self.seed)
        if self.problem.describe.get("phantom"):
            raise Usage(f"net {self.problem.describe['net']} on {runtime}; expected the simulator: there is nothing to send")
        from refsgd.runtimes import processes

        return processes.run(self.deploy, self.machine, self.seed, transport="shm" if runtime == "processes" else runtime)

    def result(self, runtime: str, run: Run, evaluate: bool = True) -> Result:
        """Figures, history and hashes of a finished run."""
        if self.problem.describe.get("phantom"):
            return self._timed(runtime, run)
        x = final_parameters(run)
        servers, workers = replicas(run)
        trace = run.trace
        accuracy = {}
        if self.problem.accuracy is not None and evaluate:
            accuracy = {part: self.problem.accuracy(x, part) for part in ("train", "test")}
        spread = average(workers) if workers else x
        distance = float(np.mean([np.sum((w - spread) ** 2, dtype=float) for w in workers])) if not servers and workers else 0.0
        points = history(trace, self.problem) if evaluate else []
        if points and trace.seconds > points[-1][0]:
            every = sum(trace.updates.values()) if not servers else max(trace.updates.values())
            images = sum(self.problem.images(rank, t) for rank, w in enumerate(trace.workers) for t in range(trace.iterations[w]))
            points.append([trace.seconds, every, images, self.problem.loss(x), accuracy.get("test", float("nan"))])
        problem = self.problem.describe or {"parameters": int(x.size), "bytes": 4 * int(x.size), "batch": self.batch}
        return Result(
            self.name, self.options, problem, self.machine, runtime, self.workers,
            self.servers if has_servers(self.function) else 0, self.steps, self.seed,
            measure(trace, self.batch), predicted_to_json(self.predictions()),
            points, accuracy, self.problem.loss(x), distance,
            parameters_sha256(x), schedule_sha256(trace), trace, x, self.deploy)

    def _timed(self, runtime: str, run: Run) -> Result:
        """The result of a run without contents: times, bytes, staleness."""
        return Result(
            self.name, self.options, self.problem.describe, self.machine, runtime, self.workers,
            self.servers if has_servers(self.function) else 0, self.steps, self.seed, measure(run.trace, self.batch),
            predicted_to_json(self.predictions()), [], {}, float("nan"), float("nan"), "", schedule_sha256(run.trace), run.trace,
            deploy=self.deploy)


def history(trace: Trace, problem: Problem, points: int = 20) -> list[list[float]]:
    """[seconds, updates, images, loss, test accuracy] at some updates, evaluated after the run.

    Fewer than `points` where an evaluation looks at many images.
    Slices of one version are joined; replicas of one iteration are averaged.
    """
    points = min(points, max(4, 60_000 // problem.describe.get("evaluated", 1)))
    versions: dict[int, dict[str, tuple[float, Array]]] = {}
    for e in trace.marks("update"):
        if "x" in e.data:
            versions.setdefault(e.data.get("t", e.data["version"]), {})[e.node] = (e.time, e.data["x"])
    emitters = [n for n in trace.nodes if any(n in found for found in versions.values())]
    whole = [(v, found) for v, found in sorted(versions.items()) if len(found) == len(emitters)]
    picked = whole[:: max(1, -(-len(whole) // points))] if whole else []
    counts: dict[str, int] = dict.fromkeys(trace.workers, 0)
    ends, images = [], []
    for e in trace.of("compute"):
        if e.data["work"] == "gradient":
            rank = trace.workers.index(e.node)
            ends.append(e.time)
            images.append(problem.images(rank, counts[e.node]))
            counts[e.node] += 1
    order = np.argsort(ends, kind="stable")
    times, total = np.asarray(ends)[order], np.cumsum(np.asarray(images)[order]) if images else np.zeros(0)
    rows = []
    for version, found in picked:
        when = max(t for t, _ in found.values())
        parts = [found[n][1] for n in emitters]
        x = average(parts) if is_worker(emitters[0]) else np.concatenate(parts)
        done = int(np.searchsorted(times, when, side="right"))
        updates = (version + 1) * (len(emitters) if is_worker(emitters[0]) else 1)
        test = problem.accuracy(x, "test") if problem.accuracy is not None else float("nan")
        rows.append([when, updates, int(total[done - 1]) if done else 0, problem.loss(x), test])
    return rows


def prepare(
    algorithm: Algorithm,
    problem: Problem | None = None,
    *,
    workers: int = 4,
    servers: int = 1,
    steps: int | None = None,
    epochs: float | None = None,
    batch: int = DEFAULT_BATCH,
    data: str = "digits",
    net: str | None = None,
    lr: float = DEFAULT_LR,
    momentum: float = DEFAULT_MOMENTUM,
    weight_decay: float = 0.0,
    schedule: str = "constant",
    shards: str = "iid",
    machine: Machine | None = None,
    seed: int = 0,
    **options: Any,
) -> Experiment:
    """Check every argument and put an experiment together; parameters as `run`."""
    given = problem
    name, function = deployment_function(algorithm)
    if name == "sequential":
        workers = 1
    if workers < 1:
        raise Usage(f"workers {workers}; expected at least 1")
    if servers < 1:
        raise Usage(f"servers {servers}; expected at least 1")
    if seed < 0:
        raise Usage(f"seed {seed}; expected a number >= 0")
    known = options_of(function)
    for option in options:
        if option not in known:
            raise Usage(f"{name} has no option {option!r}; expected "
                        + (f"some of {', '.join(known)}" if known else "none"))
    if steps is not None and epochs is not None:
        raise Usage(f"steps {steps} and epochs {epochs}; expected one of the two")
    if steps is not None and steps < 0:
        raise Usage(f"steps {steps}; expected a number >= 0")
    if epochs is not None and not 0 <= epochs < float("inf"):
        raise Usage(f"epochs {epochs}; expected a number >= 0")
    if problem is None:
        problem = build_problem(data, net or default_net(data), workers, batch, seed, shards)
    if isinstance(problem.x0, np.ndarray) and not np.all(np.isfinite(problem.x0)):
        raise Usage("the starting point x0 has NaN or infinite entries; expected finite numbers")
    if steps is None:
        per_epoch = problem.describe.get("steps_per_epoch", 100)
        steps = round((DEFAULT_EPOCHS if epochs is None else epochs) * per_epoch)
    try:
        sgd = SGD(lr, momentum, weight_decay, parse_schedule(schedule))
    except ValueError as error:
        raise Usage(str(error)) from None
    machine = DEFAULT_MACHINE if machine is None else machine
    arguments = None
    if algorithm in CATALOGUE and given is None:
        arguments = {"workers": workers, "servers": servers, "steps": steps, "batch": batch, "data": data, "net": net, "lr": lr,
                     "momentum": momentum, "weight_decay": weight_decay, "schedule": schedule, "shards": shards,
                     "machine": machine.to_json(), "seed": seed, **options}
    experiment = Experiment(name, function, options, problem, machine, workers, servers, steps, batch, seed, sgd, arguments)
    experiment.deploy()  # refuses wrong options now, before anything runs
    return experiment


def default_net(data: str) -> str:
    """The net that fits a data set where none is named."""
    return {"mnist": "shallow", "fashion-mnist": "shallow", "cifar10": "resnet18:16"}.get(data, "tiny")


def run(algorithm: Algorithm, problem: Problem | None = None, *, runtime: str = "simulator", record: str | Path | None = None,
        **arguments: Any) -> Result:
    """Train with one algorithm and return everything that was seen.

    Parameters
    ----------
    algorithm : str or callable
        A name of the catalogue, or a deployment function ``f(problem, workers, steps, sgd, *, options)``.
    problem : Problem, optional
        Your own problem; else one is built from `data`, `net`, `batch` and `shards`.
    runtime : {"simulator", "processes", "tcp"}
        Virtual time, OS processes over shared memory, OS processes over TCP on this machine.
    workers, servers : int
        n (4) and K (1).
    steps, epochs : int, float
        Iterations of each worker, or passes over the data (4 if neither is given).
    batch : int
        Images per worker and iteration (16).
    data, net : str
        Data set ("digits") and net (the one that fits it).
    lr, momentum, weight_decay, schedule
        The update rule, see `refsgd.algorithms.sgd.SGD`; schedule is ``"constant"`` or ``"step(every,factor)"``.
    shards : {"iid", "by-label"}
    machine : Machine, optional
        What the run takes place on; see `refsgd.machine.Machine`.
    seed : int
        Of the initial parameters, the data's order, durations and choices.
    record : path, optional
        Write what every receive, poll and choice returned; `replay` reproduces the run from it bit for bit.
    **options
        The algorithm's own, e.g. ``staleness=3``.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        Wrong use: what was found and what was expected.

    Examples
    --------
    >>> result = run("bsp", data="quadratic", steps=50, lr=0.5)
    >>> result.measured["updates"], result.measured["staleness"]["max"]
    (50, 0)
    """
    if runtime not in RUNTIMES:
        raise Usage(f"runtime {runtime!r}; expected one of {', '.join(RUNTIMES)}")
    experiment = prepare(algorithm, problem, **arguments)
    if runtime != "simulator":
        warn_if_slow(experiment)
    finished = experiment.perform(runtime)
    result = experiment.result(runtime, finished)
    if record is not None:
        Path(record).write_text(record_text(experiment, finished, result))
    return result


def record_text(experiment: Experiment, finished: Run, result: Result) -> str:
    """A finished run as a record file: JSON with the arguments, the schedule of every node, and the hash to be met."""
    from refsgd import __version__

    if experiment.arguments is None:
        raise Usage("a record needs an algorithm of the catalogue and a problem built from --data and --net; "
                    "for your own use refsgd.runtimes.replay with your factory")
    return json.dumps({"record": replaying.FORMAT, "refsgd": __version__, "algorithm": experiment.name, "arguments": experiment.arguments,
                       "runtime": result.runtime, "parameters_sha256": result.parameters_sha256,
                       "nodes": replaying.record(finished.trace)})


def replay(record: str | Path) -> Result:
    """Reproduce a recorded run in the simulator.

    Parameters
    ----------
    record : path
        A file that ``run(..., record=path)`` or ``refsgd run --record`` wrote.

    Returns
    -------
    Result
        Its runtime is "replay".

    Raises
    ------
    ReplayError
        The record and the programs do not fit, or the parameters differ from the recorded hash.
    """
    data = replaying.load(Path(record).read_text())
    arguments = dict(data["arguments"])
    arguments["machine"] = Machine.from_json(arguments["machine"])
    experiment = prepare(data["algorithm"], **arguments)
    finished = replaying.replay(experiment.deploy, data["nodes"])
    finished.trace.latency, finished.trace.bandwidth = experiment.machine.latency, experiment.machine.bandwidth
    result = experiment.result("replay", finished)
    if result.parameters_sha256 != data["parameters_sha256"]:
        raise replaying.ReplayError(f"replayed parameters have SHA-256 {result.parameters_sha256[:16]}, the record says "
                                    f"{data['parameters_sha256'][:16]}; expected equal bits: same library version, data and CPU kind?")
    return result


def warn_if_slow(experiment: Experiment, say: Say | None = None) -> None:
    """Warn before a paced run whose real computing cannot keep up with its drawn durations, or is drawn too short."""
    law = experiment.machine.compute
    if law is None or not experiment.steps:
        return
    say = say or (lambda text: warnings.warn(text, stacklevel=3))
    if 0 < law.mean < 0.002:
        say(f"mean compute time {law.mean * 1e3:g} ms: below 2 ms real processes are late by a few percent; "
            "choose a longer one or the simulator")
    gradient, x = experiment.problem.gradient, experiment.problem.x0
    gradient(x, 0, 0)
    started = time.perf_counter()
    for t in range(3):
        gradient(x, 0, t)
    real = (time.perf_counter() - started) / 3
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if experiment.workers * real > 0.8 * cores * law.mean:
        say(f"{experiment.workers} workers with {real * 1e3:.1f} ms of real computing on {cores} cores cannot keep a drawn mean of "
            f"{law.mean * 1e3:g} ms; expected at most {0.8 * cores * law.mean / experiment.workers * 1e3:.1f} ms: use a longer "
            "--compute, fewer workers or the simulator")


def predict(algorithm: Algorithm, problem: Problem | None = None, **arguments: Any) -> dict[str, Any]:
    """Closed forms for the run that the same arguments describe.

    Returns
    -------
    dict of str to Prediction
        Where a formula exists: value, unit, kind (exact, approximation, bound), terms.
    """
    return prepare(algorithm, problem, **arguments).predictions()
