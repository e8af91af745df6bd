"""Where a process computes: beside its driver what takes long, on the spot what does not."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from refsgd.effects import Compute, Program
from refsgd.runtimes.engine import Task
from refsgd.runtimes.mailbox import Mailbox
from refsgd.runtimes.processes.computing import LONG, Computing, Job


def test_what_was_long_only_once_is_computed_on_the_spot_again(monkeypatch):
    """The first Compute of a kind compiles or touches fresh memory; that must not cost thread switches
    forever.  The clock is the test's own: on a busy machine any call may take long."""
    now, rung = [0.0], threading.Event()
    monkeypatch.setattr("refsgd.runtimes.processes.computing.time", SimpleNamespace(monotonic=lambda: now[0]))

    def lasting(seconds: float) -> None:
        now[0] += seconds

    program: Program[Any] = (effect for effect in ())
    computing, task = Computing(rung.set, False), Task("server0", 0, program, Mailbox(), 0, {})
    first = computing.do(Job(task, Compute(lasting, 2 * LONG, kind="update"), 0.0, 0.0, True))
    assert first is not None and first.took > LONG
    for seconds, beside in ((2 * LONG, True), (2 * LONG, True), (0, True), (0, False), (0, False)):
        rung.clear()
        done = computing.do(Job(task, Compute(lasting, seconds, kind="update"), 0.0, 0.0, True))
        assert (done is None) == beside
        assert not beside or rung.wait(60)
    assert len(computing.finished) == 3
