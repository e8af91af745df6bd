"""The gate of asynchronous reinforcement learning: actors draw samples, and a dispatcher admits them.

Dispatcher and trainer are two programs on one host, so that actors are served while an update is computed.
The trainer says how many samples may be begun in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

from refsgd.effects import Array, Compute, Mark, Program, Recv, Send


class Job(NamedTuple):
    """dispatcher -> actor: draw this sample with this policy."""

    number: int  # -1: there are no more
    x: Array  # (d,)
    version: int


class Done(NamedTuple):
    """actor -> dispatcher -> trainer: a sample; its actor can draw the next one."""

    worker: str
    number: int
    version: int  # of the policy that drew it
    sample: Any


class Admit(NamedTuple):
    """trainer -> dispatcher: the newest policy, and how many samples may be begun in all."""

    x: Array  # (d,)
    version: int
    samples: float


def actor(name: str, workers: int, problem: Any) -> Program[None]:
    """Draw samples until there are no more."""
    sample = problem.gradient if problem.rollouts is None else problem.rollouts.sample
    for t in count():
        _, job = yield Recv(Job, src="dispatcher")
        if job.number < 0:
            return
        drawn = yield Compute(sample, job.x, job.number % workers, job.number // workers)
        yield Send("dispatcher", Done(name, job.number, job.version, drawn))
        yield Mark("clock", t=t)


def dispatcher(workers: Sequence[str], total: int, policy: Admit) -> Program[None]:
    """Hand samples on to the trainer, and give actors the next ones as far as these are admitted."""
    waiting, number, ended = [*workers], 0, 0
    while True:
        while waiting and number < min(total, policy.samples):
            yield Send(waiting.pop(0), Job(number, policy.x, policy.version))
            number += 1
        while waiting and number == total:
            yield Send(waiting.pop(0), Job(-1, policy.x[:0], policy.version))
            ended += 1
        if ended == len(workers):
            return
        w, message = yield Recv(Done, Admit)
        if isinstance(message, Admit):
            policy = message
            continue
        waiting.append(w)
        yield Send("server0", message)
        if policy.samples <= number < total:
            yield Mark("block", worker=w)
