"""Random streams of a program: durations and choices, reproducible in every runtime."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refsgd.cluster.devices import Device
from refsgd.cluster.distributions import Distribution, Samples
from refsgd.cluster.prices import Prices
from refsgd.effects import Compute, Piece, payload_bytes


class Draws:
    """The random streams of one program: the same seed gives the same draws in every runtime.

    A duration is a pure function of (seed, node, program, kind, index), and on a device also of the work;
    choices have their own stream.  `prices` are those of the node.
    """

    BLOCK = 256  # durations are drawn in blocks of fixed length, so each depends on its index alone

    def __init__(self, prices: Prices, seed: int, node: str, program: int = 0) -> None:
        self.prices = prices
        self._key = [seed, zlib.crc32(node.encode()), program]
        self._pending: dict[str, list[float]] = {}
        self._constant: dict[str, float] = {}  # kinds whose durations are not drawn
        self._streams: dict[str, np.random.Generator] = {}
        self._last: tuple[Any, Samples] | None = None  # probabilities of the last choice, and their sums
        # the draw for a gradient that is computed in pieces, and whether its last piece had its time
        self._gradient, self._ended = 0.0, True

    def _stream(self, purpose: str) -> np.random.Generator:
        if purpose not in self._streams:
            key = [*self._key, zlib.crc32(purpose.encode())]
            self._streams[purpose] = np.random.default_rng(np.random.SeedSequence(key))
        return self._streams[purpose]

    def duration(self, kind: str, effect: Compute | None = None) -> float:
        """Seconds of the next `Compute` of this kind; a piece, a reduction, a device and an update that is
        priced by its bytes also need the effect."""
        if effect is not None and kind == "update" and self.prices.updating:
            return self._whole(kind) + self.prices.updating * payload_bytes(effect.args)
        if effect is not None and effect.piece is not None:
            device = self.prices.of(kind)
            mean = device.seconds(*work_of(effect)) if isinstance(device, Device) else 1.0
            return mean * effect.piece.share * self.draw(kind, effect.piece)
        return self._whole(kind, effect)

    def draw(self, kind: str, piece: Piece | None = None) -> float:
        """The next draw of a kind: seconds, or on a device the noise; one draw for all pieces of a
        gradient."""
        if piece is None:
            return self._whole(kind)
        if self._ended:
            self._gradient = self._whole(kind)
        self._ended = piece.last
        return self._gradient

    def _whole(self, kind: str, effect: Compute | None = None) -> float:
        if pending := self._pending.get(kind):
            return pending.pop()
        if (seconds := self._constant.get(kind)) is not None:
            return seconds
        if kind == "reduction":
            return self.prices.reduction * payload_bytes(effect.args[1:]) if effect is not None else 0.0
        if kind == "codec":  # of a gradient, or to decode of its length
            g = effect.args[1] if effect is not None and self.prices.codec else 0
            return self.prices.codec * (4.0 * g if isinstance(g, int) else float(g.nbytes))
        found = self.prices.of(kind)
        if isinstance(found, Device):
            mean = found.seconds(*work_of(effect)) if effect is not None else 1.0
            return mean * self._next("noise", kind, found.noise)
        if found is None or found.family == "fixed":
            self._constant[kind] = found.parameters[0] if found is not None else 0.0
            return self._constant[kind]
        return self._next(kind, kind, found)

    def _next(self, name: str, purpose: str, drawn: Distribution) -> float:
        """The next draw stored under `name`, from the stream of a purpose."""
        if drawn.family == "fixed":
            return drawn.parameters[0]
        if not self._pending.get(name):
            count = len(drawn.parameters) if drawn.family == "replayed" else self.BLOCK
            self._pending[name] = drawn.sample(self._stream(purpose), count)[::-1].tolist()
        return self._pending[name].pop()

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


def work_of(effect: Compute) -> tuple[float, float]:
    """Floating-point operations and bytes of parameters of a gradient, which its function knows, or the
    object of which it is a method."""
    fn = effect.fn
    owner = fn if hasattr(fn, "work") else getattr(fn, "__self__", None)
    known: Callable[..., tuple[float, float]] | None = getattr(owner, "work", None)
    if known is None:
        name = getattr(effect.fn, "__qualname__", type(effect.fn).__name__)
        raise ValueError(f"a device prices a gradient by its work, which {name} does not state; expected the "
                         "gradient of a Problem with work=..., or a distribution of seconds in place of the "
                         "device")
    return known(*effect.args)
