"""Log records of all processes reach the parent's handlers, with node and step, whatever is killed
meanwhile."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from functools import partial

import pytest

from refsgd.effects import Compute, Node
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.processes.local import run
from tests.runtimes.deployments import exchange

log = logging.getLogger("refsgd.test")


class Keep(logging.Handler):
    """Remembers records."""

    def __init__(self):
        super().__init__()
        self.records, self.closed = [], False

    def emit(self, record):
        self.records.append(record)

    def close(self):
        self.closed = True
        super().close()


@pytest.fixture
def kept():
    handler = Keep()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)


def chatty(count):
    for i in range(count):
        log.info("line %d", i)
        yield Compute(abs, -i)


def test_records_arrive_complete_and_in_order(kept):
    """500 lines of each of three processes, all there when `run` returns; the handler stays the parent's
    own."""
    before = list(log.handlers)
    run(lambda: {f"worker{i}": Node(chatty(500)) for i in range(3)})
    lines = {f"worker{i}": [] for i in range(3)}
    for record in kept.records:
        assert record.processName == record.node and record.name == "refsgd.test"
        lines[record.node].append((record.getMessage(), record.step))
    assert lines == {node: [(f"line {i}", i) for i in range(500)] for node in lines}
    assert log.handlers == before and not kept.closed


def test_a_gradient_may_log_what_cannot_be_pickled(kept):
    """Arguments and tracebacks travel as text."""
    def gradient(x, rank, t):
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("of %s", lambda: None)
        return x

    run(partial(exchange, n=1, steps=1, gradient=gradient))
    (record,) = kept.records
    assert record.getMessage().startswith("of <function") and record.node == "worker0"


def test_the_last_words_of_a_failing_process_arrive(kept):
    """What it logged before its exception is not lost."""
    def gradient(x, rank, t):
        log.error("about to fail")
        raise ValueError("fails")

    with pytest.raises(RunFailed, match="fails"):
        run(partial(exchange, n=1, gradient=gradient))
    assert [r.getMessage() for r in kept.records] == ["about to fail"]


@pytest.mark.alone
def test_killing_busy_loggers_spoils_no_later_run(kept):
    """A process killed while it writes a record holds no lock that anybody else needs."""
    def talk(x, rank, t):
        log.info("x" * 2000)
        return x

    for k in range(5):
        def act(pids, delay=0.05 + 0.01 * k):
            threading.Timer(delay, lambda: os.kill(pids["worker1"], signal.SIGKILL)).start()

        with pytest.raises(RunFailed, match=r"worker1 .* SIGKILL"):
            run(partial(exchange, steps=1_000_000, gradient=talk), on_start=act)
        kept.records.clear()
        began = time.monotonic()
        run(partial(exchange, n=2, steps=5, gradient=talk))
        assert len(kept.records) == 10 and time.monotonic() - began < 2.0


def test_a_death_is_noticed_among_busy_loggers_and_a_slow_handler(kept):
    """Records that come faster than the parent's handler takes them keep the launcher from nothing."""
    kept.emit = lambda record: time.sleep(1e-3)

    def talk(x, rank, t):
        for _ in range(100):
            log.info("line")
        if (rank, t) == (1, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    with pytest.raises(RunFailed, match=r"worker1 .* SIGKILL") as caught:
        run(partial(exchange, steps=1_000_000, gradient=talk))
    assert caught.value.silent < 2.0
