"""Log records of all processes reach the parent's handlers, with node and step, whatever is killed
meanwhile."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from functools import partial

import pytest

from refsgd.effects import Compute, Node
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.processes import logs
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
    log.setLevel(logging.NOTSET)


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


@pytest.mark.slow
@pytest.mark.alone
def test_killing_busy_loggers_spoils_no_later_run(kept):
    """A process killed while it writes a record holds no lock that anybody else needs."""
    def talk(x, rank, t):
        log.info("x" * 2000)
        return x

    for k in range(5):
        def act(pids, words, delay=0.05 + 0.01 * k):
            threading.Timer(delay, lambda: os.kill(pids["worker1"], signal.SIGKILL)).start()

        with pytest.raises(RunFailed, match=r"worker1 .* SIGKILL"):
            run(partial(exchange, steps=1_000_000, gradient=talk), on_start=act)
        kept.records.clear()
        run(partial(exchange, n=2, steps=5, gradient=talk))  # or fails without progress
        assert len(kept.records) == 10


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


def dies_in_the_lock(x, rank, t):
    """Worker 1 is killed at step 3 while it holds the lock of the queue; all log at every step."""
    log.info("step %d", t)
    if (rank, t) == (1, 3):
        (handler,) = logging.getLogger().handlers
        handler.queue._wlock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    return x


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("times", [2, 8])
def test_a_death_inside_the_queue_s_lock_keeps_nobody_from_ending(kept, caplog, times):
    """The error names the dead, or the others finish their run without it; later records of theirs are lost,
    but not the launcher's."""
    for _ in range(times):
        began = time.monotonic()
        with pytest.raises(RunFailed, match=r"^worker1 \(pid \d+\) was killed by SIGKILL") as caught:
            run(partial(exchange, gradient=dies_in_the_lock))
        assert caught.value.node == "worker1" and caught.value.silent < 2.0
        caplog.clear()
        ended = run(partial(independent, 3, 6), on_death="continue")
        assert sorted(ended.values) == ["worker0", "worker2"] and time.monotonic() - began < 10.0
        (line,) = [r.getMessage() for r in caplog.records if "continues without it" in r.getMessage()]
        assert line.startswith("worker1 (pid ")


def independent(n, steps):
    """Workers without a server, which end half a second after worker 1 has died."""
    def program(rank):
        for t in range(steps):
            yield Compute(dies_in_the_lock, 0, rank, t)
            if t == 4:
                yield Compute(time.sleep, 0.5)

    return {f"worker{i}": Node(program(i), survives=True) for i in range(n)}


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork", None])
def test_a_host_may_start_its_own_processes_as_it_likes(kept, method):
    """The library of the queue knows only fork; Python 3.14 prefers another."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(method, force=True)
    try:
        run(lambda: {"worker0": Node(chatty(3))})
        assert multiprocessing.get_start_method(allow_none=True) == method
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert [r.getMessage() for r in kept.records] == ["line 0", "line 1", "line 2"]


@pytest.mark.slow
@pytest.mark.alone
def test_a_backlog_is_received_before_the_processes_end(kept, monkeypatch):
    """A process that has logged faster than the parent receives waits longer than for a lock of the dead."""
    receive = logs.Records.emit
    monkeypatch.setattr(logs.Records, "emit", lambda *rest: time.sleep(2e-3) or receive(*rest))

    def program():
        for i in range(1000):
            log.info("line %d", i)
        yield Compute(abs, -1)

    began = time.monotonic()
    run(lambda: {"worker0": Node(program())})
    assert len(kept.records) == 1000 and time.monotonic() - began > 1.5 * logs.PATIENCE


class Torn:
    """Can be pickled, but not unpickled."""

    def __reduce__(self):
        return int, ("torn",)

    def __repr__(self):
        return "torn"


def test_a_record_is_as_it_was_logged(kept):
    """What changes later, or cannot be sent, is copied or becomes text; what other loggers do is the parent's
    business, and a handler that raises is not the last to be called."""
    kept.emit = lambda record: kept.records.append(record) or 1 / 0

    def gradient(x, rank, t):
        words = ["before"]
        for what in (words, Torn(), threading.Lock()):
            log.info(what, extra={"what": what})
        log.info("100 %d", "wrong")  # reported on stderr, as `logging` does
        words.append("after")
        time.sleep(0.1)
        return x

    run(partial(exchange, n=1, steps=1, gradient=gradient))
    words, torn, lock = kept.records
    assert words.getMessage() == "['before']" and words.what == ["before"] and torn.what == torn.msg == "torn"
    assert lock.what == lock.msg and lock.msg.startswith("<unlocked _thread.lock")


def test_records_go_where_the_parent_s_loggers_would_send_them():
    """A logger that keeps its records, one below it, and one below a logger that keeps them without handlers."""
    names = ("refsgd.own", "refsgd.own.below", "refsgd.mute", "refsgd.mute.below")
    loggers, handlers = [logging.getLogger(name) for name in names], [Keep() for _ in names]
    for logger, handler in zip(loggers, handlers, strict=True):
        logger.propagate = logger.name not in ("refsgd.own", "refsgd.mute")
        if logger.name != "refsgd.mute":
            logger.addHandler(handler)

    def program():
        for logger in loggers:
            logger.warning(logger.name)
        yield Compute(abs, -1)

    try:
        run({"worker0": Node(program())})
    finally:
        for logger in loggers:
            logger.handlers[:], logger.propagate = [], True
    assert [[r.name for r in handler.records] for handler in handlers] == [
        ["refsgd.own", "refsgd.own.below"], ["refsgd.own.below"], [], ["refsgd.mute.below"]]
