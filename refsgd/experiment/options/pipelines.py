"""What a run of stages or of portions shares, for preparation and formulas."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from refsgd.effects import Deployment
from refsgd.experiment.arguments import options_of
from refsgd.problems import Problem

if TYPE_CHECKING:
    from refsgd.theory.phenomena.pipeline import Pipeline


def staged(function: Callable[..., Deployment], options: Mapping[str, Any]) -> bool:
    """Whether a deployment function makes workers the stages of a pipeline."""
    taken = options_of(function)
    return "stages" in taken and (taken["stages"].default is None or options.get("stages", 1) != 1)


def lost(function: Callable[..., Deployment], options: Mapping[str, Any]) -> str:
    """What dies with a worker because no other holds it; empty if nothing does."""
    sharded = "stage" in inspect.signature(function).parameters
    return "a stage's parameters die" if staged(function, options) else "the shard of a worker dies" * sharded


def portioned(function: Callable[..., Deployment]) -> bool:
    """Whether a step of a deployment function takes all data, in portions that any worker computes."""
    return "portions" in inspect.signature(function).parameters


def replicas(function: Callable[..., Deployment], workers: int, options: Mapping[str, Any]) -> int:
    """How many shares of each step's examples there are: one for each worker, or one for all stages of a
    pipeline together, or for all workers that compute portions."""
    if portioned(function):
        return min(workers, 1)
    if not staged(function, options):
        return workers
    stages = options.get("stages")
    return workers // stages if isinstance(stages, int) and 0 < stages <= workers else min(workers, 1)


def plan(function: Callable[..., Deployment], options: Mapping[str, Any], problem: Problem, workers: int,
         steps: int) -> Pipeline | None:
    """The stages for formulas; None for algorithms without formulas of stages."""
    if not staged(function, options) or "cut" not in options:
        return None
    from refsgd.theory.phenomena.pipeline import Pipeline  # it needs scipy

    chain, how = problem.blocks, str(options["cut"])
    shares = replicas(function, workers, options)
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
