"""Log records of all processes reach the handlers of the parent, each process's in order.

By default through `multiprocessing-logging`, with handlers made anew for each run: a process that is killed
while it logs can leave the lock of its queue held, and a later run with the same queue would hang at its end.
Where processes are killed on purpose, each child writes its records into its own pipe to the parent instead:
no lock is shared, so nothing can be left held.
"""

from __future__ import annotations

import logging
import logging.handlers
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from multiprocessing_logging import MultiProcessingHandler

FLUSH = 1.0  # seconds to wait for records on their way when a run has ended


def loggers_with_handlers() -> list[logging.Logger]:
    """The root logger and all others that have handlers of their own."""
    every = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    return [one for one in every if isinstance(one, logging.Logger) and one.handlers]


class _Borrowed(logging.Handler):
    """Stands before a handler of the parent: closing it leaves that handler open, and it knows the last
    record."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__(handler.level)
        self.formatter, self.filters = handler.formatter, handler.filters
        self._handler, self.done = handler, threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the record on."""
        if getattr(record, "refsgd_last", False):
            self.done.set()
        else:
            self._handler.handle(record)


@contextmanager
def shared_handlers() -> Iterator[None]:
    """Within, records of forked children go to the handlers that the parent has now."""
    swapped: list[tuple[logging.Logger, logging.Handler, MultiProcessingHandler, _Borrowed]] = []
    for logger in loggers_with_handlers():
        for i, handler in enumerate(list(logger.handlers)):
            borrowed = _Borrowed(handler)
            shared = MultiProcessingHandler(f"records-{i}", sub_handler=borrowed)
            logger.handlers[i] = shared
            swapped.append((logger, handler, shared, borrowed))
    try:
        yield
    finally:
        last = logging.makeLogRecord({"refsgd_last": True})
        for logger, handler, shared, _ in swapped:
            logger.handlers[:] = [handler if h is shared else h for h in logger.handlers]
            shared.queue.put(last)
        for _, _, shared, borrowed in swapped:
            borrowed.done.wait(FLUSH)
            # Closing waits for a thread that looks five times a second; nobody needs to wait with it.
            threading.Thread(target=shared.close, daemon=True).start()


class _PipeHandler(logging.handlers.QueueHandler):
    """In a child: gives each record, made fit to travel, to a function that writes it to the parent."""

    def __init__(self, write: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(write)  # type: ignore[arg-type]

    def enqueue(self, record: logging.LogRecord) -> None:
        """Write the record; the handler's lock keeps threads of this process apart."""
        write: Any = self.queue
        write(record)


def to_parent(write: Callable[[logging.LogRecord], None]) -> None:
    """In a child: give all records to `write`, which hands them to the parent's loggers, instead of
    handlers."""
    handler = _PipeHandler(write)
    for logger in loggers_with_handlers():
        logger.handlers[:] = [] if logger.propagate else [handler]
    logging.getLogger().handlers[:] = [handler]


def flush() -> None:
    """In a child that ends without Python's own farewell: let what it has logged reach the parent."""
    for logger in loggers_with_handlers():
        for handler in logger.handlers:
            if isinstance(handler, MultiProcessingHandler):
                handler.queue.close()
                handler.queue.join_thread()


class _WhoAndWhen(logging.Filter):
    """Puts ``record.node`` and ``record.step`` (the program's count of Computes) on each record of a
    child."""

    def __init__(self, standing: Callable[[], tuple[str, int]]) -> None:
        super().__init__()
        self._standing = standing

    def filter(self, record: logging.LogRecord) -> bool:
        """Let everything pass, with its origin."""
        record.node, record.step = self._standing()
        return True


def stamp_records(standing: Callable[[], tuple[str, int]]) -> None:
    """In a child: note on every record which node logged it, at which step."""
    stamp = _WhoAndWhen(standing)
    for logger in loggers_with_handlers():
        for handler in logger.handlers:
            handler.filters = [stamp, *handler.filters]
