"""What a model contains, beside what the programs and the facts of an algorithm say of it.

Each gradient is a unit vector of its own, as in `tracers`, but in a longer run of any algorithm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms.facts import facts_of
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Array, Deployment
from refsgd.experiment.prepare import prepare
from refsgd.experiment.result import final_parameters
from refsgd.problems import quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.testing.findings import AT_FIRST, RATE, UNEQUAL, NotChecked, Small, known_gradients
from refsgd.trace import Run
from refsgd.trace.metrics import measure

WORKERS, STEPS = 3, 20  #: so that also periods of eight steps and more end within the run
ALL = WORKERS * STEPS
#: figures of a whole run, which formulas and measurement define alike
TOTALS = ("seconds", "updates", "bytes_sent", "bytes_per_iteration", "staleness_mean", "staleness_max")
EQUAL = Machine(compute="fixed(0.02)", latency=1e-3, bandwidth=1e6)  # type: ignore[arg-type]


class _Traced(NamedTuple):
    """A run, and the model of each gradient that was computed."""

    run: Run
    column: dict[tuple[int, int], int]  #: of each gradient, by rank and step: its entry in the model
    read: list[Array]


def _traced(deploy: Small) -> _Traced:
    column, read = dict[tuple[int, int], int](), list[Array]()

    def gradient(x: Array, rank: int, t: int) -> Array:
        i = column.setdefault((rank, t), len(column) + 1)
        if i > ALL:
            raise NotChecked("does not apply: it computes more gradients than its steps")
        read.append(np.array(x))
        g: Array = np.eye(1, ALL + 1, i, np.float32)[0]
        return g

    problem = known_gradients(np.zeros(ALL + 1, np.float32), gradient)
    try:
        deployment = deploy(problem, WORKERS, STEPS)
    except ValueError as refused:  # of this number of workers, for example
        raise NotChecked(f"does not apply: {refused}") from None
    return _Traced(simulate(deployment, UNEQUAL, observe=2 * ALL), column, read)


def reach(deploy: Small, coded: bool = False) -> str:
    """Check that every gradient reaches the model, or is dropped; its weight, in words."""
    run, column, _ = _traced(deploy)
    if not column:
        raise AssertionError(f"no gradient is computed in {STEPS} steps; expected one in each step")
    weights = -final_parameters(run) / np.float32(RATE)
    lost = [which for which, i in column.items() if abs(weights[i]) < 1e-4]
    if len(lost) > sum(e.values.get("gradients", 1) for e in run.trace.marks("drop")):
        said = f"{len(lost)} of {len(column)} gradients never reach the model"
        if coded:
            raise NotChecked(f"{said}: a codec keeps for later what it leaves out, see residual")
        last = {rank: max((t for r, t in column if r == rank and (r, t) not in lost), default=-1)
                for rank in range(WORKERS)}
        some = max(last.values()) >= 0
        for rank, t in lost:
            if t < last[rank] or (some and last[rank] < 0):
                which = f"all of worker {rank}'s" if last[rank] < 0 else f"gradient {t} of worker {rank}"
                raise AssertionError(f"{said}, such as {which}; expected every one to count, or a "
                                     "Mark(\"drop\")")
        raise NotChecked(f"{said}, the last ones: right if they stay in replicas, else the end is cut off")
    known = sorted({float(f"{weights[i]:.3g}") for which, i in column.items() if which not in lost})
    counts = f"each counts {known[0]:g}{f' to {known[-1]:g}' if len(known) > 1 else ''} times the rate"
    counts += f", together as {weights.sum():.3g} steps"
    if len(column) < ALL:
        raise NotChecked(f"{len(column)} of {ALL} gradients are computed in {STEPS} steps of {WORKERS} "
                         f"workers: right if one may sit out, else the run ends too early; {counts}")
    return f"{WORKERS} workers, {STEPS} steps: all reach the model or are dropped, and {counts}"


def versions(deploy: Small) -> str:
    """Check that gradients were computed at the versions which marks of updates name."""
    run, _, read = _traced(deploy)
    marks = run.trace.marks("update")
    if not marks or any(run.trace.is_worker(e.node) or len(e.values.get("x", ())) <= ALL for e in marks):
        raise NotChecked("does not apply: no single server marks its updates")
    models = [np.zeros(ALL + 1, np.float32), *(e.values["x"] for e in marks)]
    version = {model.tobytes(): i for i, model in enumerate(models)}
    claimed = Counter(v for e in marks for _, v in e.values["reads"])
    true = Counter(version[x.tobytes()] for x in read if x.tobytes() in version)
    if len(version) < len(models) or true.total() < claimed.total():
        raise NotChecked("does not apply: workers compute at models of their own")
    dropped = true.total() > claimed.total()
    for v in range(len(models)):
        if claimed[v] > true[v] or (claimed[v] < true[v] and not dropped):
            raise AssertionError(f"{claimed[v]} gradients are marked as computed at version {v}; {true[v]} "
                                 "were computed at that model; expected marks that name what was read"
                                 + AT_FIRST * (claimed[v] > true[v]))
    return f"{claimed.total()} gradients were computed at the models that marks name"


def updates(builds: Callable[..., Any], deploy: Callable[..., Deployment],
            options: Mapping[str, Any]) -> str:
    """Check that the update rule counts as many updates as the facts say, with which a schedule ends."""
    seen = list[int]()

    def schedule(t: int) -> float:
        seen.append(t)
        return 1.0

    _traced(lambda *case: deploy(*case, SGD(RATE, schedule=schedule)))
    expected = facts_of(builds, options).updates(WORKERS, STEPS, options)
    if expected is None or not seen:
        raise NotChecked("does not apply: " + ("its programs use no update rule" if expected else
                                               "its facts say that only the run shows how many there are"))
    if (counts := max(seen) + 1) != expected:
        said = f"the update rule counts {counts} in {STEPS} steps of {WORKERS} workers"
        if not hasattr(builds, "facts"):
            raise NotChecked(f"{said}; schedules end at {expected}, unless you declare `updates`")
        raise AssertionError(f"{said}, and the facts {expected}, where schedules end; expected another "
                             "`updates`")
    return f"{counts} in {STEPS} steps of {WORKERS} workers, where schedules end"


def formula(function: str | Callable[..., Any], options: Mapping[str, Any]) -> str:
    """Check that what its formulas call exact is what a run measures."""
    try:
        e = prepare(function, quadratic(d=36, workers=WORKERS), workers=WORKERS, steps=STEPS, machine=EQUAL,
                    lr=RATE, **options)
    except ValueError as refused:
        raise NotChecked(f"does not apply: {refused}") from None
    exact = {name: p.value for name, p in e.formulas().items() if p.kind == "exact" and name in TOTALS}
    found = measure(simulate(e.deploy(), EQUAL).trace)
    for name, value in exact.items():
        if found.get(name) is not None and not np.isclose(found[name], value, rtol=1e-6, atol=1e-9):
            raise AssertionError(f"{name} is {found[name]:.6g} in a run, and by the formulas that its facts "
                                 f"name {value:.6g}, exactly; expected another `formula`, or `no_formula`")
    if not exact:
        raise NotChecked("does not apply: its facts name no formula with an exact figure")
    return f"{', '.join(exact)}: a run has the figures that its facts promise"
