"""One run of a race: simulated event by event with real gradients, until the model reaches the target.

After equal numbers of gradients, the model of the moment is evaluated; where results do not depend on the
schedule, that of equal iterations of all workers, so that one run has the trajectory of every machine.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refsgd.effects import Array, roles
from refsgd.experiment.arguments import Usage
from refsgd.experiment.evaluation import joined_model, model
from refsgd.experiment.prepare import Experiment
from refsgd.runtimes.simulator import Simulator, rare_full_collections
from refsgd.trace import Added, Computed, Marked, Trace
from refsgd.trace.moments import moments

SAMPLE = 512  #: most training images of which a loss is taken
EXPLODED = 50.0  #: a loss from which no run returns
METRICS = {"loss": "training loss", "validation": "validation accuracy"}


@dataclass(frozen=True)
class Target:
    """What a race runs to: a training loss, or an accuracy on the images held back for validation."""

    metric: str
    value: float

    @classmethod
    def read(cls, text: str) -> Target:
        """A target as text.

        >>> Target.read("loss=0.1")
        Target(metric='loss', value=0.1)
        """
        metric, _, value = text.partition("=")
        if metric == "accuracy":
            raise Usage(f"target {text}: rates must not be tuned on test images; expected validation=VALUE "
                        "with --validation SHARE, or loss=VALUE")
        try:
            found = cls(metric, float(value))
        except ValueError:
            found = cls("", math.nan)
        if found.metric not in METRICS or not math.isfinite(found.value) or found.value <= 0:
            raise Usage(f"target {text!r}; expected loss=VALUE or validation=VALUE, such as loss=0.1")
        if metric == "validation" and found.value >= 1:
            raise Usage(f"target {text}; expected a share of the validation images below 1")
        return found

    def __str__(self) -> str:
        return f"{self.metric}={self.value:g}"

    def of(self, experiment: Experiment) -> Callable[[Array], float]:
        """The function of the parameters that has the target, on images that are the same for all."""
        problem = experiment.problem
        if problem.describe.get("shape_only"):
            raise Usage(f"net {problem.describe['net']} cannot learn; expected a net such as tiny")
        if self.metric == "loss":
            return problem.sampled(SAMPLE) if problem.sampled else problem.loss
        accuracy = problem.accuracy
        if accuracy is None or "validation" not in problem.describe:
            raise Usage(f"target {self} without validation images; expected --validation SHARE, such as 0.1")
        return lambda x: accuracy(x, "validation")

    def reached(self, value: float) -> bool:
        """Whether a value is as good as the target."""
        return value <= self.value if self.metric == "loss" else value >= self.value

    def between(self, before: float, after: float) -> float:
        """The share of the way from one value to another at which the target lies, in logarithms for a loss.

        >>> round(Target("loss", 0.1).between(0.2, 0.05), 12)
        0.5
        """
        if self.reached(before):
            return 0.0
        value = self.value
        if self.metric == "loss" and after > 0:
            before, after, value = math.log(before), math.log(after), math.log(value)
        return (before - value) / (before - after)


class Point(NamedTuple):
    """The model of one moment of a run, to microseconds and six digits."""

    seconds: float
    gradients: int  #: computed by all workers until then
    value: float


class Heat(NamedTuple):
    """One run: when it reached the target, and its points until then."""

    seconds: float  #: infinite if it did not
    gradients: float  #: likewise
    points: list[Point]
    ended: str  #: why it ended: reached, passes, diverged, or cut off


def crossing(points: list[Point], target: Target) -> tuple[float, float] | None:
    """Seconds and gradients at the first of two points in a row beyond the target; one alone is a spike."""
    for k in range(1, len(points) - 1):
        if target.reached(points[k].value) and target.reached(points[k + 1].value):
            before, after = points[k - 1], points[k]
            share = target.between(before.value, after.value)
            return (before.seconds + share * (after.seconds - before.seconds),
                    before.gradients + share * (after.gradients - before.gradients))
    return None


def to_target(experiment: Experiment, target: Target, value: Callable[[Array], float], every: int,
              most: float, why: str = "passes") -> Heat:
    """Run until the target, evaluating after each `every` gradients, at most `most` of them, else `why`."""
    points = [Point(0.0, 0, value(experiment.problem.x0))]
    if target.reached(points[0].value):
        raise Usage(f"target {target} is met before the first step, where it is {points[0].value:.4g}; "
                    "expected one that training must reach")
    try:
        with np.errstate(all="ignore"), rare_full_collections():
            for seconds, gradients, x in models(experiment, every):
                points.append(Point(round(seconds, 6), gradients, float(f"{value(x):.6g}")))
                if found := crossing(points[-3:], target):
                    return Heat(*found, points, "reached")
                last = points[-1].value
                if not math.isfinite(last) or (target.metric == "loss" and last > EXPLODED):
                    why = "diverged"
                    break
                if gradients >= most:
                    break
    except FloatingPointError:
        why = "diverged"
    return Heat(math.inf, math.inf, points, why)


def same_everywhere(experiment: Experiment) -> bool:
    """Whether all workers' iterations give the same parameters on every machine."""
    return experiment.facts.timeless and (experiment.workers == 1 or not experiment.facts.silent)


def models(experiment: Experiment, every: int) -> Iterator[tuple[float, int, Array]]:
    """Seconds, gradients and parameters of a simulated run, after each `every` gradients."""
    nodes = _Nodes(experiment)
    stops = (of_iterations if same_everywhere(experiment) else _of_moments)(experiment, every, nodes)
    for seconds, gradients, newest in stops:
        if (whole := nodes.joined(newest)) is not None:
            yield seconds, gradients, whole


class _Nodes:
    """The nodes of which the parameters are: servers, or workers where there are none."""

    def __init__(self, experiment: Experiment) -> None:
        role = roles(experiment.nodes)
        servers = [node for node in role if role[node] == "server"]
        self.names, self.replicas = servers or list(role), not servers
        self.x0, self.parts, self.shared = experiment.problem.x0, dict[str, int](), False

    def taken(self, event: Any) -> Any:
        """The parameters that an event marks, which it then no longer has; None of another event."""
        if not isinstance(event, Marked) or event.name != "update" or "x" not in event.values:
            self.shared = self.shared or isinstance(event, Added)
            return None
        if self.replicas and event.values.get("part"):
            self.parts[event.node] = event.values["part"]
        return event.values.pop("x") if event.node in self.names else None

    def joined(self, newest: dict[str, Any]) -> Array | None:
        """The parameters of all nodes; None while some are missing."""
        if not self.shared:
            newest = {node: newest[node] for node in self.names}
        if not self.replicas:  # a server without a part, such as a dispatcher, marks no update
            newest = {node: x for node, x in newest.items() if x is not None}
            if sum(x.size for x in newest.values()) < self.x0.size:
                return None
        return joined_model(newest, self.x0, self.replicas, self.parts, self.shared)


def _of_moments(experiment: Experiment, every: int, nodes: _Nodes
                ) -> Iterator[tuple[float, int, dict[str, Any]]]:
    """The newest parameters of each node when so many gradients have been computed."""
    newest: dict[str, Any] = dict.fromkeys(nodes.names)
    done, due = 0, every
    for event in Simulator(experiment.deploy(), experiment.machine, experiment.seed, observe=None):
        if isinstance(event, Computed):
            done += event.gradient_ended
        elif (x := nodes.taken(event)) is not None:
            newest.pop(event.node)
            newest[event.node] = x  # the newest comes last
        if done >= due:
            due = done - done % every + every
            yield event.time, done, newest


def of_iterations(experiment: Experiment, every: int, nodes: _Nodes | None = None
                  ) -> Iterator[tuple[float, int, dict[str, Any]]]:
    """The parameters of each node after the same iterations, when the last has made them."""
    nodes, replicas, count = nodes or _Nodes(experiment), experiment.replicas, Counter[str]()
    kept = defaultdict[int, dict[str, Any]](dict)  # by iteration
    computed = before = 0
    for event in Simulator(experiment.deploy(), experiment.machine, experiment.seed, observe=None):
        if isinstance(event, Computed):
            computed += event.gradient_ended
        elif (x := nodes.taken(event)) is not None:
            count[event.node] = t = count[event.node] + 1
            # an update of servers may be a round of several steps; workers wait for it
            if not nodes.replicas or t * replicas // every > (t - 1) * replicas // every:
                kept[t][event.node] = x
            if len(kept.get(t, ())) == len(nodes.names):
                newest, done = kept.pop(t), t * replicas if nodes.replicas else computed
                if done // every > before // every:
                    yield event.time, done, newest
                before = done


def kept_models(trace: Trace, x0: Array) -> Iterator[tuple[float, Array]]:
    """Seconds and parameters of a finished run, at the moments of which it has kept them."""
    for moment in moments(trace, trace.marks("update")):
        if (x := model(trace, x0, moment)) is not None:
            yield moment.seconds, x
