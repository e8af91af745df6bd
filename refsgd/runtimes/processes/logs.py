"""Log records of all processes reach the handlers of the parent, each process's in order.

They travel as datagrams through one socket that all processes share: the system keeps the borders of records,
and there is no lock that a killed process could leave held.
"""

from __future__ import annotations

import logging
import logging.handlers
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress

LONGEST = 1 << 17  # bytes of a record
AT_ONCE = 500  # records between two looks at the processes; the system holds fewer


def channel() -> tuple[socket.socket, socket.socket]:
    """Where processes send their records, and where the launcher receives them."""
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST)
    receiver.setblocking(False)
    return receiver, sender


def handle(receiver: socket.socket) -> None:
    """In the parent: give the records that have come to its handlers."""
    with suppress(BlockingIOError):
        for _ in range(AT_ONCE):
            record = pickle.loads(receiver.recv(2 * LONGEST))
            logging.getLogger(record.name).handle(record)


class ToParent(logging.handlers.QueueHandler):
    """In a child: sends each record to the parent, as text.

    ``record.node`` and ``record.step`` (the program's count of Computes) are what `standing` says.
    """

    def __init__(self, sender: socket.socket, standing: Callable[[], tuple[str, int]]) -> None:
        super().__init__(sender)  # type: ignore[arg-type]
        self.standing = standing

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """The record with its origin, its arguments and traceback made a part of its text."""
        record = super().prepare(record)
        record.node, record.step = self.standing()
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send the record; the handler's lock keeps threads of this process apart."""
        data = pickle.dumps(record)
        if len(data) > LONGEST:
            record.msg = record.message = f"{record.msg[: LONGEST // 8]} ... (too long a line)"
            data = pickle.dumps(record)
        self.queue.send(data)  # type: ignore[attr-defined]

    def replace_all(self) -> None:
        """Stand in for all handlers of this process."""
        loggers = logging.Logger.manager.loggerDict.values()
        for logger in [one for one in loggers if isinstance(one, logging.Logger) and one.handlers]:
            logger.handlers[:] = [] if logger.propagate else [self]
        logging.getLogger().handlers[:] = [self]
