"""A problem as a chain of blocks, which stages on several nodes compute one after the other.

A stage holds the parameters of some consecutive blocks.  It receives the activations of the stage before it,
and hands its own to the next; the gradient by these activations comes back the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from refsgd.effects import Array


class Rows(NamedTuple):
    """A micro-batch: examples `first` to `end` - 1 of the `total` in worker `rank`'s share of step `t`."""

    rank: int
    t: int
    first: int
    end: int
    total: int

    @property
    def share(self) -> float:
        """Their part of the worker's share."""
        return (self.end - self.first) / self.total if self.total else 1.0


Fits = Callable[[int, int, int], bool]  #: whether a stage may hold the blocks from one to before another


def anything(stage: int, first: int, end: int) -> bool:
    """Any blocks."""
    return True


def nothing(examples: int) -> float:
    """No bytes."""
    return 0.0


@dataclass(frozen=True)
class Block:
    """A differentiable function of its parameters and of the activations before it; a net is cut between
    blocks only.

    Parameters
    ----------
    name : str
    part : slice
        The place of its parameters in the flat vector, maybe empty.
    work : float
        Of its forward pass, in any unit; a backward pass takes twice as much.
    nbytes : float
        Of the activations that leave it, for one example.
    forward : callable
        ``(x, a, rows) -> (activations, kept)``.
    backward : callable
        ``(x, kept, d) -> (g, d_in)``: d is the gradient of what `forward` returned, g that of x.
    held : callable
        ``examples -> bytes`` that its passes keep between `forward` and `backward`.
    """

    name: str
    part: slice
    work: float
    nbytes: float
    forward: Callable[[Array, Array, Rows], tuple[Array, Any]]
    backward: Callable[[Array, Any, Array], tuple[Array, Array]]
    held: Callable[[int], float] = nothing


@dataclass(frozen=True)
class Stage:
    """Consecutive blocks, and the ends of the chain where it has them; `Problem.split` makes it."""

    x0: Array  #: (part,), its parameters at the start
    share: float  #: the part of a gradient's time that its passes take
    blocks: Sequence[Block]
    nbytes: int  #: of all parameters of the problem
    images: Callable[[int, int], int]  #: those of the problem
    operations: Callable[[int, int], float] | None  #: its `work`
    inputs: Callable[[Rows], Array] | None = None  #: those of the chain, at the first and at the last stage
    loss_gradient: Callable[[Array, Rows], Array] | None = None

    def micro_batches(self, rank: int, t: int, micro: int = 1) -> list[Rows]:
        """A worker's share of a step, divided into at most `micro` parts of one example or more."""
        count = self.images(rank, t)
        m = max(1, min(micro, count))
        return [Rows(rank, t, count * j // m, count * (j + 1) // m, count) for j in range(m)]

    def held(self, examples: int) -> float:
        """Bytes that its passes of this many examples keep between forward and backward."""
        return sum(block.held(examples) for block in self.blocks)

    def forward(self, x: Array, rows: Rows, a: Array | None) -> tuple[Array | None, Any]:
        """The activations for the next stage, and what `backward` needs, at x and with the activations of the
        stage before.

        The first stage reads the examples; the last one keeps the gradient of the loss.
        """
        out = self.inputs(rows) if self.inputs else a
        kept = []
        for block in self.blocks:
            assert out is not None
            out, each = block.forward(self._of(block, x), out, rows)
            kept.append(each)
        if self.loss_gradient is None:
            return out, (kept, None)
        return None, (kept, self.loss_gradient(out, rows))  # type: ignore[arg-type]

    def backward(self, x: Array, rows: Rows, kept: Any, d: Array | None) -> tuple[Array, Array | None]:
        """The gradient of the stage's parameters, and that by the activations of the stage before, None at
        the first; d is the gradient from the stage after it, None at the last."""
        each, loss = kept
        d, found = loss if self.loss_gradient else d, []
        for block, values in zip(reversed(self.blocks), reversed(each), strict=True):
            assert d is not None
            g, d = block.backward(self._of(block, x), values, d)
            found.append(g)
        g = np.concatenate(found[::-1]) if len(found) > 1 else found[0]
        return g, None if self.inputs else d

    def work(self, x: Array, rows: Rows, *_: Any) -> tuple[float, float]:
        """Operations and bytes of parameters of the whole gradient, by which a device prices its pieces."""
        assert self.operations is not None
        return self.operations(rows.rank, rows.t), self.nbytes

    def _of(self, block: Block, x: Array) -> Array:
        first = self.blocks[0].part.start
        return x[block.part.start - first:block.part.stop - first]


@dataclass(frozen=True)
class Chain:
    """The description of a problem's blocks, in the order of the forward pass.

    Parameters
    ----------
    blocks : sequence of Block
        Their places in the vector are contiguous and in order.
    inputs : callable
        ``rows -> (rows, ...)``: what the first block reads.
    loss_gradient : callable
        ``(output, rows) -> (rows, ...)``: the gradient, by the last block's output, of the mean loss of the
        worker's whole share, so that the gradients of micro-batches add up to its gradient.
    by_row : bool
        Whether activations grow with the number of examples.
    held : callable
        ``examples -> bytes`` that a gradient of the whole problem keeps besides parameters and gradient.
    """

    blocks: Sequence[Block]
    inputs: Callable[[Rows], Array]
    loss_gradient: Callable[[Array, Rows], Array]
    by_row: bool = True
    held: Callable[[int], float] = nothing

    @property
    def costs(self) -> list[float]:
        """Shares of a gradient's time, by block; equal ones if no block has any work."""
        total = sum(block.work for block in self.blocks)
        return [block.work / total if total else 1 / len(self.blocks) for block in self.blocks]

    def cut(self, stages: int, how: str = "balance", speeds: Sequence[float] = (),
            fits: Fits = anything) -> list[int]:
        """After how many blocks each stage but the last ends; each with its place and its first and last
        block `fits`.

        With ``balance`` the slowest stage takes the least time on equal nodes, and among such cuts the fewest
        bytes cross; with ``speed`` likewise on nodes of these relative speeds, by stage; ``mincut``: the
        fewest bytes cross; or the ends of the stages themselves, ``3,7,11``. Three blocks that take 1, 1 and
        2 s, with 8 and 4 bytes between them:

        >>> blocks = [Block(name, slice(0, 0), work, size, None, None)
        ...           for name, work, size in (("a", 1, 8), ("b", 1, 4), ("c", 2, 0))]
        >>> chain = Chain(blocks, None, None)
        >>> chain.cut(2), chain.cut(2, "mincut"), chain.cut(2, "1")
        ([2], [2], [1])
        >>> chain.cut(2, "speed", [1, 3])
        [1]
        """
        count = len(self.blocks)
        if not 1 <= stages <= count:
            names = ", ".join(block.name for block in self.blocks)
            raise ValueError(f"stages {stages}; expected 1 to {count}, a block or more for each: {names}")
        pace = list(speeds) if how == "speed" and speeds else [1.0] * stages
        if how == "mincut":
            return self._cheapest(pace, 1.0, fits)
        if how in ("balance", "speed"):
            sums = [0.0, *accumulate(self.costs)]
            # the least time of the slowest stage, by number of blocks in the stages so far
            slowest = [0.0, *[math.inf] * count]
            for stage, speed in enumerate(pace):
                slowest = [min((max(slowest[k], (sums[end] - sums[k]) / speed) for k in range(end)
                                if slowest[k] < math.inf and fits(stage, k, end)), default=math.inf)
                           for end in range(count + 1)]
            if slowest[-1] == math.inf:
                raise ValueError(f"no cut into {stages} stages fits the memory of their nodes; expected more "
                                 "memory, or more stages")
            return self._cheapest(pace, slowest[-1], fits)
        try:
            found = [int(end) for end in how.split(",")] if how else []
        except ValueError:
            found = [0]
        if len(found) != stages - 1 or any(b <= a for a, b in pairwise([0, *found, count])):
            raise ValueError(f"cut {how!r} for {stages} stages; expected balance, speed, mincut, or the "
                             f"{stages - 1} blocks after which to cut, ascending and within 1 to {count - 1}")
        return found

    def _cheapest(self, speeds: Sequence[float], most: float, fits: Fits) -> list[int]:
        """The cut that the fewest bytes cross, of those equal the one with the quickest slowest stage, in
        stages of these speeds that take at most `most`; dynamic programming over (stages, blocks)."""
        sums, count, stages = [0.0, *accumulate(self.costs)], len(self.blocks), len(speeds)
        Best = tuple[float, float, list[int]]
        best: dict[int, Best] = {0: (0.0, 0.0, [])}  # by number of blocks in the stages so far
        for stage, speed in enumerate(speeds):
            after: dict[int, Best] = {}
            for end in range(stage + 1, count - (stages - stage - 1) + 1):
                crossing = self.blocks[end - 1].nbytes if end < count else 0.0
                options = [(size + crossing, max(slowest, (sums[end] - sums[k]) / speed), [*ends, end])
                           for k, (size, slowest, ends) in best.items()
                           if k < end and (sums[end] - sums[k]) / speed <= most * (1 + 1e-12)
                           and fits(stage, k, end)]
                if options:
                    after[end] = min(options)
            best = after
        return best[count][2][:-1]


def whole(x0: Array, gradient: Callable[[Array, int, int], Array]) -> Chain:
    """The chain of a problem that knows only its whole gradient: parameters travel instead of activations,
    and the last stage, which then has all of them, computes the gradient, whose parts travel back.

    Its 48 blocks are equal, or some of them empty.
    """
    count = 48

    def forward(x: Array, a: Array, rows: Rows) -> tuple[Array, None]:
        return np.concatenate([a, x]), None

    def backward(first: int, x: Array, kept: None, d: Array) -> tuple[Array, Array]:
        return d[first:], d[:first]

    def loss_gradient(x: Array, rows: Rows) -> Array:
        g = gradient(x, rows.rank, rows.t)
        return g if rows.share == 1 else g * x0.dtype.type(rows.share)

    parts = [slice(x0.size * k // count, x0.size * (k + 1) // count) for k in range(count)]
    blocks = [Block(f"block{k}", part, 1.0, x0.dtype.itemsize * part.stop, forward,
                    partial(backward, part.start)) for k, part in enumerate(parts, 1)]
    return Chain(blocks, lambda rows: x0[:0], loss_gradient, by_row=False)


def shape_only(blocks: Sequence[Block], vector: Callable[[int], Any],
               held: Callable[[int], float] = nothing) -> Chain:
    """The same blocks without contents; `vector` makes a vector of a size."""

    def forward(size: float, x: Array, a: Array, rows: Rows) -> tuple[Array, Array]:
        return vector(round(size * (rows.end - rows.first) / 4)), a

    def backward(x: Array, a: Array, d: Array) -> tuple[Array, Array]:
        return x, a

    made = [replace(block, forward=partial(forward, block.nbytes), backward=backward) for block in blocks]
    return Chain(made, lambda rows: vector(0), lambda out, rows: out, held=held)
