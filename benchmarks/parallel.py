"""More threads for one gradient: replicas of a net, each computing the gradient of a part of the batch."""
from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np

from refsgd.problems.nn.layer import Array
from refsgd.problems.nn.net import Net, Vector


class Parallel:
    """Replicas of one net that share the work of a batch; the kernels release the interpreter lock.

    Parameters
    ----------
    replicas : sequence of Net
        Net objects of the same layers, one per thread.
    least : float
        Floating-point operations of a part below which fewer threads share a batch: to hand over parts, and
        to wait for the interpreter that other threads want between their kernels, takes some tenth of a
        millisecond.

    Notes
    -----
    The parts are contiguous and as equal as possible, and are added in order: the bits depend on the number
    of replicas and on ``least``, not on timing. Batch norm takes its statistics of each part, as workers of a
    distributed run do.
    """

    def __init__(self, replicas: Sequence[Net], least: float = 5e7) -> None:
        self.replicas = list(replicas)
        # A backward pass takes twice as many as the forward pass.
        self._least, self._flops = least, 3 * sum(row.flops for row in self.replicas[0].leaves)
        self._jobs: list[SimpleQueue[Any]] = [SimpleQueue() for _ in self.replicas[1:]]
        self._done: SimpleQueue[Any] = SimpleQueue()
        for k, jobs in enumerate(self._jobs, 1):
            threading.Thread(target=self._work, args=(k, jobs), daemon=True).start()

    def gradient(self, x: Array, images: Array, labels: Array) -> tuple[float, Vector]:
        """Mean loss over a batch and its gradient; errors as `Net.gradient`."""
        b = len(images)
        n = min(len(self.replicas),
                max(1, int(self._flops * b // self._least))) if self._least else len(self.replicas)
        bounds = [b * k // n for k in range(n + 1)]
        jobs = [
            (x, images[low:high], labels[low:high], (high - low) / max(b, 1))
            for low, high in pairwise(bounds)
        ]
        for queue, job in zip(self._jobs, jobs[1:], strict=False):
            queue.put(job)
        answers: dict[int, Any] = {0: self._attempt(0, *jobs[0])}
        for _ in jobs[1:]:
            k, answer = self._done.get()
            answers[k] = answer
        for answer in answers.values():
            if isinstance(answer, BaseException):
                raise answer
        loss, g = answers[0]
        for k in range(1, n):
            loss += answers[k][0]
            g += answers[k][1]
        return loss, g

    def close(self) -> None:
        """End the threads."""
        for jobs in self._jobs:
            jobs.put(None)
        self._jobs = []

    def _attempt(self, k: int, x: Array, images: Array, labels: Array, weight: float,
                 g: Vector | None = None) -> Any:
        try:
            return self.replicas[k].gradient(x, images, labels, weight=weight, out=g)
        except Exception as error:
            return error

    def _work(self, k: int, jobs: SimpleQueue[Any]) -> None:
        # Used again for every batch: a new one would take some milliseconds to get from the system, page by
        # page.
        g = np.empty(self.replicas[k].parameters, np.float32)
        while (job := jobs.get()) is not None:
            x, images, labels, weight = job
            self._done.put((k, self._attempt(k, x, images, labels, weight, g)))
