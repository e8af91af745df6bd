"""Random streams of a program: durations and choices, reproducible in every runtime."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from refsgd.cluster.distributions import Samples
from refsgd.cluster.machine import Machine


class Draws:
    """The random streams of one program: the same seed gives the same draws in every runtime.

    A drawn duration is a pure function of (seed, node, program, kind, index); choices have a stream of their
    own.
    """

    BLOCK = 256  # durations are drawn in blocks of fixed length: the index alone decides which one is next

    def __init__(self, machine: Machine, seed: int, node: str, program: int = 0, speed: float = 1.0) -> None:
        self._machine, self._speed = machine, speed
        self._key = [seed, zlib.crc32(node.encode()), program]
        self._pending: dict[str, list[float]] = {}
        self._constant: dict[str, float] = {}  # kinds whose durations are not drawn
        self._streams: dict[str, np.random.Generator] = {}
        # probabilities of the last choice, and their cumulated sums
        self._last: tuple[Any, Samples] | None = None

    def _stream(self, purpose: str) -> np.random.Generator:
        if purpose not in self._streams:
            key = [*self._key, zlib.crc32(purpose.encode())]
            self._streams[purpose] = np.random.default_rng(np.random.SeedSequence(key))
        return self._streams[purpose]

    def duration(self, kind: str, nbytes: int = 0) -> float:
        """Seconds of the next `Compute` of this kind (`nbytes`: of what is added, for a reduction)."""
        pending = self._pending.get(kind)
        if pending:
            return pending.pop()
        if kind == "reduction":
            return self._machine.reduction * nbytes
        if kind not in self._constant:
            found = self._machine.distribution(kind, self._speed)
            if found is not None and found.family != "fixed":
                drawn: list[float] = found.sample(self._stream(kind), self.BLOCK)[::-1].tolist()
                self._pending[kind] = drawn
                return drawn.pop()
            self._constant[kind] = found.parameters[0] if found is not None else 0.0
        return self._constant[kind]

    def durations(self, kind: str, count: int) -> Samples:
        """The first durations of a kind, as `duration` gives them to a fresh program."""
        found = self._machine.distribution(kind, self._speed)
        if found is None or found.family == "fixed":
            return np.full(count, found.parameters[0] if found is not None else 0.0)
        blocks = [found.sample(self._stream(kind), self.BLOCK) for _ in range(0, count, self.BLOCK)]
        return np.concatenate([np.empty(0), *blocks])[:count]

    def choose(self, options: Sequence[Any], p: Sequence[float] | None = None) -> Any:
        """One of the options, with probabilities `p` or uniformly."""
        stream = self._stream("choose")
        if p is None:
            return options[int(stream.integers(len(options)))]
        if self._last is not None and self._last[0] is p and len(p) == len(options):
            # what Generator.choice does, in O(log n)
            return options[int(self._last[1].searchsorted(stream.random(), side="right"))]
        chances = np.asarray(p, float)
        drawn = int(stream.choice(len(options), p=chances))
        if type(p) is tuple:  # which nobody can change
            cumulated = chances.cumsum()
            self._last = p, cumulated / cumulated[-1]
        return options[drawn]
