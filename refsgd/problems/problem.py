"""Problems to optimise: a starting point, gradients keyed by (worker, step), a loss for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from refsgd.effects import Array
from refsgd.problems.chain import Chain, Rows, Stage, whole
from refsgd.problems.layers import LayerByLayer, Layers, Steps, by_work, equal

NORMED = 500  #: most training images of which batch norm takes its statistics in an evaluation


def one_image(rank: int, t: int) -> int:
    """1: equal weights of all gradients."""
    return 1


@dataclass(frozen=True)
class Problem:
    """A problem for any algorithm.

    Parameters
    ----------
    x0 : ndarray, (d,)
        Starting point; float32 in runs, any float type in tests.
    gradient : callable
        ``(x, rank, t) -> (d,)``: mean gradient over worker `rank`'s share of step t.  Pure, and keyed by its
        arguments, never by the order of calls; returns a fresh array.  Workers of one host may call it at
        the same time, from several threads.
    loss : callable
        ``x -> float``, evaluated after the run only.
    accuracy : callable or None
        ``(x, "train" | "test") -> float`` in [0, 1]; also "validation" if `describe` has it.
    images : callable
        ``(rank, t) -> int``: size of that share, the weight of its gradient in a mean.
    work : callable or None
        ``(rank, t) -> float``: floating-point operations of the gradient on that share, by which a device
        prices it; None: not known.
    layers : Layers or None
        Gradients layer by layer, as `refsgd.problems.layers` describes them; None: as a whole only.
    chain : Chain or None
        Its blocks, which stages on several nodes compute one after the other, as `refsgd.problems.chain`
        describes them; None: the gradient as a whole only.
    exchange : Exchange or None
        How gradients travel, see `refsgd.algorithms.exchange`; None: whole, in equal parts.
    coordinates : Coordinates or None
        Minima along single coordinates, see `refsgd.problems.regression`; None: not known.
    spectrum : Spectrum or None
        Of a quadratic whose expected loss formulas predict, see `refsgd.problems.spectral`; None: not known.
    rollouts : Rollouts or None
        The gradient in two halves, samples and what a trainer makes of them, see `refsgd.problems.bandit`;
        None: in one.
    sampled : callable or None
        ``most -> (x -> float)``: the loss on at most so many training examples, always the same ones; None:
        there is only `loss`.
    describe : dict
        The description of the problem in the result's JSON. Runs use some entries: "batch", the images of a
        full gradient (the mean over workers; without it ``images(rank, 0)``), and "batches", one number for
        each worker, where they differ: they are `images` if that is not given; "workers", the only number of
        workers that a run may have (any); "steps_per_epoch" (100), after which formulas take `images` and
        `work` to repeat; "samples", in words, of which images "train", "test" and "validation" figures are,
        where these are not all of them.

    Examples
    --------
    >>> problem = quadratic(d=3, workers=2)
    >>> problem.gradient(problem.x0, 0, 0).shape
    (3,)
    """

    x0: Array
    gradient: Callable[[Array, int, int], Array]
    loss: Callable[[Array], float]
    accuracy: Callable[[Array, str], float] | None = None
    images: Callable[[int, int], int] = one_image
    describe: dict[str, Any] = field(default_factory=dict)
    work: Callable[[int, int], float] | None = None
    layers: Layers | None = None
    exchange: Any = None
    chain: Chain | None = None
    coordinates: Any = None
    spectrum: Any = None
    rollouts: Any = None
    sampled: Callable[[int], Callable[[Array], float]] | None = None

    def __post_init__(self) -> None:
        if self.layers is not None:
            self.layers.check(self.x0.size)
        if self.work is not None and getattr(self.gradient, "operations", None) is not self.work:
            object.__setattr__(self, "gradient", _Priced(self.gradient, self.work))

    @property
    def blocks(self) -> Chain:
        """The chain of blocks, which without `chain` is that of the whole gradient."""
        return self.chain or whole(self.x0, self.gradient)

    @property
    def in_layers(self) -> Layers:
        """The layers, which without `layers` are one: the whole gradient."""
        return self.layers or equal(self.x0.size, self.gradient, 1)

    def split(self, stages: int, cut: str = "balance") -> list[Stage]:
        """The problem in consecutive stages, at most one for each block; `cut` is that of
        `refsgd.problems.chain.Chain.cut`.

        >>> [stage.x0.size for stage in quadratic(d=6, workers=1).split(3)]
        [2, 2, 2]
        """
        chain, found = self.blocks, []
        costs = chain.costs
        for first, end in pairwise([0, *chain.cut(stages, cut), len(chain.blocks)]):
            blocks, share = chain.blocks[first:end], sum(costs[first:end])
            x0 = self.x0[blocks[0].part.start:blocks[-1].part.stop]
            found.append(Stage(x0, share, blocks, self.x0.nbytes, self.images, self.work,
                               None if first else chain.inputs,
                               chain.loss_gradient if end == len(chain.blocks) else None))
        return found


class _Priced(NamedTuple):
    """A gradient that knows its work, because a runtime sees functions and arguments, not problems."""

    function: Callable[[Array, int, int], Array]
    operations: Callable[[int, int], float]
    refuses: bool = False  #: whether it raises an error where numbers are not finite

    def __call__(self, x: Array, rank: int, t: int) -> Array:
        return self.function(x, rank, t)

    def work(self, x: Array, rank: int, t: int) -> tuple[float, float]:
        """Floating-point operations, and bytes of the parameters."""
        return self.operations(rank, t), x.nbytes


def with_batches(problem: Problem, batches: Sequence[int]) -> Problem:
    """The same problem with gradients weighted as means over batches: one for each worker, or a single one
    for all."""
    return replace(problem, images=lambda rank, t: batches[rank % len(batches)],
                   describe={**problem.describe, **described(batches)})


def described(batches: Sequence[int]) -> dict[str, Any]:
    """The description of the workers' batches: the mean, and all of them if they differ."""
    if len(set(batches)) == 1:
        return {"batch": batches[0]}
    mean = sum(batches) / len(batches)
    return {"batch": int(mean) if mean.is_integer() else mean, "batches": list(batches)}


def quadratic(d: int = 10, workers: int = 4, noise: float = 0.0, curvature: float = 1.0, seed: int = 0,
              dtype: Any = np.float32, batches: Sequence[int] = ()) -> Problem:
    """A quadratic whose minimum differs from worker to worker: f_i(x) = a/2 |x - c_i|^2 with c_i ~ N(0, I).

    Parameters
    ----------
    d, workers : int
        Dimension and number of different centres c_i.
    noise : float
        Standard deviation of the gradient's noise, drawn from (seed, rank, t).
    curvature : float
        a > 0.
    seed : int
        Of the centres and of the noise.
    dtype : data-type
        Of the parameters and gradients; float32 in runs.
    batches : sequence of int, optional
        Examples of each worker's gradient, where they differ: the loss is the mean over examples.

    Returns
    -------
    Problem
    """
    centers = np.random.default_rng([seed, 1]).standard_normal((workers, d)).astype(dtype)

    def gradient(x: Array, rank: int, t: int) -> Array:
        g = x.dtype.type(curvature) * (x - centers[rank % workers])
        if noise:
            g = g + np.random.default_rng([seed, 2, rank, t]).normal(0, noise, d).astype(x.dtype)
        return np.asarray(g)

    def loss(x: Array) -> float:
        squares = np.sum((np.asarray(x, float) - centers) ** 2, axis=1)
        return float(0.5 * curvature * np.average(squares, weights=batches or None))

    found = Problem(np.zeros(d, dtype), gradient, loss, describe={
        "data": "quadratic", "net": "quadratic", "parameters": d, "bytes": 4 * d, "batch": 1},
                    layers=equal(d, gradient))
    return with_batches(found, batches) if batches else found


def integer_gradients(d: int = 8, workers: int = 4, seed: int = 0, batches: Sequence[int] = ()) -> Problem:
    """Gradients that depend on x and are small integers, so that sums are exact in float32 in any order.

    With a learning rate that is a power of two every schedule of additions gives the same bits.

    Parameters
    ----------
    d, workers : int
        Dimension, and number of workers.
    seed : int
        Of the draws.
    batches : sequence of int, optional
        Examples of each worker's gradient, where they differ; weighted means are exact where they sum to a
        power of two.

    Returns
    -------
    Problem
    """

    def gradient(x: Array, rank: int, t: int) -> Array:
        draw = np.random.default_rng([seed, rank, t]).integers(-8, 9, d)
        return np.asarray(draw + np.sign(np.round(x)), x.dtype)

    found = Problem(np.zeros(d, np.float32), gradient, lambda x: float(np.sum(np.abs(x))), describe={
        "data": "integers", "net": "integers", "parameters": d, "bytes": 4 * d, "batch": 1},
                    layers=equal(d, gradient))
    return with_batches(found, batches) if batches else found


def _key(seed: int, rank: int, t: int) -> int:
    """The key of dropout's choices, from (seed, rank, t)."""
    return ((seed & 0xFFFFF) << 44) | ((rank & 0xFFFFF) << 24) | (t & 0xFFFFFF)


@contextmanager
def _named(rank: int, t: int) -> Iterator[None]:
    """Says in which gradient numbers are not finite."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(f"worker {rank}, step {t}: {error}; expected finite numbers: the run "
                                 "diverged, lower the learning rate (--lr) or the momentum") from None


def _samples(data: Any, net: Any, most: int) -> dict[str, str]:
    """The images of which each figure is, in words, where they are not all of the published part."""
    train, found = len(data.train_labels), dict[str, str](getattr(data, "partial", {}))
    if train > most:
        found["train"] = f"the first {most} of {train} training images"
    if (held := getattr(data, "validation", None)) is not None:
        found["validation"] = f"{len(held[1])} of {train + len(held[1])} training images, held back"
    if net.normalises and train > NORMED:
        found["batch norm's statistics"] = f"the first {NORMED} of {train} training images"
    return found


def _evaluation(data: Any, net: Any, most: int) -> Callable[[Array, str], tuple[float, float]]:
    """Loss and accuracy on a part of the data, of which at most this many training images count; those of the
    last parameters are kept."""
    sets = {"train": (data.train_images[:most], data.train_labels[:most]),
            "test": (data.test_images, data.test_labels)}
    if (held := getattr(data, "validation", None)) is not None:
        sets["validation"] = held
    # batch norm has no running state: its statistics are taken from these, once for all parts
    sample = data.train_images[:NORMED]
    known = dict[bytes, dict[str, tuple[float, float]]]()  # by a hash of the parameters

    def evaluated(x: Array, part: str) -> tuple[float, float]:
        digest = blake2b(np.ascontiguousarray(x).data).digest()
        found = known.get(digest, {})
        if part not in found:
            parts = list(sets) if net.normalises else [part]
            found = found | dict(zip(parts, net.evaluations(x, [sets[p] for p in parts], sample)))
            known.clear()
            known[digest] = found
        return found[part]

    return evaluated


def classification(data: Any, net: Any, workers: int, batch: int | Sequence[int], seed: int = 0,
                   how: str = "iid", evaluate: int = 2000) -> Problem:
    """Train a net on a data set, split among workers.

    Parameters
    ----------
    data : Dataset
        Of `refsgd.problems.data`.
    net : Net
        Of `refsgd.problems.nn`.
    workers : int
        n, the number of workers of the run.
    batch : int or sequence of int
        Images per worker and step, or for each worker.
    seed : int
        Of the initial parameters and of every epoch's order.
    how : {"iid", "by-label", "dirichlet:ALPHA"}
        How images are divided among workers, see `refsgd.problems.data.Shards`.
    evaluate : int
        Most training images used for a loss or an accuracy: the first ones.  `describe` names the "samples".

    Returns
    -------
    Problem

    Raises
    ------
    FloatingPointError
        From `gradient`, when the loss is not a finite number: names the worker and the step.
    """
    from refsgd.problems.data import Shards
    from refsgd.problems.nn.blocks import blocks, loss_gradient

    shards = Shards(len(data.train_labels), workers, batch, seed, data.train_labels, how)

    def share(rank: int, t: int) -> tuple[Array, Array, int]:
        chosen = shards.share(rank, t)
        return data.train_images[chosen], data.train_labels[chosen], _key(seed, rank, t)

    def gradient(x: Array, rank: int, t: int) -> Array:
        with _named(rank, t):
            return np.asarray(net.gradient(x, *share(rank, t))[1])

    def steps(rank: int, t: int) -> Steps:
        with _named(rank, t):
            yield from net.layer_by_layer(*share(rank, t))

    def images(rank: int, t: int) -> int:
        return len(shards.share(rank, t))

    def work(rank: int, t: int) -> float:
        return float(net.work(images(rank, t)))

    evaluated, samples = _evaluation(data, net, evaluate), _samples(data, net, evaluate)
    held = getattr(data, "validation", None)

    def sampled(most: int) -> Callable[[Array], float]:
        chosen = np.random.default_rng(0).permutation(len(data.train_labels))[:most]
        sets, normed = [(data.train_images[chosen], data.train_labels[chosen])], data.train_images[:NORMED]
        return lambda x: float(net.evaluations(np.ascontiguousarray(x), sets, normed)[0][0])

    def inputs(rows: Rows) -> Array:
        return np.asarray(share(rows.rank, rows.t)[0][rows.first:rows.end])

    def by_scores(scores: Array, rows: Rows) -> Array:
        with _named(rows.rank, rows.t):
            labels = share(rows.rank, rows.t)[1][rows.first:rows.end]
            return loss_gradient(net, scores, labels) * np.float32(rows.share)

    layers = by_work(net.parts, lambda rank, t: LayerByLayer(len(net.parts), steps(rank, t)))
    chain = Chain(blocks(net, lambda rows: _key(seed, rows.rank, rows.t)), inputs, by_scores,
                  held=net.held)
    # equal batches count as full, even if the data lack an image or two
    batches = shards.batches if isinstance(batch, Sequence) else shards.batches[:1]
    refusing: Any = _Priced(gradient, work, refuses=True)
    return Problem(net.init(seed), refusing, lambda x: evaluated(x, "train")[0],
                   lambda x, part: evaluated(x, part)[1], images,
                   {"data": data.name, "net": net.name, "parameters": net.parameters,
                    "bytes": 4 * net.parameters, **described(batches), "workers": workers,
                    "evaluated": len(data.test_labels) + min(evaluate, len(data.train_labels)),
                    **({"validation": len(held[1])} if held is not None else {}), "samples": samples,
                    "steps_per_epoch": shards.steps_per_epoch, "shards": how},
                   work, layers, chain=chain, sampled=sampled)
