"""The simulator beside the second implementation, on random configurations.

``python -m benchmarks.oracle.compare`` draws 300 of them and writes benchmarks/results/oracle.json, which
``python -m benchmarks.validation page`` reports.  Nobody picks the points, and none is left out: numbers of
workers that are no powers of two, unequal speeds at saturated links, few workers.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np

from benchmarks import layerwise, machines
from benchmarks.machines import Point
from benchmarks.oracle.evaluated import Found, evaluated
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import Experiment
from refsgd.trace import Trace
from refsgd.trace.schema import json_text

RESULTS = Path(__file__).parent.parent / "results" / "oracle.json"


@dataclass(frozen=True)
class Row:
    """A run in both implementations; NaN where nothing ages.

    `tied`: in the second one, a thousand-millionth of a time changes the staleness or much of the time, because
    the last digit decides which of two messages is served first.
    """

    label: str
    seconds: float
    again: float
    staleness: float
    aged: float
    tied: bool = False

    @property
    def equal(self) -> bool:
        """Whether both ended at one moment with one staleness, but for rounding."""
        return _same(self.seconds, self.again) and (math.isnan(self.aged) or _same(self.staleness, self.aged))


def _same(one: float, other: float, digits: float = 1e-9) -> bool:
    return math.isclose(one, other, rel_tol=digits, abs_tol=1e-12)


def points() -> Iterator[Point]:
    """300 configurations that have a second implementation, and the others between them."""
    return itertools.chain(machines.draw(17, 120), machines.draw(71, 110, True), layerwise.draw(18, 30, "fixed"),
                           layerwise.draw(81, 20, "exponential"), layerwise.staged(19, 50))


def rows(some: Iterable[Point]) -> Iterator[Row]:
    """Both runs of each point that has a second implementation."""
    for point in some:
        experiment = point.experiment(1)
        trace = perform(experiment, "simulator", observe=0).trace
        again, ages = evaluated(experiment, trace), [tau for _, tau in trace.staleness]
        if again is not None:
            aged = math.nan if again.staleness is None else again.staleness
            row = Row(point.label, trace.seconds, again.seconds, float(np.mean(ages)) if ages else 0.0, aged)
            yield row if row.equal else replace(row, tied=_tied(experiment, trace, again))


def _tied(experiment: Experiment, trace: Trace, again: Found) -> bool:
    moved = [evaluated(experiment, trace, 1e-9 * k) for k in (1, 2, 3)]
    return any(found is not None and not (_same(found.seconds, again.seconds, 1e-6)
                                          and _same(found.staleness or 0.0, again.staleness or 0.0))
               for found in moved)


def load() -> list[Row]:
    """What `main` has found."""
    return [Row(*(math.nan if value is None else value for value in row))
            for row in json.loads(RESULTS.read_text())["rows"]]


def section() -> str:
    """The part of docs/validation.md on both implementations."""
    found = load()
    return "\n".join(["## The simulator and a second implementation", "", (
        f"{len(found)} configurations drawn from a seed: hosts of one to four nodes, placed in blocks, in turn or "
        "each on its own, servers co-located or not, links inside hosts, two groups with uplinks, half and full "
        "duplex, devices, compute times that differ by worker, unequal speeds and batches, updates that take "
        "time; layers and chunks, overlap, priorities and codecs; nets in stages or shards; two to twelve "
        "workers; links that are idle or saturated. Each is simulated once, and `benchmarks/oracle`, which "
        "shares no line with the simulator's event loop, runs it again with the times that were drawn. "
        f"{sum(row.equal for row in found)} of {len(found)} runs end at the same time and with the same staleness, "
        f"to nine digits; in {sum(row.tied for row in found)}, the last digit of a time decides which of two "
        "messages is served first. `python -m benchmarks.oracle.compare` computes them, and `theory/test_oracle.py` recomputes "
        "some of them."), ""])


def main() -> None:
    """Compute all rows."""
    head, *lines = (json_text(values, indent=None)
                    for values in ([f.name for f in fields(Row)], *map(astuple, rows(points()))))
    text = ",\n".join(lines)
    RESULTS.write_text(f'{{"columns": {head},\n"rows": [\n{text}]}}\n')


if __name__ == "__main__":
    main()
