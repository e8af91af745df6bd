"""Every schedule of a small case of one algorithm, as ``refsgd explore`` follows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refsgd.cluster.units import counted
from refsgd.display.files import save
from refsgd.effects import Factory
from refsgd.experiment.arguments import Usage, check_whole
from refsgd.experiment.functions import Algorithm, catalogue_name
from refsgd.experiment.options.batches import Batch, weights_of
from refsgd.experiment.prepare import Experiment, prepare
from refsgd.problems import integer_gradients
from refsgd.runtimes.explorer import Counterexample, explore, walk
from refsgd.runtimes.faults import survives_workers
from refsgd.testing.findings import (
    RATE,
    Finals,
    finite,
    hash_of,
    in_full,
    ledger,
    named_case,
    server_lead,
    stuck_because,
)
from refsgd.trace import Run


class _Seen:
    """Observations of the finished runs of one algorithm, and the invariants of each."""

    def __init__(self, most: float, alike: bool) -> None:
        self.most, self.finals = most, Finals(alike)  #: the largest lead
        self.leads, self.staleness = set[int](), set[int]()

    def check(self, run: Run) -> None:
        """Raise if an invariant is broken."""
        finite(run)
        ledger(run)
        if not all(map(run.trace.is_worker, run.trace.updates)):
            self.leads.add(server_lead(run))
        self.staleness.update(tau for _, tau in run.trace.staleness)
        self.finals.add(run)
        ahead = max(self.leads, default=0)
        if ahead > self.most:
            raise AssertionError(f"a worker is {counted(ahead, 'clock')} ahead; expected at most {self.most}")


def _write(page: str | Path, deploy: Factory, seen: _Seen, about: str, deaths: int) -> str:
    """Write the page of the state graph; the path and the size, in words."""
    from refsgd.display.scheduler import TooLarge, scheduler_html

    try:
        html = scheduler_html(deploy, lambda run: _Seen(seen.most, seen.finals.alike).check(run), hash_of,
                              name=about, deaths=deaths)
    except TooLarge as found:
        raise Usage(str(found)) from None
    save(page, html)
    return f"page: {page}, {len(html.encode()) / 1e3:.0f} kB"


def _more(experiment: Experiment, steps: int) -> str:
    """The options with which a user's own function was explored, and what else may show more, as a line."""
    if catalogue_name(experiment.function) or not experiment.own:
        return ""
    values = ", ".join(f"{key}={value}" for key, value in experiment.own.items())
    flags = ", ".join(f"--{key.replace('_', '-')}" for key in experiment.own)
    return f"\nexplored only with {values}; other values of {flags}, and --steps {steps + 1}, may show more"


LARGEST = 1000  #: workers, servers or steps of a case whose schedules are followed


def explore_algorithm(algorithm: Algorithm, *, workers: int = 2, servers: int = 1,
                      steps: int = 2, batch: Batch = 1, max_runs: int = 20_000, walks: int | None = None,
                      seed: int = 0, page: str | Path | None = None, deaths: int = 0,
                      **options: Any) -> str:
    """Follow every schedule (or `walks` random ones) of a small case of one algorithm; a report in words.

    Parameters
    ----------
    algorithm : str or callable
        As in `refsgd.run`.
    workers, servers, steps : int
        Sizes; three workers and three steps are the practical limit.
    batch : sequence of int or text
        Examples of each worker's gradient, which are its weight, e.g. ``"3,1"``.
    max_runs : int
        Stop after this many schedules (20000).
    walks : int, optional
        Draw this many schedules instead of following all, for larger cases.
    seed : int
        Seed of the random schedules (0).
    page : path, optional
        Also write the state graph as an HTML page, in which you pick what happens next.
    deaths : int
        How many workers may die (0); for the page only.
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
    check_whole(1, workers=workers, servers=servers, max_runs=max_runs, walks=1 if walks is None else walks)
    check_whole(0, steps=steps, deaths=deaths)
    if max(workers, servers, steps) > LARGEST:
        raise Usage(f"workers {workers}, servers {servers}, steps {steps}; expected at most {LARGEST} of "
                    "each")
    problem = integer_gradients(d=4, workers=workers, batches=weights_of(batch, workers))

    def prepared(steps: int) -> Experiment:
        return prepare(algorithm, problem, workers=workers, servers=servers, steps=steps, lr=RATE, seed=seed,
                       **options)

    experiment = prepared(steps)
    name, workers, deploy = experiment.name, experiment.workers, experiment.deploy
    facts = experiment.facts
    seen = _Seen(facts.gate(experiment.own)[1] + 1 if facts.gate else float("inf"),
                 facts.timeless and not (deaths and survives_workers(experiment.nodes)))
    said = "".join(f" {key}={value}" for key, value in experiment.options.items())
    die = f", up to {counted(deaths, 'death')}" if deaths else ""
    about = f"{name}{said}, {counted(workers, 'worker')}, {counted(steps, 'step')}{die}"
    written = f"\n{_write(page, deploy, seen, about, deaths)}" if page is not None else ""
    try:
        with named_case(lambda steps, _: prepared(steps).deploy(), steps, workers, experiment.own):
            report = (explore(deploy, seen.check, max_runs=max_runs) if walks is None else
                      walk(deploy, seen.check, runs=walks, seed=seed))
    except Counterexample as found:
        found.args = (f"{in_full(found, stuck_because(found))}{written}",)
        raise
    scope, states = "random ones", ""
    if walks is None:
        scope = "all of them" if report.complete else f"stopped at {max_runs}, more exist"
        states = f", {counted(report.states, 'state')}"
    leads = ", ".join(map(str, sorted(seen.leads)))
    lead = f"  lead at a server: {leads} clock{'' if seen.leads == {1} else 's'};" if seen.leads else ""
    return (
        f"{name}, {counted(workers, 'worker')}, {counted(steps, 'step')}: {counted(report.runs, 'schedule')} "
        f"({scope}){states}\n"
        "checked: no deadlock; as many gradients applied or dropped as computed; no gradient from the "
        "future; finite parameters\n"
        f"staleness seen: {', '.join(map(str, sorted(seen.staleness))) or 'none'} updates;{lead}  "
        f"different results: {seen.finals}{_more(experiment, steps)}{written}")
