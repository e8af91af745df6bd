"""Runs experiments: `run` in every runtime, with faults, records and checkpoints, and `replay` of a
record."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from refsgd import __version__
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted
from refsgd.experiment.evaluation import EVALUATIONS, evaluate
from refsgd.experiment.options import RunOptions
from refsgd.experiment.perform import perform, planned
from refsgd.experiment.prepare import (
    Algorithm,
    Experiment,
    Say,
    Usage,
    deployment_function,
    has_servers,
    prepare,
)
from refsgd.experiment.result import Result
from refsgd.experiment.resume import (
    NAME,
    Records,
    first_file,
    on_request,
    ready,
    still_planned,
    stored,
)
from refsgd.problems import Problem
from refsgd.runtimes import replay as replaying
from refsgd.runtimes.faults import Fault
from refsgd.runtimes.journal import Record, read
from refsgd.trace import Run

__all__ = ["replay", "run"]

#: each takes about 0.1 s of a core to start
PROCESSES_PER_CORE, PROCESS_BYTES = 128, {"processes": 8 << 20, "tcp": 16 << 20}
#: seconds of the effects of one iteration in virtual time; seconds of a run that is announced
STEP, LONG = 2e-4, 30.0


def run(algorithm: Algorithm, problem: Problem | None = None, **options: Any) -> Result:
    """Train with one algorithm and return everything that was seen.

    Parameters
    ----------
    algorithm : str or callable
        A name of the catalogue, or a deployment function ``f(problem, workers, steps, sgd, *, options)``.
    problem : Problem, optional
        Your own problem; else one is built from `data`, `net`, `batch` and `shards`.
    runtime : {"simulator", "processes", "tcp", "mpi"}
        Virtual time, OS processes over shared memory, OS processes over TCP on this machine, or the ranks
        that mpiexec has started, each of which calls this with the same arguments and gets the result.
    workers, servers : int
        n (4) and K (1).
    steps, epochs : int, float
        Iterations of each worker, or passes over the data (5.5 if neither is given).
    batch : int
        Images per worker and iteration (16).
    data, net : str
        Data set ("digits") and net (the one that fits it).
    lr, momentum, weight_decay, schedule
        The update rule, see `refsgd.algorithms.sgd.SGD`; schedule is ``"constant"`` or
        ``"step(every,factor)"``.
    shards : {"iid", "by-label"}
    machine : Machine, optional
        What the run takes place on; see `refsgd.cluster.machine.Machine`.
    seed : int
        Of the initial parameters, the data's order, durations and choices.
    record : path, optional
        Write what every receive, poll and choice returns, as it does; `replay` reproduces the run from it bit
        for bit, with the deaths that it survived, and the beginning of a run that has crashed.
    faults : iterable of str
        Planned faults, e.g. ``["kill worker 2 at step 10", "random 3 seed 7"]``; see
        `refsgd.runtimes.faults`.
    on_death : {"stop", "continue", "shrink", "restart"}
        What follows when a node dies: an error that names it; the others go on, if the algorithm waits for
        nobody in particular; those that wait for the dead start again without it; all start again from the
        newest parameters.
    checkpoint : path, optional
        Folder into which the run's record is written while it runs, so that `resume` can continue from there
        whenever the run is stopped.
    checkpoint_every : float
        Epochs (of 100 steps, where the problem has none) after which the record is forced to the disk, so
        that it survives a power failure; 0: only at SIGUSR1 and at the end.
    resume : path, optional
        Such a folder, or a record: replay it, and continue the run from its end.  What is trained, where, for
        how long, with which faults and `on_death` comes from the record; arguments that are given too must
        say the same.
    monitor : bool
        Also sample what each process uses (processes and tcp): ``measured["resources"]``, see
        `refsgd.runtimes.processes.monitor`. "launcher" is this process, which writes checkpoints and records.
    evaluations : int
        At most so many parameters along the way are evaluated after the run: the rows of `Result.history`,
        which has its end besides (20). Evaluating takes longer than training where a run is short and there
        are many test images.
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
    ReplayError
        If the record that `resume` names is damaged, or the programs do not repeat it.

    Examples
    --------
    >>> result = run("bsp", data="quadratic", steps=50, lr=0.5)
    >>> result.measured["updates"], result.measured["staleness"]["max"]
    (50, 0)
    """
    return carry_out(RunOptions.of(algorithm, problem, options))


def carry_out(options: RunOptions) -> Result:
    """Run what the options describe, and evaluate it."""
    start: Sequence[Record] = ()
    if options.resume is None:
        experiment = prepare(options.algorithm, options.problem, **options.arguments)
    else:
        start, experiment = resumed(options, options.resume)
        options = as_recorded(options, experiment, start)
    check_here(options, experiment)
    if options.runtime != "simulator":
        check_pace(experiment)
    if options.say and not start:
        announce([experiment], [options.runtime], options.say)
    watch = None
    if options.monitor:
        from refsgd.runtimes.processes.monitor import Monitor

        watch = Monitor()
    with records_of(options, experiment, start) as records, \
            on_request(records.flush if options.checkpoint is not None else None):
        finished = perform(experiment, options.runtime, records, options.faults, options.on_death,
                           watch.start if watch else None)
        used = watch.stop() if watch else {}
        result = evaluate(experiment, options.runtime, finished, options.evaluations)
        records.finish(finished.trace, result.parameters_sha256)
    return replace(result, measured=result.measured | {"resources": used}) if watch else result


def check_here(options: RunOptions, experiment: Experiment) -> None:
    """Refuse what cannot be had in one run, or not on this machine."""
    if options.record is not None and options.on_death in ("shrink", "restart"):
        raise Usage(
            f"a record of a run with on_death {options.on_death}; expected stop or continue: a record is of "
            "one attempt, and after a death this run begins another")
    if options.runtime == "mpi":
        check_ranks(experiment)
    if options.runtime in PROCESS_BYTES:
        check_processes(experiment, options.runtime)


def check_ranks(experiment: Experiment) -> None:
    """Refuse to run over another number of MPI ranks than the experiment has processes."""
    from refsgd.runtimes.processes import mpi

    needed, found = len(set(experiment.machine.hosts(experiment.deploy()).values())), mpi.world().size
    if needed > found:
        raise Usage(
            f"{experiment.name} with {counted(experiment.workers, 'worker')} needs {needed} ranks and MPI "
            f"has started {found}; "
                    f"use mpiexec -n {needed}, or another --workers")


def resumed(options: RunOptions, place: str | Path) -> tuple[list[Record], Experiment]:
    """The records at `place` and the experiment that they are of; refuses arguments that say something
    else."""
    start = stored(place)
    name, header = deployment_function(options.algorithm)[0], start[0].header
    if header["algorithm"] not in (name, options.algorithm):
        raise Usage(f"the record at {place} is of {header['algorithm']}; expected one of {name}")
    if (options.runtime == "simulator") != (header["runtime"] == "simulator"):
        raise Usage(f"the record at {place} was made by the runtime {header['runtime']}; expected --runtime "
                    f"{header['runtime']}")
    try:
        experiment = recorded_experiment(header)
    except replaying.ReplayError as error:
        raise replaying.ReplayError(f"{first_file(place)}, {error}") from None
    if options.arguments:
        told = stored_arguments(header)
        if "epochs" in options.arguments:
            told.pop("steps")
        experiment = prepare(options.algorithm, **{**told, **options.arguments})
    for key, value in header["arguments"].items():
        asked = (experiment.arguments or {}).get(key)
        if asked != value:
            raise Usage(
                f"the record at {place} was made with {key} {value}, and {asked} is asked for; expected "
                "the same, or nothing")
    return start, experiment


def as_recorded(options: RunOptions, experiment: Experiment, start: Sequence[Record]) -> RunOptions:
    """The options of a resumed run: with the faults that are still to come, and the record's policy."""
    header, place = start[0].header, options.resume
    recorded = [Fault(*fault) for fault in header["faults"]]
    if options.faults and planned(experiment, options.faults) != recorded:
        raise Usage(f"the record at {place} was made with {'; '.join(map(str, recorded)) or 'no faults'}; "
                    "expected the same faults, or nothing")
    if options.on_death not in ("stop", header["on_death"]):
        raise Usage(f"the record at {place} was made with on_death {header['on_death']}, and "
                    f"{options.on_death} is asked for; expected the same, or nothing")
    return replace(options, faults=still_planned(recorded, start), on_death=header["on_death"])


def records_of(options: RunOptions, experiment: Experiment, start: Sequence[Record]) -> Records:
    """The records that a run writes, and those that it continues."""
    folder, first = options.checkpoint, "" if options.resume is None else first_file(options.resume)
    if folder is None and options.record is None:
        return Records({}, options.runtime, start=start, place=first)
    if experiment.arguments is None:
        raise Usage("a record needs an algorithm of the catalogue and a problem built from --data and --net; "
                    "for your own use refsgd.runtimes.replay with your factory")
    if folder is not None:
        ready(folder, first == Path(folder) / NAME)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `perform` warns
        faults = [list(fault) for fault in planned(experiment, options.faults)]
    header = {"refsgd": __version__, "algorithm": experiment.name, "arguments": experiment.arguments,
              "runtime": options.runtime, "faults": faults, "on_death": options.on_death}
    steps = options.checkpoint_every * experiment.problem.describe.get("steps_per_epoch", 100)
    return Records(header, options.runtime, options.record, None if folder is None else Path(folder),
                   max(1, round(steps)) if options.checkpoint_every else 0, start, first)


def replay(record: str | Path) -> Result:
    """Reproduce a recorded run in the simulator.

    Parameters
    ----------
    record : path
        A file that ``run(..., record=path)`` or ``refsgd run --record`` wrote.  If it ends early, cut off or
        because the run crashed, what is there is reproduced, with a warning that says how much, and the
        result's parameters are those of the last update (the starting point, if a server had made none).

    Returns
    -------
    Result
        Its runtime is "replay".

    Raises
    ------
    ReplayError
        The file is no record, altered or without a step, the record and the programs do not fit, or the
        parameters differ from the recorded hash.
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
            raise replaying.ReplayError(
                f"{cut}; of its {counted(data.size, 'step')} none can be replayed, expected at least one")
        warnings.warn(f"{record}: {cut}; this replays {done} of {data.size} steps", stacklevel=3)
        finished = with_parameters(finished, experiment.problem)
    else:
        finished = replaying.replay(experiment.deploy, data.steps)
    finished.trace.latency, finished.trace.bandwidth = (experiment.machine.latency,
                                                        experiment.machine.bandwidth)
    result = evaluate(experiment, "replay", finished)
    expected = data.end["parameters_sha256"] if data.end is not None else result.parameters_sha256
    if result.parameters_sha256 != expected:
        raise replaying.ReplayError(
            f"replayed parameters have SHA-256 {result.parameters_sha256[:16]}, the record says "
                                    f"{expected[:16]}; expected equal bits: same library version, data and "
                                    "CPU kind?")
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
            raise ValueError(
                f"arguments.{name} is {arguments[name]}; expected no more than the {nodes} nodes")
    return {**arguments, "machine": Machine.from_json(arguments["machine"])}


def with_parameters(run: Run, problem: Problem) -> Run:
    """The beginning of a run with parameters to evaluate: those of all who hold some, else the starting
    point."""
    servers = [node for node in run.trace.nodes if not run.trace.is_worker(node)]
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
        raise Usage(
            f"{processes} processes on {cores} cores and {free / 1e9:.1f} GB of free memory; expected at "
            f"most {most} here: "
                    "use fewer workers, or the simulator")


def gradient_seconds(problem: Problem) -> tuple[float, float]:
    """Mean and least seconds of one gradient on one core of this machine, but for a first one, which may
    be compiled."""
    problem.gradient(problem.x0, 0, 0)
    found: list[float] = []
    while len(found) < 5 and sum(found) < 0.5:
        started = time.perf_counter()
        problem.gradient(problem.x0, 0, len(found))
        found.append(time.perf_counter() - started)
    return sum(found) / len(found), min(found)


def announce(experiments: Sequence[Experiment], runtimes: Sequence[str], say: Say) -> None:
    """Say how long runs of one problem will take, if that is long: gradients, the pace of paced
    processes, and the evaluation."""
    problem, total = experiments[0].problem, 0.0
    real, _ = gradient_seconds(problem)
    evaluating = 0.0
    if images := problem.describe.get("evaluated"):  # forwards, a third of a gradient
        times = 2 + min(EVALUATIONS, max(4, 60_000 // images))
        evaluating = times * images * real / (3 * problem.describe["batch"])
    for e in experiments:
        at_once = min(usable_cores(), e.workers)
        law, slowest = e.machine.compute, min(e.machine.speeds, default=1.0)
        paced = law.mean / slowest + 2 * (e.machine.latency + 4 * problem.x0.size
                                          / e.machine.bandwidth) if law else 0.0
        for runtime in runtimes:
            virtual = e.steps * e.workers * (real + STEP)
            total += evaluating + (virtual if runtime == "simulator"
                              else e.steps * max(paced, e.workers * real / at_once))
    if total > LONG:
        about, what = (f"{total:.0f} s" if total < 120 else f"{total / 60:.0f} min",
                       f"{len(experiments)} runs" if len(experiments) > 1 else "the run")
        say(f"{what} will take about {about}: a gradient takes {real * 1e3:.3g} ms here")


def check_pace(experiment: Experiment) -> None:
    """Refuse a paced run whose real computing needs more cores than there are; warn where it comes near,
    or durations are drawn too short."""
    law = experiment.machine.compute
    if law is None or not experiment.steps or not law.mean:
        return
    usual, least = gradient_seconds(experiment.problem)
    cores, least_mean = usable_cores(), 0.002
    share = experiment.workers / (cores * law.mean)
    longer = math.ceil(max(least * share / 0.8, least_mean / law.mean))
    found = (
        f"a gradient takes {usual * 1e3:.3g} ms here with {counted(experiment.workers, 'worker')} on "
        f"{counted(cores, 'core')}; "
             f"the machine asks for {law.mean * 1e3:.3g} ms, which leaves room for {0.8 / share * 1e3:.3g} "
             "ms of real work")
    if least * share > 1:
        raise Usage(
            f"{found}: use --slow-motion {longer} (a machine {longer} times as slow in everything), the "
            "simulator, "
                    "or no pacing (--compute none)")
    if usual * share > 0.8:
        warnings.warn(f"{found}: use a longer --compute, fewer workers or the simulator", stacklevel=4)
    if law.mean < least_mean:
        warnings.warn(
            f"mean compute time {law.mean * 1e3:.3g} ms: below 2 ms real processes are late by a few "
            "percent; "
                      f"use --slow-motion {longer} or the simulator", stacklevel=4)
