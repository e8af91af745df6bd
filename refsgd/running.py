"""Runs experiments: `run` in every runtime, with faults, records and checkpoints, and `replay` of a record."""

from __future__ import annotations

import math
import os
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from refsgd import checkpoint as checkpoints
from refsgd import resumable
from refsgd.arguments import check_whole
from refsgd.evaluation import LOOKS, evaluate
from refsgd.experiment import Algorithm, Experiment, Say, Usage, deployment_function, has_servers, prepare
from refsgd.machine import Machine
from refsgd.performing import RUNTIMES, perform
from refsgd.problems import Problem
from refsgd.result import Result
from refsgd.runtimes import replay as replaying
from refsgd.runtimes.faults import Fault, listed
from refsgd.runtimes.fork import runtime_here
from refsgd.runtimes.journal import Journal, Record, read
from refsgd.runtimes.monitor import Monitor
from refsgd.trace import Run, is_worker
from refsgd.units import counted
from refsgd.version import __version__

__all__ = ["replay", "run"]

PROCESSES_PER_CORE, PROCESS_BYTES = 128, {"processes": 8 << 20, "tcp": 16 << 20}  #: each takes about 0.1 s of a core to start
STEP, LONG = 2e-4, 30.0  #: seconds of the effects of one iteration in virtual time; seconds of a run that is announced


def run(algorithm: Algorithm, problem: Problem | None = None, *, runtime: str = "simulator", record: str | Path | None = None,
        faults: Iterable[str | Fault] | str | Fault = (), on_death: str = "stop", checkpoint: str | Path | None = None,
        checkpoint_every: float = 1.0, resume: str | Path | None = None, monitor: bool = False, looks: int = LOOKS,
        say: Say | None = None, **arguments: Any) -> Result:
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
        Iterations of each worker, or passes over the data (5.5 if neither is given).
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
        bit, with the deaths that it survived, and the beginning of a run that has crashed.
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
    monitor : bool
        Also sample what each process uses (processes and tcp): ``measured["resources"]``, see `refsgd.runtimes.monitor`.
        "launcher" is this process, which writes checkpoints and records.
    looks : int
        How often at most parameters along the way are looked at, after the run: the rows of `Result.history`, which has its end besides.
        Looking takes longer than learning where a run is short and the test images are many.
    say : callable, optional
        Told beforehand, in a line, about how long the run takes, if that is longer than half a minute.
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
    check_whole(0, looks=looks)
    runtime = runtime_here(runtime)
    start = None
    if resume is None:
        experiment = prepare(algorithm, problem, **arguments)
    else:
        start, experiment = resumed(algorithm, runtime, resume, arguments)
    if runtime == "mpi":
        check_ranks(experiment)
    try:
        saves, faults = checkpoint is not None or start is not None, listed(faults)
    except ValueError as error:
        raise Usage(str(error)) from None
    check_together(runtime, saves=saves, record=record is not None, planned=bool(faults), on_death=on_death, monitor=monitor)
    if runtime in PROCESS_BYTES:
        check_processes(experiment, runtime)
    if say and start is None:
        announce([experiment], [runtime], say)
    if runtime != "simulator":
        check_pace(experiment)
    watch = Monitor() if monitor else None
    with recording(experiment, runtime, record) as journal:
        if saves:
            plan = checkpoint_plan(experiment, runtime, checkpoint, checkpoint_every)
            finished = resumable.perform(experiment.deploy, experiment.machine, experiment.seed, runtime, plan, start, journal,
                                         watch.start if watch else None, experiment.largest_message)
        else:
            finished = perform(experiment, runtime, journal, faults, on_death, watch.start if watch else None)
        used = watch.stop() if watch else {}
        result = evaluate(experiment, runtime, finished, looks)
        if journal is not None:
            journal.finish(finished.trace, result.parameters_sha256)
    return replace(result, measured=result.measured | {"resources": used}) if watch else result


def check_together(runtime: str, *, saves: bool, record: bool, planned: bool, on_death: str, monitor: bool) -> None:
    """Refuse what cannot be had in one run."""
    if saves and (on_death != "stop" or planned):
        raise Usage("checkpoints of a run with planned faults or another on_death than stop; expected one or the other")
    if record and on_death in ("shrink", "restart"):
        raise Usage(f"a record of a run with on_death {on_death}; expected stop or continue: a record is of one life of a run, "
                    "and after a death this one begins another")
    if monitor and runtime not in ("processes", "tcp"):
        raise Usage(f"a monitor of runtime {runtime}; expected processes or tcp, which have processes of this machine")


def check_ranks(experiment: Experiment) -> None:
    """Refuse to run over another number of MPI ranks than the experiment has processes."""
    from refsgd.runtimes import mpi

    needed, found = len(set(experiment.machine.hosts(experiment.deploy()).values())), mpi.world().size
    if needed > found:
        raise Usage(f"{experiment.name} with {counted(experiment.workers, 'worker')} needs {needed} ranks and MPI has started {found}; "
                    f"use mpiexec -n {needed}, or another --workers")


def checkpoint_plan(experiment: Experiment, runtime: str, folder: str | Path | None, every: float) -> resumable.Plan | None:
    """When and where the run writes checkpoints; None without a folder."""
    if folder is None:
        return None
    if experiment.arguments is None:
        raise Usage("a checkpoint needs an algorithm of the catalogue and a problem built from --data and --net")
    if not 0 <= every < float("inf"):
        raise Usage(f"checkpoint_every {every}; expected a number of epochs >= 0")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise Usage(f"checkpoint {folder}; expected a folder")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Usage(f"checkpoint {folder}: nothing can be written there ({error.strerror}); expected a folder that you may write to, "
                    "or a new name in one") from None
    header = {"refsgd": __version__, "algorithm": experiment.name, "arguments": experiment.arguments, "runtime": runtime,
              "nodes": list(experiment.deploy())}
    steps = every * experiment.problem.describe.get("steps_per_epoch", 100)
    return resumable.Plan(Path(folder), header, max(1, round(steps)) if every else 0)


def resumed(algorithm: Algorithm, runtime: str, place: str | Path, arguments: dict[str, Any]) -> tuple[checkpoints.Checkpoint, Experiment]:
    """The newest checkpoint at `place` and the experiment that it is of; refuses arguments that say something else."""
    if not Path(place).exists():
        raise Usage(f"no checkpoint at {place}; expected a folder that --checkpoint wrote to, or a file in it")
    start = checkpoints.newest(place)
    name, made = deployment_function(algorithm)[0], start.header["runtime"]
    if start.header["algorithm"] not in (name, algorithm):
        raise Usage(f"the checkpoint at {place} is of {start.header['algorithm']}; expected one of {name}")
    if (runtime == "simulator") != (made == "simulator"):
        raise Usage(f"the checkpoint at {place} was made by the runtime {made}; expected --runtime {made}")
    try:
        stored = stored_arguments(start.header)
    except ValueError as error:
        raise checkpoints.CheckpointError(f"{start.path}, line 1: {error}") from None
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
    """A record at `path` while the block runs, None without a path."""
    if path is None:
        yield None
        return
    if experiment.arguments is None:
        raise Usage("a record needs an algorithm of the catalogue and a problem built from --data and --net; "
                    "for your own use refsgd.runtimes.replay with your factory")
    header = {"refsgd": __version__, "algorithm": experiment.name, "arguments": experiment.arguments, "runtime": runtime}
    nodes = list(experiment.deploy())
    try:
        if runtime == "mpi":
            from refsgd.runtimes import mpi

            journal = mpi.in_order(lambda first: Journal(path, header, nodes, made=not first))
        else:
            journal = Journal(path, header, nodes)
    except OSError as error:
        raise Usage(f"the record {path} cannot be written ({error.strerror}); expected a place for a file") from None
    try:
        yield journal
    finally:
        journal.close()


def replay(record: str | Path) -> Result:
    """Reproduce a recorded run in the simulator.

    Parameters
    ----------
    record : path
        A file that ``run(..., record=path)`` or ``refsgd run --record`` wrote.  If it ends early, cut off or because the run
        crashed, what is there is reproduced, with a warning that says how much, and the result's parameters are
        those of the last update (the starting point, if a server had made none).

    Returns
    -------
    Result
        Its runtime is "replay".

    Raises
    ------
    ReplayError
        The file is no record, altered or without a step, the record and the programs do not fit, or the parameters differ from the
        recorded hash.
    """
    data = read(record)
    try:
        return _reproduced(record, data)
    except replaying.ReplayError as error:
        raise replaying.ReplayError(f"{record}: {error}") from error.__cause__


def _reproduced(record: str | Path, data: Record) -> Result:
    experiment = recorded_experiment(data.header)
    if data.end is None:
        finished, done = replaying.replay_beginning(experiment.deploy, data.steps)
        cut = "the record ends early (no end line): it was cut off, or the run crashed"
        if not done:
            raise replaying.ReplayError(f"{cut}; of its {counted(data.size, 'step')} none can be replayed, expected at least one")
        warnings.warn(f"{record}: {cut}; this replays {done} of {data.size} steps", stacklevel=3)
        finished = with_parameters(finished, experiment.problem)
    else:
        finished = replaying.replay(experiment.deploy, data.steps)
    finished.trace.latency, finished.trace.bandwidth = experiment.machine.latency, experiment.machine.bandwidth
    result = evaluate(experiment, "replay", finished)
    expected = data.end["parameters_sha256"] if data.end is not None else result.parameters_sha256
    if result.parameters_sha256 != expected:
        raise replaying.ReplayError(f"replayed parameters have SHA-256 {result.parameters_sha256[:16]}, the record says "
                                    f"{expected[:16]}; expected equal bits: same library version, data and CPU kind?")
    return result


def recorded_experiment(header: dict[str, Any]) -> Experiment:
    """The experiment that the first line of a record describes."""
    try:
        return prepare(header["algorithm"], **stored_arguments(header))
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise replaying.ReplayError(f"line 1: {error}") from None


def stored_arguments(header: dict[str, Any]) -> dict[str, Any]:
    """What `prepare` was told, from the first line of a record or checkpoint."""
    arguments, nodes = header["arguments"], len(header["nodes"])
    _, function = deployment_function(header["algorithm"])
    for name in ("workers", "servers") if has_servers(function) else ("workers",):
        if arguments[name] > nodes:
            raise ValueError(f"arguments.{name} is {arguments[name]}; expected no more than the {nodes} nodes")
    return {**arguments, "machine": Machine.from_json(arguments["machine"])}


def with_parameters(run: Run, problem: Problem) -> Run:
    """The beginning of a run with parameters to evaluate: those of all who hold some, else the starting point."""
    servers = [node for node in run.trace.nodes if not is_worker(node)]
    holders = servers or run.trace.workers
    if all(node in run.values for node in holders):
        return run
    return Run(run.trace, {holders[0]: problem.x0})


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_processes(experiment: Experiment, runtime: str) -> None:
    """Refuse more processes than this machine starts within about half a minute, or has memory for."""
    import psutil

    processes = len(set(experiment.machine.hosts(experiment.deploy()).values()))
    cores, free = usable_cores(), psutil.virtual_memory().available
    most = min(PROCESSES_PER_CORE * cores, free // PROCESS_BYTES[runtime])
    if processes > most:
        raise Usage(f"{processes} processes on {cores} cores and {free / 1e9:.1f} GB of free memory; expected at most {most} here: "
                    "use fewer workers, or the simulator")


def gradient_seconds(problem: Problem) -> tuple[float, float]:
    """Mean and least seconds of one gradient on one core of this machine, but for a first one, which may be compiled."""
    problem.gradient(problem.x0, 0, 0)
    found: list[float] = []
    while len(found) < 5 and sum(found) < 0.5:
        started = time.perf_counter()
        problem.gradient(problem.x0, 0, len(found))
        found.append(time.perf_counter() - started)
    return sum(found) / len(found), min(found)


def announce(experiments: Sequence[Experiment], runtimes: Sequence[str], say: Say) -> None:
    """Say how long runs of one problem will take, if that is long: gradients, the pace of paced processes, and looks at what was learned."""
    problem, total = experiments[0].problem, 0.0
    real, _ = gradient_seconds(problem)
    looks = 0.0
    if images := problem.describe.get("evaluated"):  # forwards, a third of a gradient
        looks = (2 + min(LOOKS, max(4, 60_000 // images))) * images * real / (3 * problem.describe["batch"])
    for e in experiments:
        at_once = min(usable_cores(), e.workers)
        law, slowest = e.machine.compute, min(e.machine.speeds, default=1.0)
        paced = law.mean / slowest + 2 * (e.machine.latency + 4 * problem.x0.size / e.machine.bandwidth) if law else 0.0
        for runtime in runtimes:
            virtual = e.steps * e.workers * (real + STEP)
            total += looks + (virtual if runtime == "simulator" else e.steps * max(paced, e.workers * real / at_once))
    if total > LONG:
        about, what = f"{total:.0f} s" if total < 120 else f"{total / 60:.0f} min", f"{len(experiments)} runs" if len(experiments) > 1 else "the run"
        say(f"{what} will take about {about}: a gradient takes {real * 1e3:.3g} ms here")


def check_pace(experiment: Experiment) -> None:
    """Refuse a paced run whose real computing needs more cores than there are; warn where it comes near, or durations are drawn too short."""
    law = experiment.machine.compute
    if law is None or not experiment.steps or not law.mean:
        return
    usual, least = gradient_seconds(experiment.problem)
    cores, least_mean = usable_cores(), 0.002
    share = experiment.workers / (cores * law.mean)
    longer = math.ceil(max(least * share / 0.8, least_mean / law.mean))
    found = (f"a gradient takes {usual * 1e3:.3g} ms here with {counted(experiment.workers, 'worker')} on {counted(cores, 'core')}; "
             f"the machine asks for {law.mean * 1e3:.3g} ms, which leaves room for {0.8 / share * 1e3:.3g} ms of real work")
    if least * share > 1:
        raise Usage(f"{found}: use --slow-motion {longer} (a machine {longer} times as slow in everything), the simulator, "
                    "or no pacing (--compute none)")
    if usual * share > 0.8:
        warnings.warn(f"{found}: use a longer --compute, fewer workers or the simulator", stacklevel=3)
    if law.mean < least_mean:
        warnings.warn(f"mean compute time {law.mean * 1e3:.3g} ms: below 2 ms real processes are late by a few percent; "
                      f"use --slow-motion {longer} or the simulator", stacklevel=3)
