"""Transport over TCP on this machine: one loopback connection for each pair of processes.

Frames, queue and decoder are those of `refsgd.runtimes.transports.wire`.  The launcher makes all listening
sockets before the fork, so ports are known and no call comes too early; the process of higher place calls.
Before any payload both sides prove by challenge that they know the run's secret, which itself never travels;
a caller that cannot is dropped and logged.

A lost connection raises nothing here: only the launcher can tell the culprit from its neighbours.
"""

from __future__ import annotations

import hmac
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from refsgd.runtimes.transports.waking import Waiter, WakeUp, wait_for
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

HELLO = struct.Struct("<8sII32s")  #: magic, place of the caller, place of the called, the caller's challenge
MAGIC = b"refsgd1\n"
CHALLENGE, PROOF = 32, 32
PATIENCE = 30.0  # seconds for all connections of a process
CALL = 10.0  # seconds in which a caller must prove itself
READ_BYTES = 1 << 16


class HandshakeError(ConnectionError):
    """The other side does not know the run's secret, or does not speak this protocol."""


def _proof(secret: bytes, role: bytes, mine: bytes, theirs: bytes, places: tuple[int, int]) -> bytes:
    """What only a holder of the secret can answer; `role` keeps one side's answer from serving the other."""
    return hmac.digest(secret, role + mine + theirs + struct.pack("<II", *places), "sha256")


class Listeners:
    """The listening sockets, addresses, wake-ups and the secret of a run.

    Parameters
    ----------
    processes : sequence of str
    nodes : mapping of str to set of int
        For each process the places of the nodes that live there.
    largest : int
        Most payload bytes of a message that the run can need: no peer makes a process take more memory.
    """

    def __init__(self, processes: Sequence[str], nodes: Mapping[str, frozenset[int]],
                 largest: int = LARGEST_PAYLOAD) -> None:
        self.processes, self.nodes, self.largest = list(processes), nodes, largest
        self.secret = os.urandom(32)
        self.wake_ups = {process: WakeUp() for process in self.processes}
        self.sockets = {process: socket.create_server(("127.0.0.1", 0), backlog=len(processes) + 16)
                        for process in self.processes}
        self.addresses = {process: s.getsockname()[:2] for process, s in self.sockets.items()}

    def connect(self, process: str) -> Sockets:
        """The transport of one process; called in its process, it waits until all its peers are connected."""
        me = self.processes.index(process)
        for other, s in self.sockets.items():
            if other != process:
                s.close()
        peers: dict[str, socket.socket] = {}
        try:
            for k, other in enumerate(self.processes[:me]):
                peers[other] = call(self.addresses[other], self.secret, me, k)
            expected = {k: self.processes[k] for k in range(me + 1, len(self.processes))}
            answered = answer(self.sockets[process], self.secret, me, set(expected))
            peers |= {expected[k]: s for k, s in answered.items()}
        finally:
            self.sockets[process].close()
        return Sockets(self, process, peers)

    def forked(self) -> None:
        """All processes have been started: the launcher needs the sockets no more."""
        for s in self.sockets.values():
            s.close()

    def close(self) -> None:
        """Give sockets and wake-ups back."""
        self.forked()
        for wake_up in self.wake_ups.values():
            wake_up.close()


# -- the handshake -----------------------------------------------------------------------------------------


def call(address: tuple[str, int], secret: bytes, me: int, other: int,
         timeout: float = PATIENCE) -> socket.socket:
    """Connect to a peer and prove the secret to each other."""
    s = socket.create_connection(address, timeout=timeout)
    try:
        challenge = os.urandom(CHALLENGE)
        s.sendall(HELLO.pack(MAGIC, me, other, challenge))
        reply = _exactly(s, CHALLENGE + PROOF)
        theirs, proof = reply[:CHALLENGE], reply[CHALLENGE:]
        if not hmac.compare_digest(proof, _proof(secret, b"called", challenge, theirs, (me, other))):
            raise HandshakeError(
                f"the process at {address[0]}:{address[1]} does not know the secret of this run")
        s.sendall(_proof(secret, b"caller", challenge, theirs, (me, other)))
    except BaseException:
        s.close()
        raise
    return s


def _exactly(s: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = s.recv(count - len(data))
        if not more:
            raise HandshakeError(
                "the connection was closed during the handshake; the other side may have another secret")
        data += more
    return data


def _receive_call(secret: bytes, me: int, expected: set[int],
                  reply: Callable[[bytes], None]) -> Generator[int, bytes, int]:
    """The called side: yields how many bytes it needs, is sent them, returns who called."""
    hello = yield HELLO.size
    magic, caller, called, theirs = HELLO.unpack(hello)
    if magic != MAGIC:
        raise HandshakeError("does not speak this protocol")
    if called != me or caller not in expected:
        raise HandshakeError(f"says it is {caller} and calls {called}")
    mine = os.urandom(CHALLENGE)
    reply(mine + _proof(secret, b"called", theirs, mine, (caller, me)))
    proof = yield PROOF
    if not hmac.compare_digest(proof, _proof(secret, b"caller", theirs, mine, (caller, me))):
        raise HandshakeError("does not know the secret of this run")
    return int(caller)


class _Caller:
    """One accepted connection on its way through the handshake; several are served at once, strangers too."""

    def __init__(self, s: socket.socket, who: str, secret: bytes, me: int, expected: set[int]) -> None:
        s.setblocking(False)
        self.socket, self.who, self.until = s, who, time.monotonic() + CALL
        self._steps = _receive_call(secret, me, expected, lambda data: s.sendall(data))
        self._wanted, self._data = next(self._steps), b""

    def go_on(self) -> int | None:
        """Read what is there; the caller's place once it has proved itself."""
        try:
            more = self.socket.recv(self._wanted - len(self._data))  # never a byte of the payload behind it
        except BlockingIOError:
            return None
        if not more:
            raise HandshakeError("closed the connection")
        self._data += more
        if len(self._data) == self._wanted:
            try:
                self._wanted, self._data = self._steps.send(self._data), b""
            except StopIteration as stop:
                return int(stop.value)
        return None


def answer(listener: socket.socket, secret: bytes, me: int, expected: set[int],
           timeout: float = PATIENCE) -> dict[int, socket.socket]:
    """Accept until all expected peers have proved themselves; strangers are dropped and logged."""
    found = dict[int, socket.socket]()
    pending: dict[int, _Caller] = {}
    end = time.monotonic() + timeout
    listener.setblocking(False)
    try:
        while len(found) < len(expected):
            if time.monotonic() > end:
                raise TimeoutError(
                    f"process {me} was not called by {sorted(expected - found.keys())} within {timeout:g} s")
            for fd in wait_for([listener.fileno(), *pending], 0.25):
                if fd == listener.fileno():
                    try:
                        s, address = listener.accept()
                    except (BlockingIOError, ConnectionError):
                        continue
                    pending[s.fileno()] = _Caller(s, f"{address[0]}:{address[1]}", secret, me, expected)
                    continue
                caller = pending[fd]
                try:
                    place = caller.go_on()
                    if place is not None and place in found:
                        raise HandshakeError(f"calls a second time as {place}")
                except (OSError, HandshakeError) as error:
                    _drop(pending.pop(fd), str(error))
                    continue
                if place is not None:
                    found[place] = pending.pop(fd).socket
            for fd in [fd for fd, caller in pending.items() if caller.until < time.monotonic()]:
                _drop(pending.pop(fd), f"has not proved itself within {CALL:g} s")
    except BaseException:
        for s in found.values():
            s.close()
        raise
    finally:
        for stranger in pending.values():
            _drop(stranger, "has not finished the handshake when all peers were there")
    return found


def _drop(caller: _Caller, why: str) -> None:
    log.warning("refused a connection from %s: it %s", caller.who, why)
    caller.socket.close()


# -- the transport -----------------------------------------------------------------------------------------


def _hurry(s: socket.socket) -> None:
    """Send without congestion control that paces, such as BBR: there is no network to spare."""
    with suppress(OSError):  # it may be lost already
        if hasattr(socket, "TCP_CONGESTION"):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # which every Linux has


class Sockets:
    """One process's connections to all others.

    Its methods are those of every `refsgd.runtimes.processes.driver.Transport`.

    Parameters
    ----------
    listeners : Listeners
    process : str
        Which process this is.
    peers : dict of str to socket
        A connection to each other process, past its handshake.
    """

    def __init__(self, listeners: Listeners, process: str, peers: Mapping[str, socket.socket]) -> None:
        self._wake_up, self._peers, self.closed = listeners.wake_ups[process], peers, set[str]()
        self._largest = listeners.largest
        self._frames: list[Frame] = []
        self._out: dict[str, Outgoing] = {}
        self._in: dict[str, Incoming] = {}
        self._stalled: set[str] = set()
        # One descriptor to sleep on; its own timeout counts in milliseconds, so `wait` uses select on it.
        self._poll = selectors.DefaultSelector()
        self._poll.register(self._wake_up, selectors.EVENT_READ, "")
        self._waiter = Waiter(self._arrived)
        for other, s in peers.items():
            s.setblocking(False)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _hurry(s)
            self._out[other] = Outgoing(self._writer(s, other))
            parts = decoder(self._frames.append, listeners.nodes[other], listeners.nodes[process],
                            listeners.largest)
            self._in[other] = Incoming(self._reader(s, other), parts)
            self._poll.register(s, selectors.EVENT_READ, other)

    def _arrived(self) -> bool:
        return any(key.data for key, _ in self._poll.select(0))

    def _lost(self, other: str) -> None:
        if other not in self.closed:
            self.closed.add(other)
            self._stalled.discard(other)
            self._poll.unregister(self._peers[other])

    def _writer(self, s: socket.socket, other: str) -> Callable[[memoryview], int]:
        def write(view: memoryview) -> int:
            if other in self.closed:
                return len(view)
            try:
                return s.send(view)
            except BlockingIOError:
                return 0
            except OSError:
                self._lost(other)
                return len(view)  # dropped; the launcher knows more and will say

        return write

    def _reader(self, s: socket.socket, other: str) -> Callable[[memoryview], int]:
        buffer = memoryview(bytearray(READ_BYTES))
        at = end = 0
        drained = False

        def receive(view: memoryview) -> int:
            nonlocal drained
            # the last read was short: the next would find nothing, at the price of a system call and an
            # exception
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
                self._lost(other)
            drained = 0 < n < len(view)
            return n

        def read_into(view: memoryview) -> int:
            nonlocal at, end
            if at == end:
                if len(view) >= READ_BYTES:
                    return receive(view)  # a large array: straight to its place
                at, end = 0, receive(buffer)
            n = min(len(view), end - at)
            view[:n] = buffer[at : at + n]
            at += n
            return n

        return read_into

    def post(self, process: str, body: Any, src: int, to: int, number: int, stamp: float) -> None:
        """Write a message, or queue what does not fit; never waits."""
        out = self._out[process]
        out.post(encode(body, src, to, number, stamp, limit=self._largest))
        if out.nbytes and process not in self._stalled and process not in self.closed:
            self._stalled.add(process)
            self._poll.modify(self._peers[process], selectors.EVENT_READ | selectors.EVENT_WRITE, process)

    def take(self) -> list[Frame]:
        """Move bytes both ways; the messages that are now complete, each channel's in order."""
        for key, event in self._poll.select(0):
            other: str = key.data
            if not other:
                self._wake_up.drain()
                continue
            if event & selectors.EVENT_WRITE and other in self._stalled:
                self._out[other].flush()
                if not self._out[other].nbytes and other not in self.closed:
                    self._stalled.discard(other)
                    self._poll.modify(self._peers[other], selectors.EVENT_READ, other)
            if event & selectors.EVENT_READ and other not in self.closed:
                try:
                    self._in[other].pump()
                except WireError as error:
                    raise WireError(f"from {other} came {error}") from None
        if not self._frames:
            return []
        frames = self._frames[:]
        self._frames.clear()
        return frames

    def soon(self, timeout: float) -> bool:
        """Whether a message comes in the next moment."""
        return self._waiter.soon(timeout)

    def wait(self, timeout: float, others: Sequence[int]) -> list[int]:
        """Sleep until something may have happened, at most `timeout` seconds; the readable ones of
        `others`."""
        mine: int = self._poll.fileno()  # epoll and kqueue have one
        return [fd for fd in self._waiter.wait([mine, *others], timeout) if fd != mine]

    def knock(self) -> None:
        """End a `wait`, from another thread."""
        self._wake_up.wake()

    @property
    def unsent(self) -> int:
        """Bytes in the overflow queues."""
        return sum(out.nbytes for out in self._out.values())

    @property
    def lost(self) -> set[str]:
        """Hosts to which the connection has ended."""
        return self.closed

    def sever(self, process: str = "") -> bool:
        """Lose all connections, or that to one process."""
        lost = [s for other, s in self._peers.items() if process in ("", other) and other not in self.closed]
        for s in lost:
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        return bool(lost)

    def forget(self, process: str) -> None:
        """A process has died: drop what waits for it; what it sent is still read to its end."""
        self._out[process].clear()

    def close(self) -> None:
        """Close the connections."""
        self._poll.close()
        for s in self._peers.values():
            s.close()
