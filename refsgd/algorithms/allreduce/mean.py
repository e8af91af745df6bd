"""The mean gradient of peers: summed by a collective, compressed, and bucket by bucket while they compute.

With overlap a second program on each node sums one bucket after the other, in the order in which the backward
pass completes them, which is the same on all peers: a collective needs all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from refsgd.algorithms import exchange
from refsgd.algorithms.codecs import Message
from refsgd.algorithms.compression import Codec
from refsgd.algorithms.exchange import by_layer
from refsgd.algorithms.parts import Objective, rotate
from refsgd.algorithms.replica import Replica
from refsgd.algorithms.sgd import weights
from refsgd.collectives import ALLREDUCE
from refsgd.effects import Array, Compute, Program, Recv, Send

Collective = Literal["ring", "rings", "recursive-doubling", "halving-doubling", "tree", "double-tree", "root",
                     "pscpu", "hierarchical", "torus"]
Reduce = Callable[[int, Sequence[str], Array], Program[Array]]  #: a collective: (rank, group, x) -> the sum


def reduction(collective: str) -> Reduce:
    """The collective of that name."""
    if collective not in ALLREDUCE:
        raise ValueError(f"collective {collective!r}; expected one of {', '.join(ALLREDUCE)}")
    return ALLREDUCE[collective]


class Coded(NamedTuple):
    """peer -> peer: a compressed gradient."""

    message: Message


class Bucket(NamedTuple):
    """From a peer's main program to its communication program: gradients of some layers."""

    number: int
    t: int
    g: Array


class Mean(NamedTuple):
    """Back: their mean over all peers."""

    number: int
    g: Array


class Peers:
    """The other peers of one, which average a part of the vector with it in every step."""

    def __init__(self, replica: Replica, group: Sequence[str], problem: Objective, reduce: Reduce,
                 part: slice) -> None:
        self._replica, self._group, self._problem, self._reduce = replica, group, problem, reduce
        self._part, self._codec = part, exchange.of(problem).codec_of(part)
        self._state = self._codec and self._codec.start(part.stop - part.start)

    def mean(self, g: Array, t: int) -> Program[Array]:
        """The mean of the part of step t's gradients over images, the same bits on every peer."""
        rank, codec = self._replica.rank, self._codec
        share, whole = weights([self._problem.images(i, t) for i in range(len(self._group))])
        if codec is None:
            total = yield from self._reduce(rank, self._group, g * np.float32(share[rank]))
            return total / np.float32(whole)
        # Weighted first, because the entries kept back will be part of another step.
        g = codec.ready(g, self._replica.x[self._part]) * np.float32(share[rank]) / np.float32(whole)
        g, self._state = yield from compressed(rank, self._group, g, t, codec, self._state, self._reduce)
        return g


def compressed(rank: int, group: Sequence[str], g: Array, t: int, codec: Codec, state: Any,
               reduce: Reduce) -> Program[tuple[Array, Any]]:
    """The sum over ranks of what their messages say, and the codec's next state."""
    if codec.rule.linear:
        return (yield from codec.summed(state, g, codec.key(rank, t), partial(reduce, rank, group)))
    mine, state = yield Compute(codec.encode, state, g, codec.key(rank, t), kind="codec")
    total = np.zeros_like(g)
    for message in (yield from gather(rank, group, mine)):
        total = total + (yield Compute(codec.decode, message, g.size, kind="codec"))
    return total, state


def gather(rank: int, group: Sequence[str], mine: Message) -> Program[list[Message]]:
    """Every peer's message, in rank order; each sends to its right neighbour first, to share the links."""
    for to in rotate(group, rank + 1)[:-1]:
        yield Send(to, Coded(mine))
    messages = [mine] * len(group)
    for i, src in enumerate(group):
        if i != rank:
            _, (messages[i],) = yield Recv(Coded, src=src)
    return messages


def by_bucket(me: str, replica: Replica, problem: Objective, t: int) -> Program[Array]:
    """The mean gradient of step t, each bucket of which leaves as soon as its last layer is computed."""
    buckets = exchange.of(problem).buckets(problem)

    def ready(number: int, g: Array) -> Program[None]:
        yield Send(me, Bucket(number, t, g))

    yield from by_layer(problem, replica.rank, t, replica.x, dict(enumerate(buckets)), ready)
    found = dict[int, Array]()
    while len(found) < len(buckets):
        _, (number, g) = yield Recv(Mean, src=me)
        found[number] = g
    return np.concatenate([found[number] for number in reversed(range(len(buckets)))])


def communicate(me: str, buckets: Sequence[Peers]) -> Program[None]:
    """The communication program of a peer: one bucket after the other, in the order of arrival."""
    while True:
        _, (number, t, g) = yield Recv(Bucket, src=me)
        g = yield from buckets[number].mean(g, t)
        yield Send(me, Mean(number, g))
