"""More threads for one gradient: replicas of a net, each computing the gradient of a part of the batch."""
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from refsgd.nn.layers import Array
from refsgd.nn.net import Net, Vector

APART = 1 << 18  # parameters from which the threads add up the parts together, each a stretch of them


class Parallel:
    """Replicas of one net that share the work of a batch; the kernels release the interpreter lock.

    Parameters
    ----------
    replicas : sequence of Net
        Net objects of the same layers, one per thread.
    least : float
        Floating-point operations of a part below which fewer threads share a batch: to hand over parts, and to wait for the interpreter that
        other threads want between their kernels, takes some tenth of a millisecond.

    Notes
    -----
    The parts are contiguous and as equal as possible, and are added in order: the bits depend on the number of
    replicas and on ``least``, not on timing. Batch norm takes its statistics of each part, as workers of a distributed run do.
    """

    def __init__(self, replicas: Sequence[Net], least: float = 5e7) -> None:
        self.replicas = list(replicas)
        # A backward pass takes twice as many as the forward pass.
        self._least, self._flops = least, 3 * sum(row.flops for row in self.replicas[0].describe())
        # Used again for every batch: new ones would take some milliseconds to get from the system, page by page.
        self._vectors: list[Vector | None] = [None, *(np.empty(net.parameters, np.float32) for net in self.replicas[1:])]
        self._jobs: list[SimpleQueue[Any]] = [SimpleQueue() for _ in self.replicas[1:]]
        self._done: SimpleQueue[Any] = SimpleQueue()
        for k, jobs in enumerate(self._jobs, 1):
            threading.Thread(target=self._work, args=(k, jobs), daemon=True).start()

    def gradient(self, x: Array, images: Array, labels: Array) -> tuple[float, Vector]:
        """Mean loss over a batch and its gradient; errors as `Net.gradient`.

        Parameters
        ----------
        x, images, labels
            As for `Net.gradient`.

        Returns
        -------
        loss : float
        g : float32, shape (d,)
        """
        b = len(images)
        n = min(len(self.replicas), max(1, int(self._flops * b // self._least))) if self._least else len(self.replicas)
        bounds = [b * k // n for k in range(n + 1)]
        parts = [slice(low, high) for low, high in zip(bounds, bounds[1:], strict=False)]
        answers = self._together([
            partial(net._weighted, x, images[part], labels[part], (part.stop - part.start) / max(b, 1), g=g)
            for net, g, part in zip(self.replicas, self._vectors, parts, strict=False)
        ])
        g, *others = (vector for _, vector in answers)
        cuts = [slice(g.size * k // n, g.size * (k + 1) // n) for k in range(n)] if g.size > APART else [slice(None)]
        self._together([partial(_add, g[cut], [other[cut] for other in others]) for cut in cuts])
        return sum(loss for loss, _ in answers), g

    def close(self) -> None:
        """End the threads."""
        for jobs in self._jobs:
            jobs.put(None)
        self._jobs = []

    def _together(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """What the jobs return, the first called by this thread; raises what one of them raised, after all have ended."""
        for queue, job in zip(self._jobs, jobs[1:], strict=False):
            queue.put(job)
        answers = {0: _attempt(jobs[0])}
        for _ in jobs[1:]:
            k, answer = self._done.get()
            answers[k] = answer
        for answer in answers.values():
            if isinstance(answer, BaseException):
                raise answer
        return [answers[k] for k in range(len(jobs))]

    def _work(self, k: int, jobs: SimpleQueue[Any]) -> None:
        while (job := jobs.get()) is not None:
            self._done.put((k, _attempt(job)))


def _attempt(job: Callable[[], Any]) -> Any:
    try:
        return job()
    except Exception as error:
        return error


def _add(g: Array, others: Sequence[Array]) -> None:
    for other in others:
        g += other
