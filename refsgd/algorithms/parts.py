"""Shared sub-programs for parameter servers: messages, division into parts, push and pull, updates,
deployment.

The parameters are divided into K parts, one per server (Li et al., OSDI 2014).  Most algorithms have the same
`worker`; their servers differ in the update (BSP: the mean of all gradients; ASP, SSP: each push) and in when
they answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from refsgd.algorithms import exchange
from refsgd.algorithms.compression import Codec
from refsgd.algorithms.exchange import by_layer, section
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, Send


class Objective(Protocol):
    """What an algorithm needs to know about its problem."""

    x0: Array  #: (d,) the common starting point
    gradient: Callable[[Array, int, int], Array]  #: (x, rank, t) -> (d,), mean over the share of step t
    images: Callable[[int, int], int]  #: (rank, t) -> examples in that share, its weight in a mean
    loss: Callable[[Array], float]  #: on the training set


class Push(NamedTuple):
    """worker -> server: a gradient of the server's part."""

    grad: Array  # (part,)
    examples: int  # number of examples in its mean
    version: int  # of the part at which it was computed
    of: tuple[str, ...] = ()  # the workers whose gradients it sums, if it is not the sender's own


class Model(NamedTuple):
    """server -> worker: the server's part of the parameters."""

    x: Array  # (part,)
    version: int  # updates applied to it so far


class Fetch(NamedTuple):
    """worker -> server: send me your part."""

    t: int  # the worker's iteration


Message = Callable[[str, Any], Any]  #: (server, gradient of its part) -> what is sent to it
Reads = tuple[tuple[str, int], ...]  #: the worker of each gradient, and the version it read


def rotate(items: Sequence[str], first: int) -> list[str]:
    """The items starting with number `first`, so that no two workers begin with the same server."""
    k = first % len(items)
    return [*items[k:], *items[:k]]


def names(workers: int, servers: int) -> tuple[list[str], list[str]]:
    """Names of the workers and of the servers; raises ValueError if there are no workers or no servers."""
    if workers < 1:
        raise ValueError(f"workers {workers}; expected at least 1")
    if servers < 1:
        raise ValueError(f"servers {servers}; expected at least 1")
    return [f"worker{i}" for i in range(workers)], [f"server{k}" for k in range(servers)]


def some(workers: int, given: int | None, name: str) -> int:
    """How many of the workers, by default all; raises ValueError if there are not that many."""
    number = workers if given is None else given
    if not 1 <= number <= workers:
        raise ValueError(f"{name} {number} with {workers} workers; expected 1 to {workers}")
    return number


# -- the worker's side ---------------------------------------------------------------------------------------


class Servers:
    """The servers of all parts as one worker sees them: the parts of the parameters, the order in which it
    contacts them (starting with number `first`), and what it has read of each, with the version.

    `gradient` computes a gradient and sends each server its part, as the problem's exchange says; `pull`
    waits for the new model.
    """

    def __init__(self, servers: Sequence[str], problem: Any, first: int = 0,
                 divided: Callable[[Array, int], Program[Array]] | None = None) -> None:
        self.exchange = exchange.of(problem)
        self.part = dict(zip(servers, self.exchange.cut(problem, len(servers)), strict=True))
        self.order = rotate(servers, first)
        self.version = dict.fromkeys(servers, 0)
        self.x = {s: problem.x0[part] for s, part in self.part.items()}
        self.awaited: set[str] = set()  # of which an answer is on its way
        self.codec = {s: self.exchange.codec_of(part) for s, part in self.part.items()}
        self.state = {s: codec and codec.start(self.x[s].size) for s, codec in self.codec.items()}
        self._problem, self._divided = problem, divided

    def compute(self, x: Array | None, rank: int, t: int) -> Program[Array]:
        """The gradient of step t at x, (d,); `divided`, on the node of a stage, computes it with its
        neighbours."""
        if self._divided is not None and x is not None:
            return (yield from self._divided(x, t))
        g: Array = yield Compute(self._problem.gradient, x, rank, t)
        return g

    def gradient(self, x: Array | None, rank: int, t: int, message: Message,
                 accrued: Array | None = None) -> Program[Array]:
        """The gradient at x, (d,); each server is sent the `message` of its part as soon as that is known.

        Where `x` is None, the forward pass begins with what has arrived and waits for each layer.  `accrued`
        is added to what is sent.
        """
        def tell(s: str, g: Array) -> Program[None]:
            part = self.part[s]
            whole = g if accrued is None else accrued[part] + g
            if (codec := self.codec[s]) is not None:
                whole = codec.ready(whole, self.x[s] if x is None else x[part])
                whole, self.state[s] = yield Compute(codec.encode, self.state[s], whole, codec.key(rank, t),
                                                     kind="codec")
            self.awaited.add(s)
            yield Send(s, message(s, whole))

        if self.exchange.overlap == "none":
            g = yield from self.compute(x, rank, t)
            for s in self.order:
                yield from tell(s, g[self.part[s]])
            return g
        return (yield from by_layer(self._problem, rank, t, x, dict(reversed(self.part.items())), tell,
                                    self._parameters if x is None else None))

    def pushes(self, examples: int) -> Message:
        """Messages with gradients that are means of this many examples."""
        return lambda s, g: Push(g, examples, self.version[s])

    def _receive(self, s: str) -> Program[None]:
        """Wait for the part of one server."""
        _, (self.x[s], self.version[s]) = yield Recv(Model, src=s)
        self.awaited.discard(s)

    def _parameters(self, layer: slice) -> Program[Array]:
        """The newest parameters of a layer, (layer,), once every part of it has been answered."""
        for s, part in self.part.items():
            if s in self.awaited and part.start < layer.stop and layer.start < part.stop:
                yield from self._receive(s)
        return section([(part, self.x[s]) for s, part in self.part.items()], layer)

    def pull(self) -> Program[Array]:
        """Wait for the part of each server; the whole model, (d,)."""
        for s in self.order:
            yield from self._receive(s)
        return np.concatenate(list(self.x.values()))

    def work(self, rank: int, steps: int) -> Program[Array]:
        """What `worker` does, where gradients are compressed or leave while others are computed."""
        x: Array = self._problem.x0
        both = self.exchange.overlap == "both"  # the next forward pass pulls the model, layer by layer
        for t in range(steps):
            yield from self.gradient(None if both and t > 0 else x, rank, t,
                                     self.pushes(self._problem.images(rank, t)))
            if not both or t == steps - 1:
                x = yield from self.pull()
            yield Mark("clock", t=t)
        return x

    def fetch(self, t: int) -> Program[Array]:
        """Ask each server for its part in iteration t; the whole model, (d,)."""
        for s in self.order:
            yield Send(s, Fetch(t))
        return (yield from self.pull())


def worker(rank: int, servers: Sequence[str], problem: Objective, steps: int,
           rotated: bool = False) -> Program[Array]:
    """Compute a gradient, push each server its part, pull the new model; returns the last, (d,).

    It is the worker of Li et al., algorithm 1.  A `rotated` worker begins with the server of its own number.
    """
    x, there = problem.x0, Servers(servers, problem, rank if rotated else 0)
    if there.exchange.overlap != "none" or there.exchange.codec:
        return (yield from there.work(rank, steps))
    for t in range(steps):
        g = yield Compute(problem.gradient, x, rank, t)
        for s in there.order:
            yield Send(s, Push(g[there.part[s]], problem.images(rank, t), there.version[s]))
        del g  # the servers have it
        for s in there.order:
            _, (there.x[s], there.version[s]) = yield Recv(Model, src=s)
        x = np.concatenate(list(there.x.values()))
        yield Mark("clock", t=t)
    return x


# -- the server's side ---------------------------------------------------------------------------------------


def of_pushes(pushes: Iterable[tuple[str, Push]]) -> tuple[Reads, int]:
    """What the mark of an update says of its pushes: their reads, and the number of their images."""
    pushes = list(pushes)
    reads = ((i, push.version) for w, push in pushes for i in push.of or (w,))
    return tuple(reads), sum(push.examples for _, push in pushes)


@dataclass
class Shard:
    """One part of the parameters at its server, with the state of the update rule."""

    part: int  #: its number, from 0 on
    x: Array  #: (part,) its contents
    sgd: SGD  #: the update rule
    version: int = 0  #: updates applied so far
    codec: Codec | None = None  #: of the gradients that it gets

    def __post_init__(self) -> None:
        self.state: Any = self.sgd.start(self.x)  #: the state of the rule between updates: the velocity

    def recv(self, *kinds: type, src: str | None = None) -> Program[tuple[str, Any]]:
        """As `Recv`, and a compressed gradient is decoded."""
        w, message = yield Recv(*kinds, src=src)
        if self.codec is not None and hasattr(message, "grad"):
            g = yield Compute(self.codec.decode, message.grad, self.x.size, kind="codec")
            message = message._replace(grad=g)
        return w, message

    def apply(self, w: str, push: Push) -> Program[None]:
        """One update with the gradient of one worker."""
        yield from self.update([(w, push)], type(self.sgd).step, push.grad, self.version)

    def update(self, pushes: Iterable[tuple[str, Push]], rule: Callable[..., Any],
               *given: Any) -> Program[None]:
        """One update with gradients of some workers: ``x, state = rule(sgd, x, state, *given)``."""
        reads, images = of_pushes(pushes)
        self.x, self.state = yield Compute(rule, self.sgd, self.x, self.state, *given, kind="update")
        yield from self.mark(reads, images)

    def mark(self, reads: Reads, images: int) -> Program[None]:
        """Report an update to observers, with the versions at which its gradients were computed and the
        number of their images, and count it."""
        yield Mark("update", part=self.part, version=self.version, reads=reads, images=images, x=self.x)
        self.version += 1


def deploy(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int, rotated: bool,
           server: Callable[[Shard, list[str]], Program[Array]],
           client: Callable[[int, list[str]], Program[Array]] | None = None,
           survives: bool = True) -> Deployment:
    """Workers, with the program of `client` for a rank and the names of the servers, or `worker`; servers
    with a part each, which get the names of the workers, and which may survive the death of one."""
    ws, ss = names(workers, servers)
    how = exchange.of(problem)
    parts = how.cut(problem, servers)
    home = how.deal(parts, servers)
    if how.layout != "equal":
        ss = [f"{ss[k]}.part{j}" for j, k in enumerate(home)]
    nodes = {w: Node(client(i, ss) if client else worker(i, ss, problem, steps, rotated), rank=i)
             for i, w in enumerate(ws)}
    for j, (s, part) in enumerate(zip(ss, parts, strict=True)):
        shard = Shard(j, problem.x0[part], how.receiver(sgd), codec=how.codec_of(part))
        nodes[s] = Node(server(shard, ws), role="server", rank=home[j], survives=survives,
                        priority=j if how.priority else 0)
    return nodes
