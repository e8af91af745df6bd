"""The update rule of a run: its kind, and its rate as a function of updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from refsgd.algorithms.adaptive import LARS, Adam
from refsgd.algorithms.facts import ONE_WORKER, Facts
from refsgd.algorithms.sgd import SGD, Warmup, parse_schedule
from refsgd.experiment.arguments import Usage, checked
from refsgd.problems import Problem

if TYPE_CHECKING:
    from refsgd.experiment.prepare import Training

#: update rules, each with the learning rate that a run has if none is given
OPTIMISERS: dict[str, tuple[type[SGD], float]] = {"sgd": (SGD, 0.15), "adam": (Adam, 0.003),
                                                  "lars": (LARS, 10.0)}

def together(name: str, facts: Facts, options: Mapping[str, Any], workers: int, begins: bool) -> int:
    """How many workers' gradients an update is the mean of; refuses an algorithm without such a mean, and a
    mean of one where a run `begins`."""
    try:
        if not callable(facts.mean_of):
            raise ValueError(facts.mean_of)
        if (count := facts.mean_of(workers, options)) == 1 < workers and begins:  # else a death left one
            raise ValueError(ONE_WORKER)
        return count
    except ValueError as why:
        raise Usage(f"scale_lr with {name}: {why}; expected the rate itself: lr") from None


def check(training: Training, name: str, facts: Facts, problem: Problem) -> None:
    """Refuse a rule that an algorithm cannot apply, or the choice of a rate without images."""
    if training.validation and "validation" not in problem.describe:
        raise Usage(f"validation {training.validation} with data {problem.describe['data']}, which has no "
                    "training images to hold back; expected digits or another data set")
    rule = training.optimiser
    if rule not in OPTIMISERS:
        raise Usage(f"optimiser {rule!r}; expected one of {', '.join(OPTIMISERS)}")
    why, expected = facts.only_sgd, "optimiser sgd"
    if rule == "lars" and not why:
        why = facts.not_lars
        if not why and problem.layers is None:
            why = "the problem does not declare its layers"
            expected = "layers=..., see refsgd.problems.layers"
        elif facts.served and (training.servers > 1 or training.layout != "equal") and (
                training.layout != "layers"):
            why, expected = "servers whose parts cut through layers", "layout layers, or one server"
    if why and rule != "sgd":
        raise Usage(f"optimiser {rule} with {name}: {why}; expected {expected}")


@checked()
def rule_of(training: Training, name: str, facts: Facts, options: Mapping[str, Any], workers: int, steps: int,
            problem: Problem, before: int | None = None) -> SGD:
    """The update rule of a run, or of its last `steps`, which follow `before` updates; `workers` counts
    shares of the data, `options` has the algorithm's defaults.

    Warm-up begins at the rate of one worker where the rate is scaled, else one step above 0.
    """
    check(training, name, facts, problem)
    updates = facts.updates(workers, steps, options)
    if updates is None and training.schedule == "cosine":
        raise ValueError(f"schedule cosine with {name}: how many updates a run makes is known at its "
                         "end; expected cosine(updates), such as cosine(1000)")
    schedule = parse_schedule(training.schedule, (before or 0) + (updates or 0))
    moved = training.warmup or training.schedule != "constant"
    if facts.unscheduled and (training.warmup or training.schedule.startswith("cosine")):
        raise ValueError(f"warmup or cosine with {name}: {facts.unscheduled}; expected neither")
    rate = OPTIMISERS[training.optimiser][1]
    if facts.minimises and problem.coordinates is not None and (
            moved or training.scale_lr or training.shards != "iid" or training.lr != rate):
        raise ValueError(f"lr, schedule, warmup, scale_lr or shards with {name} and data "
                         f"{problem.describe['data']}: each step goes to the minimum along a coordinate, "
                         "from all rows in order; expected none of them")
    scale = together(name, facts, options, workers, before is None) if training.scale_lr else 1
    if training.warmup:
        start = 1 / scale if training.scale_lr else 1 / (training.warmup + 1)
        schedule = Warmup(training.warmup, start, schedule)
    given = scale * training.lr, training.momentum, training.weight_decay, schedule
    if training.optimiser == "lars":  # a server of layout layers has a layer as a part, and its rule
        parts = () if training.layout == "layers" or problem.layers is None else problem.layers.parts
        return LARS(*given, layers=parts)
    return OPTIMISERS[training.optimiser][0](*given)
