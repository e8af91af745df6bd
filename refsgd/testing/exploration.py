"""Every schedule of a small case of one algorithm, as ``refsgd explore`` follows them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from refsgd.algorithms.sgd import SGD
from refsgd.cluster.units import counted
from refsgd.effects import Deployment, roles
from refsgd.experiment import exchanges
from refsgd.experiment.batches import Batch, weights_of
from refsgd.experiment.prepare import deployment_function
from refsgd.experiment.result import final_parameters, parameters_sha256
from refsgd.problems import integer_gradients
from refsgd.runtimes.explorer import explore, walk
from refsgd.testing.findings import RATE, finite, ledger, server_lead
from refsgd.trace import Run


def explore_algorithm(algorithm: str | Callable[..., Deployment], *, workers: int = 2, servers: int = 1,
                      steps: int = 2, batch: Batch = 1, max_runs: int = 20_000, walks: int | None = None,
                      seed: int = 0, **options: Any) -> str:
    """Follow every schedule (or `walks` random ones) of a small case of one algorithm; a report in words.

    Parameters
    ----------
    algorithm : str or callable
        A name of the catalogue, or a deployment function.
    workers, servers, steps : int
        Sizes; three workers and three steps are the practical limit.
    batch : sequence of int or text
        Examples of each worker's gradient, which are its weight, e.g. ``"3,1"``.
    max_runs : int
        Stop after this many schedules.
    walks : int, optional
        Draw this many schedules instead of following all.
    seed : int
        Seed of the random schedules.
    **options
        The algorithm's own options, and those of an exchange.

    Returns
    -------
    str

    Raises
    ------
    Counterexample
        With the shortest schedule that breaks an invariant.
    """
    name, function = deployment_function(algorithm)
    problem = integer_gradients(d=4, workers=workers, batches=weights_of(batch, workers))
    exchange = exchanges.exchange_of({key: options.pop(key) for key in exchanges.TAKES if key in options},
                                     SGD(RATE), workers, problem, seed)
    exchanges.check(name, options, exchange, problem, own=callable(algorithm))
    problem = replace(problem, exchange=exchange)
    extra = {"servers": servers} if "servers" in inspect.signature(function).parameters else {}
    if name == "sequential":
        workers = 1
    leads, staleness, finals = set[int](), set[int](), set[str]()

    def deploy() -> Deployment:
        return function(problem, workers, steps, SGD(RATE), **extra, **options)

    def at_end(run: Run) -> None:
        finite(run)
        ledger(run)
        leads.add(server_lead(run))
        staleness.update(tau for _, tau in run.trace.staleness)
        finals.add(parameters_sha256(final_parameters(run)))
        if name == "ssp":
            ahead, bound = max(leads), options.get("staleness", 3) + 1
            assert ahead <= bound, f"a worker is {counted(ahead, 'clock')} ahead; expected at most {bound}"
        if name in ("bsp", "allreduce"):
            assert len(finals) == 1, "two schedules ended with different parameters; expected the same bits"

    if walks is None:
        report = explore(deploy, at_end, max_runs=max_runs)
        scope = "all of them" if report.complete else f"stopped at {max_runs}, more exist"
        states = f", {counted(report.states, 'state')}"
    else:
        report, scope, states = walk(deploy, at_end, runs=walks, seed=seed), "random ones", ""
    place = "server" if "server" in roles(deploy()).values() else "replica"
    return (
        f"{name}, {counted(workers, 'worker')}, {counted(steps, 'step')}: {counted(report.runs, 'schedule')} "
        f"({scope}){states}\n"
        "checked: no deadlock; every gradient applied once or dropped; no gradient from the "
        "future; finite parameters\n"
        f"staleness seen: {', '.join(map(str, sorted(staleness))) or 'none'} updates;  lead at a {place}: "
        f"{', '.join(map(str, sorted(leads)))} clock{'' if leads == {1} else 's'};  different results: "
        f"{len(finals)}")
