"""Transport over TCP on this computer: one loopback connection for each pair of processes.

The launcher makes all listening sockets before the fork, so ports are known and no call comes too early; the
process with the higher index calls.  Before any payload, both sides prove that they know the run's secret,
which is never sent: each proof is valid for one side of one connection and accepted once.

A lost connection raises no error here: only the launcher can distinguish the failed process from its
neighbours.
"""

from __future__ import annotations

import hmac
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from refsgd.runtimes.transports.transport import Transport, Waiter, WakeUp, anonymous
from refsgd.runtimes.transports.wire import (
    LARGEST_PAYLOAD,
    Frame,
    Incoming,
    Outgoing,
    WireError,
    decoder,
    encode,
)

log = logging.getLogger("refsgd.tcp")

HELLO = struct.Struct("<8sII32s")  #: magic, index of the caller, index of the called, the caller's proof
MAGIC = b"refsgd2\n"
PROOF = 32
PATIENCE = 30.0  # seconds to make all connections of a process
CALL = 10.0  # seconds for a caller to prove itself
READ_BYTES = 1 << 16


class HandshakeError(ConnectionError):
    """The other side does not know the run's secret, or does not speak this protocol."""


class Listeners:
    """The listening sockets, addresses, wake-ups and the secret of a run; `nodes` are the indices of each
    process's nodes, and a message has at most `largest` payload bytes, so that no peer can make a process
    allocate more."""

    def __init__(self, processes: Sequence[str], nodes: Mapping[str, frozenset[int]],
                 largest: int = LARGEST_PAYLOAD) -> None:
        self.processes, self.nodes, self.largest = list(processes), nodes, largest
        self.secret = os.urandom(32)
        self.wake_ups = {process: WakeUp() for process in self.processes}
        self.sockets = {process: socket.create_server(("127.0.0.1", 0), backlog=len(processes) + 16)
                        for process in self.processes}
        self.addresses = {process: s.getsockname()[:2] for process, s in self.sockets.items()}
        #: connections that each process has refused, in memory that all share
        self.refused = memoryview(anonymous(8 * len(self.processes))).cast("q")

    def connect(self, process: str) -> Sockets:
        """The transport of one process; called in that process, it waits until all peers are connected."""
        me = self.processes.index(process)

        def refuse() -> None:
            self.refused[me] += 1

        for other, s in self.sockets.items():
            if other != process:
                s.close()
        with self.sockets[process] as listener:
            peers = [call(self.addresses[other], self.secret, me, k)
                     for k, other in enumerate(self.processes[:me])]
            peers += answer(listener, self.secret, me, range(me + 1, len(self.processes)), refuse=refuse)
        others = [other for other in self.processes if other != process]
        return Sockets(self, process, dict(zip(others, peers)))

    def forked(self) -> None:
        """All processes have been started: close the launcher's copies of the sockets."""
        for s in self.sockets.values():
            s.close()

    def close(self) -> None:
        """Close sockets and wake-ups, and log how many strangers have called."""
        if count := sum(self.refused):
            log.warning("refused %d connections from strangers before the run began; it went on without them",
                        count)
        self.forked()
        for wake_up in self.wake_ups.values():
            wake_up.close()


# -- the handshake -----------------------------------------------------------------------------------------


def proof(secret: bytes, role: bytes, caller: int, called: int) -> bytes:
    """A proof that only a holder of the secret can give; `role` prevents reuse by the other side."""
    return hmac.digest(secret, role + struct.pack("<II", caller, called), "sha256")


def call(address: tuple[str, int], secret: bytes, me: int, other: int,
         timeout: float = PATIENCE) -> socket.socket:
    """Connect to a peer; both sides prove that they know the secret."""
    with ExitStack() as unless_proved:
        s = unless_proved.enter_context(socket.create_connection(address, timeout=timeout))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, PROOF)  # wait for all of it
        s.sendall(HELLO.pack(MAGIC, me, other, proof(secret, b"caller", me, other)))
        reply = s.recv(PROOF)
        if not hmac.compare_digest(reply, proof(secret, b"called", me, other)):
            closed = "" if reply else "closed the connection, so one of us "
            raise HandshakeError(
                f"the process at {address[0]}:{address[1]} {closed}does not know the secret of this run")
        unless_proved.pop_all()
    return s


def _identify(s: socket.socket, secret: bytes, me: int, expected: set[int]) -> int:
    """The called side: read the caller's proof, answer, and return the peer's index."""
    hello = s.recv(HELLO.size)
    if len(hello) < HELLO.size:
        raise HandshakeError("closed the connection")
    magic, caller, called, proved = HELLO.unpack(hello)
    if magic != MAGIC:
        raise HandshakeError("does not speak this protocol")
    if called != me or caller not in expected:
        raise HandshakeError(
            f"says it is {caller} and calls {called}; expected one of {sorted(expected)} that calls {me}")
    if not hmac.compare_digest(proved, proof(secret, b"caller", caller, me)):
        raise HandshakeError("does not know the secret of this run")
    s.sendall(proof(secret, b"called", caller, me))
    return int(caller)


def answer(listener: socket.socket, secret: bytes, me: int, peers: Sequence[int],
           timeout: float = PATIENCE, refuse: Callable[[], None] = lambda: None) -> list[socket.socket]:
    """Accept until all peers have proved themselves; strangers are dropped, the oldest also where no more
    files may be open, and `refuse` is called for each."""
    found = dict[int, socket.socket]()
    end = time.monotonic() + timeout
    with selectors.DefaultSelector() as poll, ExitStack() as unless_complete:
        def drop(s: Any, why: object) -> None:
            log.info("refused a connection from %s:%d: it %s", *poll.unregister(s).data[1], why)
            refuse()
            s.close()

        listener.setblocking(False)
        poll.register(listener, selectors.EVENT_READ, (end, ()))
        while missing := set(peers) - found.keys():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"process {me} was not called by {sorted(missing)} within {timeout:g} s")
            for key, _ in poll.select(0.25):
                s: Any = key.fileobj
                if s is listener:
                    try:
                        s, address = listener.accept()
                    except (BlockingIOError, ConnectionError):
                        continue
                    except OSError as error:  # no descriptor is left
                        waiting = [key for key in poll.get_map().values() if key.fileobj is not listener]
                        if not waiting:
                            raise OSError(f"process {me} cannot accept a connection ({error.strerror}); "
                                          "expected a higher limit: ulimit -n 4096") from None
                        oldest = min(waiting, key=lambda key: key.data[0])
                        drop(oldest.fileobj, "waited while no more files could be opened")
                        break  # what was ready may be closed
                    unless_complete.enter_context(s)
                    s.setblocking(False)
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, HELLO.size)  # all of it, or none
                    poll.register(s, selectors.EVENT_READ, (time.monotonic() + CALL, address))
                    continue
                try:
                    found[_identify(s, secret, me, missing - found.keys())] = s
                    poll.unregister(s)
                except OSError as error:
                    drop(s, error)
            for key in [key for key in poll.get_map().values() if key.data[0] < time.monotonic()]:
                if key.fileobj is not listener:
                    drop(key.fileobj, f"has not proved itself within {CALL:g} s")
        poll.unregister(listener)
        for key in list(poll.get_map().values()):
            drop(key.fileobj, "had not finished the handshake when all peers were connected")
        unless_complete.pop_all()
    return [found[k] for k in peers]


# -- the transport -----------------------------------------------------------------------------------------


class Sockets(Transport):
    """One process's connections `peers` to all others, past their handshakes."""

    lost: set[str]

    def __init__(self, listeners: Listeners, process: str, peers: Mapping[str, socket.socket]) -> None:
        self._wake_up, self._peers, self.lost = listeners.wake_ups[process], peers, set[str]()
        self._largest = listeners.largest
        self._frames = []
        self._out: dict[str, Outgoing] = {}
        self._in: dict[str, Incoming] = {}
        # One descriptor to sleep on; its own timeout has a resolution of 1 ms, so `wait` uses select on it.
        self._poll = selectors.DefaultSelector()
        self._poll.register(self._wake_up, selectors.EVENT_READ, "")
        self._waiter = Waiter(self._arrived)
        for other, s in peers.items():
            s.setblocking(False)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_CONGESTION"):
                with suppress(OSError):  # it may be lost already
                    # congestion control that paces, such as BBR, only slows a loopback connection down
                    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # exists on every Linux
            self._out[other] = Outgoing(self._writer(s, other))
            parts = decoder(self._frames.append, listeners.nodes[other], listeners.nodes[process],
                            listeners.largest)
            self._in[other] = Incoming(self._reader(s, other), parts)
            self._poll.register(s, selectors.EVENT_READ, other)

    def _arrived(self) -> bool:
        return any(key.data for key, _ in self._poll.select(0))

    def _lose(self, other: str) -> None:
        if other not in self.lost:
            self.lost.add(other)
            self._poll.unregister(self._peers[other])

    def _writer(self, s: socket.socket, other: str) -> Callable[[memoryview], int]:
        def write(view: memoryview) -> int:
            if other in self.lost:
                return len(view)
            try:
                return s.send(view)
            except BlockingIOError:
                return 0
            except OSError:
                self._lose(other)
                return len(view)  # dropped; the launcher knows the cause and reports it

        return write

    def _reader(self, s: socket.socket, other: str) -> Callable[[memoryview], int]:
        buffer = memoryview(bytearray(READ_BYTES))
        at = end = 0
        drained = False

        def receive(view: memoryview) -> int:
            nonlocal drained
            # the last read was short: another would find nothing, at the cost of a call and an exception
            if drained:
                drained = False
                return 0
            try:
                n = s.recv_into(view)
            except BlockingIOError:
                return 0
            except OSError:
                n = 0
            if not n:
                self._lose(other)
            drained = 0 < n < len(view)
            return n

        def read_into(view: memoryview) -> int:
            nonlocal at, end
            if at == end:
                if len(view) >= READ_BYTES:
                    return receive(view)  # a large array: directly to its destination
                at, end = 0, receive(buffer)
            n = min(len(view), end - at)
            view[:n] = buffer[at : at + n]
            at += n
            return n

        return read_into

    def post(self, process: str, body: Any, src: int, to: int, number: int, stamp: float) -> None:
        out = self._out[process]
        waited = out.nbytes
        out.post(encode(body, src, to, number, stamp, limit=self._largest))
        if out.nbytes and not waited and process not in self.lost:
            self._poll.modify(self._peers[process], selectors.EVENT_READ | selectors.EVENT_WRITE, process)

    def take(self) -> list[Frame]:
        for key, event in self._poll.select(0):
            other: str = key.data
            if not other:
                self._wake_up.drain()
                continue
            if event & selectors.EVENT_WRITE:
                self._out[other].flush()
                if not self._out[other].nbytes and other not in self.lost:
                    self._poll.modify(self._peers[other], selectors.EVENT_READ, other)
            if event & selectors.EVENT_READ and other not in self.lost:
                try:
                    self._in[other].pump()
                except WireError as error:
                    raise WireError(f"{other} sent {error}") from None
        return self._completed()

    def wait(self, timeout: float, others: Sequence[int]) -> list[int]:
        mine: int = self._poll.fileno()  # epoll and kqueue have one
        return [fd for fd in self._waiter.wait([mine, *others], timeout) if fd != mine]

    @property
    def unsent(self) -> int:
        return sum(out.nbytes for out in self._out.values())

    def sever(self, process: str = "") -> bool:
        lost = [s for other, s in self._peers.items() if process in ("", other) and other not in self.lost]
        for s in lost:
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        return bool(lost)

    def forget(self, process: str) -> None:
        """Drop bytes queued for a process that has died; the bytes that it sent are still read."""
        self._out[process].clear()

    def close(self) -> None:
        self._poll.close()
        for s in self._peers.values():
            s.close()
