"""Batches of the workers: equal, given for each, or shares of a total in proportion to speed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from refsgd.cluster.machine import Machine
from refsgd.cluster.prices import paces
from refsgd.cluster.units import counted, speeds
from refsgd.experiment.arguments import Usage, check_whole
from refsgd.problems import Problem
from refsgd.problems.data import apportion

Batch = int | str | Sequence[int]  #: 16; "20,1" or (20, 1); "auto:21", "auto:21:4..16"
EXPECTED = ("expected images for each worker, such as 20,1 or 15x20,1, or auto:21, which divides 21 by "
            "speed, or auto:21:4..16 within bounds")


def batches_of(batch: Batch, workers: int, machine: Machine, together: bool = False) -> int | list[int]:
    """The batch of all workers if equal, else that of each, or with `together` the sum, in a list."""
    if not isinstance(batch, Sequence):
        check_whole(1, batch=batch)
        return int(batch)
    if isinstance(batch, str) and batch.startswith("auto:"):
        found = shares(batch, workers, machine)
    else:
        found = _read(batch) if isinstance(batch, str) else list(batch)
        for each in found:
            check_whole(1, batch=each)
        if len(found) == 1:  # for all
            found = found * (1 if together else workers)
    if together:
        return [sum(found)]
    if len(found) != workers:
        raise Usage(f"batch {text_of(found)} for {counted(len(found), 'worker')} in a run with {workers}; "
                    f"expected one for each, or auto:{sum(found)}, which divides {sum(found)} by speed")
    return found[0] if len(set(found)) == 1 else found


def weights_of(batch: Batch, workers: int) -> list[int]:
    """The batch of each worker for a problem without data; empty if they are equal."""
    found = batches_of(batch, workers, Machine())
    return [] if isinstance(found, int) else found


def shares(batch: str, workers: int, machine: Machine) -> list[int]:
    """The total of ``auto:TOTAL:LEAST..MOST`` in shares by speed, each within the bounds and not 0."""
    number, _, bounds = batch.removeprefix("auto:").partition(":")
    low, apart, high = bounds.partition("..")
    if bounds and not apart:
        raise Usage(f"batch {batch!r} has bounds {bounds!r}; expected least..most, such as 4..16 or 4..")
    total = _whole(number, batch)
    least, most = _whole(low, batch) if low else 0, _whole(high, batch) if high else math.inf
    try:
        fast = paces(machine, workers)
        found = apportion(total, fast, least, most)
    except ValueError as error:
        raise Usage(f"batch {batch}: {error}") from None
    if 0 in found:
        slow = found.index(0)
        raise Usage(f"batch {batch} leaves no image for worker {slow}, whose speed is {fast[slow]:g} of "
                    f"{sum(fast):g} in total; expected at least auto:{math.ceil(sum(fast) / min(fast))}, "
                    f"auto:{total}:1.. or a machine without that worker")
    return found


def own_batches(problem: Problem, workers: int) -> list[int]:
    """Images in each worker's gradient, from a user's problem's description or from its first step."""
    said = problem.describe
    if "batches" not in said and said.get("batch") is not None:
        check_whole(0, **{'describe["batch"]': said["batch"]})
        return [int(said["batch"])] * workers
    found = list(said.get("batches", ()))
    for rank in range(workers if "batches" not in said else 0):
        try:
            found.append(problem.images(rank, 0))
        except Exception as error:
            raise Usage(f"images({rank}, 0): {type(error).__name__}: {error}; expected images(rank, t), the "
                        "number of images in a gradient") from None
    for rank, images in enumerate(found):
        check_whole(0, **{'describe["batches"]' if "batches" in said else f"images({rank}, 0)": images})
    if len(found) != workers:
        raise Usage(f'describe["batches"] has {len(found)} numbers; expected one for each of '
                    f"{counted(workers, 'worker')}")
    return list(map(int, found))


def text_of(batches: Sequence[int]) -> str:
    """The text for these batches."""
    return ",".join(map(str, batches))


def _read(text: str) -> list[int]:
    try:
        found = speeds(text)
    except ValueError:
        raise Usage(f"batch {text!r}; {EXPECTED}") from None
    return [_whole(f"{number:.17g}", text) for number in found]


def _whole(number: str, text: str) -> int:
    try:
        found = int(number)
    except ValueError:
        raise Usage(f"batch {text!r}; {EXPECTED}") from None
    check_whole(1, batch=found)
    return found
