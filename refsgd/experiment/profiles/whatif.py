"""What would change the time of a job's step: equal ranks, level stages, other strategies, less work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from refsgd.algorithms import CATALOGUE
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted, spoken
from refsgd.experiment.advice.candidates import ONE, TRACED, Candidate
from refsgd.experiment.arguments import Usage, options_of
from refsgd.experiment.prepare import prepare
from refsgd.experiment.profiles.chrome import refuse
from refsgd.experiment.profiles.job import Job
from refsgd.runtimes.simulator import Simulator
from refsgd.trace.schema import json_text

LEAST, HALF = 0.05, 0.5  #: slow-down that is worth a change; share of it that a remedy has to remove
PAUSE = 3  #: of a rank's median step: longer ones are pauses, as for a checkpoint
MOST = 6400  #: simulated steps of all ranks


class Row(NamedTuple):
    """A change of the job."""

    name: str
    seconds: float  #: of a step
    assumption: str
    pytorch: str = ""


@dataclass(frozen=True)
class WhatIf:
    """The rows, and what they say."""

    job: Job
    rows: tuple[Row, ...]  #: as it was, equal ranks, other divisions of the work; then strategies
    verdict: str

    def to_json(self) -> str:
        """As JSON."""
        return json_text({"ranks": self.job.ranks, "steps": self.job.steps, "slow_down": self.slow_down,
                          "rows": [row._asdict() for row in self.rows], "verdict": self.verdict,
                          "unknown": self.job.unknown})

    @property
    def slow_down(self) -> float:
        """Seconds of a step over those with equal ranks."""
        return self.rows[0].seconds / self.rows[1].seconds


def what_if(job: Job) -> WhatIf:
    """The job's step with each change; raises Usage if there is one rank."""
    n, times, rest = job.world, job.compute, job.exchange
    if len(job.ranks) < 2:
        refuse(job.path, "one rank", "two or more, whose times may differ: a file for each, or one with all")

    def together(some: np.typing.NDArray[np.float64]) -> float:
        return float(some.max(axis=0).mean()) + rest

    means = times.mean(axis=1)
    slow = int(means.argmax())
    rows = [Row("as it was", together(times), "each step ends with its slowest rank, in its order"),
            Row("equal ranks", job.ideal + rest, "each operation takes the mean of its kind"),
            Row(f"without rank {job.ranks[slow]}",
                (together(np.delete(times, slow, axis=0)) - rest) * n / (n - 1) + rest,
                "the other ranks share its samples, with times in proportion"),
            Row("work by speed", together(times * (n / (1 / means).sum() / means)[:, None]),
                "work of each rank in proportion to its mean speed, so that all have the same mean")]
    if job.level is not None:
        rows.append(Row("level stages", together(job.level),
                        "layers move until all stages take the same time for a micro-batch"))
    traced = sorted((row for c in TRACED if (row := _simulated(job, c))), key=lambda row: row.seconds)
    return WhatIf(job, (*rows, *traced), _verdict(job, rows, traced))


def _simulated(job: Job, c: Candidate) -> Row | None:
    """A step of a strategy whose workers compute as the ranks did; None if it does not apply."""
    period, n = int(c.options.get("period", 1)), len(job.ranks)
    steps = period * max(1, min(MOST // n, len(job.steps)) // period)
    size = sum(nbytes for nbytes, *_ in job.buckets)
    usual = sum(count * nbytes for (op, nbytes, _), (count, _) in job.collectives.items()
                if op == "all_reduce")
    linked = job.link is not None and 0 < size < 1.01 * usual and n == job.world  # and in every step
    if linked and c.pytorch and c.kind is ONE:
        return Row(c.name, job.synchronous, "its buckets beside the backward pass, as they were", c.pytorch)
    machine, options = job.machine(), dict(c.options)
    if not linked:
        machine = Machine(compute=machine.compute)
        if "collective" in options_of(CATALOGUE[c.algorithm]):  # where messages are free, few of them will do
            options["collective"] = "tree"
    try:
        if c.dropped >= n or (c.dropped and n < job.world):
            raise Usage("no gradient is left, or none of the ranks that are known may be the slowest")
        e = prepare(c.algorithm, machine=machine, net=f"shapes:{max(1, int(size / 4))}", data="none",
                    workers=n, steps=steps, **options)
    except Usage:
        return None
    seconds = Simulator(e.deploy(), e.machine, observe=0).run().trace.seconds / steps
    said = [f"{c.dropped / n:.0%} of the gradients have no effect"] * bool(c.dropped)
    said += [f"a pass may improve the model less, since {c.kind.cost}"] * bool(c.kind.cost)
    if linked:
        said.append("exchange over the fitted link")
    else:
        seconds += job.exchange / period
        every = f"every {period} steps" if period > 1 else "every step"
        said.append(f"{spoken(job.exchange)} of exchange {every}, as it was" if job.exchange
                    else "computing only, since the trace has no exchange")
    return Row(c.name, seconds, "; ".join(said), c.pytorch)


def _verdict(job: Job, rows: Sequence[Row], traced: Sequence[Row]) -> str:
    """The remedy for the largest part of the slow-down."""
    was, ideal, n = rows[0].seconds, rows[1].seconds, len(job.ranks)
    some = f", among the {n} of {job.world} whose files are here" * (n < job.world)
    said = f"A step takes {spoken(was)}, x{was / ideal:.2f} of {spoken(ideal)} with equal ranks{some}."
    if was < (1 + LEAST) * ideal:
        return (f"{said} No strategy can gain more than that by treating stragglers"
                + ", unless they are among the others" * bool(some) + ".")
    names = {c.name: c for c in TRACED}
    own = [row for row in traced if names[row.name].kind is not ONE or names[row.name].dropped]
    best = min(own, key=lambda row: (not row.pytorch, row.seconds))
    level = next((row for row in rows if row.name == "level stages"), None)
    if level is not None and was - level.seconds >= HALF * (was - ideal):
        worst, count = int(np.argmax(job.stages)), len(job.stages)
        return (f"{said} Stage {worst}{', the last' * (worst == count - 1)} of {count} takes "
                f"x{job.stages[worst] / np.mean(job.stages):.2f} of the mean: move layers to the others "
                f"({spoken(level.seconds)} a step). No data-parallel strategy helps: ranks are alike.")
    times, median = job.compute, np.median(job.compute, axis=1, keepdims=True)
    calm = np.minimum(times, np.where(times > PAUSE * median, median, np.inf))
    gain = float((times.max(axis=0) - calm.max(axis=0)).mean())
    if gain >= HALF * (was - ideal):
        r, k = divmod(int(np.where(calm < times, times, 0).argmax()), len(job.steps))
        return (f"{said} Pauses cost most: step {job.steps[k]} of rank {job.ranks[r]} took "
                f"{spoken(times[r, k])}, x{times[r, k] / median[r, 0]:.3g} of its median; without "
                f"{counted(int((calm < times).sum()), 'such pause')} a step takes {spoken(was - gain)}.")
    divided, slow = min(rows[2:4], key=lambda row: row.seconds), int(times.mean(axis=1).argmax())
    always = float(np.median(times[slow] / times.mean(axis=0))) >= 1 + LEAST
    if always and was - divided.seconds >= HALF * (was - ideal):
        return (f"{said} Rank {job.ranks[slow]} is slow all the time: {divided.name} "
                f"({spoken(divided.seconds)} a step).")
    return (f"{said} Ranks are slow in turns, none all the time: let them run ahead of each other, by local "
            f"steps or slack ({best.name}: {spoken(best.seconds)} a step).")
