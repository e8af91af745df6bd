"""Runs that are watched: what their processes use over time, real ones and those of virtual time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from refsgd.effects import roles
from refsgd.experiment.arguments import Usage, checked
from refsgd.experiment.execution.perform import OnStart
from refsgd.experiment.memory import of_processes
from refsgd.experiment.prepare import Experiment
from refsgd.runtimes.fork import LAUNCHERS
from refsgd.trace import Run
from refsgd.trace.resources import DEFAULT, in_virtual_time


def check_monitor(monitor: bool | float, runtime: str | None) -> None:
    """Refuse an interval that is none, and processes of other computers."""
    if not isinstance(monitor, bool) and not 0 < monitor < float("inf"):
        raise Usage(f"monitor {monitor}; expected a time > 0 between samples, such as 1s")
    if monitor and runtime in LAUNCHERS:
        raise Usage(f"monitor with runtime {runtime}; expected simulator, processes or tcp, whose processes "
                    "run on this machine")


def watched(experiment: Experiment, runtime: str, monitor: bool | float,
            perform: Callable[[OnStart | None], Run]) -> tuple[Run, dict[str, Any]]:
    """The run that `perform` gives, and under "resources" what its processes used, if it is to be watched."""
    if not monitor:
        return perform(None), {}
    every = None if monitor is True else float(monitor)
    if runtime == "simulator":
        run = perform(None)
        with checked():
            used = in_virtual_time(run.trace, experiment.network.host, every)
    else:
        from refsgd.runtimes.processes.monitor import Monitor

        watch = Monitor(every or DEFAULT)
        try:
            run = perform(watch.start)
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
