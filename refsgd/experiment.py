"""Puts algorithm, problem, machine and runtime together: an `Experiment`, and what formulas say of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD, parse_schedule
from refsgd.arguments import Usage, check_deployment, check_function, check_length, check_numbers, check_options, check_problem, check_whole, options_of
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
from refsgd.runtimes.faults import POLICIES, Fault, parse, survives_workers
from refsgd.runtimes.faulty import Faulty
from refsgd.runtimes.simulator import Simulator
from refsgd.trace import Event, Run, Trace, is_worker

__all__ = ["Experiment", "Result", "Usage", "predict", "prepare"]

LOCAL_RUNTIMES = ("simulator", "processes", "tcp")  # that need nobody to start them
RUNTIMES = (*LOCAL_RUNTIMES, "mpi")
#: Machine of the comparison and of a run for which nothing is said: a small cluster with some jitter.
DEFAULT_MACHINE = Machine(compute="lognormal(0.015,0.5)", latency=0.001, bandwidth=50e6)  # type: ignore[arg-type]
DEFAULT_LR, DEFAULT_MOMENTUM, DEFAULT_BATCH, DEFAULT_EPOCHS = 0.15, 0.0, 16, 5.5

Algorithm = str | Callable[..., Deployment]
Say = Callable[[str], None]
OnStart = Callable[[dict[str, int]], None]


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
    from refsgd.data import NAMES, load
    from refsgd.nn import nets

    if data.partition(":")[0] not in NAMES:
        raise Usage(f"data {data!r} is unknown; expected one of {', '.join(NAMES)}, quadratic, integers, or none with --net phantom:P")
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
    number = net.removeprefix("phantom:")
    if not number.isdecimal():
        raise Usage(f"net {net!r}; expected phantom: and a number of parameters, e.g. phantom:25557032")
    return int(number)


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
        check_function(self.name, self.function, {**servers, **self.options})
        try:
            return check_deployment(self.name, self.function(self.problem, self.workers, self.steps, self.sgd, **servers, **self.options))
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

    def absent(self, found: Mapping[str, Any]) -> dict[str, str]:
        """Why figures are missing in `found`, the `predictions`; empty for an algorithm or a machine that has none at all.

        Parameters
        ----------
        found : mapping of str to Prediction

        Returns
        -------
        dict of str to str
        """
        from refsgd import theory

        if self.name not in theory.ALGORITHMS or not self.machine.paced:
            return {}
        graph = options_of(self.function).get("graph")
        return theory.absent(self.name, self.machine, found, servers=self.servers,
                             graph=str(self.options.get("graph", graph.default)) if graph else "")

    def perform(self, runtime: str, journal: Callable[[Event], None] | None = None, faults: Iterable[str | Fault] = (),
                on_death: str = "stop", on_start: OnStart | None = None) -> Run:
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
        on_start : callable, optional
            Gets the process number of each node when local processes have been started.

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
            return go_on(self, plan, on_death, lambda life: self._live(runtime, life, on_death, journal, on_start))
        return self._live(runtime, first, on_death, journal, on_start)

    @property
    def largest_message(self) -> int:
        """Payload bytes that no message of this run exceeds: a vector of every node and a few more, and small change."""
        return (self.workers + self.servers + 8) * self.problem.x0.nbytes + (1 << 20)

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

    def _live(self, runtime: str, life: Life, on_death: str, journal: Callable[[Event], None] | None, on_start: OnStart | None) -> Run:
        """One life of the run, in one of `RUNTIMES`."""
        if runtime == "simulator":
            if life.faults:
                simulator: Simulator = Faulty(life.deploy, life.machine, life.seed, faults=life.faults, on_death=on_death)
            else:
                simulator = Simulator(life.deploy, life.machine, life.seed)
            simulator.journal = journal
            return simulator.run()
        if self.problem.describe.get("phantom"):
            raise Usage(f"net {self.problem.describe['net']} on {runtime}; expected the simulator: there is nothing to send")
        if runtime == "mpi":
            from refsgd.runtimes import mpi

            found = mpi.run(life.deploy, life.machine, life.seed, everywhere=True, journal=journal, largest=self.largest_message)
            assert found is not None
            return found
        from refsgd.runtimes import processes

        return processes.run(life.deploy, life.machine, life.seed, transport="shm" if runtime == "processes" else runtime,
                             journal=journal, faults=life.faults, on_death=on_death, on_start=on_start,
                             largest=self.largest_message)

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
    name, function = deployment_function(algorithm)
    workers = 1 if name == "sequential" else workers
    check_whole(1, workers=workers, servers=servers)
    check_whole(0, seed=seed)
    check_length(steps, epochs)
    check_numbers(lr=lr, momentum=momentum, weight_decay=weight_decay)
    check_options(name, function, options, inspect.signature(prepare).parameters)
    machine = DEFAULT_MACHINE if machine is None else machine
    if not isinstance(machine, Machine):
        raise Usage(f"machine {machine!r}; expected a refsgd.Machine: refsgd.machine.load_machine reads a preset or a file")
    own = problem is not None
    if problem is None:
        problem = build_problem(data, net or default_net(data), workers, batch, seed, shards)
    else:
        check_problem(problem)
    if steps is None:
        per_epoch = problem.describe.get("steps_per_epoch", 100)
        steps = round((DEFAULT_EPOCHS if epochs is None else epochs) * per_epoch)
    try:
        sgd = SGD(lr, momentum, weight_decay, parse_schedule(schedule))
    except ValueError as error:
        raise Usage(str(error)) from None
    arguments = None
    if algorithm in CATALOGUE and not own:
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
