"""The syncer of decoupled DiLoCo, its messages, and how it merges the moves of learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from refsgd.algorithms.averaging.outer import outer_step
from refsgd.algorithms.sgd import mean_gradient, weights
from refsgd.collectives.parts import chunks
from refsgd.effects import Array, Compute, Died, Mark, Poll, Program, Recv, Send


class Pull(NamedTuple):
    """syncer -> learner: send me this fragment."""

    fragment: int
    round: int


class Push(NamedTuple):
    """learner -> syncer: by how much a fragment has moved since it was merged or sent."""

    fragment: int
    round: int  # that it answers; -1 after the last step
    move: Array
    steps: int
    tokens: int  # the examples in these steps
    version: int  # merges of the fragment before them


class Global(NamedTuple):
    """syncer -> learner: this fragment has been merged."""

    fragment: int
    x: Array
    version: int


class Done(NamedTuple):
    """learner -> syncer: that was my last step."""


Rule = Literal["average", "rda"]


def merge(start: Array, u: Array, pushes: Sequence[Push], rule: Rule, lr: float,
          momentum: float) -> tuple[Array, Array]:
    """The outer step along the mean of the moves; `rda` takes their mean direction and length, unless they
    cancel."""
    moves, number = [push.move for push in pushes], start.dtype.type
    share, _ = weights([push.tokens**2 / push.steps for push in pushes])  # quantity times quality
    move = mean_gradient(moves, share)
    if rule == "rda":
        lengths = [float(np.linalg.norm(d)) for d in moves]
        heading = mean_gradient([d / number(a or 1) for d, a in zip(moves, lengths, strict=True)], share)
        if (straight := float(np.linalg.norm(heading))) > 1e-6:
            move = heading * number(np.average(lengths, weights=share) / straight)
    return outer_step(start, u, move, lr, momentum, "nesterov")


def syncer(x: Array, learners: Sequence[str], fragments: int, quorum: int, rule: Rule, outer_lr: float,
           outer_momentum: float) -> Program[Array]:
    """Merge the fragments in turn, each when a quorum has sent it, while a quorum runs; returns x, (d,)."""
    start, u = ([y[part] for part in chunks(x.size, fragments)] for y in (x, np.zeros_like(x)))
    living, running, number, version = list(learners), list(learners), 0, [0] * fragments
    answers: dict[str, Push] = {}  # of this round
    left: list[dict[str, Push]] = [{} for _ in start]  # after the last steps, by fragment

    def least() -> int:
        return min(quorum, len(living))

    def hear(enough: Callable[[], bool]) -> Program[None]:
        while found := (yield (Poll if enough() else Recv)(Push, Done, Died)):
            w, message = found
            if isinstance(message, Died):
                living.remove(message.node)
            if not isinstance(message, Push):
                running[:] = [v for v in running if v in living and v != w]
            elif message.round == number:
                answers[w] = message
            elif message.round < 0 and left:
                left[message.fragment][w] = message
            else:
                yield Mark("drop", worker=w, t=message.version, gradients=message.steps,
                           reason="after its round")

    def update(p: int, pushes: dict[str, Push]) -> Program[None]:
        given = {w: pushes[w] for w in learners if w in pushes}  # not by arrival: sums are the same bits
        if given:
            start[p], u[p] = yield Compute(merge, start[p], u[p], list(given.values()), rule, outer_lr,
                                           outer_momentum, kind="update")
            yield Mark("update", part=p, version=version[p], x=np.concatenate(start),
                       reads=tuple((w, push.version) for w, push in given.items()),
                       images=sum(push.tokens for push in given.values()))
            version[p] += 1

    while running and len(running) >= least():
        p = number % fragments
        for w in running:
            yield Send(w, Pull(p, number))
        yield from hear(lambda: len(answers) >= quorum or all(w in answers for w in running))
        yield from update(p, answers)
        for w in running:
            yield Send(w, Global(p, start[p], version[p]))
        answers.clear()
        number += 1
    yield from hear(lambda: len(living) - len(running) >= least())
    for p, pushes in enumerate(left):
        yield from update(p, pushes)
    left.clear()
    yield from hear(lambda: not running)  # too late to be merged
    return np.concatenate(start)
