"""What ends a run: a failure, a deadlock, a record that the programs do not repeat."""

from __future__ import annotations

from typing import Any


class RunFailed(RuntimeError):
    """A run was ended by a death or a failing program; the message is one line that names the culprit.

    `node` is the culprit's host and `traceback` what it left, each "" if there is none; `silent` are the
    seconds from its last sign of life until its end was known, 0 in virtual time.
    """

    def __init__(self, message: str, node: str = "", trace: str = "", silent: float = 0.0) -> None:
        super().__init__(message)
        self.node, self.traceback, self.silent = node, trace, silent

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.node, self.traceback, self.silent)


class Deadlock(RuntimeError):
    """No program can continue and some main program has not returned."""


class ReplayError(RuntimeError):
    """The record and the programs do not match."""
