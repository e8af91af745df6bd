"""Looks at every effect of a deployment without changing it: what is on its way can then be counted."""

from __future__ import annotations

import inspect
from collections import deque
from dataclasses import replace

from refsgd.effects import Recv, RunEnded, Send


def object_of(node, name="replica"):
    """What a main program that has not begun was called with under this name."""
    return inspect.getgeneratorlocals(node.main)[name]


class Ledger:
    """Knows the messages under way, and lets a test check its sums at every yield of every program.

    Parameters
    ----------
    deployment : Deployment
        Not yet run; run `ledger.deployment` instead.
    check : callable
        ``check(ledger)`` is called whenever a program has just yielded or returned.
    asked, answered : callable, optional
        ``asked(name, effect)`` just before that check; ``answered(name, effect, value)`` before the program
        continues.
    """

    def __init__(self, deployment, check, asked=None, answered=None):
        self.flying = {}
        self.check = check
        self.asked = asked or (lambda name, effect: None)
        self.answered = answered or (lambda name, effect, value: None)
        self.deployment = {name: replace(node, main=self._tap(name, node.main),
                                         handlers=[self._tap(name, h) for h in node.handlers])
                           for name, node in deployment.items()}

    def messages(self, kind=object):
        """All (receiver, body) of a class that were sent and not yet received."""
        return [(to, body) for (_, to), bodies in self.flying.items() for body in bodies
                if isinstance(body, kind)]

    def _tap(self, name, program):
        value = None
        while True:
            try:
                effect = program.throw(value) if isinstance(value, RunEnded) else program.send(value)
            except StopIteration as end:
                self.check(self)
                return end.value
            if isinstance(effect, Send):
                self.flying.setdefault((name, effect.to), deque()).append(effect.body)
            self.asked(name, effect)
            self.check(self)
            try:
                value = yield effect
            except RunEnded as error:
                value = error
                continue
            if isinstance(effect, Recv) and value is not None:
                bodies = self.flying[value[0], name]
                del bodies[next(i for i, body in enumerate(bodies) if type(body) is type(value[1]))]
            self.answered(name, effect, value)


def with_bodies(deployment, change):
    """The same deployment, where ``change(name, to, body)`` gives what really travels; to lose a message
    is to empty it."""
    def tap(name, program):
        value = None
        while True:
            try:
                effect = program.throw(value) if isinstance(value, RunEnded) else program.send(value)
            except StopIteration as end:
                return end.value
            if isinstance(effect, Send):
                object.__setattr__(effect, "body", change(name, effect.to, effect.body))
            try:
                value = yield effect
            except RunEnded as error:
                value = error

    return {name: replace(node, main=tap(name, node.main), handlers=[tap(name, h) for h in node.handlers])
            for name, node in deployment.items()}
