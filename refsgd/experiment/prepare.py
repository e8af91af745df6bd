"""Puts algorithm, problem and machine together: an `Experiment`, and what formulas say of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD, parse_schedule
from refsgd.cluster.machine import Machine
from refsgd.effects import Deployment
from refsgd.experiment.arguments import (
    Usage,
    catalogued,
    check_deployment,
    check_function,
    check_length,
    check_numbers,
    check_options,
    check_problem,
    check_speeds,
    check_whole,
    options_of,
    suggestion,
)
from refsgd.problems import Problem, classification, integer_gradients, quadratic
from refsgd.problems.shapes import current_name, shape_only

__all__ = ["Experiment", "Usage", "predict", "prepare"]

#: Machine of the comparison and of a run for which nothing is said: a small cluster with some jitter.
DEFAULT_MACHINE = Machine(compute="lognormal(0.015,0.5)", latency=0.001, bandwidth=50e6)  # type: ignore[arg-type]
DEFAULT_DATA = "digits"
DEFAULT_LR, DEFAULT_MOMENTUM, DEFAULT_BATCH, DEFAULT_EPOCHS = 0.15, 0.0, 16, 5.5

Algorithm = str | Callable[..., Deployment]
Say = Callable[[str], None]


def deployment_function(algorithm: Algorithm) -> tuple[str, Callable[..., Deployment]]:
    """Name and function of an algorithm of the catalogue, or of a reader's own function."""
    if callable(algorithm):
        return getattr(algorithm, "__name__", "algorithm"), algorithm
    name = catalogued(algorithm)
    return name, CATALOGUE[name]


def has_servers(function: Callable[..., Deployment]) -> bool:
    """Whether a deployment function has parameter servers."""
    return "servers" in inspect.signature(function).parameters


def build_problem(data: str, net: str, workers: int, batch: int, seed: int, shards: str) -> Problem:
    """The problem that ``--data`` and ``--net`` name; see `refsgd.problems`."""
    if shards not in ("iid", "by-label"):
        raise Usage(f"shards {shards!r}; expected iid or by-label")
    check_whole(1, batch=batch)
    net = current_name(net)
    if net.startswith("shapes:"):
        if data not in ("none", DEFAULT_DATA):  # which is also what not naming any gives
            raise Usage(f"data {data!r} with net {net}, which learns nothing; expected none")
        return shape_only(_parameters(net), batch)
    if data == "quadratic":
        return quadratic(workers=workers, noise=0.1, seed=seed)
    if data == "integers":
        return integer_gradients(workers=workers, seed=seed)
    from refsgd.problems.data import NAMES, load
    from refsgd.problems.nn import nets

    if data.partition(":")[0] not in NAMES:
        raise Usage(f"data {data!r} is unknown; expected one of {', '.join(NAMES)}, quadratic, integers, or "
                    f"none with --net shapes:P{suggestion(data, NAMES)}")
    check_net(net, ", or shapes:P for a net of P parameters in shape only")
    dataset = load(data)
    try:
        built = nets.build(net, dataset.train_images.shape[1:])
    except ValueError as error:
        raise Usage(f"{error}; data {data} has images of shape {dataset.train_images.shape[1:]}") from None
    return classification(dataset, built, workers, batch, seed, shards == "by-label")


def check_net(name: str, others: str = "") -> None:
    """Refuse a net that there is not."""
    from refsgd.problems.nn.nets import NAMES

    base = name.partition(":")[0]
    if base not in NAMES:
        raise Usage(f"net {name!r} is unknown; expected one of {', '.join(NAMES)}{others}"
                    + suggestion(base, NAMES))


def _parameters(net: str) -> int:
    """The number in ``shapes:P``."""
    number = net.removeprefix("shapes:")
    if not number.isdecimal() or int(number) < 1:
        raise Usage(
            f"net {net!r}; expected shapes: and a number of parameters, at least 1, e.g. shapes:25557032")
    return int(number)


def own_problem(problem: Problem, name: str, workers: int) -> Problem:
    """A reader's own problem, checked, with what its description leaves out."""
    check_problem(problem)
    made = problem.describe.get("workers", workers)
    if made != workers:
        raise Usage(
            f"problem for {made} worker{'' if made == 1 else 's'}, run with "
            f"{workers}{' (sequential has one)' if name == 'sequential' else ''}; "
                    f"expected the same: classification(..., workers={workers})")
    images = problem.describe.get("batch")
    if images is not None:
        check_whole(0, **{'describe["batch"]': images})
    else:
        try:
            images = problem.images(0, 0)  # of every gradient, unless the problem says its batch
        except Exception as error:
            raise Usage(
                f"images(0, 0): {type(error).__name__}: {error}; expected images(rank, t), the number of "
                "images of a gradient") from None
        check_whole(0, **{"images(0, 0)": images})
    size = int(problem.x0.size)
    known = {"data": "own data", "net": "own gradient", "parameters": size, "bytes": 4 * size,
             **problem.describe, "batch": int(images)}
    return replace(problem, describe=known)


def _check_texts(**values: Any) -> None:
    """Refuse what is no text where a name is expected."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise Usage(f"{name} {value!r} of type {type(value).__name__}; expected text")


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
    # what `prepare` was told, as JSON values; None for a problem of the reader's own
    arguments: dict[str, Any] | None = None

    def deploy(self) -> Deployment:
        """A fresh deployment: generator objects that have not run yet."""
        given = {"servers": self.servers, "rotated": self.machine.colocated and self.servers == self.workers}
        taken = inspect.signature(self.function).parameters
        servers = {name: value for name, value in given.items() if name in taken}
        check_function(self.name, self.function, {**servers, **self.options})
        try:
            return check_deployment(self.name,
                                    self.function(self.problem, self.workers, self.steps, self.sgd, **servers,
                                                  **self.options))
        except ValueError as error:
            raise Usage(str(error)) from None

    def predictions(self) -> dict[str, Any]:
        """Closed forms for this experiment; empty for an algorithm that has none."""
        from refsgd import theory

        if self.name not in theory.ALGORITHMS or not self.machine.paced:
            return {}
        defaults = {name: p.default for name, p in options_of(self.function).items()}
        return dict(theory.predict(
            self.name, self.machine, workers=self.workers, servers=self.servers,
            nbytes=4 * self.problem.x0.size,
            batch=self.batch, steps=self.steps, options={**defaults, **self.options}))

    def absent(self, found: Mapping[str, Any]) -> dict[str, str]:
        """Why figures are missing in `found`, the `predictions`; empty for an algorithm or a machine that
        has none at all."""
        from refsgd import theory

        if self.name not in theory.ALGORITHMS or not self.machine.paced:
            return {}
        graph = options_of(self.function).get("graph")
        return theory.absent(self.name, self.machine, found, servers=self.servers, workers=self.workers,
                             graph=str(self.options.get("graph", graph.default)) if graph else "")

    @property
    def largest_message(self) -> int:
        """Payload bytes that no message of this run exceeds: a vector of every node and a few more, and
        small change."""
        return (self.workers + self.servers + 8) * self.problem.x0.nbytes + (1 << 20)


@dataclass(frozen=True)
class Training:
    """What is trained, on how many workers of which machine; `refsgd.run` explains each."""

    workers: int = 4
    servers: int = 1
    steps: int | None = None
    epochs: float | None = None
    batch: int = DEFAULT_BATCH
    data: str = DEFAULT_DATA
    net: str | None = None
    lr: float = DEFAULT_LR
    momentum: float = DEFAULT_MOMENTUM
    weight_decay: float = 0.0
    schedule: str = "constant"
    shards: str = "iid"
    machine: Machine | None = None
    seed: int = 0

    def check(self) -> None:
        """Refuse numbers that are none, or out of range."""
        check_whole(1, workers=self.workers, servers=self.servers)
        check_whole(0, seed=self.seed)
        check_length(self.steps, self.epochs)
        check_numbers(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def on_machine(self, name: str) -> tuple[int, Machine]:
        """How many workers an algorithm has here, and the machine with a speed for each."""
        machine = DEFAULT_MACHINE if self.machine is None else self.machine
        if not isinstance(machine, Machine):
            raise Usage(
                f"machine {machine!r}; expected a refsgd.Machine: refsgd.cluster.presets.load_machine reads "
                "a preset or a file")
        if name != "sequential" or len(machine.speeds) != 1:
            check_speeds(machine, self.workers)
        return (1, machine.for_workers(1)) if name == "sequential" else (self.workers, machine)

    def problem(self, own: Problem | None, name: str, workers: int) -> Problem:
        """The problem that `data` and `net` name, or the one that was given."""
        _check_texts(schedule=self.schedule)
        if own is not None:
            return own_problem(own, name, workers)
        _check_texts(data=self.data, shards=self.shards, **({} if self.net is None else {"net": self.net}))
        return build_problem(self.data, self.net or default_net(self.data), workers, self.batch, self.seed,
                             self.shards)

    def length(self, problem: Problem) -> int:
        """Iterations of each worker."""
        if self.steps is not None:
            return self.steps
        epochs = DEFAULT_EPOCHS if self.epochs is None else self.epochs
        return max(round(epochs * float(problem.describe.get("steps_per_epoch", 100))), 1)

    def rule(self) -> SGD:
        """The update rule."""
        try:
            return SGD(self.lr, self.momentum, self.weight_decay, parse_schedule(self.schedule))
        except ValueError as error:
            raise Usage(str(error)) from None


def prepare(algorithm: Algorithm, problem: Problem | None = None, **arguments: Any) -> Experiment:
    """Check every argument and put an experiment together: what `Training` names, and the algorithm's own
    options."""
    name, function = deployment_function(algorithm)
    known = [f.name for f in fields(Training)]
    training = Training(**{key: value for key, value in arguments.items() if key in known})
    options = {key: value for key, value in arguments.items() if key not in known}
    training.check()
    check_options(name, function, options, ["problem", *known])
    workers, machine = training.on_machine(name)
    own = problem is not None
    problem = training.problem(problem, name, workers)
    steps = training.length(problem)
    recorded = None
    if not callable(algorithm) and not own:
        said = {key: getattr(training, key) for key in known if key != "epochs"}
        recorded = said | {"workers": workers, "steps": steps, "machine": machine.to_json()} | options
    # not `batch`: no share is larger than the data, and a reader's own problem says so itself
    experiment = Experiment(name, function, options, problem, machine, workers, training.servers, steps,
                            problem.describe["batch"], training.seed, training.rule(), recorded)
    experiment.deploy()  # refuses wrong options now, before anything runs
    return experiment


def default_net(data: str) -> str:
    """The net that fits a data set where none is named."""
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
