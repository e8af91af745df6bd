"""Combines algorithm, problem and machine: an `Experiment` and its predicted metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from numbers import Real
from typing import TYPE_CHECKING, Any

from refsgd.algorithms.exchange import PLAIN, of
from refsgd.algorithms.facts import EXCHANGE, Facts, declared, facts_of
from refsgd.algorithms.sgd import SGD
from refsgd.cluster import placement
from refsgd.cluster.devices import written
from refsgd.cluster.links import Network, placed_only
from refsgd.cluster.machine import Machine
from refsgd.cluster.prices import mean_gradient, on_devices, priced
from refsgd.effects import Deployment, ranks, roles
from refsgd.experiment import memory
from refsgd.experiment.arguments import (
    MOST,
    Usage,
    check_deployment,
    check_function,
    check_kind,
    check_length,
    check_options,
    check_speeds,
    check_whole,
    checked,
)
from refsgd.experiment.functions import Algorithm, catalogue_name, deployment_function, line_of, with_defaults
from refsgd.experiment.options import exchanges, pipelines, problems, rules, unused
from refsgd.experiment.options.batches import Batch, batches_of, text_of
from refsgd.problems import Problem
from refsgd.runtimes.programs import no_exit
from refsgd.trace.metrics import PREDICTED

if TYPE_CHECKING:  # scipy, which the formulas need, takes half a second
    from refsgd.theory import Figures

__all__ = ["Experiment", "Usage", "predict", "prepare"]

#: The default machine: a small cluster with some jitter.
DEFAULT_MACHINE = Machine(compute="lognormal(0.015,0.5)", latency=0.001,  # type: ignore[arg-type]
                          bandwidth=50e6)
DEFAULT_EPOCHS = 5.5
#: arguments that a record, like those of an exchange, names only if they are not the defaults
NEWER = ("optimiser", "warmup", "scale_lr", "validation", "start")
DEFAULT_STEPS = 20  #: where each step takes all data, which L-BFGS does

Say = Callable[[str], None]


@dataclass(frozen=True)
class Experiment:
    """One algorithm with everything it needs, not yet run; `prepare` makes it."""

    name: str  #: of the algorithm
    function: Callable[..., Deployment]
    options: dict[str, Any]  #: the algorithm's own
    problem: Problem
    machine: Machine
    workers: int
    servers: int
    steps: int
    seed: int
    sgd: SGD  #: the update rule
    #: as a record names it: a name of the catalogue, or FILE.py:FUNCTION; empty for a function without either
    algorithm: str = ""
    arguments: dict[str, Any] | None = None  #: those of `prepare` as JSON values; None for a user's problem
    training: Training | None = None  #: from which the update rule and the exchange are derived

    @cached_property
    def facts(self) -> Facts:
        """The facts that the algorithm declares, with these options."""
        return facts_of(self.function, self.options)

    @property
    def own(self) -> dict[str, Any]:
        """The algorithm's own options, with defaults for those not given."""
        return with_defaults(self.function, self.options)

    @property
    def replicas(self) -> int:
        """How many shares of the data there are."""
        return pipelines.replicas(self.facts, self.workers, self.options)

    @property
    def batches(self) -> list[int]:
        """Images in each worker's gradient; a pipeline's first stage, in each replica, has them all."""
        said = self.problem.describe
        if self.facts.portions:
            return [said["batch"]] * self.workers
        found = said.get("batches") or [said["batch"]] * self.replicas
        return found + [0] * (self.workers - self.replicas)

    @property
    def gradients(self) -> float:
        """Gradients of each worker: one a step, or its portions of the data."""
        if not self.facts.portions:
            return self.steps
        count = self.options.get("portions") or self.problem.describe.get("steps_per_epoch", 2 * self.workers)
        return float((self.steps + 1) * count / self.workers)

    @cached_property
    def images(self) -> int:
        """Images in all gradients of a run; the shares of an epoch's steps are those of the first epoch's."""
        epoch = int(self.problem.describe.get("steps_per_epoch", 100))
        whole, rest = divmod(self.steps, epoch)
        counts = [[self.problem.images(rank, t) for t in range(epoch if whole else rest)]
                  for rank in range(self.replicas)]
        return sum(whole * sum(each) + sum(each[:rest]) for each in counts)

    @cached_property
    def work(self) -> list[list[float]]:
        """Floating-point operations of the gradients of each worker in the first epoch, step by step."""
        steps = int(self.problem.describe.get("steps_per_epoch", 100))
        if not self.facts.portions:
            steps = min(self.steps, steps) or 1
        known, shares = self.problem.work, self.replicas
        return [[known(i % shares, t) for t in range(steps)]
                for i in range(self.workers)] if known else []

    @cached_property
    def priced(self) -> Machine:
        """The machine with distributions in place of devices: the times of gradients of mean work."""
        if not on_devices(self.machine):
            return self.machine
        return priced(self.machine, [sum(each) / len(each) for each in self.work], self.problem.x0.nbytes)

    @property
    def seconds(self) -> float:
        """Mean seconds of a gradient at speed 1, over all workers; 0 on an unpaced machine."""
        return mean_gradient(self.priced)

    @property
    def told(self) -> dict[str, Any]:
        """The algorithm's own options and those of its exchange, which name it in tables."""
        return self.options | exchanges.asked(of(self.problem))

    @cached_property
    def _first(self) -> list[Deployment]:
        """The deployment that describes the nodes, until a run takes it."""
        return [self._made()]

    @cached_property
    def nodes(self) -> Deployment:
        """Its nodes, for reading: roles, ranks and properties; their programs do nothing."""
        return {name: replace(node, main=placed_only(), cells=(),
                              handlers=[placed_only() for _ in node.handlers])
                for name, node in self._first[0].items()}

    @cached_property
    def network(self) -> Network:
        """The hosts of its nodes, and the links between them."""
        return Network(self.machine, self.nodes)

    def deploy(self) -> Deployment:
        """A fresh deployment: generators that have not started."""
        return self._first.pop() if self.nodes and self._first else self._made()  # `nodes` read the first

    def _made(self) -> Deployment:
        taken = self.facts.given
        given = {"servers": self.servers, "rotated": self.machine.colocated and self.servers == self.workers}
        options = {name: value for name, value in given.items() if name in taken} | self.options
        check_function(self.name, self.function, options)
        make = partial(self.function, self.problem, self.workers, self.steps, self.sgd, **options)
        try:
            found = check_deployment(self.name, make())
            where = self._where(found, taken)
            return check_deployment(self.name, make(**where)) if where else found
        except (ValueError, SystemExit) as error:
            raise Usage(f"{no_exit(error)}{line_of(error, self.algorithm)}") from None

    def _where(self, deployment: Deployment, taken: Sequence[str]) -> dict[str, list[int]]:
        """Numbers of each worker's host and group, if the machine has them and the algorithm takes them."""
        m = self.machine
        if not (("hosts" in taken and m.hosts) or ("groups" in taken and m.groups)):
            return {}
        network, rank, role = Network(m, deployment), ranks(deployment), roles(deployment)
        workers = sorted((node for node in deployment if role[node] == "worker"), key=rank.__getitem__)
        group = placement.grouped(m.groups, network.hosts, network.host)
        found = {"hosts": [network.hosts.index(network.host[w]) for w in workers],
                 "groups": [group[network.host[w]] for w in workers if group]}
        return {name: numbers for name, numbers in found.items() if numbers and name in taken}

    def continued(self, workers: int, done: int, updates: int) -> Experiment:
        """The rest after `done` steps and `updates` of the parameters, with the rule of this many workers."""
        assert self.training is not None
        problem, how, steps = self.problem, of(self.problem), self.steps - done
        rule = rules.rule_of(self.training, self.name, self.facts, self.own, workers, steps, problem, updates)
        if how.compress:
            said = {option: getattr(how, option) for option in EXCHANGE}
            problem = replace(problem, exchange=exchanges.exchange_of(said, rule, workers, problem, self.seed,
                                                                      done))
        schedule = rule.schedule
        return replace(self, problem=problem, workers=workers, steps=steps,
                       sgd=replace(rule, schedule=lambda t: schedule(updates + t)))

    def formulas(self) -> Figures:
        """What formulas say of this experiment, and the reasons for missing metrics."""
        from refsgd import theory

        facts = self.facts
        if not facts.formula:
            why = facts.no_formula or f"there is no formula for {self.name}"
            return theory.Figures().without(f"{why}; simulate it: --kind simulated", *PREDICTED)
        if not self.machine.paced:
            return theory.Figures().without("the machine has no compute time; give one: --compute 20ms",
                                            *PREDICTED)
        options = self.own
        plan = exchanges.plan(facts, options, self.problem, self.servers, self.machine.codec)
        found = theory.predict(
            facts.formula, self.priced, workers=self.workers, servers=self.servers,
            nbytes=4 * self.problem.x0.size, batch=self.batches, images=self.images, steps=self.steps,
            options=options, plan=plan, owner=self.name,
            pipeline=pipelines.plan(facts, options, self.problem, self.workers, self.steps))
        if on_devices(self.machine) and any(len(set(each)) > 1 for each in self.work):
            found.simplify("gradients are priced by mean work; shares of an epoch's last step are smaller")
        return found

    def predictions(self, kind: str = "formulas") -> Figures:
        """Formulas, means of simulated runs for all or where there are none, and why metrics are missing."""
        from refsgd.experiment.simulated import means

        if kind == "simulated":
            found = means(self, PREDICTED)
        elif (found := self.formulas()).open:
            found.update(means(self, found.open))
            found.missing = {name: why for name, why in found.missing.items() if name not in found}
        return memory.with_sizes(self, found)

    def predicted(self) -> dict[str, Any]:
        """The predictions as JSON values."""
        return {name: p.to_json() for name, p in self.predictions().items()}

    @property
    def largest_message(self) -> int:
        """An upper bound on the payload bytes of a message: vectors of every node, a margin, activations."""
        blocks = self.problem.chain.blocks if self.problem.chain else ()
        return ((self.workers + self.servers + 8) * self.problem.x0.nbytes + (1 << 20)
                + max((int(block.nbytes) for block in blocks), default=0) * max(self.batches))


@dataclass(frozen=True)
class Training:
    """What is trained, with how many workers, on which machine; see `refsgd.run`."""

    workers: int = 4
    servers: int = 1
    steps: int | None = None
    epochs: float | None = None
    batch: Batch = 16
    data: str = problems.DEFAULT_DATA
    net: str | None = None
    lr: float = rules.OPTIMISERS["sgd"][1]
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    optimiser: str = "sgd"
    warmup: int = 0
    scale_lr: bool = False
    validation: float = 0.0
    start: str | None = None
    shards: str = "iid"
    machine: Machine | None = None
    seed: int = 0
    layout: str = PLAIN.layout
    balance: str = PLAIN.balance
    overlap: str = PLAIN.overlap
    priority: bool = PLAIN.priority
    bucket: int = PLAIN.bucket
    compress: str = PLAIN.compress
    feedback: bool = PLAIN.feedback

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Training:
        """Checked arguments, with the rate of the optimiser if none is given."""
        found = cls(**given)
        check_whole(1, workers=found.workers, servers=found.servers)
        check_whole(0, seed=found.seed, bucket=found.bucket, warmup=found.warmup)
        check_length(found.steps, found.epochs)
        check_kind(Real, "a number", lr=found.lr, momentum=found.momentum, weight_decay=found.weight_decay,
                   validation=found.validation)
        if not 0 <= found.validation < 1:
            raise Usage(f"validation {found.validation}; expected a share in [0, 1)")
        check_kind(str, "text", schedule=found.schedule, data=found.data, shards=found.shards,
                   net=found.net or "", layout=found.layout, compress=found.compress,
                   optimiser=found.optimiser)
        check_kind(bool, "True or False", priority=found.priority, feedback=found.feedback,
                   scale_lr=found.scale_lr)
        if "lr" not in given and found.optimiser in rules.OPTIMISERS:
            found = replace(found, lr=rules.OPTIMISERS[found.optimiser][1])
        return found

    def usual_workers(self, facts: Facts, options: Mapping[str, Any]) -> int:
        """Their number where none is given: replicas of as many stages, or as many as have a host."""
        stages = options.get("stages")
        if facts.staged and isinstance(stages, int) and stages > 0:
            return stages * max(1, Training.workers // stages)
        hosts = self.machine.hosts if isinstance(self.machine, Machine) else ""
        room = placement.usual(hosts, ()) if hosts and not str(hosts).startswith("cyclic") else None
        if room is None:
            return Training.workers
        return room[0] if not isinstance(hosts, str) else min(room[0], Training.workers)

    def on_machine(self, single: bool) -> tuple[int, Machine]:
        """The number of workers of an algorithm, which may have a `single` one, and the machine for it."""
        machine = DEFAULT_MACHINE if self.machine is None else self.machine
        if not isinstance(machine, Machine):
            raise Usage(f"machine {machine!r}; expected a refsgd.Machine: "
                        "refsgd.cluster.presets.load_machine reads a preset or a file")
        if not single or len(machine.speeds) != 1:
            check_speeds(machine, self.workers, self.servers)
        return (1, machine.for_workers(1)) if single else (self.workers, machine)

    def problem(self, own: Problem | None, share: str, workers: int, batch: int | Sequence[int]) -> Problem:
        """The problem named by `data` and `net`, or the given one, for this many shares of the data."""
        problems.check_used(own is not None, self.data, self.net, self.batch, self.shards, Training.batch,
                            self.start)
        if own is None:
            return problems.build_problem(self.data, self.net or problems.default_net(self.data), workers,
                                          batch, self.seed, self.shards, self.validation, self.start)
        if not isinstance(batch, int):
            raise Usage(f"batch {text_of(batch)} with your own problem; expected its images(rank, t) to say "
                        "how many images a gradient has")
        return problems.own_problem(own, share, workers)

    def length(self, problem: Problem, whole: bool) -> int:
        """Iterations of each worker, or steps that each take the `whole` data."""
        if self.steps is not None:
            return self.steps
        if whole:
            return DEFAULT_STEPS if self.epochs is None else max(round(min(self.epochs, MOST["steps"])), 1)
        epochs = DEFAULT_EPOCHS if self.epochs is None else self.epochs
        each = float(problem.describe.get("steps_per_epoch", 100))
        if epochs * each > MOST["steps"]:
            raise Usage(f"epochs {epochs:g} of {each:g} steps; expected at most {MOST['steps']} steps")
        return max(round(epochs * each), 1)


def prepare(algorithm: Algorithm, problem: Problem | None = None, *, stated: Sequence[str] = (),
            **arguments: Any) -> Experiment:
    """Check all arguments and build an experiment; each `stated` field of the machine must change it."""
    name, function = deployment_function(algorithm)
    known = catalogue_name(function)
    text = known or (algorithm if isinstance(algorithm, str) else "")
    shared = [f.name for f in fields(Training)]
    training = Training.of({key: value for key, value in arguments.items() if key in shared})
    options = {key: value for key, value in arguments.items() if key not in shared}
    check_options(name, function, options, ["problem", *shared])
    facts = facts_of(function, options)
    if "workers" not in arguments:
        training = replace(training, workers=training.usual_workers(facts, options))
    workers, machine = training.on_machine(facts.single)
    replicas = pipelines.replicas(facts, workers, options)
    batch = batches_of(training.batch, replicas, machine, facts.share != "worker" and replicas == 1)
    unused.check_own(name, facts, with_defaults(function, options), with_defaults(function, {}), workers)
    own = problem
    problem = training.problem(problem, facts.share, replicas, batch)
    options = pipelines.placed(facts, options, problem, machine, workers)
    steps = training.length(problem, facts.portions)
    rule = rules.rule_of(training, name, facts, with_defaults(function, options), replicas, steps, problem)
    exchange = exchanges.exchange_of({option: getattr(training, option) for option in EXCHANGE},
                                     rule, workers, problem, training.seed)
    exchanges.check(name, facts if declared(function) else None, exchange, problem, training.servers)
    if said := exchanges.asked(exchange):
        problem = replace(problem, exchange=exchange, describe={**problem.describe, "exchange": said})
    recorded = None
    if own is None:
        usual = [key for key in (*NEWER, *EXCHANGE) if getattr(training, key) == getattr(Training, key)]
        kept = [key for key in shared if key not in ("epochs", *usual)]
        recorded = {key: getattr(training, key) for key in kept} | options | {
            "workers": workers, "batch": batch, "steps": steps, "machine": machine.to_json()}
    experiment = pipelines.within_memory(Experiment(
        name, function, options, problem, machine, workers, training.servers, steps, training.seed, rule,
        text, recorded, training))
    if said and not declared(function):
        exchanges.try_out(experiment)
    nodes = experiment.nodes  # refuses wrong options now, before anything runs
    if training.servers != 1 and not facts.served:
        has = "it has " + ("one server" if "server" in roles(nodes).values() else "no servers")
        why = f": {has}; expected 1" if known else (
            ", whose function does not take their number; expected 1, or a parameter servers before the star")
        raise Usage(f"servers {training.servers} with {name}{why}")
    with checked():
        _ = experiment.network
    if on_devices(machine) and problem.work is None:
        raise Usage(f"compute {written(machine.compute)} with net {problem.describe['net']}, whose work is "
                    "unknown; by it a device prices a gradient: expected a net such as tiny, or a time")
    unused.check([unused.reasons(experiment, stated)])
    return experiment


def predict(algorithm: Algorithm, problem: Problem | None = None, *, kind: str = "formulas",
            **arguments: Any) -> Figures:
    """Predict a run from formulas, and from simulated runs where there are none.

    Parameters
    ----------
    algorithm : str or callable
        As in `run`.
    problem : Problem, optional
        As in `run`.
    kind : {"formulas", "simulated"}
        formulas: simulated where there are none.  simulated: all are means of simulated runs, with standard
        errors of 0.5 %, or of about a second of runs; shape-only unless the algorithm reads its parameters.
    **arguments
        As in `run`.

    Returns
    -------
    Figures
        A dictionary of predictions: value, unit, kind (exact, numerical, approximation, bound, simulated),
        terms.  Its ``missing`` says why a figure has no formula.
    """
    if kind not in ("formulas", "simulated"):
        raise Usage(f"kind {kind!r}; expected formulas or simulated")
    return prepare(algorithm, problem, **arguments).predictions(kind)
