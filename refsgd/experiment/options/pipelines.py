"""What a run of stages or of portions shares, for preparation and formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from refsgd.algorithms.facts import Facts
from refsgd.problems import Problem

if TYPE_CHECKING:
    from refsgd.theory.phenomena.pipeline import Pipeline


def replicas(facts: Facts, workers: int, options: Mapping[str, Any]) -> int:
    """How many shares of each step's examples there are: one for each worker, one for all stages of a
    pipeline together, or one for all workers."""
    if facts.share == "worker":
        return workers
    stages = options.get("stages") if facts.staged else None
    return workers // stages if isinstance(stages, int) and 0 < stages <= workers else min(workers, 1)


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


def largest(problem: Problem, examples: int) -> int:
    """Bytes of the largest activations of this many examples."""
    return max((int(block.nbytes) for block in problem.chain.blocks), default=0) * examples if (
        problem.chain) else 0
