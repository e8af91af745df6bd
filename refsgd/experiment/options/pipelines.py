"""What a run of stages or of portions shares, for preparation and formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from refsgd.algorithms.facts import Facts
from refsgd.cluster import prices, units
from refsgd.cluster.machine import Machine
from refsgd.experiment.arguments import checked
from refsgd.problems import Problem

if TYPE_CHECKING:
    from refsgd.experiment.prepare import Experiment
    from refsgd.theory.phenomena.pipeline import Pipeline


def replicas(facts: Facts, workers: int, options: Mapping[str, Any]) -> int:
    """How many shares of each step's examples there are, by `Facts.share`."""
    if facts.share == "worker":
        return workers
    stages = options.get("stages") if facts.staged else None
    return workers // stages if isinstance(stages, int) and 0 < stages <= workers else min(workers, 1)


def placed(facts: Facts, options: Mapping[str, Any], problem: Problem, machine: Machine,
           workers: int) -> dict[str, Any]:
    """The options with the ends of stages in place of ``cut speed``."""
    if not facts.staged or options.get("cut") != "speed":
        return dict(options)
    shares, pace = replicas(facts, workers, options), prices.paces(machine, workers)
    # a stage is as fast as its slowest replica's node
    each = [min(pace[k:k + shares]) for k in range(0, workers, shares)] * int(options.get("chunks", 1))
    with checked():
        return {**options, "cut": ",".join(map(str, problem.blocks.cut(len(each), "speed", each)))}


def within_memory(e: Experiment) -> Experiment:
    """The experiment with the ends of stages that fit into memory in place of ``cut balance:2GB``."""
    how, apart, text = str(e.own.get("cut", "")).partition(":")
    if not e.facts.staged or not apart:
        return e
    from refsgd.experiment.memory import of_stage

    depth, chain = e.workers // e.replicas, e.problem.blocks
    with checked():
        limits = [units.nbytes(each) for each in text.split(",")]
        limits = limits * depth if len(limits) == 1 else limits
        if how not in ("balance", "speed") or len(limits) != depth or int(e.own.get("chunks", 1)) > 1:
            raise ValueError(f"cut {how}:{text} for {depth} stages; expected balance or speed with bytes for "
                             f"all or for each of {depth} nodes, and one chunk")

    def fits(k: int, first: int, end: int) -> bool:
        ends = [at for at in (first, end) if 0 < at < len(chain.blocks)]
        stage = e.problem.split(len(ends) + 1, ",".join(map(str, ends)))[first > 0]
        return of_stage(e, k, [stage]).value <= limits[k]

    pace = [min(prices.paces(e.machine, e.workers)[k * e.replicas:(k + 1) * e.replicas])
            for k in range(depth)] if how == "speed" else []
    with checked():
        cut = chain.cut(depth, how, pace, fits)
    return replace(e, options={**e.options, "cut": ",".join(map(str, cut))})


def plan(facts: Facts, options: Mapping[str, Any], problem: Problem, workers: int,
         steps: int) -> Pipeline | None:
    """The stages for formulas; None for algorithms without formulas of stages."""
    if not facts.staged or "cut" not in options:
        return None
    from refsgd.theory.phenomena.pipeline import Pipeline  # it needs scipy

    chain, how = problem.blocks, str(options["cut"])
    shares = replicas(facts, workers, options)
    chunks = int(options.get("chunks", 1))
    cut = chain.cut(workers // shares * chunks, how)
    stages = problem.split(workers // shares * chunks, how)
    epoch = min(max(steps, 1), int(problem.describe.get("steps_per_epoch", 100)))
    return Pipeline(tuple(stage.share for stage in stages),
                    tuple(chain.blocks[end - 1].nbytes for end in cut), chain.by_row,
                    tuple(tuple(problem.images(r, t) for t in range(epoch)) for r in range(shares)),
                    tuple(4 * stage.x0.size for stage in stages), chunks)
