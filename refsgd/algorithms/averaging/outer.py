"""What DiLoCo and its successors share: the outer step, and a program that averages moves meanwhile.

A peer hands its move to the communication program of its own node and computes on.  Means come back in the
order of the moves, which is the same at all peers: a collective needs all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from refsgd.algorithms.averaging.local_sgd import mean_move
from refsgd.algorithms.facts import Options
from refsgd.effects import Array, Program, Recv, Send

Form = Literal["nesterov", "heavy-ball"]


def check_outer(lr: float, momentum: float) -> None:
    """Raise ValueError if the rate or the momentum of an outer step is out of range."""
    if not 0 < lr < float("inf"):
        raise ValueError(f"outer_lr {lr}; expected a finite number > 0")
    if not 0 <= momentum < 1:
        raise ValueError(f"outer_momentum {momentum}; expected a number in [0, 1)")


def needs(options: Options, workers: int) -> dict[str, str]:
    """Without momentum both forms are the same step."""
    return {} if options["outer_momentum"] else {"form": "outer_momentum > 0"}


def outer_step(start: Array, u: Array, move: Array, lr: float, momentum: float,
               form: Form) -> tuple[Array, Array]:
    """OuterOpt: a step along the mean move, Nesterov's in PyTorch's form or the heavy ball's; the new common
    point and velocity."""
    number: Any = start.dtype.type
    velocity: Array = number(momentum) * u + move
    ahead = move + number(momentum) * velocity if form == "nesterov" else velocity
    return start + number(lr) * ahead, velocity


def check_fragments(fragments: int, mix: float) -> None:
    """Raise ValueError if the number of fragments, or the weight of a learner's own, is out of range."""
    if fragments < 1:
        raise ValueError(f"fragments {fragments}; expected at least 1")
    if not 0 <= mix <= 1:
        raise ValueError(f"mix {mix}; expected a number in [0, 1]")


def mixed(x: Array, part: slice, start: Array, mix: float) -> Array:
    """x, of which a part is moved towards its new start; with mix 0 it is the start."""
    number, x = x.dtype.type, x.copy()
    x[part] = number(mix) * x[part] + number(1 - mix) * start
    return x


class Fragment(NamedTuple):
    """From a peer's main program to its communication program: how far it, or a part of it, has moved."""

    number: int  # tells apart those under way
    move: Array
    images: tuple[int, ...]  # in the moves of all peers: their weights


class Merged(NamedTuple):
    """Back: the mean of all peers' moves."""

    number: int
    move: Array


def communicate(rank: int, names: Sequence[str]) -> Program[None]:
    """The communication program of a peer: one mean after the other, in the order of arrival."""
    while True:
        _, (number, move, images) = yield Recv(Fragment, src=names[rank])
        mean = yield from mean_move(rank, names, move, images)
        yield Send(names[rank], Merged(number, mean))
