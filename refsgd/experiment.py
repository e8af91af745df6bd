"""Puts algorithm, problem, machine and runtime together: `run`, `predict`, `replay`."""

from __future__ import annotations

import inspect
import os
import time
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from refsgd import checkpoint as checkpoints
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD, parse_schedule
from refsgd.effects import Array, Deployment
from refsgd.lives import Life, go_on
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
from refsgd.runtimes.faults import POLICIES, Fault, parse, survives_workers
from refsgd.runtimes.faulty import Faulty
from refsgd.runtimes.journal import Journal, read
from refsgd.trace import Event, Run, Trace, is_worker

__all__ = ["Experiment", "Result", "Usage", "predict", "prepare", "replay", "run"]

LOCAL_RUNTIMES = ("simulator", "processes", "tcp")  # that need nobody to start them
RUNTIMES = (*LOCAL_RUNTIMES, "mpi")
#: Machine of the comparison and of a run for which nothing is said: a small cluster with some jitter.
DEFAULT_MACHINE = Machine(compute="lognormal(0.015,0.5)", latency=0.001, bandwidth=50e6)  # type: ignore[arg-type]
DEFAULT_LR, DEFAULT_MOMENTUM, DEFAULT_BATCH, DEFAULT_EPOCHS = 0.15, 0.0, 16, 5.5

Algorithm = str | Callable[..., Deployment]
Say = Callable[[str], None]


class Usage(ValueError):
    """Wrong use: says what was found and what was expected."""


def deployment_function(algorithm: Algorithm) -> tuple[str, Callable[..., Deployment]]:
    """Name and function of an algorithm of the catalogue, or of a reader's own function.

    Parameters
    ----------
    algorithm : str or callable
        A name of the catalogue, or a deployment function.

    Returns
    -------
    (str, callable)
    """
    if callable(algorithm):
        return getattr(algorithm, "__name__", "algorithm"), algorithm
    if algorithm not in CATALOGUE:
        raise Usage(f"algorithm {algorithm!r} is unknown; expected one of {', '.join(CATALOGUE)}")
    return algorithm, CATALOGUE[algorithm]


def options_of(function: Callable[..., Deployment]) -> dict[str, inspect.Parameter]:
    """The algorithm's own options: the keyword-only parameters of its deployment function, with resolved types.

    Parameters
    ----------
    function : callable
        A deployment function.

    Returns
    -------
    dict of str to inspect.Parameter
    """
    hints = typing.get_type_hints(function)
    return {name: p.replace(annotation=hints.get(name, p.annotation))
            for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}


def has_servers(function: Callable[..., Deployment]) -> bool:
    """Whether a deployment function has parameter servers.

    Parameters
    ----------
    function : callable
        A deployment function.

    Returns
    -------
    bool
    """
    return "servers" in inspect.signature(function).parameters


def build_problem(data: str, net: str, workers: int, batch: int, seed: int, shards: str) -> Problem:
    """The problem that ``--data`` and ``--net`` name; see `refsgd.problems`.

    Parameters
    ----------
    data : str
        Name of a data set, "quadratic", "integers", or "none" with a phantom net.
    net : str
        Of `refsgd.nn.nets`, or ``phantom:P``.
    workers : int
        Among how many the data are dealt out.
    batch : int
        Images per worker and step.
    seed : int
        Of the initial parameters and the data's order.
    shards : {"iid", "by-label"}
        How the images are dealt out.

    Returns
    -------
    Problem
    """
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
    """One algorithm with everything it needs, not yet run; `prepare` makes it.

    Parameters
    ----------
    name : str
        Of the algorithm.
    function : callable
        Its deployment function.
    options : dict
        The algorithm's own.
    problem : Problem
    machine : Machine
    workers, servers, steps, batch, seed : int
        As `run`.
    sgd : SGD
        The update rule.
    arguments : dict, optional
        What `prepare` was told, as JSON values; None for a problem of the reader's own.
    """

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

    def perform(self, runtime: str, journal: Callable[[Event], None] | None = None, faults: Iterable[str | Fault] = (),
                on_death: str = "stop") -> Run:
        """Run the programs to their end in one of `RUNTIMES`; `journal` is told every event at once.

        `faults` and `on_death` as in `run`; raises `Usage` where the algorithm or the runtime does not know them.

        Parameters
        ----------
        runtime : str
            One of `RUNTIMES`.
        journal : callable, optional
            Told every event as it happens.
        faults : iterable of str or Fault
            As `run`.
        on_death : str
            As `run`.

        Returns
        -------
        Run
        """
        deployment = self.deploy()
        try:
            plan = parse(faults, list(deployment), self.steps)
        except ValueError as error:
            raise Usage(str(error)) from None
        self._check_policy(runtime, deployment, on_death, bool(plan))
        first = Life(self.deploy, self.machine, self.seed, plan, {})
        if on_death in ("shrink", "restart"):
            return go_on(self, plan, on_death, lambda life: self._live(runtime, life, on_death, journal))
        return self._live(runtime, first, on_death, journal)

    def _check_policy(self, runtime: str, deployment: Deployment, on_death: str, planned: bool) -> None:
        """Refuse before anything runs what this algorithm or runtime cannot do about a death."""
        if on_death not in POLICIES:
            raise Usage(f"on_death {on_death!r}; expected one of {', '.join(POLICIES)}")
        if runtime == "mpi" and (planned or on_death != "stop"):
            raise Usage("faults and on_death over mpi, where mpiexec ends all if one dies; expected simulator, processes or tcp")
        if on_death == "continue" and not survives_workers(deployment):
            raise Usage(f"{self.name} waits for every worker, so on_death continue would stand still; expected stop, shrink or restart")
        if on_death == "shrink":
            if self.workers == 1:
                raise Usage("on_death shrink with 1 worker would leave none; expected at least 2 workers, stop or restart")
            replace(self, workers=self.workers - 1).deploy()  # refuses options that do not fit fewer workers

    def _live(self, runtime: str, life: Life, on_death: str, journal: Callable[[Event], None] | None) -> Run:
        """One life of the run, in one of `RUNTIMES`."""
        if runtime == "simulator":
            simulator = Faulty(life.deploy, life.machine, life.seed, faults=life.faults, on_death=on_death)
            simulator.journal = journal
            return simulator.run()
        if self.problem.describe.get("phantom"):
            raise Usage(f"net {self.problem.describe['net']} on {runtime}; expected the simulator: there is nothing to send")
        if runtime == "mpi":
            from refsgd.runtimes import mpi

            found = mpi.run(life.deploy, life.machine, life.seed, everywhere=True, journal=journal)
            assert found is not None
            return found
        from refsgd.runtimes import processes

        return processes.run(life.deploy, life.machine, life.seed, transport="shm" if runtime == "processes" else runtime,
                             journal=journal, faults=life.faults, on_death=on_death)

    def result(self, runtime: str, run: Run, evaluate: bool = True) -> Result:
        """Figures, history and hashes of a finished run.

        Parameters
        ----------
        runtime : str
            One of `RUNTIMES`.
        run : Run
            What a runtime gave back.
        evaluate : bool
            Whether accuracy and history are computed, which takes time.

        Returns
        -------
        Result
        """
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

    Parameters
    ----------
    trace : Trace
        With updates that carry their parameters.
    problem : Problem
    points : int
        At most so many rows.

    Returns
    -------
    list of list of float
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
    """Check every argument and put an experiment together; parameters as `run`.

    Parameters
    ----------
    algorithm : str or callable
        A name of the catalogue, or a deployment function.
    problem : Problem, optional
        As `run`.
    workers, servers, steps, epochs, batch, data, net, lr, momentum, weight_decay, schedule, shards, machine, seed
        As `run`.
    **options
        The algorithm's own.

    Returns
    -------
    Experiment
    """
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
    """The net that fits a data set where none is named.

    Parameters
    ----------
    data : str
        Name of a data set.

    Returns
    -------
    str
    """
    return {"mnist": "shallow", "fashion-mnist": "shallow", "cifar10": "resnet18:16"}.get(data, "tiny")


def run(algorithm: Algorithm, problem: Problem | None = None, *, runtime: str = "simulator", record: str | Path | None = None,
        faults: Iterable[str | Fault] = (), on_death: str = "stop", checkpoint: str | Path | None = None,
        checkpoint_every: float = 1.0, resume: str | Path | None = None, **arguments: Any) -> Result:
    """Train with one algorithm and return everything that was seen.

    Parameters
    ----------
    algorithm : str or callable
        A name of the catalogue, or a deployment function ``f(problem, workers, steps, sgd, *, options)``.
    problem : Problem, optional
        Your own problem; else one is built from `data`, `net`, `batch` and `shards`.
    runtime : {"simulator", "processes", "tcp", "mpi"}
        Virtual time, OS processes over shared memory, OS processes over TCP on this machine, or the ranks that
        mpiexec has started, each of which calls this with the same arguments and gets the result.
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
        Write what every receive, poll and choice returns, as it does; `replay` reproduces the run from it bit for
        bit, and the beginning of a run that has crashed.
    faults : iterable of str
        What is to befall whom and when, e.g. ``["kill worker 2 at step 10", "random 3 seed 7"]``; see `refsgd.runtimes.faults`.
    on_death : {"stop", "continue", "shrink", "restart"}
        What follows when a node dies: an error that names it; the others go on, if the algorithm waits for nobody in
        particular; those that wait for the dead start again without it; all start again from the newest parameters.
    checkpoint : path, optional
        Folder to which checkpoints are written, every `checkpoint_every` epochs and when the process gets SIGUSR1; see
        `refsgd.checkpoint`.
    checkpoint_every : float
        Epochs (of 100 steps, where the problem has none) between two checkpoints; 0: only on request.
    resume : path, optional
        A checkpoint or a folder of them: go on from the newest.  What is trained, where, and for how long is as it was;
        arguments that are given too must say the same.
    **options
        The algorithm's own, e.g. ``staleness=3``.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        Wrong use: what was found and what was expected.
    CheckpointError
        If the checkpoint is damaged, or the programs do not arrive where it was made.

    Examples
    --------
    >>> result = run("bsp", data="quadratic", steps=50, lr=0.5)
    >>> result.measured["updates"], result.measured["staleness"]["max"]
    (50, 0)
    """
    if runtime not in RUNTIMES:
        raise Usage(f"runtime {runtime!r}; expected one of {', '.join(RUNTIMES)}")
    start = None
    if resume is None:
        experiment = prepare(algorithm, problem, **arguments)
    else:
        start, experiment = resumed(algorithm, runtime, resume, arguments)
    if runtime == "mpi":
        check_ranks(experiment)
    saves = checkpoint is not None or start is not None
    if saves and (on_death != "stop" or list(faults)):
        raise Usage("checkpoints of a run with planned faults or another on_death than stop; expected one or the other")
    if record is not None and on_death != "stop":
        raise Usage(f"a record of a run with on_death {on_death}; expected stop, since a replay knows no deaths")
    if runtime != "simulator":
        warn_if_slow(experiment)
    with recording(experiment, runtime, record) as journal:
        if saves:
            plan = checkpoint_plan(experiment, runtime, checkpoint, checkpoint_every)
            finished = checkpoints.perform(experiment.deploy, experiment.machine, experiment.seed, runtime, plan, start, journal)
        else:
            finished = experiment.perform(runtime, journal, faults, on_death)
        result = experiment.result(runtime, finished)
        if journal is not None:
            journal.finish(finished.trace, result.parameters_sha256)
    return result


def check_ranks(experiment: Experiment) -> None:
    """Refuse to run over another number of MPI ranks than the experiment has processes.

    Parameters
    ----------
    experiment : Experiment
    """
    from refsgd.runtimes import mpi

    needed, found = len(set(experiment.machine.hosts(experiment.deploy()).values())), mpi.world().size
    if needed > found:
        raise Usage(f"{experiment.name} with {experiment.workers} workers needs {needed} ranks and MPI has started {found}; "
                    f"use mpiexec -n {needed}, or another --workers")


def checkpoint_plan(experiment: Experiment, runtime: str, folder: str | Path | None, every: float) -> checkpoints.Plan | None:
    """When and where the run writes checkpoints; None without a folder.

    Parameters
    ----------
    experiment : Experiment
    runtime : str
        One of `RUNTIMES`.
    folder : path, optional
        Where they are written.
    every : float
        Iterations or seconds between two of them, as in `run`.

    Returns
    -------
    Plan or None
    """
    from refsgd import __version__

    if folder is None:
        return None
    if experiment.arguments is None:
        raise Usage("a checkpoint needs an algorithm of the catalogue and a problem built from --data and --net")
    if not 0 <= every < float("inf"):
        raise Usage(f"checkpoint_every {every}; expected a number of epochs >= 0")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise Usage(f"checkpoint {folder}; expected a folder")
    header = {"refsgd": __version__, "algorithm": experiment.name, "arguments": experiment.arguments, "runtime": runtime,
              "nodes": list(experiment.deploy())}
    steps = every * experiment.problem.describe.get("steps_per_epoch", 100)
    return checkpoints.Plan(Path(folder), header, max(1, round(steps)) if every else 0)


def resumed(algorithm: Algorithm, runtime: str, place: str | Path, arguments: dict[str, Any]) -> tuple[checkpoints.Checkpoint, Experiment]:
    """The newest checkpoint at `place` and the experiment that it is of; refuses arguments that say something else.

    Parameters
    ----------
    algorithm : str or callable
        As `run`.
    runtime : str
        One of `RUNTIMES`.
    place : path
        A checkpoint, or a folder of them.
    arguments : dict
        What `run` was told.

    Returns
    -------
    (Checkpoint, Experiment)
    """
    if not Path(place).exists():
        raise Usage(f"no checkpoint at {place}; expected a folder that --checkpoint wrote to, or a file in it")
    start = checkpoints.newest(place)
    name, made = deployment_function(algorithm)[0], start.header["runtime"]
    if start.header["algorithm"] not in (name, algorithm):
        raise Usage(f"the checkpoint at {place} is of {start.header['algorithm']}; expected one of {name}")
    if (runtime == "simulator") != (made == "simulator"):
        raise Usage(f"the checkpoint at {place} was made by the runtime {made}; expected --runtime {made}")
    stored = {**start.header["arguments"], "machine": Machine.from_json(start.header["arguments"]["machine"])}
    if "epochs" in arguments:
        stored.pop("steps")
    experiment = prepare(algorithm, **{**stored, **arguments})
    for key, value in start.header["arguments"].items():
        asked = (experiment.arguments or {}).get(key)
        if asked != value:
            raise Usage(f"the checkpoint at {place} was made with {key} {value}, and {asked} is asked for; expected the same, or nothing")
    return start, experiment


@contextmanager
def recording(experiment: Experiment, runtime: str, path: str | Path | None) -> Iterator[Journal | None]:
    """A record at `path` while the block runs, None without a path.

    Parameters
    ----------
    experiment : Experiment
    runtime : str
        One of `RUNTIMES`.
    path : path, optional
        Of the record.

    Yields
    ------
    Journal or None
    """
    from refsgd import __version__

    if path is None:
        yield None
        return
    if experiment.arguments is None:
        raise Usage("a record needs an algorithm of the catalogue and a problem built from --data and --net; "
                    "for your own use refsgd.runtimes.replay with your factory")
    header = {"refsgd": __version__, "algorithm": experiment.name, "arguments": experiment.arguments, "runtime": runtime}
    nodes = list(experiment.deploy())
    if runtime == "mpi":
        from refsgd.runtimes import mpi

        journal = mpi.in_order(lambda first: Journal(path, header, nodes, made=not first))
    else:
        journal = Journal(path, header, nodes)
    try:
        yield journal
    finally:
        journal.close()


def replay(record: str | Path) -> Result:
    """Reproduce a recorded run in the simulator.

    Parameters
    ----------
    record : path
        A file that ``run(..., record=path)`` or ``refsgd run --record`` wrote.  If the run crashed, what was
        recorded until then is reproduced, with a warning that says how much, and the result's parameters are
        those of the last update (the starting point, if a server had made none).

    Returns
    -------
    Result
        Its runtime is "replay".

    Raises
    ------
    ReplayError
        The file is no record or altered, the record and the programs do not fit, or the parameters differ from the
        recorded hash.
    """
    data = read(record)
    experiment = recorded_experiment(data.header)
    if data.end is None:
        finished, done = replaying.replay_beginning(experiment.deploy, data.steps)
        warnings.warn(f"{record}: the recorded run crashed; this replays {done} of {data.size} steps until then", stacklevel=2)
        finished = with_parameters(finished, experiment.problem)
    else:
        finished = replaying.replay(experiment.deploy, data.steps)
    finished.trace.latency, finished.trace.bandwidth = experiment.machine.latency, experiment.machine.bandwidth
    result = experiment.result("replay", finished)
    expected = data.end["parameters_sha256"] if data.end is not None else result.parameters_sha256
    if result.parameters_sha256 != expected:
        raise replaying.ReplayError(f"replayed parameters have SHA-256 {result.parameters_sha256[:16]}, the record says "
                                    f"{expected[:16]}; expected equal bits: same library version, data and CPU kind?")
    return result


def recorded_experiment(header: dict[str, Any]) -> Experiment:
    """The experiment that the first line of a record describes.

    Parameters
    ----------
    header : dict
        The first line of a record.

    Returns
    -------
    Experiment
    """
    arguments = dict(header["arguments"])
    arguments["machine"] = Machine.from_json(arguments["machine"])
    return prepare(header["algorithm"], **arguments)


def with_parameters(run: Run, problem: Problem) -> Run:
    """The beginning of a run with parameters to evaluate: those of all who hold some, else the starting point.

    Parameters
    ----------
    run : Run
        What a runtime gave back.
    problem : Problem

    Returns
    -------
    Run
    """
    servers = [node for node in run.trace.nodes if not is_worker(node)]
    holders = servers or run.trace.workers
    if all(node in run.values for node in holders):
        return run
    return Run(run.trace, {holders[0]: problem.x0})


def warn_if_slow(experiment: Experiment, say: Say | None = None) -> None:
    """Warn before a paced run whose real computing cannot keep up with its drawn durations, or is drawn too short.

    Parameters
    ----------
    experiment : Experiment
    say : callable, optional
        Told the warning; by default it is raised as a Python warning.
    """
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

    Parameters
    ----------
    algorithm : str or callable
        As `run`.
    problem : Problem, optional
        As `run`.
    **arguments
        As `run`.

    Returns
    -------
    dict of str to Prediction
        Where a formula exists: value, unit, kind (exact, approximation, bound), terms.
    """
    return prepare(algorithm, problem, **arguments).predictions()
