"""The problem of a run: named by a data set and a net, or the user's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from refsgd.cluster.units import counted
from refsgd.experiment.arguments import Usage, check_problem, suggestion
from refsgd.experiment.options.batches import own_batches
from refsgd.problems import Problem, classification, integer_gradients, quadratic
from refsgd.problems.problem import described, one_image, with_batches
from refsgd.problems.regression import generated
from refsgd.problems.shapes import of_net, shape_only

DEFAULT_DATA = "digits"
LARGEST_NET = 2**31  #: parameters of a net that is trained: 8 GiB in each of its vectors
ABSTRACT = ("quadratic", "integers")  #: data without images, whose batches only weigh gradients
REGRESSION = ("lasso", "logistic")


def build_problem(data: str, net: str, workers: int, batch: int | Sequence[int], seed: int,
                  shards: str, validation: float = 0.0) -> Problem:
    """The problem named by ``--data`` and ``--net``, with a share of the training images for validation."""
    if shards not in ("iid", "by-label"):
        raise Usage(f"shards {shards!r}; expected iid or by-label")
    uneven = batch if isinstance(batch, Sequence) else ()
    if net.startswith("shapes:"):
        if data not in ("none", DEFAULT_DATA):  # the default counts as not given
            raise Usage(f"data {data!r} with net {net}, which cannot learn; expected none")
        return _in_shape_only(net, batch)
    if data == "quadratic":
        return quadratic(workers=workers, noise=0.1, seed=seed, batches=uneven)
    if data == "integers":
        return integer_gradients(workers=workers, seed=seed, batches=uneven)
    if data.partition(":")[0] in ("lasso", "logistic"):
        try:
            return generated(data, workers, batch, seed, shards == "by-label")
        except ValueError as error:
            raise Usage(str(error)) from None
    from refsgd.problems.data import NAMES, load
    from refsgd.problems.nn import nets

    if data.partition(":")[0] not in NAMES:
        raise Usage(f"data {data!r} is unknown; expected one of {', '.join(NAMES)}, quadratic, integers, "
                    f"lasso, logistic, or none with --net shapes:P{suggestion(data, NAMES)}")
    check_net(net, ", or shapes:P for a shape-only net of P parameters")
    dataset = load(data).hold_back(validation)
    try:
        built = nets.build(net, dataset.train_images.shape[1:])
    except ValueError as error:
        raise Usage(f"{error}; data {data} has images of shape {dataset.train_images.shape[1:]}") from None
    if built.parameters > LARGEST_NET:
        raise Usage(f"net {net} has {built.parameters:,} parameters for these images; expected at most "
                    f"{LARGEST_NET:,}, or its sizes alone: shapes:{net}@{dataset.train_images.shape[1]}")
    return classification(dataset, built, workers, batch, seed, shards == "by-label")


def check_used(own: bool, data: str, net: str | None, batch: Any, shards: str, usual: Any) -> None:
    """Refuse what a problem would not use; one of your `own` has all of it, and a batch other than the
    `usual` one was given."""
    only, abstract = (net or "").startswith("shapes:"), data in ABSTRACT
    what = "your own problem" if own else f"net {net}" if only else f"data {data}"
    trained = not (abstract or data.partition(":")[0] in REGRESSION)
    for said, unused, why in (
            (f"data {data}", own and data != DEFAULT_DATA, "which has its own"),
            (f"net {net}", net and (own or not (only or trained)), "whose gradients are not of a net"),
            (f"batch {batch}", (own or abstract) and isinstance(batch, int) and batch != usual,
             "which says how many images a gradient has" if own else
             "whose gradients are not of images: batches weigh them only where they differ, such as 3,1"),
            (f"shards {shards}", shards == "by-label" and (own or abstract or only),
             "which divides its own data" if own else "which has no labels")):
        if unused:
            raise Usage(f"{said} with {what}, {why}; expected none")


def _in_shape_only(net: str, batch: int | Sequence[int]) -> Problem:
    """The problem of ``shapes:P`` or ``shapes:NET@PIXELS``."""
    from refsgd.problems.nn.nets import NAMES

    name = net.removeprefix("shapes:")
    if not (name.isdecimal() and int(name)) and re.split("[:@]", name)[0] not in NAMES:
        raise Usage(f"net {net!r}; expected shapes: and a number of parameters, at least 1, or a net, e.g. "
                    "shapes:25557032, shapes:resnet50@224")
    try:
        return shape_only(int(name), batch) if name.isdecimal() else of_net(name, batch)
    except ValueError as error:
        raise Usage(str(error)) from None


def check_net(name: str, others: str = "") -> None:
    """Refuse an unknown net."""
    from refsgd.problems.nn.nets import NAMES

    base = name.partition(":")[0]
    if base not in NAMES:
        raise Usage(f"net {name!r} is unknown; expected one of {', '.join(NAMES)}{others}"
                    + suggestion(base, NAMES))


#: why there are fewer shares of the data than workers, by `Facts.share`
TOGETHER = {"worker": "", "replica": " (one for all stages of a replica)", "all": " (one for all workers)"}


def own_problem(problem: Problem, share: str, workers: int) -> Problem:
    """A user's problem, checked and completed, for this many shares of the data."""
    check_problem(problem)
    made = problem.describe.get("workers", workers)
    if made != workers:
        raise Usage(f"problem for {counted(made, 'worker')}, run with {workers}{TOGETHER[share]}; expected "
                    f"the same number: classification(..., workers={workers})")
    size, batches = int(problem.x0.size), own_batches(problem, workers)
    if problem.images is one_image:  # its description may say more
        problem = with_batches(problem, batches)
    known = {"data": "own data", "net": "own gradient", "parameters": size, "bytes": 4 * size,
             **problem.describe, **described(batches)}
    return replace(problem, describe=known)


def default_net(data: str) -> str:
    """The default net for a data set."""
    return {"mnist": "shallow", "fashion-mnist": "shallow", "cifar10": "resnet18:16"}.get(data, "tiny")
