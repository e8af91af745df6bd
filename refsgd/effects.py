"""The language of distributed algorithms: the effects that a program may yield.

A program is a generator.  It yields one of the effects below and is sent the answer::

    g = yield Compute(gradient, x, rank, t)      # takes time; others may run in between
    yield Send("server0", Push(g, version))      # never waits
    src, model = yield Recv(Model)               # waits for a message of this class

Four rules make one text run step by step, in virtual time and as real processes:

1. Other programs may run at a ``yield``, and only there.
2. Programs of different nodes share nothing; programs of one node may share a plain object.
3. An array that has crossed a ``yield`` is read-only from then on: rebind ``x = x - lr * g``.
4. A program reads no clock, no random generator, no file: randomness is `Choose`, and a stochastic
   gradient is a pure function of (x, rank, step).

Examples
--------
You can be the runtime:

>>> def hello():
...     answer = yield Compute(abs, -3)
...     yield Send("peer1", answer)
>>> program = hello()
>>> effect = next(program)
>>> program.send(effect.fn(*effect.args))
Send(to='peer1', body=3)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
ANY: str | None = None  #: the `src` of a receive that takes messages from any node


class _Count:
    """Counts effects, so that a runtime notices one that was built and never yielded."""

    __slots__ = ("count",)  # of an instance: writing an attribute of a class takes several times as long

    def __init__(self) -> None:
        self.count = 0


_Built = _Count()


class Piece(NamedTuple):
    """A piece of a gradient: a pass through one layer, or of one micro-batch through a stage.

    `number` is that of the layer, of the micro-batch, or of the batch in a pipeline that does not wait for a
    batch to end.  `share` is its part of the gradient's time; the shares of a gradient, on all stages
    together, sum to 1.  `first` and `last` say whether the program begins and ends a gradient with it.
    """

    direction: Literal["forward", "backward"]
    number: int
    share: float
    first: bool = False
    last: bool = False


@dataclass(slots=True, init=False)
class Compute:
    """Answer ``fn(*args)``, with the arguments as they are at the yield.  It takes the time that the machine
    gives to its `kind`.

    Parameters
    ----------
    fn : callable
        The computation, a pure function.
    *args
        Its arguments; arrays among them are read-only from now on.
    kind : str
        Decides the price: "gradient", "update" (an optimiser's step), "reduction" (by the bytes of all
        arguments but the first, to which they are added), "codec" (by the bytes of a gradient, the second
        argument); any other costs nothing.
    piece : Piece, optional
        Which piece of a gradient it is, where a gradient is computed layer by layer.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kind: str
    piece: Piece | None

    def __init__(self, fn: Callable[..., Any], *args: Any, kind: str = "gradient",
                 piece: Piece | None = None) -> None:
        _Built.count += 1
        if not callable(fn):
            raise TypeError(f"Compute() of a value of type {type(fn).__name__}; expected a function and its "
                            "arguments: Compute(problem.gradient, x, rank, t)")
        self.fn = fn
        self.args = args
        self.kind = kind
        self.piece = piece


@dataclass(slots=True, init=False)
class Send:
    """Hand a message over; never waits for the receiver.

    The channel (from, to) is reliable, first-in first-out and unbounded; the order between different senders
    is undefined.

    Parameters
    ----------
    to : str
        Name of the receiving node.
    body : NamedTuple
        The message, whose class is its tag: arrays, ints, floats, bools, short strings, tuples of these, and
        None.  Arrays and numpy scalars count as payload bytes, Python numbers do not.
    """

    to: str
    body: Any

    def __init__(self, to: str, body: Any) -> None:
        _Built.count += 1
        self.to = to
        self.body = body


@dataclass(slots=True, init=False)
class Recv:
    """Receive the message of these classes that arrived first, waiting if necessary; answer ``(src, body)``.

    Messages of other classes stay in the mailbox. If several messages arrive at the same moment, the lowest
    source comes first, then the earliest sent.  In a handler it raises `RunEnded` once no more messages can
    arrive.

    Parameters
    ----------
    *kinds : type
        At least one class of messages; the body is an instance of the class that this Recv names.
    src : str, optional
        Only from this node; by default from any node.
    """

    kinds: tuple[type, ...]
    src: str | None

    def __init__(self, *kinds: type, src: str | None = ANY) -> None:
        _Built.count += 1
        if not kinds:
            raise TypeError("Recv() names no message class; write Recv(Push) or Recv(Push, Pull)")
        if type(kinds[0]) is not type and not isinstance(kinds[0], type):  # the first test is the cheap one
            raise TypeError(f"Recv() of {kinds[0]!r:.40}; expected classes of messages: Recv(Push)")
        self.kinds = kinds
        self.src = src


@dataclass(slots=True, init=False)
class Poll(Recv):
    """A `Recv` that does not wait: ``(src, body)``, or None; messages may still be in transit."""


@dataclass(slots=True)
class Choose:
    """Answer one of `options`, with probabilities `p` (uniform if None): the only randomness of a program.

    Drawn from the program's own seeded stream; branched on by the explorer.

    Parameters
    ----------
    options : sequence
        At least one.
    p : sequence of float, optional
        Their probabilities, which sum to 1.
    """

    options: Sequence[Any]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        _Built.count += 1
        if not self.options:
            raise ValueError("Choose() got no options")


@dataclass(slots=True, init=False)
class Mark:
    """Report a fact to observers; takes no time and must not influence the run.

    The names are an interface: ``update`` (part, version, reads, x) at every update of parameters, where
    `version` counts the updates before this one and `reads` holds (worker, version read) of each gradient
    (a replica adds its iteration ``t``); ``clock`` (t) when a worker ends iteration t; ``block`` (worker)
    when a server withholds an answer to keep a bound; ``drop`` (worker, t, reason) when work is discarded.
    A gradient that counts in several updates is named in `reads` of the first only, as in Ringleader; one
    that counts in none is a ``drop``, or one of its `gradients` if they are dropped together.  An `images`
    says how many images the gradients have that were applied; an update without it is taken to have applied
    each worker's gradients in the order of its iterations.

    Parameters
    ----------
    name : str
        The fact.
    **values
        Its values.
    """

    name: str
    values: Mapping[str, Any]

    def __init__(self, name: str, **values: Any) -> None:
        _Built.count += 1
        self.name = name
        self.values = values


class Cell:
    """A vector in shared memory, divided into parts, for one-sided algorithms: reads and additions without
    messages.

    Parameters
    ----------
    value : ndarray, (d,)
        Its initial contents; copied.
    parts : int
        Number of parts; a `Load` or an `Add` accesses one.
    """

    def __init__(self, value: npt.NDArray[Any], parts: int = 1) -> None:
        self.x: npt.NDArray[Any] = value.copy()  #: (d,) the contents; programs use `Load` and `Add`
        edges = [value.size * k // parts for k in range(parts + 1)]
        self.cut = [slice(a, b) for a, b in pairwise(edges)]
        self.lock: Any = None  #: set by runtimes whose programs run in parallel

    def __reduce__(self) -> tuple[type[Cell], tuple[Any, ...]]:
        return Cell, (np.array(self.x), len(self.cut))


@dataclass(slots=True)
class Load:
    """Answer a copy of one part of a cell: never torn within the part, but a vector read part by part may be.

    Parameters
    ----------
    cell : Cell
        One of the node's ``cells``.
    part : int
        Number of the part.
    """

    cell: Cell
    part: int

    def __post_init__(self) -> None:
        _Built.count += 1


@dataclass(slots=True)
class Add:
    """Add `delta` to one part of a cell; takes the part's share of the time of an update of the whole cell.

    ``atomic=False`` reads and writes in two steps; additions of others between the two are lost.

    Parameters
    ----------
    cell : Cell
        One of the node's ``cells``.
    part : int
        Number of the part.
    delta : ndarray
        As long as the part.
    atomic : bool
        Whether additions are never lost.
    """

    cell: Cell
    part: int
    delta: npt.NDArray[Any]
    atomic: bool = True

    def __post_init__(self) -> None:
        _Built.count += 1


Effect = Compute | Send | Recv | Poll | Choose | Mark | Load | Add
R = TypeVar("R")
Program = Generator[Effect, Any, R]


class RunEnded(Exception):
    """Raised in a handler at its `Recv` when every main program has returned and no message is in transit.

    After a death it is also raised in a main program whose `Node` has ``survives=True``, once no more
    messages can reach it: a server that expects pushes of a dead worker puts its loop into ``with
    suppress(RunEnded)`` and returns its parameters.  A program that must know which node died lists `Died` in
    its `Recv`.
    """


Role = Literal["worker", "server"]


@dataclass(slots=True)
class Node:
    """The programs of one node and its properties; its name has no meaning.

    Parameters
    ----------
    main : generator
        The program that the run waits for.
    handlers : sequence of generator
        Programs that serve until the run ends.
    role : {"worker", "server"}
        A worker computes gradients, as a peer does; a server holds parameters or coordinates others.
    rank : int, optional
        Number among the nodes of its role, which determines its speed and the host of a co-located server;
        by default its place among them in the deployment.  Nodes of one role and rank share a host.
    host : str, optional
        The process that it shares with all nodes of this `host`; by default the machine's placement decides.
    survives : bool
        Whether `main` handles the death of other nodes: it receives `Died`, catches `RunEnded`, or never
        waits.  A run survives the death of a worker if all its servers do (without servers: all workers).
    cells : sequence of Cell
        Shared vectors that `Load` and `Add` may name.
    priority : int
        A host's outgoing link serves waiting messages from and to nodes of a lower number first; equal
        ones in the order in which they were sent.
    """

    main: Program[Any]
    handlers: Sequence[Program[Any]] = ()
    role: Role = "worker"
    rank: int | None = None
    host: str | None = None
    survives: bool = False
    cells: Sequence[Cell] = ()
    priority: int = 0

    def __post_init__(self) -> None:
        if self.role not in ("worker", "server"):
            raise ValueError(f"role {self.role!r} of a Node; expected worker or server")


Deployment = Mapping[str, Node]  #: node name ("worker0", "server0", "peer0", ...) to its programs
Factory = Callable[[], Deployment]  #: builds a new deployment; calling a generator function runs nothing


def roles(deployment: Deployment) -> dict[str, Role]:
    """The role of each node, by name.

    Parameters
    ----------
    deployment : Deployment

    Returns
    -------
    dict of str to str
    """
    return {name: node.role for name, node in deployment.items()}


def ranks(deployment: Deployment) -> dict[str, int]:
    """The rank of each node among those of its role, by name.

    Parameters
    ----------
    deployment : Deployment

    Returns
    -------
    dict of str to int

    Examples
    --------
    >>> def idle():
    ...     yield Mark("idle")
    >>> ranks({"hub": Node(idle(), role="server"), "alice": Node(idle()), "bob": Node(idle())})
    {'hub': 0, 'alice': 0, 'bob': 1}
    """
    before = Counter[str]()
    found = {}
    for name, node in deployment.items():
        found[name] = before[node.role] if node.rank is None else node.rank
        before[node.role] += 1
    return found


class Died(NamedTuple):
    """Sent once to programs that receive `Died`, when `node` has crashed and the run continues.  No message
    from `node` follows it."""

    node: str


def payload_bytes(body: Any) -> int:
    """Payload bytes of a message: only its arrays and numpy scalars count, including those in tuples and
    lists.

    Parameters
    ----------
    body : iterable
        The fields of a message.

    Returns
    -------
    int

    Examples
    --------
    >>> payload_bytes((np.zeros(10, np.float32), 3, np.float32(0.5)))
    44
    >>> payload_bytes(((np.zeros(10, np.float32), 3), (np.zeros(10, np.float32),)))
    80
    """
    total = 0
    for value in body:
        if type(value) is not int:  # by far the most common field
            size = getattr(value, "nbytes", None)
            if size is not None:
                total += size
            elif isinstance(value, tuple | list):
                total += payload_bytes(value)
    return total
