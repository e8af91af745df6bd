"""The images for each worker's gradient: a pure function of (seed, epoch, worker, step).

An epoch's order is a permutation drawn for (seed, epoch). Step k takes the next entries, as many as all
batches together, and deals them to the workers in rank order; the remainder at the end of an epoch is dealt
in proportion to the batches, so that a share may be short or empty. Every image is visited exactly once per
epoch, for any number of workers and any batches: together, the shares of a step are those of one worker with
the sum of the batches.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

# Spawn key of the order's random stream, so that no other use of the same seed repeats it.
_ORDER = 0x0DE7
_MIXTURE = 0x0D1C  # likewise, of the classes of `mixed`
# Asynchronous workers alternate between epochs.
_EPOCHS_KEPT = 8


class Shards:
    """The order in which ``workers`` workers visit ``images`` images.

    Parameters
    ----------
    images : int
        Number N of training images.
    workers : int
    batch : int or sequence of int
        Images per worker and step, or for each worker.
    seed : int
    labels : integers, shape (N,), optional
        Needed unless ``how`` is ``iid``.
    how : {"iid", "by-label", "dirichlet:ALPHA"}
        by-label: sort the images by label and give each worker one contiguous shard, shuffled again in each
        epoch: workers then see different classes, and their gradients differ as much as possible.
        dirichlet: each worker has classes in proportions drawn around those of the data, closer to them the
        larger alpha is. The sizes of shards are proportional to the batches, so that all workers end their
        epochs together.

    Raises
    ------
    ValueError
        If a number is not positive, batches are not one for each worker, or labels are missing or not N; if
        ``how`` is something else.

    Examples
    --------
    >>> shards = Shards(images=10, workers=2, batch=3, seed=0)
    >>> shards.steps_per_epoch
    2
    >>> [len(shards.share(worker, 1)) for worker in (0, 1)]
    [2, 2]
    >>> [len(Shards(images=42, workers=2, batch=(20, 1), seed=0).share(worker, 0)) for worker in (0, 1)]
    [20, 1]
    """

    def __init__(self, images: int, workers: int, batch: int | Sequence[int], seed: int, labels: Any = None,
                 how: str = "iid") -> None:
        alpha = concentration(how)
        batches = list(batch) if isinstance(batch, Sequence) else [batch] * workers
        for name, value in (("images", images), ("workers", workers), ("batch", min(batches, default=1))):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected 1 or more")
        if len(batches) != workers:
            raise ValueError(f"batch has {len(batches)} numbers, expected one for each of {workers} workers")
        if how != "iid" and (labels is None or np.shape(labels) != (images,)):
            found = "none" if labels is None else f"of shape {np.shape(labels)}"
            raise ValueError(
                f"labels are {found}, expected one for each of {images} images to shard {how}")
        self.images, self.workers, self.seed = images, workers, seed
        together = min(sum(batches), images)
        #: images in each worker's full share, at most its part of all
        self.batches = apportion(together, batches)
        self.steps_per_epoch = -(-images // together)
        self._whole = tuple(accumulate(self.batches, initial=0))
        rest = images - (self.steps_per_epoch - 1) * together
        self._rest = tuple(accumulate(apportion(rest, batches), initial=0))
        self._orders: dict[int, Indices] = {}
        self._sorted: Indices | None = None
        if how != "iid":
            parts = apportion(images, batches)
            self._sorted = (np.argsort(labels, kind="stable").astype(np.int64) if alpha is None
                            else mixed(labels, parts, alpha, seed))
            self._parts = tuple(accumulate(parts, initial=0))
            self.steps_per_epoch = max(-(-part // b) for part, b in zip(parts, self.batches) if b)

    def share(self, worker: int, step: int) -> Indices:
        """Indices of the images of one worker's step, read-only: at most ``batches[worker]``, fewer or none
        at the end of an epoch; steps are counted across epochs."""
        if not 0 <= worker < self.workers:
            raise ValueError(f"worker is {worker}, expected 0 to {self.workers - 1}")
        if step < 0:
            raise ValueError(f"step is {step}, expected 0 or more")
        epoch, k = divmod(step, self.steps_per_epoch)
        order = self._order(epoch)
        if self._sorted is not None:
            mine, b = order[self._parts[worker] : self._parts[worker + 1]], self.batches[worker]
            return mine[k * b : (k + 1) * b]
        cut, first = self._rest if k == self.steps_per_epoch - 1 else self._whole, k * self._whole[-1]
        return order[first + cut[worker] : first + cut[worker + 1]]

    def _order(self, epoch: int) -> Indices:
        order = self._orders.get(epoch)
        if order is None:  # several threads may get here, and draw the same order
            random = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(_ORDER, epoch)))
            if self._sorted is None:
                order = random.permutation(self.images).astype(np.int64)
            else:
                order = self._sorted.copy()
                for worker in range(self.workers):
                    random.shuffle(order[self._parts[worker] : self._parts[worker + 1]])
            order.setflags(write=False)
            if len(self._orders) >= _EPOCHS_KEPT:
                self._orders.pop(min(self._orders), None)
            self._orders[epoch] = order
        return order


def concentration(how: str) -> float | None:
    """The alpha of ``dirichlet:ALPHA``; None for ``iid`` and ``by-label``; raises ValueError on others."""
    if how in ("iid", "by-label"):
        return None
    name, _, value = how.partition(":")
    try:
        alpha = float(value) if name == "dirichlet" else -1.0
    except ValueError:
        alpha = -1.0
    if not 0 < alpha < float("inf"):
        raise ValueError(f"shards {how!r}; expected iid, by-label, or dirichlet:ALPHA, such as dirichlet:0.5")
    return alpha


def mixed(labels: Any, parts: Sequence[int], alpha: float, seed: int) -> Indices:
    """Images, (N,), worker by worker, `parts` of them with sum N, whose classes, by `labels`, (N,), are in
    proportions from a Dirichlet distribution.

    Each worker draws its proportions around those of the data and its images accordingly, none of them twice;
    what is left of the proportions counts once a class has run out (Hsu, Qi and Brown, "Measuring the effects
    of non-identical data distribution for federated visual classification", arXiv:1909.06335, section 3).
    With `alpha`, > 0, towards 0 a worker has one class, towards infinity all have the same.
    """
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_MIXTURE,)))
    _, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    images = [random.permutation(np.flatnonzero(which == c)) for c in range(len(counts))]
    left, out, around = counts.copy(), list[Any](), alpha * counts / counts.sum()
    for part in parts:
        # in logarithms: with a small alpha all but one of the numbers underflow
        drawn = np.log(random.standard_gamma(around + 1)) + np.log(random.random(len(counts))) / around
        while part:
            weights = np.exp(np.minimum(drawn - drawn[left > 0].max(), 0.0)) * (left > 0)
            taken = np.minimum(random.multinomial(part, weights / weights.sum()), left)
            out += [own[rest - n:rest] for own, rest, n in zip(images, left, taken)]
            left, part = left - taken, part - int(taken.sum())
    return np.concatenate(out).astype(np.int64)


def apportion(total: int, weights: Sequence[float], least: int = 0, most: float = math.inf) -> list[int]:
    """Whole shares of `total` in proportion to weights, by largest remainder, within bounds.

    The sum is `total`, no share differs from its quota by more than 1, and a larger weight never gets less;
    of equal remainders the first gets more.  What a bound refuses is divided among the others.

    Parameters
    ----------
    total : int
    weights : sequence of float
        Positive.
    least, most : int
        Of each share.

    Returns
    -------
    list of int

    Raises
    ------
    ValueError
        If no shares within the bounds have that sum.

    Examples
    --------
    >>> apportion(21, [20, 1]), apportion(10, [1, 1, 1]), apportion(8, [2, 0.5, 1.5])
    ([20, 1], [4, 3, 3], [4, 1, 3])
    >>> apportion(21, [20, 1], least=4), apportion(24, [6, 1, 1], most=10)
    ([17, 4], [10, 7, 7])
    """
    if not len(weights) * least <= total <= len(weights) * most:
        raise ValueError(f"{len(weights)} shares of {least} to {most:g}, whose sum is {total}")
    exact = [Fraction(weight) for weight in weights]
    whole = sum(exact)
    quotas = [total * weight / whole for weight in exact]
    shares = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda i: shares[i] - quotas[i])
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    short, over = sum(max(0, least - b) for b in shares), sum(max(0, b - most) for b in shares)
    if not (short or over):
        return shares
    # what breaks one of the bounds by more in total, keeps it whatever the others get
    bound = least if short > over else int(most)
    kept = [b < least if short > over else b > most for b in shares]
    free = [w for w, at in zip(weights, kept) if not at]
    others = iter(apportion(total - bound * sum(kept), free, least, most))
    return [bound if at else next(others) for at in kept]
