"""Runs experiments: `run` in every runtime, with faults, records and checkpoints; `replay` of a record."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from refsgd._version import __version__
from refsgd.algorithms.facts import facts_of
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted
from refsgd.experiment.arguments import Usage, check_names, check_unpaced, check_warmup, check_whole, checked
from refsgd.experiment.computer.limits import announce, check_pace, check_processes
from refsgd.experiment.evaluation import EVALUATIONS, evaluate
from refsgd.experiment.execution.perform import OBSERVED, RUNTIMES, check_monitor, perform, planned, watched
from refsgd.experiment.execution.resume import NAME, Records, first_file, on_request, ready, stored
from refsgd.experiment.functions import Algorithm, catalogue_name, deployment_function, source_sha256
from refsgd.experiment.prepare import Experiment, Say, prepare
from refsgd.experiment.result import Result
from refsgd.problems import Problem
from refsgd.runtimes import replay as replaying
from refsgd.runtimes.errors import ReplayError
from refsgd.runtimes.faults import POLICIES, Fault, listed
from refsgd.runtimes.fork import runtime_here
from refsgd.runtimes.journal import Record, read
from refsgd.runtimes.processes.system import standard_descriptors
from refsgd.trace import Run, Sent

__all__ = ["replay", "run"]


@dataclass(frozen=True)
class RunOptions:
    """What is run, where, and which files are written, see `run`; `arguments` are those of `prepare`."""

    algorithm: Algorithm
    problem: Problem | None = None
    runtime: str = "simulator"
    record: str | Path | None = None
    faults: Iterable[str | Fault] = ()
    on_death: str = "stop"
    checkpoint: str | Path | None = None
    checkpoint_every: float = 1.0
    resume: str | Path | None = None
    monitor: bool | float = False
    evaluations: int = EVALUATIONS
    warmup_steps: int = 0
    unpaced: bool = False
    say: Say | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, known in (("runtime", RUNTIMES), ("on_death", POLICIES)):
            if getattr(self, name) not in known:
                raise Usage(f"{name} {getattr(self, name)!r}; expected one of {', '.join(known)}")
        check_whole(0, evaluations=self.evaluations)
        check_unpaced(self.unpaced, self.runtime)
        with checked():
            object.__setattr__(self, "faults", tuple(listed(self.faults)))
        object.__setattr__(self, "runtime", runtime_here(self.runtime))
        if not 0 <= self.checkpoint_every < float("inf"):
            raise Usage(f"checkpoint_every {self.checkpoint_every}; expected a number of epochs >= 0")
        if self.checkpoint is None and self.checkpoint_every != RunOptions.checkpoint_every:
            raise Usage(f"checkpoint_every {self.checkpoint_every} without checkpoint; expected a folder for "
                        "the record: checkpoint")
        check_monitor(self.monitor, self.runtime)
        if self.record is not None and self.on_death in ("shrink", "restart"):
            raise Usage(f"record with on_death {self.on_death}; expected stop or continue: a record covers "
                        "one attempt, and after a death this run begins another")

    @classmethod
    def of(cls, algorithm: Algorithm, problem: Problem | None, given: Mapping[str, Any]) -> RunOptions:
        """The options among keyword arguments; all others describe what is trained."""
        named = dict(given)
        names = {f.name for f in fields(cls)}
        check_names(*deployment_function(algorithm), names)
        own = names & named.keys()
        return cls(algorithm, problem, **{name: named.pop(name) for name in own}, arguments=named)


def run(algorithm: Algorithm, problem: Problem | None = None, **options: Any) -> Result:
    """Train with one algorithm and return the measurements.

    Parameters
    ----------
    algorithm : str or callable
        A name of the catalogue, ``"FILE.py:FUNCTION"`` (or ``"MODULE:FUNCTION"``), or a deployment function
        ``f(problem, workers, steps, sgd, *, options)``.
    problem : Problem, optional
        Your own problem; else one is built from `data`, `net`, `batch` and `shards`.
    runtime : {"simulator", "processes", "tcp", "mpi", "torch"}
        Virtual time, OS processes over shared memory, OS processes over TCP on this machine, or the ranks
        that mpiexec or torchrun has started, each of which calls this with the same arguments and gets the
        result.
    workers : int
        Number of workers (4, of a race 8).
    servers : int
        Number of parameter servers (1).
    steps : int
        Iterations of each worker.
    epochs : float
        Passes over the data (5.5 if no steps are given).  A step of `sandblaster` is at least one (20 steps).
    batch : int, sequence of int, or str
        Images per worker and iteration (16), or for each worker: ``20,1``; ``auto:21`` divides 21 by the
        workers' speeds, ``auto:21:4..16`` with shares of 4 to 16.  `sequential`, stages and
        portions take the sum.
    data : str
        Data set: digits (by default), mnist, fashion-mnist, cifar10; or generated: ``quadratic``,
        ``integers``, ``lasso[:samples,features,correlation]``, ``logistic[:...]``, ``bandit``;
        ``quadratic:LOW,HIGH,MODES,NOISE``, with a spectrum of eigenvalues.
    net : str
        One of `refsgd list`; by default the one that fits the data.  ``tiny:8,tanh,squared`` has 8 channels,
        tanh and the squared error.  Shape-only: ``shapes:P`` has P parameters, ``shapes:resnet50@224`` those
        of a net for images of 224 pixels, and nothing to compute.
        ``shapes:transformer:12,768,12,1024,50257`` is GPT-2: layers, width, heads, sequence, vocabulary;
        ``shapes:llama:...`` is a Llama; an image is then a sequence.  ``FILE.json`` has layers by hand.
    optimiser : {"sgd", "adam", "lars"}
        The update rule (sgd), see `refsgd.algorithms.adaptive`.
    lr : float
        Learning rate (0.15 for sgd, 0.003 for adam, 10 for lars).
    momentum, weight_decay : float
        Constant of the update rule (0), see `refsgd.algorithms.sgd.SGD`.
    schedule : str
        Of the rate: ``constant``; ``cosine``, to 0 at the end of the run; ``cosine(updates)``; or
        ``step(every,factor)``, by number of updates.
    warmup : int
        Number of updates over which the rate grows to its full value (0), starting at the rate of one worker
        under `scale_lr`, otherwise at 0.
    scale_lr : bool
        Multiply the rate by the number of gradients in an update's mean.
    validation : float
        Share of the training images to hold back (0), such as 0.1, on which the accuracy is shown, for
        choosing rates.
    start : path, optional
        A file with the parameters to begin with, as ``refsgd run --save`` writes it, such as those that
        the same net has learnt from other images; by default they are drawn.
    shards : str
        Division of images among workers: ``iid`` (by default), ``by-label``, or ``dirichlet:ALPHA``, with the
        more unequal classes the smaller alpha is.
    machine : Machine, optional
        The cluster; see `refsgd.cluster.machine.Machine`.
    seed : int
        Of the initial parameters, the data's order, durations and choices (0).
    layout : str
        How the parameters are cut into parts: ``equal`` (by default), ``layers``, or ``chunks:BYTES`` of
        layers.
    balance : {"robin", "size", "hash"}
        How parts are assigned to servers: in turn (by default), by size, by a hash of their number.
    overlap : {"none", "backward", "both"}
        backward: send a layer's gradient as soon as it is computed; both: also start the next forward pass
        layer by layer as parameters arrive.
    priority : bool
        Links serve the lowest layers first.
    bucket : int
        Bytes that an all-reduce with overlap sums at once (0: one layer).
    compress : str
        Codec: topk:0.01, randk:0.01, dgc:0.001, onebit, twobit:0.1, qsgd:16, fp16 or powersgd:2.
    feedback : bool
        Add what a message leaves out to the next one (by default).
    record : path, optional
        Write the answer of every receive, poll and choice as it happens; `replay` reproduces the run from it
        bit for bit, including deaths that it survived, or the beginning of a run that crashed.
    faults : iterable of str
        Planned faults, such as ``kill worker 2 at step 10``, ``pause worker 1 at step 5 for 0.5``, ``slow
        worker 0 at step 3 by 4``, ``delay worker 1 at step 2 by 0.2``, ``drop worker 1 at step 4`` or
        ``random 3 seed 7``; see `refsgd.runtimes.faults`.
    on_death : {"stop", "continue", "shrink", "restart"}
        What happens after a node dies: the run ends with an error that names it (by default); the others
        continue, if the algorithm does not wait for every worker; the survivors start again without it; all
        start again.  The last two start from the newest parameters.
    checkpoint : path, optional
        Folder for the run's record, which is written during the run, so that `resume` can continue from it
        after the run was stopped.
    checkpoint_every : float
        Epochs (of 100 steps if the problem has none) between flushes of the record to the disk, so that it
        survives a power failure; 0: only at SIGUSR1 and at the end.
    resume : path, optional
        Such a folder, or a record: replay it, and continue the run from its end.  The record says what is
        trained, where, for how long, and with which faults and `on_death`; arguments given in addition must
        agree with it.
    monitor : bool or float
        Also sample what each process uses, at this interval in seconds (True: 0.05): processor, memory,
        files, messages and their bytes in and out.  ``measured["resources"]``, see `refsgd.trace.resources`;
        "launcher" is this process, which writes checkpoints and records.  In virtual time each host's
        computing and messages.
    evaluations : int
        Largest number of intermediate parameters that are evaluated after the run (20): the rows of
        `Result.history` besides its end.  If a run is short and there are many test images, evaluation takes
        longer than training.
    warmup_steps : int
        Iterations of each worker that rates, shares and means leave out (0): the first ones load kernels and
        touch memory.
    unpaced : bool
        Real processes run as fast as they can: the machine, such as one that `refsgd calibrate` has written,
        only predicts them.
    say : callable, optional
        Called with a line that estimates the length of the run, if it exceeds half a minute.
    **options
        The algorithm's own, e.g. ``staleness=3``.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        Usage error: what was found and what was expected.
    ReplayError
        If the record named by `resume` is damaged, or the programs do not repeat it.

    Examples
    --------
    >>> result = run("bsp", data="quadratic", steps=50, lr=0.5)
    >>> result.measured["updates"], result.measured["staleness_max"]
    (50, 0)
    """
    return carry_out(RunOptions.of(algorithm, problem, options))


def carry_out(options: RunOptions) -> Result:
    """Run and evaluate what the options describe."""
    start: Sequence[Record] = ()
    if options.resume is None:
        experiment = prepare(options.algorithm, options.problem, **options.arguments)
    else:
        options, experiment, start = resumed(options, options.resume)
    check_warmup(options.warmup_steps, experiment.steps)
    unpaced = options.unpaced and options.runtime != "simulator"  # without fork, this is simulated
    real = replace(experiment, machine=Machine()) if unpaced else experiment
    if options.runtime != "simulator":
        check_processes(real, options.runtime)
        check_pace(real)
    if options.say and not start:
        announce([real], [options.runtime], options.say)
    with standard_descriptors(), closing(records_of(options, experiment, start)) as records, \
            on_request(records.flush if options.checkpoint is not None else None):
        finished, used = watched(real, options.runtime, options.monitor, lambda on_start: perform(
            real, options.runtime, records, options.faults, options.on_death, on_start,
            OBSERVED if options.evaluations else 0))
        result = evaluate(experiment, options.runtime, finished, options.evaluations, options.warmup_steps)
        records.finish(finished.trace, result.parameters_sha256)
    return replace(result, measured=result.measured | used)


def resumed(options: RunOptions, place: str | Path) -> tuple[RunOptions, Experiment, list[Record]]:
    """The options, experiment and records of the run at `place`; refuses options that disagree with it."""
    if options.problem is not None:
        raise Usage("resume with your own problem, which no record describes; expected a run of data and net")
    start = stored(place)
    (name, function), header = deployment_function(options.algorithm), start[0].header
    if header["algorithm"] != (catalogue_name(function) or options.algorithm):
        raise Usage(f"the record at {place} is of {header['algorithm']}; expected a record of {name}")
    if (options.runtime == "simulator") != (header["runtime"] == "simulator"):
        raise Usage(f"the record at {place} was made by the runtime {header['runtime']}; expected --runtime "
                    f"{header['runtime']}")
    try:
        experiment = recorded_experiment(header)
        if header["on_death"] not in POLICIES:
            raise ReplayError(f"line 1: on_death {header['on_death']!r}; expected one of "
                              + ", ".join(POLICIES))
    except ReplayError as error:
        raise ReplayError(f"{first_file(place)}, {error}") from None
    if options.arguments:
        told = stored_arguments(header)
        if "epochs" in options.arguments:
            told.pop("steps")
        experiment = prepare(options.algorithm, **{**told, **options.arguments})
    faults = [Fault(*fault) for fault in header["faults"]]
    if options.faults and planned(experiment, options.faults) != faults:
        raise Usage(f"the record at {place} was made with {'; '.join(map(str, faults)) or 'no faults'}; "
                    "expected the same faults, or nothing")
    recorded = header["arguments"] | {"on_death": header["on_death"]}
    asked = (experiment.arguments or {}) | {"on_death": options.on_death}
    if options.on_death == "stop":  # the default says nothing
        asked["on_death"] = header["on_death"]
    for key, value in (dict.fromkeys(asked) | recorded).items():
        if asked.get(key) != value:
            raise Usage(f"the record at {place} was made with {key} {value}, not {asked.get(key)}; expected "
                        "the same, or nothing")
    return replace(options, faults=faults, on_death=header["on_death"]), experiment, start


def records_of(options: RunOptions, experiment: Experiment, start: Sequence[Record]) -> Records:
    """The records that a run writes, and those that it continues."""
    folder, first = options.checkpoint, "" if options.resume is None else first_file(options.resume)
    if folder is None and options.record is None:
        return Records({}, options.runtime, start=start, place=first)
    if experiment.arguments is None or not experiment.algorithm:
        raise Usage("a record needs an algorithm of the catalogue or FILE.py:FUNCTION, and a problem built "
                    "from data and net; for others, replay a run in memory: "
                    "refsgd.runtimes.replay.replay(factory, record(run.trace))")
    header = {"refsgd": __version__, "algorithm": experiment.algorithm, "arguments": experiment.arguments,
              "runtime": options.runtime, "on_death": options.on_death}
    if source := source_sha256(experiment.algorithm):
        header["source"] = source
    steps = options.checkpoint_every * experiment.problem.describe.get("steps_per_epoch", 100)
    owner = -1 if folder is None else ready(folder, first == Path(folder) / NAME, options.runtime)
    return Records(header, options.runtime, options.record, None if folder is None else Path(folder),
                   max(1, round(steps)) if options.checkpoint_every else 0, start, first, owner)


def replay(record: str | Path) -> Result:
    """Reproduce a recorded run in the simulator; for ``"FILE.py:FUNCTION"`` it runs that file, if its hash is
    the recorded one.

    Parameters
    ----------
    record : path
        A file written by ``run(..., record=path)`` or ``refsgd run --record``.  If it ends early, because it
        was cut off or the run crashed, its steps are reproduced with a warning that counts them, and the
        result's parameters are those of the last update (the starting point if a server made none).

    Returns
    -------
    Result
        Its runtime is "replay".

    Raises
    ------
    ReplayError
        If the file is not a record, was altered or has no step, if the record and the programs do not match,
        or if the parameters differ from the recorded hash.
    """
    data = read(record)
    try:
        return _reproduced(record, data)
    except ReplayError as error:
        raise ReplayError(f"{record}: {error}") from error.__cause__


def _reproduced(record: str | Path, data: Record) -> Result:
    experiment = recorded_experiment(data.header)
    if data.end is None:
        finished, done = replaying.replay_beginning(experiment.deploy, data.steps)
        cut = "the record ends early (no end line): it was cut off, or the run crashed"
        if not done:
            raise ReplayError(f"{cut}; none of its {counted(data.size, 'step')} can be replayed, expected at "
                              "least one")
        warnings.warn(f"{record}: {cut}; this replays {done} of {data.size} steps", stacklevel=3)
        servers = [node for node in finished.trace.nodes if not finished.trace.is_worker(node)]
        holders = servers or finished.trace.workers
        if not finished.values.keys() >= set(holders):  # there is nothing to evaluate but the start
            finished = Run(finished.trace, {holders[0]: experiment.problem.x0})
    else:
        finished = replaying.replay(experiment.deploy, data.steps)
    trace, machine = finished.trace, experiment.machine
    trace.latency, trace.bandwidth = machine.latency, machine.bandwidth
    trace.wires = experiment.network.wires({(e.node, e.to) for e in trace.of(Sent)})
    result = evaluate(experiment, "replay", finished)
    expected = data.end["parameters_sha256"] if data.end is not None else result.parameters_sha256
    if result.parameters_sha256 != expected:
        raise ReplayError(f"replayed parameters have SHA-256 {result.parameters_sha256[:16]}, recorded "
                          f"{expected[:16]}; expected the same library version, data and processor type")
    return result


def recorded_experiment(header: dict[str, Any]) -> Experiment:
    """The experiment that the first line of a record describes; a changed file is refused before it runs."""
    try:
        found, expected = source_sha256(header["algorithm"]), str(header.get("source", ""))
        if found != expected:
            raise ValueError(f"the text of {header['algorithm']} has SHA-256 {found[:16]}, recorded "
                             f"{expected[:16]}; expected the file as it was recorded, or another record")
        return prepare(header["algorithm"], **stored_arguments(header))
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise ReplayError(f"line 1: {error}") from None


def stored_arguments(header: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `prepare` in the first line of a record or checkpoint."""
    arguments, nodes = header["arguments"], len(header["nodes"])
    _, function = deployment_function(header["algorithm"])
    for name in ("workers", "servers") if facts_of(function).served else ("workers",):
        if arguments[name] > nodes:
            raise ValueError(f"arguments.{name} is {arguments[name]}; expected no more than the {nodes} "
                             "nodes")
    return {**arguments, "machine": Machine.from_json(arguments["machine"])}
