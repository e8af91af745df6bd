"""Log records of all processes reach the handlers of the parent, in order for each process, and no process
waits for that when it logs; docs/explanation/design.md says what a death costs."""

from __future__ import annotations

import logging.handlers
import multiprocessing as mp
import pickle
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from multiprocessing_logging import install_mp_handler

from refsgd.runtimes.transports.transport import anonymous

PATIENCE = 1.0  # seconds


class Stamp(logging.Filter):
    """In a child: adds node and step (the program's count of Computes) of `standing`."""

    standing: Callable[[], tuple[str, int]]
    used = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, with copies of what may change before it is sent or cannot be pickled."""
        self.used = True
        record.node, record.step = self.standing()
        record.msg = str(record.msg)
        for name, value in vars(record).items():
            if not isinstance(value, (str, int, float, type(None))) and name not in ("args", "exc_info"):
                try:
                    setattr(record, name, pickle.loads(pickle.dumps(value)))
                except Exception:
                    setattr(record, name, repr(value))
        return True


class Records(logging.Handler):
    """The queue of a run, and the handler behind it, which gives records to those of the user, in a thread of
    its own because they may be slow."""

    def __init__(self) -> None:
        super().__init__()
        self._listener = logging.handlers.QueueListener(queue.SimpleQueue[Any](), self)
        self._received = memoryview(anonymous(8)).cast("Q")  # the number of records; shared
        self._all_received, self.closed = threading.Event(), threading.Event()
        logger, before = logging.Logger("refsgd.records"), mp.get_start_method(allow_none=True)
        logger.addHandler(self)
        mp.set_start_method("fork", force=True)  # which the library requires
        try:
            install_mp_handler(logger)
        finally:
            mp.set_start_method(before, force=True)
        self._wrapper: Any = logger.handlers[0]

    def send(self, stamp: Stamp) -> None:
        """In a child: send the records of all loggers to the parent alone."""
        for logger in logging.Logger.manager.loggerDict.values():
            if isinstance(logger, logging.Logger):
                logger.handlers[:], logger.propagate = [], True
        self._wrapper.addFilter(stamp)
        logging.getLogger().handlers[:] = [self._wrapper]

    def send_rest(self) -> None:
        """In a child, at its very end: wait until its records are sent, while the parent receives any."""
        logging.disable()  # helper threads may still compute
        received = self._received[0]
        self._wrapper.queue.close()
        sending = _attempt(self._wrapper.queue.join_thread)
        while sending.is_alive() and received != (received := self._received[0]):
            sending.join(PATIENCE)
        self._wrapper.queue.cancel_join_thread()

    def emit(self, record: logging.LogRecord | None) -> None:
        """In the library's thread: receive a record; None ends the thread."""
        if record is None:
            self._all_received.set()
            raise EOFError
        if not self._received[0]:
            self._listener.start()
        self._received[0] += 1
        self._listener.queue.put_nowait(record)

    def handle(self, record: logging.LogRecord) -> bool:
        """In the listener's thread: treat a record as if it had been logged here."""
        try:
            logging.getLogger(record.name).handle(record)
        except Exception:
            self.handleError(record)
        return True

    def end(self, clean: bool) -> None:
        """In the parent, when all children have ended: end both threads.

        Unless all ended in order, the lock may be held for good, so None passes through a new queue, which
        the library's thread reads once nothing has come through the old one for 0.2 s.
        """
        until = time.monotonic() + PATIENCE
        while not clean and not self._wrapper.queue.empty() and time.monotonic() < until:
            time.sleep(1e-3)
        if not clean:
            self._wrapper.queue = mp.get_context("fork").Queue()
        self._wrapper.queue.put(None)
        self._all_received.wait(PATIENCE)  # a closed wrapper counts records, which macOS cannot
        if clean:
            self._wrapper.close()
        else:
            _attempt(self._wrapper.close)

    def close(self) -> None:
        """After the library's thread: end the listener's."""
        if self._received[0]:
            self._listener.stop()
        self.closed.set()
        super().close()


def _attempt(call: Callable[[], None]) -> threading.Thread:
    """Call it in a daemon thread; wait for that at most `PATIENCE`."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return thread
