"""What a run of stages shares, for preparation and formulas."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from refsgd.effects import Deployment
from refsgd.problems import Problem

if TYPE_CHECKING:
    from refsgd.theory.phenomena.pipeline import Pipeline


def staged(function: Callable[..., Deployment]) -> bool:
    """Whether a deployment function makes workers the stages of a pipeline."""
    return "stages" in inspect.signature(function).parameters


def replicas(function: Callable[..., Deployment], workers: int) -> int:
    """How many shares of each step's examples there are: one for each worker, or one for all stages of a
    pipeline together."""
    return 1 if staged(function) and workers > 0 else workers


def plan(function: Callable[..., Deployment], options: Mapping[str, Any], problem: Problem, workers: int,
         steps: int) -> Pipeline | None:
    """The stages for formulas; None for algorithms without stages."""
    if not staged(function):
        return None
    from refsgd.theory.phenomena.pipeline import Pipeline  # it needs scipy

    chain, how = problem.blocks, str(options["cut"])
    cut = chain.cut(workers, how)
    epoch = min(max(steps, 1), int(problem.describe.get("steps_per_epoch", 100)))
    return Pipeline(tuple(stage.share for stage in problem.split(workers, how)),
                    tuple(chain.blocks[end - 1].nbytes for end in cut), chain.by_row,
                    tuple(problem.images(0, t) for t in range(epoch)))


def largest(problem: Problem, examples: int) -> int:
    """Bytes of the largest activations of so many examples."""
    return max((int(block.nbytes) for block in problem.chain.blocks), default=0) * examples if (
        problem.chain) else 0
