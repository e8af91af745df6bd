"""Runs the programs of an experiment in one of the runtimes, with another attempt if a death halts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

from refsgd.effects import Deployment
from refsgd.effects import roles as roles_of
from refsgd.experiment.arguments import Usage
from refsgd.experiment.elastic import Life, go_on
from refsgd.experiment.prepare import Experiment
from refsgd.experiment.resume import Records, halted, standing
from refsgd.problems.shapes import NoContents
from refsgd.runtimes.faults import POLICIES, Fault, parse, survives_workers
from refsgd.runtimes.faulty import Faulty
from refsgd.runtimes.simulator import Simulator
from refsgd.trace import Run

LOCAL_RUNTIMES = ("simulator", "processes", "tcp")  # that need nobody to start them
RUNTIMES = (*LOCAL_RUNTIMES, "mpi")

OnStart = Callable[[dict[str, int]], None]


def perform(experiment: Experiment, runtime: str, records: Records | None = None,
            faults: Iterable[str | Fault] = (), on_death: str = "stop",
            on_start: OnStart | None = None) -> Run:
    """Run the programs to their end in one of `RUNTIMES`; `records` are written, and continued."""
    deployment = experiment.deploy()
    plan = planned(experiment, faults)
    _check_policy(experiment, runtime, deployment, on_death, bool(plan))
    records = Records({}, runtime) if records is None else records
    attempts = count()

    def live(life: Life) -> Run:
        return _attempt(experiment, runtime, life, on_death, records, next(attempts), on_start)

    if on_death in ("shrink", "restart"):
        return go_on(experiment, plan, on_death, live)
    return live(Life(experiment.deploy, experiment.machine, experiment.seed, plan, {}))


def planned(experiment: Experiment, faults: Iterable[str | Fault]) -> list[Fault]:
    """The faults that some lines describe."""
    try:
        return parse(faults, experiment.deploy(), experiment.steps)
    except ValueError as error:
        raise Usage(str(error)) from None


def _check_policy(experiment: Experiment, runtime: str, deployment: Deployment, on_death: str,
                  planned: bool) -> None:
    """Refuse before anything runs what this algorithm or runtime cannot do about a death."""
    if on_death not in POLICIES:
        raise Usage(f"on_death {on_death!r}; expected one of {', '.join(POLICIES)}")
    if runtime == "mpi" and (planned or on_death != "stop"):
        raise Usage(
            "faults and on_death over mpi, where mpiexec ends all if one dies; expected simulator, processes "
            "or tcp")
    if on_death == "continue" and not survives_workers(deployment):
        raise Usage(
            f"{experiment.name} waits for every worker, so on_death continue would stand still; expected "
            "stop, shrink or restart")
    if on_death == "shrink":
        if experiment.workers == 1:
            raise Usage(
                "on_death shrink with 1 worker would leave none; expected at least 2 workers, stop or "
                "restart")
        # refuses options that do not fit fewer workers
        replace(experiment, workers=experiment.workers - 1).deploy()


def _attempt(experiment: Experiment, runtime: str, life: Life, on_death: str, records: Records, number: int,
             on_start: OnStart | None) -> Run:
    """One attempt of the run, in one of `RUNTIMES`."""
    if runtime == "simulator":
        return _simulated(experiment, life, on_death, records, number)
    if experiment.problem.describe.get("shape_only"):
        raise Usage(
            f"net {experiment.problem.describe['net']} on {runtime}; expected the simulator: there is "
            "nothing to send")
    beginning, roles, steps = None, roles_of(life.deploy()), records.steps(number)
    if steps is not None and on_death in ("shrink", "restart") and records.has_ended(number):
        records.begin(number, roles, steps)
        with records.blamed(number):
            raise halted(life.deploy, steps)
    if steps is not None:
        with records.blamed(number):
            beginning, steps = standing(life.deploy, steps)
    journal = records.begin(number, roles, steps or {})
    if runtime == "mpi":
        from refsgd.runtimes.processes import mpi

        found = mpi.run(life.deploy, life.machine, life.seed, everywhere=True, journal=journal,
                        beginning=beginning, largest=experiment.largest_message)
        assert found is not None
        return found
    from refsgd.runtimes.processes import local as processes

    return processes.run(life.deploy, life.machine, life.seed, transport="shm" if runtime == "processes"
                         else runtime, journal=journal, faults=life.faults, on_death=on_death,
                         on_start=on_start, beginning=beginning, largest=experiment.largest_message)


def _simulated(experiment: Experiment, life: Life, on_death: str, records: Records, number: int) -> Run:
    """One attempt of the run, in virtual time."""
    if life.faults:
        simulator: Simulator = Faulty(life.deploy, life.machine, life.seed, faults=life.faults,
                                      on_death=on_death)
    else:
        simulator = Simulator(life.deploy, life.machine, life.seed)
    simulator.journal, ended = records.again(number, simulator.roles)
    try:
        run = simulator.run()
    except NoContents:
        raise Usage(
            f"{experiment.name} decides by the entries of its vectors, and net "
            f"{experiment.problem.describe['net']} has none; expected another net, see refsgd list") from None
    ended()
    return run
