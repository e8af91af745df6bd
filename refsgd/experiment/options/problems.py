"""The problem of a run: named by a data set and a net, or the user's own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from refsgd.cluster.units import counted
from refsgd.experiment.arguments import Usage, check_kind, check_problem, checked, suggestion
from refsgd.experiment.options.batches import own_batches
from refsgd.problems import Problem, classification, integer_gradients, quadratic, transformer
from refsgd.problems.bandit import bandit
from refsgd.problems.data.shards import concentration
from refsgd.problems.problem import described, one_image, with_batches
from refsgd.problems.regression import KINDS, generated
from refsgd.problems.shapes import LayerSizes, of_layers, of_net, shape_only
from refsgd.problems.spectral import generated as with_spectrum
from refsgd.trace.schema import COUNT, NUMBER, TEXT, Kind, misfit

DEFAULT_DATA = "digits"
LARGEST_NET = 2**31  #: parameters of a net that is trained: 8 GiB in each of its vectors
ABSTRACT = ("quadratic", "integers")  #: data without images, whose batches only weigh gradients
GENERATED = (*KINDS, "bandit")  #: data without a net, of which a gradient has a batch
_AMOUNT = Kind("a number, at least 0", lambda value: NUMBER.fits(value) and value >= 0)
_LAYER = {"name": TEXT, "parameters": COUNT, "operations": _AMOUNT, "activations": _AMOUNT}


@checked()
def build_problem(data: str, net: str, workers: int, batch: int | Sequence[int], seed: int,
                  shards: str, validation: float = 0.0, start: str | None = None) -> Problem:
    """The problem of ``--data`` and ``--net``, with images for validation, and perhaps a `start`."""
    uneven = batch if isinstance(batch, Sequence) else ()
    if only_sizes(net):
        if data not in ("none", DEFAULT_DATA):  # the default counts as not given
            raise Usage(f"data {data!r} with net {net}, which cannot learn; expected none")
        return of_sizes(net, batch)
    if data.startswith("quadratic:"):
        if uneven:
            raise Usage(f"batch {','.join(map(str, uneven))} with data {data}, whose workers are all alike; "
                        "expected one batch")
        return with_spectrum(data, seed)
    if data == "quadratic":
        return quadratic(workers=workers, noise=0.1, seed=seed, batches=uneven)
    if data == "integers":
        return integer_gradients(workers=workers, seed=seed, batches=uneven)
    if data == "bandit":
        return bandit(batch=batch, seed=seed)
    if data.partition(":")[0] in KINDS:
        return generated(data, workers, batch, seed, shards)
    from refsgd.problems.data import NAMES, load
    from refsgd.problems.nn import nets

    if data.partition(":")[0] not in NAMES:
        raise Usage(f"data {data!r} is unknown; expected one of {', '.join(NAMES)}, quadratic, integers, "
                    f"lasso, logistic, bandit, or none with --net shapes:P{suggestion(data, NAMES)}")
    check_net(net, ", or shapes:P for a shape-only net of P parameters")
    dataset = load(data).hold_back(validation)
    try:
        built = nets.build(net, dataset.train_images.shape[1:])
    except ValueError as error:
        raise Usage(f"{error}; data {data} has images of shape {dataset.train_images.shape[1:]}") from None
    if built.parameters > LARGEST_NET:
        raise Usage(f"net {net} has {built.parameters:,} parameters for these images; expected at most "
                    f"{LARGEST_NET:,}, or its sizes alone: shapes:{net}@{dataset.train_images.shape[1]}")
    problem = classification(dataset, built, workers, batch, seed, shards)
    return problem if start is None else started(problem, start)


def started(problem: Problem, path: str) -> Problem:
    """The problem from the parameters in a file, as `refsgd run --save` writes it."""
    check_kind(str, "the path of a file as text", start=path)
    expected = f"expected {problem.x0.size:,} numbers of net {problem.describe['net']} from --save"
    try:
        found = np.load(path, allow_pickle=False)
    except OSError as error:
        raise Usage(f"start {path}: {error.strerror or error}; {expected}") from None
    except (ValueError, EOFError):
        raise Usage(f"start {path} is no file of an array; {expected}") from None
    if getattr(found, "shape", None) != problem.x0.shape or found.dtype.kind != "f":
        shape = getattr(found, "shape", "several")
        raise Usage(f"start {path} has {'x'.join(map(str, shape)) if shape != 'several' else shape} "
                    f"numbers of {getattr(found, 'dtype', 'arrays')}; {expected}")
    if not np.isfinite(found).all():
        raise Usage(f"start {path} has numbers that are not finite; {expected}")
    return replace(problem, x0=found.astype(problem.x0.dtype), describe={**problem.describe, "start": path})


def check_used(own: bool, data: str, net: str | None, batch: Any, shards: str, usual: Any,
               start: str | None = None) -> None:
    """Refuse what a problem, perhaps your `own`, would not use; the `usual` batch counts as not given."""
    with checked():
        concentration(shards)
    only, kind = only_sizes(net), data.partition(":")[0]
    what = "your own problem" if own else f"net {net}" if only else f"data {data}"
    abstract, trained = kind in ABSTRACT, kind not in (*ABSTRACT, *GENERATED)
    for said, unused, why in (
            (f"data {data}", own and data != DEFAULT_DATA, "which has its own"),
            (f"net {net}", net and (own or not (only or trained)), "whose gradients are not of a net"),
            (f"batch {batch}", (own or abstract) and isinstance(batch, int) and batch != usual,
             "which says how many images a gradient has" if own else
             "whose gradients are not of images: batches weigh them only where they differ, such as 3,1"),
            (f"start {start}", start is not None and (own or only or not trained),
             "which has its own starting point" if own else "whose parameters are not of a net that learns"),
            (f"shards {shards}", shards != "iid" and (own or abstract or only or data == "bandit"),
             "which divides its own data" if own else "which has no labels"),
            (f"shards {shards}", shards.startswith("dirichlet") and data.startswith("lasso"),
             "whose targets are no classes")):
        if unused:
            raise Usage(f"{said} with {what}, {why}; expected none")


def only_sizes(net: str | None) -> bool:
    """Whether a net has sizes and no contents: ``shapes:...`` or a file of layers."""
    return (net or "").startswith("shapes:") or (net or "").endswith(".json")


@checked()
def of_sizes(net: str, batch: int | Sequence[int]) -> Problem:
    """The problem of ``shapes:P``, ``shapes:NET@PIXELS``, ``shapes:transformer:...`` or ``FILE.json``."""
    from refsgd.problems.nn.nets import NAMES

    if net.endswith(".json"):
        return of_layers(net, *_layers(net), batch)
    name = net.removeprefix("shapes:")
    base = re.split("[:@]", name)[0]
    if base in transformer.NAMES:
        found, sample, tokens = transformer.layers(name)
        return of_layers(net, found, sample, batch, tokens)
    if not (name.isdecimal() and int(name)) and base not in NAMES:
        raise Usage(f"net {net!r}; expected shapes: and a number of parameters, at least 1, or a net, e.g. "
                    "shapes:25557032, shapes:resnet50@224, shapes:transformer:12,768,12,1024,50257")
    return shape_only(int(name), batch) if name.isdecimal() else of_net(name, batch)


def _layers(path: str) -> tuple[list[LayerSizes], str]:
    """The layers in a file, and what a sample is."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Usage(f"net {path}: {error.strerror}; expected a file of layers") from None
    except (ValueError, RecursionError) as error:
        raise Usage(f"net {path} is not JSON: {error}; expected a file of layers") from None
    if wrong := misfit(data, {"name": TEXT, "layers": [_LAYER]}) or misfit(
            [each.get("output", 0) for each in data["layers"]], [_AMOUNT], "output of layers"):
        raise Usage(f"net {path}: {wrong}")
    if not data["layers"]:
        raise Usage(f"net {path} has no layers; expected one or more, each with {', '.join(_LAYER)}")
    for where, given, known in (("", data, ("name", "layers")), *(
            (f", layer {each['name']}", each, (*_LAYER, "output")) for each in data["layers"])):
        if unknown := [key for key in given if key not in known]:
            raise Usage(f"net {path}{where}: {unknown[0]} is unknown; expected {', '.join(known)}"
                        + suggestion(unknown[0], known))
    return [LayerSizes(**{key: each[key] for key in _LAYER}, output=each.get("output", each["activations"]))
            for each in data["layers"]], f"a sample of {data['name']}"


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
