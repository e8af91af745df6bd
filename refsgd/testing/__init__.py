"""The conformance kit: checks that any algorithm must pass.

`check` runs lint, limits, drawn machines, every schedule of a small case and real processes on an algorithm
of the catalogue or on your own, and reports failures with the shortest schedule.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import EXCHANGE, facts_of
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted
from refsgd.effects import Array, Deployment
from refsgd.experiment.arguments import Usage, check_deployment, options_of
from refsgd.experiment.functions import deployment_function, with_defaults
from refsgd.experiment.options import exchanges
from refsgd.experiment.prepare import prepare
from refsgd.experiment.result import final_parameters, replicas, schedule_sha256
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.problems.problem import with_batches
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.explorer import Counterexample, explore, follow, walk
from refsgd.runtimes.fork import NO_FORK, can_fork
from refsgd.runtimes.lint import forgotten_yields, parts_of
from refsgd.runtimes.programs import ForgottenYield
from refsgd.runtimes.simulator import simulate
from refsgd.testing import contents
from refsgd.testing.comparison import options_for, properties
from refsgd.testing.exchange import check_codec, codec_findings, starves_none
from refsgd.testing.exploration import explore_algorithm
from refsgd.testing.findings import (
    RATE,
    Finals,
    Finding,
    NotChecked,
    Small,
    attempt,
    finite,
    hash_of,
    known_gradients,
    ledger,
    named_case,
    same_type,
    server_lead,
)
from refsgd.trace import Run
from refsgd.trace.diagram import diagram

__all__ = ["Finding", "check", "check_codec", "explore_algorithm", "finite", "ledger", "server_lead"]

MACHINES = (
    Machine(compute="fixed(1)"),  # type: ignore[arg-type]
    Machine(compute="exponential(1)"),  # type: ignore[arg-type]
    Machine(compute="lognormal(1,1.5)", latency=0.3, bandwidth=50.0,  # type: ignore[arg-type]
            speeds=(1, 0.2, 5)),
    Machine(compute="pareto(1,1.5)", latency=2.0, update="exponential(0.3)"),  # type: ignore[arg-type]
)


Deploy = Callable[..., Deployment]
RULE = SGD(RATE)
MANY = (3, 4, 2)  #: workers of a larger case: the first number that is not refused


def _constant_gradients() -> Problem:
    """Worker i's gradient is always (1 + i, 0) times a power of two, so the sum of steps is known in every
    schedule."""
    def gradient(x: Array, rank: int, t: int) -> Array:
        return np.array([8 * (1 + rank), 0], np.float32)

    return known_gradients(np.zeros(2, np.float32), gradient)


def _lint(function: Deploy) -> str:
    """Check that every effect is yielded."""
    path, first = getattr(function, "path", None), getattr(function, "first", 0)
    try:  # a submission in another process says where it is
        source = Path(path).read_text("utf-8") if path else textwrap.dedent(
            inspect.getsource(inspect.getmodule(function) or function))
    except (OSError, TypeError):
        raise NotChecked("no source to read (defined interactively)") from None
    first = first or getattr(getattr(function, "__code__", None), "co_firstlineno", 0)
    if lines := forgotten_yields(parts_of(ast.parse(source), first)):
        raise Usage(f"effects built without a yield at {path or inspect.getsourcefile(function)}:"
                    f"{', '.join(map(str, lines))}; write `yield` before each effect and `yield from` before "
                    "each sub-program")
    return "every effect is yielded"


def _begins(builds: Deploy, given: Mapping[str, Any], deploy: Small) -> str:
    """Check that it takes its options, returns programs, and that some of them return parameters."""
    prepare(builds, quadratic(d=3, workers=2), workers=2, steps=1, lr=RATE, **given)
    try:
        run = simulate(deploy(quadratic(d=3, workers=2), 2, 1), MACHINES[0])
    except (RunFailed, ForgottenYield):  # as it would in every schedule
        raise
    except Exception:
        return "it returns programs"  # the next checks report the size and the schedule
    final_parameters(run)
    return "it returns programs, which end with parameters"


def _accepted(deploy: Small, numbers: Sequence[int]) -> list[int]:
    """The numbers of workers that it does not refuse; raises its error if it refuses all."""
    found, refused = list[int](), ValueError()
    for workers in numbers:
        try:
            deploy(quadratic(d=3, workers=workers), workers, 1)
            found.append(workers)
        except ValueError as error:
            refused = error
    if not found:
        raise refused
    return found


def _sizes(deploy: Small) -> str:
    """Check that it runs for few workers and few steps, also none, on machines with short and long tails."""
    sizes = _accepted(deploy, (1, 2, 3, 4))
    for workers in sizes:
        for steps in (0, 1, 5):
            for machine in MACHINES:
                problem = quadratic(d=3, workers=workers, noise=0.5)
                run = simulate(deploy(problem, workers, steps), machine)
                finite(run)
                same_type(run, problem.x0)
                if steps and not any(run.trace.iterations.values()):
                    raise AssertionError(f"{counted(workers, 'worker')} computed no gradient in "
                                         f"{counted(steps, 'step')}; expected one in each step")
    said = "1 to 4" if len(sizes) == 4 else ", ".join(map(str, sizes))
    others = "" if len(sizes) == 4 else " (others are refused)"
    return f"{said} workers{others}, 0 to 5 steps, four machines"


def _repeats(deploy: Small, forget: Callable[[], None]) -> str:
    """Check that one seed gives one result; what is known of the programs is forgotten before each run."""
    runs, (n, *_) = [], _accepted(deploy, MANY)
    for _ in range(2):
        forget()
        runs.append(simulate(deploy(quadratic(workers=n), n, 6), MACHINES[2], seed=7))
    a, b = runs
    if hash_of(a) != hash_of(b) or schedule_sha256(a.trace) != schedule_sha256(b.trace):
        raise AssertionError(
            "the same seed gave a different result; expected programs that read no clock, "
            "no random generator")
    return "the same seed gives the same bits and schedule"


def _gradients(deploy: Small) -> str:
    """Check the `ledger` of every run."""
    n, *_ = _accepted(deploy, MANY)
    runs = [simulate(deploy(quadratic(d=4, workers=n), n, 6), machine, seed) for machine in MACHINES
            for seed in (0, 1)]
    if not any(run.trace.marks("update") for run in runs):
        raise NotChecked("not checked: the programs mark no updates, so staleness and history are unknown")
    for run in runs:
        ledger(run)
    return "as many gradients are marked, as applied or dropped, as were computed"


def _fixed_point(deploy: Small) -> str:
    """Check that zero gradients change no parameter, bit for bit."""
    x0 = np.linspace(-1, 1, 5, dtype=np.float32) / np.float32(3)
    problem, (n, *_) = known_gradients(x0, lambda x, rank, t: np.zeros_like(x)), _accepted(deploy, MANY)
    for machine in MACHINES:
        if not np.array_equal(final_parameters(simulate(deploy(problem, n, 6), machine)), problem.x0):
            raise AssertionError("zero gradients and equal replicas changed the parameters; expected the "
                                 "same bits (average as a + (b - a) / 2)")
    return "zero gradients change nothing"


def _descent(deploy: Small) -> str:
    """Check that it minimises a quadratic."""
    problem = quadratic(d=6, workers=1)  # one minimum for all, whichever worker ends last
    run = simulate(deploy(problem, 2, 240), MACHINES[1])
    same_type(run, problem.x0)
    first, now = problem.loss(problem.x0), problem.loss(final_parameters(run))
    if not now < 0.5 * first:
        raise AssertionError(f"after 240 steps on a quadratic the loss is {now:.4g}, at the start "
                             f"{first:.4g}; expected less than half")
    return "a quadratic is minimised"


def _schedules(deploy: Small, max_runs: int, options: Mapping[str, Any], most: int | None = None,
               timeless: bool = False) -> str:
    """Check that no schedule of a small case deadlocks or violates an invariant; a report in words."""
    finals = Finals(timeless)

    def sound(run: Run) -> None:
        finite(run)
        if run.trace.marks("update"):
            ledger(run)

    def at_end(run: Run) -> None:
        sound(run)
        finals.add(run)

    def small(steps: int = 2, workers: int = 2) -> Deployment:
        return deploy(integer_gradients(d=3, workers=workers), workers, steps)

    try:
        with named_case(small, 2, 2, options):
            report = explore(small, at_end, max_runs=max_runs, most=most)
    except Counterexample:
        with named_case(small, 1, 2, options):
            explore(lambda: small(1), at_end, max_runs=max_runs, most=most)  # may fail sooner
        raise
    text = f"2 workers, 2 steps: {report.runs} schedules, {report.states} states"
    if not report.complete:
        with named_case(small, 2, 2, options):
            walk(small, at_end, runs=(runs := min(200, 5 * max_runs)))
        text += f" (not all; then {runs} random ones)"
    # some deadlocks need a third worker, such as servers that answer different pairs
    n, *_ = _accepted(deploy, MANY)
    with named_case(small, 2, n, options):
        more = walk(lambda: small(workers=n), sound, runs=min(100, max_runs))
    return f"{text}, different results: {finals}; {n} workers: {more.runs} random ones; no deadlock"


def _mean(deploy: Small) -> str:
    """Whether only gradients move the mean of the replicas, as with symmetric and atomic averaging: reported,
    not required."""
    problem, worlds = _constant_gradients(), []
    try:
        for seed in range(24):
            picks = np.random.default_rng(seed).integers(0, 9, 60).tolist()
            world, error = follow(lambda: deploy(problem, 2, 2), picks, finite)
            if error is not None:
                raise error
            worlds.append(world)
    except Exception:
        raise NotChecked("not checked: a schedule failed") from None
    if replicas(worlds[0].run())[0]:
        raise NotChecked("does not apply: servers hold the parameters")
    expected = problem.x0 - np.float32(RATE) * 2 * np.mean(
        [problem.gradient(problem.x0, i, 0) for i in range(2)], axis=0)
    broken = [world for world in worlds if not np.array_equal(final_parameters(world.run()), expected)]
    if broken:
        raise NotChecked(f"only gradients moved it in {24 - len(broken)} of 24 random schedules; averaging "
                         "that is atomic on both sides keeps it in all, weighted or one-sided averaging does "
                         "not. One schedule where it moved otherwise:\n"
                         + diagram(broken[0].events, broken[0].nodes))
    return "only gradients moved it in 24 random schedules"


def _weighs(deploy: Small) -> str:
    """Whether gradients of 3 and of 1 example have the mean over all 4: reported, not required."""
    plain = _constant_gradients()
    try:
        alike, found = (final_parameters(simulate(deploy(problem, 2, 1), MACHINES[0]))
                        for problem in (plain, with_batches(plain, (3, 1))))
    except Exception:
        raise NotChecked("not checked: a run failed") from None
    mean = (3 * plain.gradient(plain.x0, 0, 0) + plain.gradient(plain.x0, 1, 0)) / 4
    if np.array_equal(alike, plain.x0):
        raise NotChecked("not checked: no gradient of a single step has moved a parameter")
    if np.array_equal(found, alike):
        raise NotChecked("do not weigh: gradients of 3 and of 1 example count the same, as where each "
                         "is applied alone")
    if not np.array_equal(found, plain.x0 - np.float32(RATE) * mean):
        raise NotChecked("weigh, but gradients of 3 and of 1 example moved a parameter by "
                         f"{found[0]:g}, and the mean over 4 is {-RATE * mean[0]:g}")
    return "weigh: gradients of 3 and of 1 example have the mean over 4"


def _real(deploy: Small) -> str:
    """Check that it ends as OS processes too, over both transports, with the simulator's bits if all
    schedules agree."""
    if not can_fork():
        raise NotChecked(f"left out: {NO_FORK}")
    from refsgd.runtimes.processes import local as launcher

    n, *_ = _accepted(deploy, MANY)
    problem, machine = quadratic(workers=n, d=50), MACHINES[0].with_(compute="exponential(0.003)")
    finals = {hash_of(simulate(deploy(problem, n, 5), m, s)) for m in MACHINES for s in (0, 1)}
    for transport in ("shm", "tcp"):
        run = launcher.run(lambda: deploy(problem, n, 5), machine, 0, transport=transport)
        finite(run)
        if len(finals) == 1 and hash_of(run) not in finals:
            raise AssertionError(
                f"different parameters over {transport} than in the simulator, where all schedules agree")
    return "ends over shared memory and over TCP" + (", with the simulator's bits" if len(finals) == 1
                                                     else "")


def _urgent(deploy: Small) -> str:
    """Check that a node has a priority."""
    if not any(node.priority for node in deploy(integer_gradients(workers=2), 2, 1).values()):
        raise NotChecked("no node has a priority")
    return "a node has a priority"


def findings(function: str | Deploy, *, algorithm: str | None = None, processes: bool = True,
             max_runs: int = 2000, **options: Any) -> Iterator[Finding]:
    """The findings of `check`, each as soon as it is known."""
    name, builds = deployment_function(function)
    said = {key: options.pop(key) for key in EXCHANGE if key in options}
    # those that only the function has, by which it is more general than the algorithm
    of_algorithm = options_of(CATALOGUE[algorithm]) if algorithm else options
    more = {key: options.pop(key) for key in options.keys() - of_algorithm.keys()}
    own = {**(options_for(algorithm, options) if algorithm else options), **more}
    facts = facts_of(builds, own)

    def deploy(problem: Problem, workers: int, steps: int, sgd: SGD = RULE) -> Deployment:
        if said:
            problem = replace(problem, exchange=exchanges.exchange_of(said, sgd, workers, problem))
        return check_deployment(name, builds(problem, workers, steps, sgd, **own))

    for first in (("lint", _lint, builds), ("deployment", _begins, builds, {**own, **said}, deploy)):
        finding = attempt(*first)
        yield finding
        if finding.held is False:  # the runs would only show its consequences
            return
    yield attempt("sizes", _sizes, deploy)
    yield attempt("determinism", _repeats, deploy, getattr(builds, "forget", lambda: None))
    yield attempt("gradients", _gradients, deploy)
    yield attempt("fixed point", _fixed_point, deploy)
    yield attempt("descent", _descent, deploy)
    yield attempt("all schedules", _schedules, deploy, max_runs, {**with_defaults(builds, own), **said},
                  2 * max_runs if algorithm else None, facts.timeless and not algorithm)
    if algorithm:
        yield from (attempt(*each) for each in properties(partial(builds, **more), algorithm, options))
    else:
        codecs = list(codec_findings(deploy))
        if not facts.minimises:  # which leaves entries of a gradient out
            yield attempt("gradients count", contents.reach, deploy, bool(codecs))
        yield attempt("versions read", contents.versions, deploy)
        yield attempt("formulas", contents.formula, builds, {**own, **said})
        yield attempt("updates", contents.updates, builds, deploy, with_defaults(builds, own))
        yield attempt("mean of replicas", _mean, deploy)
        yield attempt("unequal batches", _weighs, deploy)
        yield from codecs
    urgent = attempt("priority", _urgent, deploy)
    if urgent.held is not None:
        yield attempt("priority", starves_none, deploy) if urgent.held else urgent
    if processes:
        yield attempt("processes", _real, deploy)


def check(function: str | Deploy, *, algorithm: str | None = None, processes: bool = True,
          max_runs: int = 2000, **options: Any) -> list[Finding]:
    """Check what every algorithm must satisfy and, if `algorithm` is given, what that one must.

    Parameters
    ----------
    function : str or callable
        As in `refsgd.run`.
    algorithm : str, optional
        An algorithm of the catalogue that the function should be.  What its workers may read, its results
        and what no schedule changes are checked in schedules of small cases; names, messages and helper
        programs are free.
    processes : bool
        Also run it as OS processes, if the system can fork.
    max_runs : int
        Number of schedules to follow in the small case; if there are more, random ones are added.
    **options
        The algorithm's own options, and those of an exchange, such as ``overlap="backward"``.

    Returns
    -------
    list of Finding
    """
    return list(findings(function, algorithm=algorithm, processes=processes, max_runs=max_runs, **options))
