"""Predictions for approximate synchronous SGD: data centres with BSP, SSP or ASP inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from refsgd.theory.algorithms.asp import asp, asp_seconds
from refsgd.theory.algorithms.bsp import bsp
from refsgd.theory.algorithms.ssp import ssp
from refsgd.theory.estimate import check_count
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import Setting, count, figures, slices

SIGNIFICANT = "the traffic between data centres depends on the data"
INSIDE = {rule.__name__: rule for rule in (bsp, ssp, asp)}


def approximate(c: Setting) -> Figures:
    """Data centres with equal shares of the workers; the slowest centre sets the pace.

    Traffic between them also occupies the servers' links and may delay workers, so the times of a single
    centre are then lower bounds.
    """
    c.check_alone()
    given, inside = c.options.get("centers"), str(c.options.get("local", bsp.__name__))
    number = min(2, c.workers) if given is None else check_count("centers", int(given))
    if inside not in INSIDE or number > c.workers:
        raise DomainError(f"{number} centers of {c.workers} workers, inside {inside!r}; the formula assumes "
                          f"a worker for each and one of {', '.join(INSIDE)}")
    edges = [c.workers * k // number for k in range(number + 1)]
    sizes = [b - a for a, b in pairwise(edges)]
    if number == 1:
        return INSIDE[inside](c.with_options(refresh="fresh"))
    speeds = {tuple(c.machine.speed(i) for i in range(a, b)) for a, b in pairwise(edges)}
    alone = [INSIDE[inside](_center(c, speed)) for speed in sorted(speeds)]
    step: Prediction | None = None
    run = step
    if all("seconds" in found for found in alone):
        slowest = max(alone, key=lambda found: found["seconds"].value)
        step, run = slowest["seconds_per_iteration"], slowest["seconds"]
        if INSIDE[inside] is asp and not c.tied:  # the last of all centres
            run = asp_seconds(replace(c, machine=c.machine.with_(colocated=False)), step)
        step, run = replace(step, kind="approximation"), replace(run, kind="approximation")
    updates = c.steps * (number if INSIDE[inside] is bsp else c.workers)
    out = figures(c, step, run, updates, 2 * c.workers * c.nbytes)
    _bytes(c, out, sizes, inside)
    if c.transfer or not ((c.tied and c.alike) or math.isinf(float(c.options.get("ahead", 10)))):
        for name in ("seconds_per_iteration", "seconds", "images_per_second"):
            if name not in out:
                continue
            out[name] = replace(out[name], kind="bound", lower=None,
                                bound="upper" if name == "images_per_second" else "lower")
        out.without(SIGNIFICANT, "idle_ratio", "idle_by_cause")
    return out.without(SIGNIFICANT, "staleness_mean", "staleness_max", "clock_gap_max", "lead_max")


def _center(c: Setting, speeds: Sequence[float]) -> Setting:
    """The setting of one data centre."""
    machine = c.machine.with_(speeds=tuple(speeds) if c.machine.speeds else (), colocated=False)
    return replace(c.with_options(refresh="fresh"), workers=len(speeds), machine=machine)


def _bytes(c: Setting, out: Figures, sizes: Sequence[int], inside: str) -> None:
    """Set the bytes: models within the centres, and 8 per significant entry between them, if known."""
    total, share = 2.0 * c.workers * c.nbytes * c.steps, c.options.get("share")
    exact = share is not None and math.isinf(float(c.options.get("barrier", 4)))
    if share is not None:
        for part in (size // 4 for size in slices(c.nbytes, c.servers)):
            k = math.ceil(float(share) * part * (1 - 1e-12))
            for size in sizes:  # all updates but the last, which flushes
                own = c.steps if INSIDE[inside] is bsp else size * c.steps
                total += 8 * (len(sizes) - 1) * ((own - 1) * k + part)
    formula = ("2 n M within the centres, 8 k to each other centre" if exact
               else "2 n M within the centres, and the significant entries")
    for name, value in (("bytes_per_iteration", total / c.steps), ("bytes_sent", total)):
        out[name] = (count(value, "bytes", formula) if exact else
                     Prediction(value, "bytes", "bound", {}, formula, "the message protocol", bound="lower"))
