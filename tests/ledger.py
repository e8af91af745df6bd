"""Looks at every effect of a deployment without changing it: what is on its way can then be counted."""

from __future__ import annotations

import inspect
from collections import deque

from refsgd.effects import Compute, Node, Recv, RunEnded, Send


def object_of(node, name="replica"):
    """What a main program that has not begun was called with under this name."""
    return inspect.getgeneratorlocals(node.main)[name]


class Ledger:
    """Messages under way, by channel, and a check that is made at every yield of every program.

    `check(ledger)` is called when a program has just yielded; `applied(node, x, new)` when an optimiser's step was
    computed as an effect.
    """

    def __init__(self, deployment, check, applied=None):
        self.flying = {}
        self.check, self.applied = check, applied
        self.deployment = {name: Node(self._tap(name, node.main), [self._tap(name, r) for r in node.responders])
                           for name, node in deployment.items()}

    def messages(self):
        """All (receiver, body) that were sent and not yet received."""
        return [(to, body) for (_, to), bodies in self.flying.items() for body in bodies]

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
            self.check(self)
            try:
                value = yield effect
            except RunEnded as error:
                value = error
                continue
            if isinstance(effect, Recv) and value is not None:
                bodies = self.flying[value[0], name]
                bodies.remove(next(b for b in bodies if type(b) is type(value[1])))
            if isinstance(effect, Compute) and effect.kind == "update" and self.applied:
                self.applied(name, effect.args[0], value[0])
