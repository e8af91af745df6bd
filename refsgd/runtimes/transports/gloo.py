"""torch.distributed with gloo, as the part of an mpi4py communicator that a run over ranks uses.

Gloo cannot say whether a message has come or has left, and a lost rank only ends the calls that wait for it.
So a thread for each other rank waits for its messages, and one more waits until those to others have left.
Each message is two of gloo's: a header (communicator, tag, number of bytes) and the bytes.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from typing import Any

import numpy as np

from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.transports.ranks import Arrival, first

with suppress(ImportError):  # the documentation needs no PyTorch; a run asks for it
    import torch
    import torch.distributed as dist

STARTING = timedelta(minutes=10)  # for all ranks to be started
FOREVER = timedelta(days=365)  # runs have deadlines, and a timeout of gloo breaks its connections
GRACE = 10.0  # seconds for other ranks to come to their end, and for the news of a lost one
LEAVES = -1  # in the place of a communicator: a rank ends, and sends nothing more
ENDED = f"refsgd/ended/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"  # in the launcher's store


class Departure:
    """A message on its way to another rank, as a request of MPI; the parts that have not left."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def Test(self) -> bool:
        """Whether it has left."""
        return not self.parts


class Round:
    """A collective that this rank has begun, as a request of MPI."""

    def __init__(self, connections: Connections, work: Any) -> None:
        self._connections, self._work = connections, work

    def Test(self) -> bool:
        """Whether it is complete."""
        return bool(self._work.is_completed()) and self.Wait()

    def Wait(self) -> bool:
        """Wait until it is complete."""
        with self._connections.needed():
            return bool(self._work.wait())


class Connections:
    """This process's messages to and from all other ranks, whichever communicator they belong to."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.arrived: dict[int, deque[Arrival]] = {}  #: by communicator
        self.communicators = 0  #: made so far, the same number on all ranks
        self._everyone = dist.new_group(backend="gloo", timeout=FOREVER)
        self._departures: queue.SimpleQueue[Departure | None] = queue.SimpleQueue()
        self._ending = threading.Lock()
        self._store: dist.Store = dist.HashStore()
        if self.size > 1:  # a client of its own: that of torch is locked while it waits
            self._store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]),
                                        is_master=False, timeout=STARTING)
        self._threads = [threading.Thread(target=self._receive, args=(rank,), daemon=True)
                         for rank in range(self.size) if rank != self.rank]
        self._threads.append(threading.Thread(target=self._complete, daemon=True))
        for thread in self._threads:
            thread.start()
        atexit.register(self._leave)

    def send(self, communicator: int, rank: int, tag: int, data: bytearray | bytes) -> Departure:
        """Begin to send bytes; those of a bytearray are not copied."""
        parts = [torch.tensor([communicator, tag, len(data)])]
        if data:
            parts.append(torch.frombuffer(
                data if isinstance(data, bytearray) else bytearray(data), dtype=torch.uint8))
        with self.needed():
            departure = Departure([(dist.isend(part, rank, self._everyone), part) for part in parts])
        self._departures.put(departure)
        return departure

    def _complete(self) -> None:
        """Note of each message that it has left, in the order of their sends."""
        while (departure := self._departures.get()) is not None:
            with suppress(RuntimeError):  # of a lost rank, which another thread reports
                for work, _ in departure.parts:
                    work.wait()
                departure.parts.clear()

    def _receive(self, source: int) -> None:
        """Receive all messages of a rank until it leaves."""
        head = torch.zeros(3, dtype=torch.int64)
        try:
            while True:
                dist.recv(head, source, self._everyone)
                communicator, tag, count = head.tolist()
                if communicator == LEAVES:
                    return
                data = bytearray(count)
                if count:
                    dist.recv(torch.frombuffer(data, dtype=torch.uint8), source, self._everyone)
                self.arrived.setdefault(communicator, deque()).append(
                    Arrival(source, tag, count, partial(_itself, data)))
        except RuntimeError:
            self.end(f"rank {source} has died, or the connection to it is lost")
        except MemoryError:
            self.end(f"rank {source} sent a message of {count} bytes to rank {self.rank}, which has no "
                     "memory for it")

    @contextmanager
    def needed(self) -> Iterator[None]:
        """For calls that fail if a rank is lost: the thread that knows which one ends this process."""
        try:
            yield
        except RuntimeError as error:
            time.sleep(GRACE)
            raise RunFailed(f"rank {self.rank} lost its connections: {str(error).splitlines()[0]}") from None

    def end(self, why: str = "") -> None:
        """End this process, and thereby all; a reason is printed by the first rank that has one."""
        self._ending.acquire()  # and never releases it
        me = before = str(self.rank)
        with suppress(RuntimeError):  # if the store has gone, too
            before = self._store.compare_set(ENDED, "", me).decode()
        if why and before == me:
            sys.stderr.write(f"refsgd: {why}; all ranks end\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def _leave(self) -> None:
        """Tell all others that this rank ends, and wait for a moment until they end, too: the launcher ends
        those that are left if one of them fails."""
        with suppress(RuntimeError):
            for rank in range(self.size):
                if rank != self.rank:
                    self.send(LEAVES, rank, 0, b"")
        self._departures.put(None)
        until = time.monotonic() + GRACE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def _itself(data: bytearray) -> bytearray:
    """What has been received already."""
    return data


class Communicator:
    """Some ranks, `members` of all, in their order."""

    def __init__(self, connections: Connections, number: int, members: tuple[int, ...]) -> None:
        self._connections, self._number, self._members = connections, number, members
        self._group = _group(members, number % 2)
        self.rank, self.size = members.index(connections.rank), len(members)

    def Isend(self, data: bytearray | bytes, rank: int, tag: int) -> Departure:
        """Begin to send bytes to a rank."""
        return self._connections.send(self._number, self._members[rank], tag, data)

    def Iprobe(self) -> bool:
        """Whether a message has come."""
        return bool(self._connections.arrived.get(self._number))

    def first(self, tag: int | None = None) -> Arrival | None:
        """The first message, or the first one with a tag, if it has come."""
        box = self._connections.arrived.get(self._number, deque())
        for _ in range(len(box)):
            arrival = box.popleft()
            if tag in (None, arrival.tag):
                return arrival._replace(source=self._members.index(arrival.source))
            box.append(arrival)
        return None

    def _together(self, collective: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Begin or carry out a collective."""
        with self._connections.needed():
            return collective(*arguments, group=self._group, **more)

    def Iallreduce(self, own: np.ndarray, total: np.ndarray) -> Round:
        """Begin to add the arrays of all ranks."""
        total[:] = own
        work = self._together(dist.all_reduce, torch.from_numpy(total), async_op=True)
        return Round(self._connections, work)

    def Ibarrier(self) -> Round:
        """Begin to wait for all ranks."""
        return self.Iallreduce(np.zeros(1), np.zeros(1))

    def Barrier(self) -> None:
        """Wait for all ranks."""
        self.Ibarrier().Wait()

    def allgather(self, value: Any) -> list[Any]:
        """The values of all ranks, on all of them."""
        values = [None] * self.size
        self._together(dist.all_gather_object, values, value)
        return values

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all ranks, on rank 0."""
        values = self.allgather(value)
        return None if self.rank else values

    def bcast(self, value: Any) -> Any:
        """The value of rank 0, on all ranks."""
        values = [value]
        self._together(dist.broadcast_object_list, values, self._members[0])
        return values[0]

    def Split(self, color: int, key: int) -> Communicator:
        """A communicator of the ranks with the same color; of all ranks only, which keep their order."""
        self._connections.communicators += 1
        colors, number = self.allgather(color), self._connections.communicators
        members = {one: tuple(rank for rank, other in enumerate(colors) if other == one)
                   for one in sorted(set(colors))}
        with self._connections.needed():
            for ranks in members.values():  # every rank makes every group, in the same order
                _group(ranks, number % 2)
        return Communicator(self._connections, number, members[color])

    def Free(self) -> None:
        """Forget what has come; groups of the same ranks are used again."""
        self._connections.arrived.pop(self._number, None)

    def Abort(self, code: int) -> None:
        """End all ranks."""
        self._connections.end()


first.register(Communicator, Communicator.first)


@cache
def _group(members: tuple[int, ...], parity: int) -> Any:
    """A group for the collectives of some ranks; two communicators in succession do not share one."""
    return dist.new_group(list(members), FOREVER, "gloo")


@cache
def world() -> Communicator:
    """All ranks that torchrun has started; without it, one."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        if "RANK" in os.environ:
            dist.init_process_group("gloo", timeout=STARTING)
        else:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return Communicator(Connections(), 0, tuple(range(dist.get_world_size())))
