"""Which images a worker computes its gradient on: a pure function of (seed, epoch, worker, step).

An epoch's order is a permutation drawn for (seed, epoch). Its step k takes the next ``workers * batch``
entries and deals them to the workers in rank order as evenly as possible; at the end of an epoch a share may
be short, or empty. Every image is visited exactly once an epoch, however many workers there are.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

# Spawn key of the random stream of the order, so that no other use of the same seed repeats it.
_ORDER = 0x0DE7
# Asynchronous workers ask for steps of different epochs in turn.
_EPOCHS_KEPT = 8


class Shards:
    """The order in which ``workers`` workers visit ``images`` images.

    Parameters
    ----------
    images : int
        Number N of training images.
    workers : int
    batch : int
        Images per worker and step.
    seed : int
    labels : integers, shape (N,), optional
        Needed if ``by_label``.
    by_label : bool
        Sort the images by label and give each worker one contiguous shard, shuffled anew each epoch: workers
        then see different classes, and their gradients differ as badly as they can.

    Raises
    ------
    ValueError
        If a number is not positive, or labels are missing or not N.

    Examples
    --------
    >>> shards = Shards(images=10, workers=2, batch=3, seed=0)
    >>> shards.steps_per_epoch
    2
    >>> [len(shards.share(worker, 1)) for worker in (0, 1)]
    [2, 2]
    """

    def __init__(self, images: int, workers: int, batch: int, seed: int, labels: Any = None,
                 by_label: bool = False) -> None:
        for name, value in (("images", images), ("workers", workers), ("batch", batch)):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected 1 or more")
        if by_label and (labels is None or np.shape(labels) != (images,)):
            found = "none" if labels is None else f"of shape {np.shape(labels)}"
            raise ValueError(
                f"labels are {found}, expected one for each of {images} images to shard by label")
        self.images, self.workers, self.seed = images, workers, seed
        #: images of a full share: not more than a worker's part of all
        self.batch = min(batch, -(-images // workers))
        self._sorted: Indices | None = np.argsort(labels,
                                                  kind="stable").astype(np.int64) if by_label else None
        self._orders: dict[int, Indices] = {}
        longest = images if self._sorted is None else workers * -(-images // workers)
        self.steps_per_epoch = -(-longest // (workers * batch))

    def share(self, worker: int, step: int) -> Indices:
        """Indices of the images of one worker's step.

        Parameters
        ----------
        worker : int
            0 to workers - 1.
        step : int
            Counts on through the epochs: step ``steps_per_epoch`` is the first of epoch 1.

        Returns
        -------
        int64 array, read-only, of at most ``batch`` entries; at the end of an epoch fewer, or none
        """
        if not 0 <= worker < self.workers:
            raise ValueError(f"worker is {worker}, expected 0 to {self.workers - 1}")
        if step < 0:
            raise ValueError(f"step is {step}, expected 0 or more")
        epoch, k = divmod(step, self.steps_per_epoch)
        order = self._order(epoch)
        if self._sorted is not None:
            low, high = _split(self.images, self.workers, worker)
            return order[low:high][k * self.batch : (k + 1) * self.batch]
        union = order[k * self.workers * self.batch : (k + 1) * self.workers * self.batch]
        low, high = _split(len(union), self.workers, worker)
        return union[low:high]

    def _order(self, epoch: int) -> Indices:
        order = self._orders.get(epoch)
        if order is None:  # threads may find so at the same time, and draw the same
            random = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(_ORDER, epoch)))
            if self._sorted is None:
                order = random.permutation(self.images).astype(np.int64)
            else:
                order = self._sorted.copy()
                for worker in range(self.workers):
                    low, high = _split(self.images, self.workers, worker)
                    random.shuffle(order[low:high])
            order.setflags(write=False)
            if len(self._orders) >= _EPOCHS_KEPT:
                self._orders.pop(min(self._orders), None)
            self._orders[epoch] = order
        return order


def _split(length: int, parts: int, part: int) -> tuple[int, int]:
    """Bounds of one of ``parts`` contiguous parts as equal as possible, the longer ones first."""
    size, longer = divmod(length, parts)
    low = part * size + min(part, longer)
    return low, low + size + (part < longer)
