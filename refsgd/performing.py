"""Lets the programs of an experiment run, in one of the runtimes; if a death halts them, in another life.

Without records and checkpoints, which are `refsgd.run`'s, and without a look at what came out, which is `refsgd.evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from refsgd.arguments import Usage
from refsgd.effects import Deployment
from refsgd.experiment import Experiment
from refsgd.lives import Life, go_on
from refsgd.phantom import NoContents
from refsgd.runtimes.faults import POLICIES, Fault, parse, survives_workers
from refsgd.runtimes.faulty import Faulty
from refsgd.runtimes.simulator import Simulator
from refsgd.trace import Event, Run

LOCAL_RUNTIMES = ("simulator", "processes", "tcp")  # that need nobody to start them
RUNTIMES = (*LOCAL_RUNTIMES, "mpi")

Listener = Callable[[Event], None]
OnStart = Callable[[dict[str, int]], None]


def perform(experiment: Experiment, runtime: str, journal: Listener | None = None, faults: Iterable[str | Fault] = (),
            on_death: str = "stop", on_start: OnStart | None = None) -> Run:
    """Run the programs to their end in one of `RUNTIMES`; `journal` is told every event at once."""
    deployment = experiment.deploy()
    try:
        plan = parse(faults, list(deployment), experiment.steps)
    except ValueError as error:
        raise Usage(str(error)) from None
    _check_policy(experiment, runtime, deployment, on_death, bool(plan))
    first = Life(experiment.deploy, experiment.machine, experiment.seed, plan, {})
    if on_death in ("shrink", "restart"):
        return go_on(experiment, plan, on_death, lambda life: _live(experiment, runtime, life, on_death, journal, on_start))
    return _live(experiment, runtime, first, on_death, journal, on_start)


def _check_policy(experiment: Experiment, runtime: str, deployment: Deployment, on_death: str, planned: bool) -> None:
    """Refuse before anything runs what this algorithm or runtime cannot do about a death."""
    if on_death not in POLICIES:
        raise Usage(f"on_death {on_death!r}; expected one of {', '.join(POLICIES)}")
    if runtime == "mpi" and (planned or on_death != "stop"):
        raise Usage("faults and on_death over mpi, where mpiexec ends all if one dies; expected simulator, processes or tcp")
    if on_death == "continue" and not survives_workers(deployment):
        raise Usage(f"{experiment.name} waits for every worker, so on_death continue would stand still; expected stop, shrink or restart")
    if on_death == "shrink":
        if experiment.workers == 1:
            raise Usage("on_death shrink with 1 worker would leave none; expected at least 2 workers, stop or restart")
        replace(experiment, workers=experiment.workers - 1).deploy()  # refuses options that do not fit fewer workers


def _live(experiment: Experiment, runtime: str, life: Life, on_death: str, journal: Listener | None, on_start: OnStart | None) -> Run:
    """One life of the run, in one of `RUNTIMES`."""
    if runtime == "simulator":
        if life.faults:
            simulator: Simulator = Faulty(life.deploy, life.machine, life.seed, faults=life.faults, on_death=on_death)
        else:
            simulator = Simulator(life.deploy, life.machine, life.seed)
        simulator.journal = journal
        try:
            return simulator.run()
        except NoContents:
            raise Usage(f"{experiment.name} decides by the entries of its vectors, and net {experiment.problem.describe['net']} has none; "
                        "expected another net, see refsgd list") from None
    if experiment.problem.describe.get("phantom"):
        raise Usage(f"net {experiment.problem.describe['net']} on {runtime}; expected the simulator: there is nothing to send")
    if runtime == "mpi":
        from refsgd.runtimes import mpi

        found = mpi.run(life.deploy, life.machine, life.seed, everywhere=True, journal=journal, largest=experiment.largest_message)
        assert found is not None
        return found
    from refsgd.runtimes import processes

    return processes.run(life.deploy, life.machine, life.seed, transport="shm" if runtime == "processes" else runtime,
                         journal=journal, faults=life.faults, on_death=on_death, on_start=on_start,
                         largest=experiment.largest_message)
