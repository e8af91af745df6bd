"""Expected loss of an algorithm on a quadratic with a spectrum: updates to a target, and the best rate."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from refsgd.algorithms.exchange import of
from refsgd.algorithms.facts import RECURSIONS
from refsgd.algorithms.sgd import SGD, constant
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.prices import own
from refsgd.cluster.units import counted
from refsgd.experiment.arguments import Usage
from refsgd.experiment.evaluation import evaluate
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import Experiment
from refsgd.experiment.race.target import Target
from refsgd.experiment.result import Result
from refsgd.problems.shapes import in_shape_only
from refsgd.theory.estimate import kind_of
from refsgd.theory.phenomena import convergence
from refsgd.theory.phenomena.convergence import Recursion
from refsgd.theory.prediction import Figures, Prediction
from refsgd.trace import Marked

GRADIENTS = 512  #: in a simulated schedule
DRAWN = 16  #: schedules, if they differ
FEW = 32  #: most workers of unequal speeds whose moments are followed without a schedule
MOMENTS = 5 * 10**7  #: most that are kept at a time, 8 bytes each
POINTS = 64  #: of a simulated run
NAMES = "updates_to_target", "best_rate"
ASSUMED = "SGD at a constant rate; workers with one quadratic; independent noise"


@dataclass(frozen=True)
class Course:
    """How the expected loss of an experiment is computed."""

    recursion: Recursion
    formula: str
    source: str = "derived here"
    most: float = math.inf  #: rate times curvature from which replicas part, though their mean may converge
    length: float = math.inf  #: updates after which schedules repeat
    drawn: bool = False  #: whether it is the mean of several schedules
    memory: float = 0  #: updates by which a gradient may be late


def course(e: Experiment) -> Course:
    """The recursion of an experiment; raises Usage with the reason if there is none."""
    said, mu, n = e.facts.recursion, e.sgd.momentum, e.workers
    kind = said if isinstance(said, str) else said(e.own)
    if kind not in RECURSIONS:
        raise Usage(f"{e.name}: {kind}")
    if type(e.sgd) is not SGD or e.sgd.schedule != constant or e.sgd.weight_decay:
        raise Usage("recursions are of SGD at a constant rate, without weight decay")
    if of(e.problem).compress:
        raise Usage("compression is not linear")
    collected = e.facts.mean_of(e.replicas, e.own) if callable(e.facts.mean_of) else 1
    if kind in ("mean", "replicas"):
        m = n if kind == "replicas" else collected
        most = (1 + e.facts.mixing(n, e.own)) * (1 + mu) if kind == "replicas" else math.inf
        return Course(lambda a, rate, s2, v0: convergence.delayed(a, rate, s2 / m, v0, [[[0]]], mu),
                      f"moments of x and of its velocity, noise s2/{m}" if mu else
                      f"E[x'^2] = (1 - rate a)^2 E[x^2] + rate^2 s2/{m}", most=most)
    if kind == "elastic":
        if mu:
            raise Usage("each worker has a velocity, which no recursion here follows; expected momentum 0")
        alpha, period = 0.9 / n if e.own["alpha"] is None else e.own["alpha"], e.own["period"]
        return Course(partial(convergence.elastic, workers=n, period=period, alpha=alpha),
                      "moments of the centre and of the mean replica", "Zhang et al. 2015; derived here",
                      most=convergence.parting(alpha, period) if n > 1 and alpha < 1 else math.inf)
    shares = _shares(e) if kind == "pushes" and not mu else []
    if len(set(shares)) == 1:
        return Course(partial(convergence.exponential, workers=n, collected=collected),
                      "moments of the model, of what workers read, and of the sum of waiting gradients",
                      f"{'Gupta' if collected > 1 else 'Mitliagkas'} et al. 2016; derived here", memory=n)
    if shares and collected == 1 and n <= FEW:
        return Course(partial(convergence.unequal, shares=shares),
                      "moments of the model and of what each worker read", memory=1 / min(shares))
    found = list(dict.fromkeys(schedule(e, e.seed + k, collected) for k in range(DRAWN)))
    length = min(map(len, found))
    return Course(partial(convergence.delayed, staleness=[each[:length] for each in found], momentum=mu),
                  "E[x_i x_j] of the versions in a window, by the staleness of each gradient in "
                  f"{counted(len(found), 'simulated schedule')}; after {length} updates they repeat",
                  length=length, drawn=len(found) > 1, memory=max(max(map(max, each)) for each in found))


def _shares(e: Experiment) -> list[float]:
    """Each worker's share of the gradients, if their times are exponential and nothing else takes time."""
    m, times = e.machine, [own(e.priced, i) for i in range(e.workers)]
    free = not (m.linked or m.update or m.updating or m.cores or m.loads or m.crowding)
    rates = [1 / time.mean for time in times
             if isinstance(time, Distribution) and time.family == "exponential"]
    return [rate / sum(rates) for rate in rates] if free and len(rates) == e.workers else []


def schedule(e: Experiment, seed: int, collected: int = 1) -> tuple[tuple[int, ...], ...]:
    """The staleness of the gradients in each update of a simulated run, until a worker ends."""
    if not e.machine.paced:
        raise Usage("the machine has no compute time; give one: --compute 20ms")
    many = max(GRADIENTS, 8 * collected) // e.workers
    steps, out, pushed = max(8, many), list[tuple[int, ...]](), Counter[str]()
    shape = in_shape_only(e.problem, [max(b, 1) for b in e.batches])
    trace = perform(replace(e, problem=shape, steps=steps, seed=seed), "simulator", observe=0).trace
    if len(trace.updates) > 1:
        raise Usage("each part of the parameters has a schedule of its own; expected one server and layout "
                    "equal")
    for mark in trace.of(Marked):
        if mark.name == "drop":
            pushed[mark.values["worker"]] += mark.values.get("gradients", 1)
        elif mark.name == "update":
            reads = mark.values["reads"]
            out.append(tuple(mark.values["version"] - version for _, version in reads))
            pushed.update(worker for worker, _ in reads)
        if max(pushed.values(), default=0) == steps:
            break
    if len(out) > 1 and len(out[-1]) < len(out[0]):
        out.pop()  # the end of a run takes the gradients that are left
    if len({*map(len, out)}) > 1:
        raise Usage("its updates have different numbers of gradients, which no recursion here follows")
    width = max(map(max, out)) + 2
    if (count := DRAWN * convergence.GRID * e.problem.spectrum.values.size * width**2) > MOMENTS:
        raise Usage(f"{count:.2g} moments of {width} versions of the model; expected at most {MOMENTS:.2g}")
    return tuple(out)


@dataclass(frozen=True)
class Approach:
    """The approach of an experiment to a target."""

    experiment: Experiment
    target: float
    course: Course | None  #: None where no recursion fits
    pace: float  #: predicted seconds per update; 0 where they are not predicted

    @np.errstate(all="ignore")
    def expected(self, updates: int) -> list[float]:
        """The expected loss after 0, 1, ... updates; empty if no recursion gives it."""
        given, rate = self.experiment.problem.spectrum, np.array([self.experiment.sgd.lr])
        return [] if self.course is None else [float(loss[0]) for loss in islice(convergence.losses(
            self.course.recursion, given.values, rate, given.noise, given.start**2), updates + 1)]

    def simulated(self) -> Result:
        """A run, evaluated at many updates."""
        return evaluate(self.experiment, "simulator", perform(self.experiment, "simulator"), POINTS)


def approach(e: Experiment, text: str, figures: Figures) -> Approach:
    """Add the updates to the target and the best rate, or why there are none, to the `figures`."""
    wanted = Target.read(text)
    if (given := e.problem.spectrum) is None or wanted.metric != "loss":
        raise Usage(f"target {text} with data {e.problem.describe['data']}; expected loss=VALUE with "
                    "--data quadratic:LOW,HIGH,MODES,NOISE, or `refsgd race`, which trains to any target")
    target = wanted.value
    a, s2, v0, rate = given.values, given.noise, given.start**2, e.sgd.lr
    if target >= (start := float(a @ v0 / 2)):
        raise Usage(f"target {text}; expected a loss below that of the start, {start:g}")
    known = figures.keys() >= {"seconds", "updates"} and figures["updates"].value
    pace = figures["seconds"].value / figures["updates"].value if known else 0.0
    try:
        how = course(e)
    except Usage as why:
        figures.without(str(why), *NAMES)
        return Approach(e, target, None, pace)
    best, fewest, limit = convergence.best_rate(how.recursion, a, s2, v0, target, how.most / a.max(),
                                                   max(how.memory, 1 / (1 - e.sgd.momentum)))
    updates = math.inf if rate >= limit else convergence.first(
        convergence.losses(how.recursion, a, np.array([rate]), s2, v0), target)[0]
    about = how.formula, how.source, ASSUMED
    for figure, value, reached, unit, terms, units, never in (
            (NAMES[0], updates, updates, "updates", {"rate": rate}, {"rate": "1"},
             f"at rate {rate:g} the expected loss never is {target:g}; the limit of stability is "
             f"{limit:.4g}"),
            (NAMES[1], best, fewest, "1", {"updates at it": fewest, "limit of stability": limit},
             {"updates at it": "updates"}, f"no rate reaches {target:g} in {convergence.MOST} updates")):
        if math.isinf(reached):
            figures.without(never, figure)
        else:
            kind = "simulated" if how.drawn else kind_of(reached <= how.length)
            figures[figure] = Prediction(value, unit, kind, terms, *about, units=units)
    return Approach(e, target, how, pace)
