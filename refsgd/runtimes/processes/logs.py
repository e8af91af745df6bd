"""Log records of all processes reach the handlers of the parent, each process's in order.

`multiprocessing-logging` stands before each handler of the parent while processes run.  Its own queue has a
lock, which a process that is killed while it logs leaves held, and then all others wait forever; so records
travel as datagrams instead: the system keeps their borders, and there is nothing to hold.
"""

from __future__ import annotations

import logging
import pickle
import queue
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from multiprocessing_logging import MultiProcessingHandler

from refsgd.runtimes.transports.waking import wait_for

LONGEST = 1 << 17  # bytes of a record


class _Datagrams:
    """The part of a queue's interface that `MultiProcessingHandler` uses, without a lock."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST)

    def put_nowait(self, record: logging.LogRecord) -> None:
        data = pickle.dumps(record)
        if len(data) > LONGEST:
            record.msg = f"{record.msg[: LONGEST // 8]} ... (too long a line)"
            data = pickle.dumps(record)
        self._sender.send(data)

    def get(self, timeout: float) -> Any:
        if not wait_for([self._receiver.fileno()], timeout):
            raise queue.Empty
        data = self._receiver.recv(2 * LONGEST)
        if not data:
            raise EOFError
        return pickle.loads(data)

    def qsize(self) -> int:
        return len(wait_for([self._receiver.fileno()], 0.0))

    def end(self) -> None:
        """Nothing more will come; where there is no room for this word, the receiver is awake."""
        with suppress(BlockingIOError):
            self._sender.send(b"", socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()

    def join_thread(self) -> None:
        pass


class _Borrowed(logging.Handler):
    """Stands for a handler of the parent: closing it, or an exception in it, leaves that handler open."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__(handler.level)
        self.formatter, self._handler = handler.formatter, handler

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._handler.handle(record)
        except Exception:
            self.handleError(record)


class _Shared(MultiProcessingHandler):  # type: ignore[misc]
    """A handler for which any process may log."""

    def __init__(self, handler: logging.Handler) -> None:
        self._records = _Datagrams()
        super().__init__(f"records of {handler}", sub_handler=_Borrowed(handler))

    @property
    def queue(self) -> _Datagrams:
        return self._records

    @queue.setter
    def queue(self, made: Any) -> None:
        made.close()  # the library's own

    def close(self) -> None:
        self._records.end()
        super().close()


def _loggers() -> list[logging.Logger]:
    """The root logger and all others that have handlers of their own."""
    every = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    return [one for one in every if isinstance(one, logging.Logger) and one.handlers]


@contextmanager
def shared_handlers() -> Iterator[None]:
    """Within, records of forked processes go to the handlers that the parent has now."""
    before = [(logger, handler) for logger in _loggers() for handler in logger.handlers]
    shared = {handler: _Shared(handler) for _, handler in before}
    for logger in _loggers():
        logger.handlers[:] = [shared[handler] for handler in logger.handlers]
    try:
        yield
    finally:
        back = {stand_in: handler for handler, stand_in in shared.items()}
        for logger in _loggers():
            logger.handlers[:] = [back.get(handler, handler) for handler in logger.handlers]  # type: ignore[call-overload]
        for stand_in in back:
            stand_in.close()


class Stamp(logging.Filter):
    """In a child: puts ``record.node`` and ``record.step`` (the program's count of Computes) on each record;
    `standing` says both."""

    def __init__(self, standing: Callable[[], tuple[str, int]]) -> None:
        super().__init__()
        self.standing = standing
        for logger in _loggers():
            for handler in logger.handlers:
                handler.filters = [self, *handler.filters]

    def filter(self, record: logging.LogRecord) -> bool:
        record.node, record.step = self.standing()
        return True
