"""This computer as it is: calibrated, predicted, and measured without pace, for the catalogue and some nets.

``python -m benchmarks.unpaced [--nets tiny/64,shallow/32,resnet18:16/32] [--workers 2] [--seconds 3] [--seeds 3]``
calibrates each net as `refsgd calibrate --net NET` does, simulates every algorithm on that machine, and runs it
as processes over shared memory.  A row has the seconds of an iteration after warming up, the idle share, and
the errors of the predictions.  It warns of a busy machine; the table goes to docs/unpaced.md, the figures to
benchmarks/results/unpaced.json, with the processor's name.  Half an hour for three nets on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.quiet import processor
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.cluster.machine import Machine
from refsgd.experiment.arguments import Usage
from refsgd.experiment.computer.calibrate import calibrate
from refsgd.experiment.computer.inside import WARM, pace, problem_of
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import Experiment, prepare
from refsgd.problems.shapes import in_shape_only
from refsgd.trace import Trace
from refsgd.trace.schema import json_text

RESULTS = Path(__file__).parent / "results" / "unpaced.json"
PAGE = Path(__file__).parents[1] / "docs" / "unpaced.md"
#: they look for a point with passes of their own length, or have no gradient of every worker in every step
LEFT_OUT = ("sandblaster", "strads", "gpipe", "pipedream")
BATCHES = (8, 16, 32, 64)  #: of a calibration
SIMULATED = 300  #: steps of a simulated run
APART = 0.1  #: pairs that differ by more are to be ordered right


class Line(NamedTuple):
    """One algorithm: seconds of an iteration and idle share, measured and predicted."""

    algorithm: str
    net: str
    batch: int
    workers: int
    measured: float
    predicted: float
    idle: float
    predicted_idle: float

    @property
    def error(self) -> float:
        """The relative error of the predicted time."""
        return self.predicted / self.measured - 1


def seen(trace: Trace) -> tuple[float, float]:
    """Seconds of an iteration and idle share after warming up."""
    steps = max(trace.iterations.values())
    return pace(trace), trace.after(int(WARM * steps)).idle_ratio


def line(name: str, net: str, batch: int, workers: int, machine: Machine, seconds: float, seeds: int) -> Line:
    """An algorithm, predicted and measured: means over seeds."""
    workers = 1 if facts_of(CATALOGUE[name]).single else workers
    problem = problem_of(net, batch, workers)
    shape = in_shape_only(problem, [batch] * workers)

    def of(problem: Any, machine: Machine, steps: int, seed: int) -> Experiment:
        return prepare(name, problem, workers=workers, steps=steps, machine=machine, lr=0.01, seed=seed)

    def runs(problem: Any, machine: Machine, steps: int, runtime: str) -> list[tuple[float, float]]:
        return [seen(perform(of(problem, machine, steps, seed), runtime, observe=0).trace) for seed in range(seeds)]

    try:
        predicted = runs(shape, machine, SIMULATED, "simulator")
    except Usage:  # it reads its vectors
        predicted = runs(problem, machine, SIMULATED, "simulator")
    measured = runs(problem, Machine(), max(20, int(seconds / predicted[0][0])), "processes")
    (time, idle), (said, said_idle) = np.mean(measured, axis=0), np.mean(predicted, axis=0)
    return Line(name, net, batch, workers, float(time), float(said), float(idle), float(said_idle))


def summary(lines: Sequence[Line]) -> dict[str, float]:
    """The errors of all lines: median and ninth decile of times, median of idle shares, pairs ordered right."""
    errors = [abs(each.error) for each in lines]
    pairs = [(a, b) for a, b in combinations(lines, 2) if a.net == b.net
             and max(a.measured, b.measured) / min(a.measured, b.measured) > 1 + APART]
    right = [(a.measured < b.measured) == (a.predicted < b.predicted) for a, b in pairs]
    return {"median": statistics.median(errors), "ninth decile": float(np.quantile(errors, 0.9)), "worst": max(errors),
            "idle": statistics.median(abs(each.predicted_idle - each.idle) for each in lines),
            "ordered": statistics.fmean(right) if right else 1.0, "pairs": len(pairs)}


def page(runs: Iterable[dict[str, Any]]) -> str:
    """The page of the documentation."""
    out = ["# Unpaced: this computer as it is", "",
           "Every other comparison on these pages is of processes that sleep until the described time is over. Here nothing "
           "sleeps: `refsgd calibrate --net NET` measures a computer inside short runs, the simulator predicts each "
           "algorithm on the machine that it writes, and the processes run as fast as they can. A time is that of an "
           "iteration after warming up, the mean of some seeds. `python -m benchmarks.unpaced` makes this page.", ""]
    for run in runs:
        lines = [Line(*each) for each in run["lines"]]
        s = summary(lines)
        out += [f"## {run['processor']}, {run['cores']} cores", "",
                f"Errors of {len(lines)} predicted times: median {s['median']:.0%}, nine in ten within "
                f"{s['ninth decile']:.0%}, the worst {s['worst']:.0%}. Idle shares are off by {s['idle']:.3f} in the "
                f"median. Of {s['pairs']} pairs that differ by more than a tenth, {s['ordered']:.0%} are ordered right.",
                *([f"The machine was busy meanwhile: {run['doubt']}."] if run["doubt"] else []), ""]
        for net in dict.fromkeys(each.net for each in lines):
            mine = [each for each in lines if each.net == net]
            out += [f"`{net}`, batch {mine[0].batch}:", "",
                    "| algorithm | workers | measured [ms] | predicted [ms] | error | idle | predicted idle |",
                    "|---|---|---|---|---|---|---|"]
            out += [f"| {e.algorithm} | {e.workers} | {e.measured * 1e3:.3f} | {e.predicted * 1e3:.3f} | {e.error:+.0%} "
                    f"| {e.idle:.3f} | {e.predicted_idle:.3f} |" for e in mine] + [""]
    return "\n".join(out)


def main() -> None:
    """Calibrate, predict, measure; write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="tiny/64,shallow/32,resnet18:16/32", help="NET/BATCH,...")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", default=",".join(name for name in CATALOGUE if name not in LEFT_OUT))
    parser.add_argument("--write", action="store_true", help="keep the figures, beside those of other processors")
    args = parser.parse_args()
    lines, doubts = list[Line](), list[str]()
    for text in args.nets.split(","):
        net, _, batch = text.partition("/")
        found = calibrate((net,), sorted({*BATCHES, int(batch)}))
        print(found.summary())
        doubts += [found.doubt] if found.doubt else []
        for name in args.algorithms.split(","):
            lines.append(line(name, net, int(batch), args.workers, found.machine, args.seconds, args.seeds))
            e = lines[-1]
            print(f"{name:16} {net}: {e.measured * 1e3:8.3f} ms, predicted {e.predicted * 1e3:8.3f} ms ({e.error:+.1%}); "
                  f"idle {e.idle:.3f}, predicted {e.predicted_idle:.3f}", flush=True)
    print({name: round(value, 4) for name, value in summary(lines).items()})
    if args.write:
        here = {"processor": processor(), "cores": os.cpu_count(), "workers": args.workers,
                "doubt": "; ".join(dict.fromkeys(doubts)), "lines": lines}
        old = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        others = [each for each in old if (each["processor"], each["workers"]) != (here["processor"], args.workers)]
        runs = [*others, here]
        RESULTS.write_text(json_text(runs) + "\n")
        PAGE.write_text(page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
