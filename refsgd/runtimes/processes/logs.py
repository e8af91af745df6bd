"""Log records of all processes reach the handlers of the parent, in order for each process.

They are datagrams through one socket that all processes share: the system preserves the boundaries of
records, and there is no lock that a killed process could leave locked.
"""

from __future__ import annotations

import logging
import logging.handlers
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress

LONGEST = 1 << 17  # bytes of a record
AT_ONCE = 500  # records between two checks of the processes; the system buffers fewer


def channel() -> tuple[socket.socket, socket.socket]:
    """The sockets to which processes send records and from which the launcher receives them."""
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST)
    receiver.setblocking(False)
    return receiver, sender


def handle(receiver: socket.socket) -> None:
    """In the parent: pass received records to its handlers."""
    with suppress(BlockingIOError):
        for _ in range(AT_ONCE):
            record = pickle.loads(receiver.recv(2 * LONGEST))
            logging.getLogger(record.name).handle(record)


class ToParent(logging.handlers.QueueHandler):
    """In a child: sends each record to the parent, as text.

    ``record.node`` and ``record.step`` (the program's count of Computes) come from `standing`.
    """

    def __init__(self, sender: socket.socket, standing: Callable[[], tuple[str, int]]) -> None:
        super().__init__(sender)  # type: ignore[arg-type]
        self.standing = standing

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """The record with its origin; arguments and traceback become part of its text."""
        record = super().prepare(record)
        record.node, record.step = self.standing()
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send the record; the handler's lock serialises threads of this process."""
        data = pickle.dumps(record)
        if len(data) > LONGEST:
            record.msg = record.message = f"{record.msg[: LONGEST // 8]} ... (too long a line)"
            data = pickle.dumps(record)
        self.queue.send(data)  # type: ignore[attr-defined]

    def replace_all(self) -> None:
        """Replace all handlers of this process."""
        loggers = logging.Logger.manager.loggerDict.values()
        for logger in [one for one in loggers if isinstance(one, logging.Logger) and one.handlers]:
            logger.handlers[:] = [] if logger.propagate else [self]
        logging.getLogger().handlers[:] = [self]
