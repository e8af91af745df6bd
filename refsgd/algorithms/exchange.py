"""How a gradient travels: the parts it is cut into, when each leaves, and in what form.

An exchange is orthogonal to an algorithm's rule.  The programs that algorithms share read it from the
problem: `parts` for those with servers, `allreduce` for those without.

References
----------
Zhang et al., "Poseidon: an efficient communication architecture for distributed deep learning on GPU
clusters", USENIX ATC 2017, section 3: wait-free backpropagation.
Jayarajan et al., "Priority-based parameter propagation for distributed DNN training", MLSys 2019: P3, chunks
and priorities.
Sergeev and Del Balso, "Horovod", arXiv:1802.05799, section 4: tensor fusion.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from refsgd.algorithms.compression import Codec
from refsgd.algorithms.sgd import SGD
from refsgd.collectives.parts import chunks
from refsgd.effects import Array, Compute, Piece, Program

Balance = Literal["robin", "size", "hash"]
Overlap = Literal["none", "backward", "both"]
CHUNKS = re.compile(r"chunks:([1-9]\d*)")


@dataclass(frozen=True)
class Exchange:
    """The options of an exchange, with the codec for the run's number of workers and rule."""

    layout: str = "equal"  #: or "layers", "chunks:BYTES"; each part has a server program of its own
    balance: Balance = "robin"  #: "size": the largest part first, to the server with the fewest bytes
    #: "backward": a part leaves as soon as the backward pass has computed it (wait-free backpropagation);
    #: "both": the next forward pass starts as well, layer by layer as parameters arrive
    overlap: Overlap = "none"
    priority: bool = False  #: links serve the lowest layers first, which the next forward pass needs first
    bucket: int = 0  #: bytes of layers that peers without servers sum together; 0: each layer by itself
    compress: str = ""  #: a codec by name, such as "topk:0.01"; empty: gradients as they are
    feedback: bool = True  #: whether the sender adds what a message left out to its next one
    codec: Codec | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.layout not in ("equal", "layers") and not CHUNKS.fullmatch(self.layout):
            raise ValueError(f"layout {self.layout!r}; expected equal, layers or chunks:BYTES, such as "
                             "chunks:200000")
        for name, known in (("balance", get_args(Balance)), ("overlap", get_args(Overlap))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} {getattr(self, name)!r}; expected one of {', '.join(known)}")
        if self.bucket < 0:
            raise ValueError(f"bucket {self.bucket}; expected a number of bytes >= 0")

    def receiver(self, sgd: SGD) -> SGD:
        """The update rule for gradients as they arrive."""
        return sgd if self.codec is None else self.codec.rule.receiver(sgd)

    def codec_of(self, part: slice) -> Codec | None:
        """The codec of one part."""
        return self.codec and self.codec.part(part)

    def cut(self, problem: Any, servers: int) -> list[slice]:
        """The parts of the parameters, in order; layout `equal` has one for each server."""
        if self.layout == "equal":
            return chunks(problem.x0.size, servers)
        found = list(problem.layers.parts)
        if self.layout == "layers":
            return found
        most = max(1, int(self.layout.partition(":")[2]) // 4)
        if problem.x0.size / most > 100_000:
            raise ValueError(f"layout {self.layout} of {problem.x0.size} parameters; expected at most 100000 "
                             "parts: larger chunks")
        return [slice(a, min(a + most, part.stop)) for part in found
                for a in range(part.start, part.stop, most)]

    def deal(self, parts: Sequence[slice], servers: int) -> list[int]:
        """The server of each part.

        >>> parts = [slice(0, 1), slice(1, 2), slice(2, 9)]
        >>> Exchange().deal(parts, 2), Exchange(balance="size").deal(parts, 2)
        ([0, 1, 0], [1, 1, 0])
        """
        if self.balance == "robin":
            return [j % servers for j in range(len(parts))]
        if self.balance == "hash":
            return [zlib.crc32(b"%d" % j) % servers for j in range(len(parts))]
        held, home = [0] * servers, [0] * len(parts)
        for j in sorted(range(len(parts)), key=lambda j: (parts[j].start - parts[j].stop, j)):
            home[j] = held.index(min(held))
            held[home[j]] += parts[j].stop - parts[j].start
        return home

    def buckets(self, problem: Any) -> list[slice]:
        """The layers that peers sum together, from the last to the first."""
        found, end = [], problem.x0.size
        for part in reversed(problem.layers.parts):
            if 4 * (end - part.start) >= self.bucket or part.start == 0:
                found.append(slice(part.start, end))
                end = part.start
        return found


PLAIN = Exchange()  #: the whole gradient at once, in equal parts


def of(problem: Any) -> Exchange:
    """The exchange of a problem; `PLAIN` for one that does not have any."""
    return getattr(problem, "exchange", None) or PLAIN


def section(pieces: Sequence[tuple[slice, Array]], part: slice) -> Array:
    """The entries of a part, of a vector of which consecutive pieces are known."""
    found = [x[max(0, part.start - at.start): part.stop - at.start] for at, x in pieces
             if at.start < part.stop and part.start < at.stop]
    return found[0] if len(found) == 1 else np.concatenate(found)


def by_layer(problem: Any, rank: int, t: int, x: Array | None, parts: Mapping[Any, slice],
             ready: Callable[[Any, Array], Program[None]],
             parameters: Callable[[slice], Program[Array]] | None = None) -> Program[Array]:
    """The gradient of step t, (d,), computed layer by layer; `ready` gets the key of each of these parts, of
    which the last in the vector comes first, and its gradient, as soon as that is known.

    It is at `x`, unless `parameters` waits for those of each layer before its forward pass.
    """
    known = list[tuple[slice, Array]]()
    left = deque(parts.items())

    def keep(layer: slice, g: Array) -> Program[None]:
        known.insert(0, (layer, g))
        while left and left[0][1].start >= layer.start:
            key, part = left.popleft()
            yield from ready(key, section(known, part))

    yield from passes(problem, rank, t, x, keep, parameters)
    return section(known, slice(0, problem.x0.size))


def passes(problem: Any, rank: int, t: int, x: Array | None, ready: Callable[[slice, Array], Program[None]],
           parameters: Callable[[slice], Program[Array]] | None = None, again: bool = False) -> Program[None]:
    """The passes through all layers for the gradient of step t; `ready` runs after each backward pass with a
    layer's gradient, of which no other reference is kept.

    They are at `x`, unless `parameters` gives those of each layer before its forward pass; with `again` they
    are dropped after it, and given again before the backward pass.
    """
    layers, held = problem.in_layers, dict[int, Array]()
    begun = layers.begin(rank, t)

    def compute(function: Callable[..., Any], *args: Any, piece: Piece) -> Compute:
        step: Any = partial(function)
        # the whole gradient's, of which a device charges the piece's share
        step.work = lambda *given: problem.gradient.work(problem.x0, rank, t)
        step.refuses = getattr(problem.gradient, "refuses", False)
        return Compute(step, *args, piece=piece)

    if parameters is None:
        yield compute(_through, begun, layers.parts, x, piece=Piece("forward", 0, sum(layers.forward), True))
        held = {k: x[part] for k, part in enumerate(layers.parts)}  # type: ignore[index]
    else:
        for k, part in enumerate(layers.parts):
            held[k] = yield from parameters(part)
            yield compute(begun.forward, k, held[k], piece=Piece("forward", k, layers.forward[k], k == 0))
            if again:
                del held[k]
    for k, part in reversed(list(enumerate(layers.parts))):
        if again and parameters:
            held[k] = yield from parameters(part)
        piece = Piece("backward", k, layers.backward[k], last=k == 0)
        yield from ready(part, (yield compute(begun.backward, k, held.pop(k), piece=piece)))


def _through(begun: Any, parts: Sequence[slice], x: Array) -> None:
    """The forward pass through all layers."""
    for k, part in enumerate(parts):
        begun.forward(k, x[part])
