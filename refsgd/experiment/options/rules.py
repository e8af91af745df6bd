"""The update rule of a run: its kind, its rate as a function of updates, and which algorithm takes which of
its options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.adaptive import LARS, Adam
from refsgd.algorithms.server.softsync import gradients_per_update
from refsgd.algorithms.sgd import SGD, Warmup, parse_schedule
from refsgd.experiment.arguments import Usage
from refsgd.problems import Problem

if TYPE_CHECKING:
    from refsgd.experiment.prepare import Training

#: update rules, each with the learning rate that a run has if none is given
OPTIMISERS: dict[str, tuple[type[SGD], float]] = {"sgd": (SGD, 0.15), "adam": (Adam, 0.003),
                                                  "lars": (LARS, 10.0)}
#: why an algorithm has no rule but SGD
ONLY_SGD = {"easgd": "its formula contains the velocity",
            "downpour": "its workers take local steps along the plain gradient, for which it has adagrad",
            "dynsgd": "it revises earlier updates, which is possible only while they are sums of gradients",
            "hogwild": "it shares only parameters, and no node keeps the state of a rule",
            "dgc": "it applies momentum before it chooses entries",
            "sandblaster": "its pairs say where to go",
            "strads": "it updates some blocks at a time, and averages would count all updates"}
#: why LARS, which needs whole layers, is not for those that may have Adam
NOT_LARS = {"zero": "its shards cut through layers, and no peer knows their norms",
            **dict.fromkeys(("gpipe", "pipedream"), "the rule of a stage does not know where its layers end")}

#: servers for each of whose updates one worker's gradient is enough
EACH_PUSH = ("asp", "ssp", "dssp", "dc-asgd", "consgd")
#: servers that collect gradients of any workers
COLLECTED = ("softsync", "staleness-aware")
_ALONE = "an update has the gradient of one worker, whose batch does not grow with their number"
#: why an algorithm does not multiply the rate by the number of workers
UNSCALED = {**dict.fromkeys(("asp", "ssp", "dssp", "dc-asgd", "downpour", "hogwild", "independent"), _ALONE),
            "easgd": "its centre is moved by elastic forces, not by a mean of gradients",
            "approximate": "the updates of its data centres are added, which multiplies the rate already",
            "sandblaster": "each of its steps uses all data, for any number of workers"}


def updates(name: str, options: Mapping[str, Any], workers: int, steps: int) -> int:
    """How many updates a run makes of one copy of the parameters, which schedules count; for the reader's own
    algorithm one a step."""
    if name in EACH_PUSH:
        return workers * steps
    if name in COLLECTED:
        return -(-workers * steps // _collected(name, options, workers))
    if name == "downpour":
        every = max(1, int(options.get("push_every", 1)))
        return workers * (1 + -(-(steps - 1) // every)) if steps else 0
    return steps


def together(name: str, options: Mapping[str, Any], workers: int) -> int:
    """How many workers' gradients an update is the mean of, for linear scaling; refuses those that have no
    such mean."""
    why = UNSCALED.get(name, "")
    if name == "bsp" and options.get("aggregation") == "sum":
        why = "the sum of n gradients is already n times their mean"
    if why:
        raise Usage(f"scale_lr with {name}: {why}; expected the rate itself: lr")
    if name in COLLECTED:
        return _collected(name, options, workers)
    return max(1, workers - int(options.get("backups", 1))) if name == "backup-workers" else workers


def _collected(name: str, options: Mapping[str, Any], workers: int) -> int:
    """Gradients in an update of softsync."""
    try:
        return gradients_per_update(workers, options.get("splitting", 1 if name == "softsync" else None))
    except ValueError as error:
        raise Usage(str(error)) from None


def check(training: Training, name: str, options: Mapping[str, Any], problem: Problem) -> None:
    """Refuse a rule that an algorithm cannot apply, or the choice of a rate without images; `name` is empty
    for the reader's own."""
    if training.validation and "validation" not in problem.describe:
        raise Usage(f"validation {training.validation} with data {problem.describe['data']}, which has no "
                    "training images to hold back; expected digits or another data set")
    rule = training.optimiser
    if rule not in OPTIMISERS:
        raise Usage(f"optimiser {rule!r}; expected one of {', '.join(OPTIMISERS)}")
    why, expected, sgd = ONLY_SGD.get(name, ""), "optimiser sgd", ", or optimiser sgd"
    if options.get("refresh", "fresh") != "fresh":
        why, expected = "its caches make their own steps along the plain gradient", "refresh fresh" + sgd
    if training.compress.startswith("dgc"):
        why, expected = "codec dgc applies momentum before it chooses entries", "compress topk" + sgd
    if rule == "lars" and not why:
        served = not name or "servers" in inspect.signature(CATALOGUE[name]).parameters
        why = NOT_LARS.get(name, "")
        if not why and problem.layers is None:
            why = "the problem does not declare its layers"
            expected = "layers=..., see refsgd.problems.layers"
        elif served and (training.servers > 1 or training.layout != "equal") and training.layout != "layers":
            why, expected = "servers whose parts cut through layers", "layout layers, or one server"
    if why and rule != "sgd":
        raise Usage(f"optimiser {rule} with {name or 'your algorithm'}: {why}; expected {expected}")


def rule_of(training: Training, name: str, options: Mapping[str, Any], workers: int, steps: int,
            problem: Problem) -> SGD:
    """The update rule of a run; `workers` counts shares of the data.

    Warm-up begins at the rate of one worker where the rate is scaled, else one step above 0.
    """
    check(training, name, options, problem)
    try:
        schedule = parse_schedule(training.schedule, updates(name, options, workers, steps))
        if name == "sandblaster" and (training.warmup or training.schedule.startswith("cosine")):
            raise ValueError("warmup or cosine with sandblaster: its line search sets the length of a step, "
                             "the rate only that of the first; expected neither")
        scale = together(name, options, workers) if training.scale_lr else 1
        if training.warmup:
            start = 1 / scale if training.scale_lr else 1 / (training.warmup + 1)
            schedule = Warmup(training.warmup, start, schedule)
        given = scale * training.lr, training.momentum, training.weight_decay, schedule
        if training.optimiser == "lars":  # a server of layout layers has a layer as a part, and its rule
            parts = () if training.layout == "layers" or problem.layers is None else problem.layers.parts
            return LARS(*given, layers=parts)
        return OPTIMISERS[training.optimiser][0](*given)
    except ValueError as error:
        raise Usage(str(error)) from None
