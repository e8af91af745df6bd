"""Runs the programs of an experiment in one of the runtimes, again after a death, and watches them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from refsgd.effects import roles
from refsgd.experiment.arguments import Usage, checked
from refsgd.experiment.execution.elastic import Attempt, Attempts
from refsgd.experiment.execution.resume import Records, file_of, halted, standing
from refsgd.experiment.memory import of_processes
from refsgd.experiment.prepare import Experiment
from refsgd.problems.chain import Rows
from refsgd.problems.shapes import NoContents
from refsgd.runtimes.errors import ReplayError
from refsgd.runtimes.faults import Fault, Halted, parse, survives_workers
from refsgd.runtimes.fork import LAUNCHERS
from refsgd.runtimes.simulator import Faulty, Simulator
from refsgd.trace import Run
from refsgd.trace.codec import Steps
from refsgd.trace.resources import DEFAULT, in_virtual_time

LOCAL_RUNTIMES = ("simulator", "processes", "tcp")  # which need no launcher such as mpiexec
RUNTIMES = (*LOCAL_RUNTIMES, *LAUNCHERS)

OBSERVED = 64  #: most parameters of a node that are kept for a history, unless none is asked for

OnStart = Callable[[dict[str, int], dict[str, Any]], None]


def perform(experiment: Experiment, runtime: str, records: Records | None = None,
            faults: Iterable[str | Fault] = (), on_death: str = "stop",
            on_start: OnStart | None = None, observe: int = OBSERVED) -> Run:
    """Run the programs in one of `RUNTIMES`, with `records`, keeping at most `observe` parameters a node."""
    plan = planned(experiment, faults)
    _check_policy(experiment, runtime, on_death, bool(plan))
    records = Records({}, runtime) if records is None else records
    attempts = Attempts(experiment, plan, on_death)
    while True:
        attempt = attempts.next
        now = attempt.experiment
        steps, faults = records.recorded(attempt.number, attempt.faults, now.nodes, now.network.host)
        attempts.next = attempt._replace(faults=faults)
        try:
            return attempts.joined(_attempt(runtime, attempts.next, steps, on_death, records,
                                            on_start, observe))
        except Halted as halted:
            attempts.halted(halted)


def planned(experiment: Experiment, faults: Iterable[str | Fault]) -> list[Fault]:
    """The faults described by some lines."""
    with checked():
        return parse(faults, experiment.nodes, experiment.steps, experiment.network.host)


def _check_policy(experiment: Experiment, runtime: str, on_death: str, planned: bool) -> None:
    """Refuse a policy that the algorithm or the runtime does not support, before anything runs."""
    if runtime in LAUNCHERS and (planned or on_death != "stop"):
        raise Usage(f"faults and on_death over {runtime}, where all ranks end if one dies; expected "
                    "simulator, processes or tcp")
    if on_death != "stop" and (lost := experiment.facts.unshared):
        raise Usage(f"on_death {on_death} with {experiment.name}: {lost}; expected stop")
    if on_death in ("shrink", "restart") and experiment.facts.dealt:
        raise Usage(f"on_death {on_death} with {experiment.name}, where no worker has a share of its own; "
                    f"expected stop{' or continue' if survives_workers(experiment.nodes) else ''}")
    if on_death == "continue" and not survives_workers(experiment.nodes):
        raise Usage(f"on_death continue with {experiment.name}, whose programs wait for every worker (no "
                    "Node says survives=True); expected stop"
                    + ", shrink or restart" * (not experiment.facts.dealt))
    if on_death == "continue" and experiment.training and experiment.training.scale_lr and (
            not experiment.facts.collects):  # as many gradients of any workers
        raise Usage(f"on_death continue with scale_lr and {experiment.name}, whose rate would remain that of "
                    f"{experiment.workers} workers; expected shrink or restart, or the rate itself: lr")
    if on_death == "shrink":
        if experiment.workers == 1:
            raise Usage("on_death shrink with 1 worker would leave none; expected at least 2 workers, stop "
                        "or restart")
        replace(experiment, workers=experiment.workers - 1,  # refuses options that do not fit fewer workers
                machine=experiment.machine.with_(hosts="", groups="", uplink=None)).deploy()


def _attempt(runtime: str, attempt: Attempt, steps: Steps | None, on_death: str,
             records: Records, on_start: OnStart | None, observe: int) -> Run:
    """Run one attempt in one of `RUNTIMES`, from the end of its recorded steps if it has any."""
    number, experiment, faults, _ = attempt
    if runtime == "simulator":
        return _simulated(attempt, steps or {}, on_death, records, observe)
    if experiment.problem.describe.get("shape_only"):
        raise Usage(f"net {experiment.problem.describe['net']} on {runtime}; expected the simulator: a "
                    "shape-only net has nothing to send")
    _compile(experiment)
    deploy, machine, seed = experiment.deploy, experiment.machine, experiment.seed
    beginning, role = None, roles(experiment.nodes)
    if steps is not None:
        try:
            if on_death in ("shrink", "restart") and records.has_ended(number, steps):
                records.begin(number, role, steps, faults)
                raise halted(deploy, steps)
            beginning, steps = standing(deploy, steps)
        except ReplayError as error:
            raise ReplayError(f"{file_of(Path(records.place), number)}: {error}") from error.__cause__
    journal = records.begin(number, role, steps or {}, faults)
    if runtime in LAUNCHERS:
        from refsgd.runtimes.processes import mpi

        found = mpi.run(deploy, machine, seed, runtime=runtime, everywhere=True, journal=journal,
                        beginning=beginning, largest=experiment.largest_message, observe=observe)
        assert found is not None
        return found
    from refsgd.runtimes.processes import local

    return local.run(deploy, machine, seed, transport="shm" if runtime == "processes" else runtime,
                     journal=journal, faults=faults, on_death=on_death, on_start=on_start,
                     beginning=beginning, largest=experiment.largest_message, observe=observe)


def _compile(experiment: Experiment) -> None:
    """Compile or load a net's kernels, which processes then have from the start and need not wait for."""
    problem, rows = experiment.problem, Rows(0, 0, 0, 1, 1)
    with suppress(FloatingPointError):  # the run says which worker and step
        if experiment.facts.staged:
            stage, = problem.split(1)
            stage.backward(problem.x0, rows, stage.forward(problem.x0, rows, None)[1], None)
        elif problem.chain:
            problem.gradient(problem.x0, 0, 0)


def _simulated(attempt: Attempt, steps: Steps, on_death: str, records: Records,
               observe: int) -> Run:
    """Run one attempt in virtual time."""
    number, experiment, faults, _ = attempt
    deploy, machine, seed = experiment.deploy, experiment.machine, experiment.seed
    simulator = Faulty(deploy, machine, seed, observe, faults, on_death) if faults else Simulator(
        deploy, machine, seed, observe)
    simulator.journal, ended = records.again(number, simulator.roles, steps, faults)
    try:
        run = simulator.run()
    except NoContents:
        raise Usage(f"{experiment.name} reads the entries of its vectors, and net "
                    f"{experiment.problem.describe['net']} has none; expected another net, see refsgd "
                    "list") from None
    ended()
    return run


def check_monitor(monitor: bool | float, runtime: str | None) -> None:
    """Refuse an interval that is none, and processes of other computers."""
    if not isinstance(monitor, bool) and not 0 < monitor < float("inf"):
        raise Usage(f"monitor {monitor}; expected a time > 0 between samples, such as 1s")
    if monitor and runtime in LAUNCHERS:
        raise Usage(f"monitor with runtime {runtime}; expected simulator, processes or tcp, whose processes "
                    "run on this machine")


def watched(experiment: Experiment, runtime: str, monitor: bool | float,
            run_it: Callable[[OnStart | None], Run]) -> tuple[Run, dict[str, Any]]:
    """The run that `run_it` gives, and under "resources" what its processes used, if it is to be watched."""
    if not monitor:
        return run_it(None), {}
    every = None if monitor is True else float(monitor)
    if runtime == "simulator":
        run = run_it(None)
        with checked():
            used = in_virtual_time(run.trace, experiment.network.host, every)
    else:
        from refsgd.runtimes.processes.monitor import Monitor

        watch = Monitor(every or DEFAULT)
        try:
            run = run_it(watch.start)
        finally:
            used = watch.stop()
        if not used.keys() - {"launcher"}:
            warnings.warn(f"monitor: the run took {run.trace.seconds:.2g} s and was not sampled; expected "
                          f"less than {watch.every:g} s between samples", stacklevel=2)
    host, role = experiment.network.host, roles(experiment.nodes)
    expected, held = of_processes(experiment, run, runtime), dict[str, list[str]]()
    for node in experiment.nodes:
        held.setdefault(host[node], []).append(node)
    place = {nodes[0]: where for where, nodes in held.items()}  # a process is named after its first node
    if runtime == "simulator":
        used = {name: used[where] for name, where in place.items()}
    return run, {"resources": {name: each | {
        "predicted": expected.get(place.get(name, "")),
        "role": "launcher" if name not in place else
        "worker" if any(role[node] != "server" for node in held[place[name]]) else "server"}
        for name, each in used.items()}}
