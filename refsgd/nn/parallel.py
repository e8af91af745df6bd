"""More threads for one gradient: replicas of a net, each computing the gradient of a part of the batch."""
from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from refsgd.nn.layers import Array
from refsgd.nn.net import Net, Vector


class Parallel:
    """Replicas of one net that share the work of a batch; the kernels release the interpreter lock.

    Parameters
    ----------
    replicas : sequence of Net
        Net objects of the same layers, one per thread.

    Notes
    -----
    The parts are contiguous and as equal as possible, and are added in order: the bits depend on the number of
    replicas, not on timing. Batch norm takes its statistics of each part, as workers of a distributed run do.
    """

    def __init__(self, replicas: Sequence[Net]) -> None:
        self.replicas = list(replicas)
        self._jobs: list[SimpleQueue[Any]] = [SimpleQueue() for _ in self.replicas[1:]]
        self._done: SimpleQueue[Any] = SimpleQueue()
        for k, jobs in enumerate(self._jobs, 1):
            threading.Thread(target=self._work, args=(k, jobs), daemon=True).start()

    def gradient(self, x: Array, images: Array, labels: Array) -> tuple[float, Vector]:
        """Mean loss over a batch and its gradient; arguments and errors as `Net.gradient`."""
        b, n = len(images), len(self.replicas)
        bounds = [b * k // n for k in range(n + 1)]
        parts = [slice(low, high) for low, high in zip(bounds, bounds[1:], strict=False)]
        for jobs, part in zip(self._jobs, parts[1:], strict=True):
            jobs.put((x, images[part], labels[part]))
        answers: dict[int, Any] = {0: self._attempt(0, x, images[parts[0]], labels[parts[0]])}
        for _ in self._jobs:
            k, answer = self._done.get()
            answers[k] = answer
        for answer in answers.values():
            if isinstance(answer, BaseException):
                raise answer
        loss, g = 0.0, answers[0][1]
        for k, part in enumerate(parts):
            weight = (part.stop - part.start) / max(b, 1)
            loss += weight * answers[k][0]
            if k == 0:
                g *= np.float32(weight)
            else:
                answers[k][1][:] *= np.float32(weight)
                g += answers[k][1]
        return loss, g

    def close(self) -> None:
        """End the threads."""
        for jobs in self._jobs:
            jobs.put(None)
        self._jobs = []

    def _attempt(self, k: int, x: Array, images: Array, labels: Array) -> Any:
        try:
            return self.replicas[k].gradient(x, images, labels)
        except Exception as error:
            return error

    def _work(self, k: int, jobs: SimpleQueue[Any]) -> None:
        while (job := jobs.get()) is not None:
            self._done.put((k, self._attempt(k, *job)))
