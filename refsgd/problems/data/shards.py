"""The images for each worker's gradient: a pure function of (seed, epoch, worker, step).

An epoch's order is a permutation drawn for (seed, epoch). Step k takes the next entries, as many as all
batches together, and deals them to the workers in rank order; the remainder at the end of an epoch is dealt
in proportion to the batches, so that a share may be short or empty. Every image is visited exactly once per
epoch, for any number of workers and any batches: together, the shares of a step are those of one worker with
the sum of the batches.
"""
from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

# Spawn key of the order's random stream, so that no other use of the same seed repeats it.
_ORDER = 0x0DE7
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
        Needed if ``by_label``.
    by_label : bool
        Sort the images by label and give each worker one contiguous shard, shuffled again in each epoch:
        workers then see different classes, and their gradients differ as much as possible. The sizes of
        shards are proportional to the batches, so that all workers end their epochs together.

    Raises
    ------
    ValueError
        If a number is not positive, batches are not one for each worker, or labels are missing or not N.

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
                 by_label: bool = False) -> None:
        batches = list(batch) if isinstance(batch, Sequence) else [batch] * workers
        for name, value in (("images", images), ("workers", workers), ("batch", min(batches, default=1))):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected 1 or more")
        if len(batches) != workers:
            raise ValueError(f"batch has {len(batches)} numbers, expected one for each of {workers} workers")
        if by_label and (labels is None or np.shape(labels) != (images,)):
            found = "none" if labels is None else f"of shape {np.shape(labels)}"
            raise ValueError(
                f"labels are {found}, expected one for each of {images} images to shard by label")
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
        if by_label:
            self._sorted = np.argsort(labels, kind="stable").astype(np.int64)
            parts = apportion(images, batches)
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


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Whole shares of `total` in proportion to weights, by largest remainder.

    The sum is `total`, no share differs from its quota by more than 1, and a larger weight never gets less;
    of equal remainders the first gets more.

    Parameters
    ----------
    total : int
    weights : sequence of float
        Positive.

    Returns
    -------
    list of int

    Examples
    --------
    >>> apportion(21, [20, 1]), apportion(10, [1, 1, 1]), apportion(8, [2, 0.5, 1.5])
    ([20, 1], [4, 3, 3], [4, 1, 3])
    """
    exact = [Fraction(weight) for weight in weights]
    whole = sum(exact)
    quotas = [total * weight / whole for weight in exact]
    shares = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda i: shares[i] - quotas[i])
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return shares
