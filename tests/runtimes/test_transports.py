"""Rings, arenas and sockets, each by itself and in runs that press on their limits."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import platform
import socket
import subprocess
import sys
import threading
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.effects import Compute, Node, Recv, Send
from refsgd.experiment import prepare
from refsgd.machine import Machine
from refsgd.runtimes import allocator, board, processes, tcp
from refsgd.runtimes.allocator import LARGE
from refsgd.runtimes.arena import Arenas
from refsgd.runtimes.processes import run
from refsgd.runtimes.rings import Rings, Segment
from refsgd.runtimes.simulator import simulate
from refsgd.runtimes.wire import WireError
from tests.runtimes.deployments import exchange


class Data(NamedTuple):
    values: Any
    more: Any = None


HOSTS = ["peer0", "peer1", "peer2"]
PLACES = {host: frozenset([i]) for i, host in enumerate(HOSTS)}


@pytest.fixture(params=[False, True], ids=["rings", "arena"])
def ends(request):
    """Both ends of small rings, in one process."""
    segment = Segment(HOSTS, PLACES, ring=4096, arena=request.param)
    out = [Rings(segment, host) for host in HOSTS]
    yield out
    out.clear()
    gc.collect()
    segment.close()


def move(src: Rings, to: Rings, count: int) -> list[Any]:
    """All frames, moving bytes both ways until they are there."""
    frames = []
    for _ in range(10_000):
        frames += to.take()
        src.take()
        if len(frames) == count and not src.unsent:
            return frames
    raise AssertionError(f"{len(frames)} of {count} frames after 10,000 turns")


@given(sizes=st.lists(st.integers(0, 30_000), min_size=1, max_size=8))
def test_messages_larger_than_the_ring_stream_through_it(sizes):
    """In order and whole, whatever wraps where."""
    segment = Segment(HOSTS, PLACES, ring=4096, arena=False)
    a, b, _ = [Rings(segment, host) for host in HOSTS]
    for k, size in enumerate(sizes):
        a.post("peer1", Data(np.full(size, k, np.int32), k), 0, 1, k, 0.0)
    frames = move(a, b, len(sizes))
    assert [f.number for f in frames] == list(range(len(sizes))) and all((f.fields[0] == f.number).all() for f in frames)
    assert [len(f.fields[0]) for f in frames] == sizes
    del a, b, _
    gc.collect()
    segment.close()


def test_an_array_stays_true_as_long_as_somebody_holds_it(ends):
    """Fifty arrays, random ones kept for a while, views and views of views included."""
    rng, kept = np.random.default_rng(0), {}
    for k in range(200):
        a, b = ends[k % 2], ends[(k + 1) % 2]
        sent = np.full(LARGE // 4 + k, k, np.float32)
        a.post(HOSTS[(k + 1) % 2], Data(sent), k % 2, (k + 1) % 2, k, 0.0)
        (frame,) = move(a, b, 1)
        got = frame.fields[0]
        kept[k] = [got, got[1:], got.reshape(1, -1)[:, 5:]][k % 3]
        del frame, got
        for old in [o for o in kept if rng.random() < 0.2]:
            assert (kept.pop(old) == old).all()
        assert all((array == k).all() for k, array in kept.items())


def test_an_array_sent_to_many_is_copied_once():
    """One slot, two receivers; free when both have dropped it."""
    arenas = Arenas(HOSTS, 3 << 18)  # room for two
    mine, theirs = arenas.of(0), [arenas.of(0), arenas.of(0)]
    x, y, z = (np.full(LARGE, k, np.float32) for k in range(3))
    first, again, second = mine.place(1, x), mine.place(2, x), mine.place(1, y)
    assert first == again == 0 and second is not None and second >= x.nbytes
    assert mine.place(1, z) is None  # no room: it streams
    lent = [arena.fetch(k + 1, 0, x.shape, x.dtype) for k, arena in enumerate(theirs)]
    assert all((array == 0).all() and not array.flags.writeable for array in lent)
    del x
    assert mine.place(1, z) is None
    lent.pop()
    assert mine.place(1, z) is None  # one of them reads on
    lent.pop()
    assert mine.place(1, z) == 0
    for distance, shape in ((3 << 18, (4,)), (1 << 70, (4,)), (second, (1 << 30,)), (second, (1 << 17,)), (0, (4,))):
        with pytest.raises(WireError, match="where none was lent"):
            theirs[1].fetch(2, distance, shape, np.dtype(np.float32))
    del mine, theirs
    gc.collect()
    arenas.close()


def test_small_and_huge_arrays_stream():
    """An arena is for the sizes between."""
    arenas = Arenas(HOSTS, 1 << 17)
    assert arenas.of(0).place(1, np.zeros(LARGE - 1, np.uint8)) is None and arenas.of(0).place(1, np.zeros(1 << 18, np.uint8)) is None
    arenas.close()


class Table:
    """The table of an arena of three blocks' room, for addresses that nobody writes to."""

    def __init__(self) -> None:
        self.words = np.zeros(allocator.words_of(2), np.int64)
        allocator.prepare(self.words, 1 << 40, 3 * (LARGE + allocator.STAGGER), 2)

    def take(self, nbytes: int = LARGE) -> int:
        """How far from the beginning a new block lies; -1 where there is none."""
        return (allocator.take(self.words, nbytes) or (1 << 40) - 1) - (1 << 40)


def test_a_block_is_used_again_when_its_array_and_all_loans_are_gone():
    """Two loans of one block to one receiver, one of them of its middle: both come back, in any order."""
    table = Table()
    words, block = table.words, table.take()
    assert allocator.lend(words, (1 << 40) + 4096, 1) == 4096 and allocator.lend(words, 1 << 40, 1) == 0
    allocator.release(words, 1 << 40)
    given = [allocator.borrow(words, 4096, 100, 1), allocator.borrow(words, 0, LARGE, 1)]
    assert given[0] == given[1] > 0 and allocator.borrow(words, 0, LARGE, 0) == -1  # nothing was lent to the other
    allocator.give_back(words, given[0])
    assert table.take() != block
    allocator.give_back(words, given[1])
    assert table.take() == block and allocator.borrow(words, 0, LARGE, 1) == -1


def test_a_full_arena_gives_what_fits_and_then_nothing():
    """A small array takes a large block where there is no better one; the dead keep nothing."""
    table = Table()
    large = table.take(2 * LARGE)
    assert [table.take(), table.take()] == [2 * LARGE + allocator.STAGGER, -1]
    allocator.lend(table.words, (1 << 40) + large, 1)
    allocator.release(table.words, (1 << 40) + large)
    assert table.take() == -1
    allocator.forget(table.words, 1)
    assert table.take() == large and table.take() == -1


def test_a_loan_does_not_reach_into_the_next_block():
    """What a receiver asks for lies within one block that it was lent."""
    table = Table()
    table.take()
    next_ = table.take()
    allocator.lend(table.words, 1 << 40, 1)
    assert allocator.borrow(table.words, 8, LARGE - 8, 1) > 0 and allocator.borrow(table.words, 8, LARGE - 7, 1) == -1
    assert allocator.borrow(table.words, next_, 8, 1) == -1 and allocator.lend(table.words, (1 << 40) + 3 * (LARGE + allocator.STAGGER), 1) == -1


BORN = """
import numpy as np
from refsgd.runtimes.arena import Arenas
from refsgd.runtimes.allocator import LARGE
arenas = Arenas(["peer0", "peer1"], 1 << 22)
mine, theirs = arenas.of(0), arenas.of(0)
before = np.full(LARGE, 1, np.uint8)
mine.adopt()
x, zeros = np.full(LARGE, 2, np.uint8), np.zeros(LARGE, np.uint8)
grown = np.full(LARGE, 3, np.uint8)
grown.resize(2 * LARGE, refcheck=False)
shrunk = np.full(2 * LARGE, 4, np.uint8)
shrunk.resize(100, refcheck=False)
at = [mine.place(1, a) for a in (x, zeros, before, x[5:], x[: LARGE - 1], grown)]
print(at[:2] == [0, at[1]], at[3] is None, at[4] is None, zeros.any(), (grown[:LARGE] == 3).all(), grown[LARGE:].any(), (shrunk == 4).all())
view = theirs.fetch(1, at[0], (LARGE,), np.dtype(np.uint8))
x[0] = 7  # a program must not; it shows that there is one memory
print(view[0], theirs.fetch(1, at[2], (LARGE,), np.dtype(np.uint8))[0])
del x
fresh = np.full(LARGE, 9, np.uint8)
print(view[0], mine.place(1, fresh) != at[0])
del view, fresh
print(mine.place(1, np.full(LARGE, 9, np.uint8)) == at[0])
many = [np.full(1 << 20, k, np.uint8) for k in range(8)]  # more than there is room for
print([int(a[-1]) for a in many] == list(range(8)), sum(mine.place(1, a) is not None for a in many) < 8)
"""


def test_numpy_makes_large_arrays_in_the_arena():
    """In a process of its own, as it stays so for its life."""
    done = subprocess.run([sys.executable, "-c", BORN], capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.split("\n") == [
        "True True True False True False True", "7 1", "7 True", "True", "True True", ""], done


def flood(other, count, size):
    for k in range(count):
        yield Send(other, Data(np.full(size, k, np.float32)))
    kept = []
    for _ in range(count):
        _, data = yield Recv(Data)
        kept.append(data.values)
    return [float(v[-1]) for v in kept]


@pytest.mark.parametrize("network", ["small rings", "small rings, no arena", "tcp"])
def test_two_nodes_flood_each_other_through_small_pipes(network, monkeypatch):
    """Twenty times two megabytes each way before either receives, and all of it is kept."""
    monkeypatch.setitem(processes.NETWORKS, "small rings", partial(Segment, ring=1 << 16))
    monkeypatch.setitem(processes.NETWORKS, "small rings, no arena", partial(Segment, ring=1 << 16, arena=False))
    values = run(lambda: {"peer0": Node(flood("peer1", 20, 500_000)), "peer1": Node(flood("peer0", 20, 500_000))},
                 transport=network, deadline=10.0).values
    assert values == {"peer0": list(range(20)), "peer1": list(range(20))}


def test_large_models_give_the_same_bits(transport):
    """1.7 MB a message: slots, rings and sockets agree with the simulator."""
    build = partial(exchange, n=3, d=431_080, steps=4)
    expected, got = simulate(build).values, run(build, transport=transport).values
    assert all(got[node].tobytes() == expected[node].tobytes() for node in expected)


def test_forty_workers(transport):
    """Many more processes than cores run to the end, and none is left."""
    result = run(partial(exchange, n=40, steps=3), Machine(compute="fixed(0.05)"), transport=transport)
    assert len(result.trace.marks("update")) == 3 and len(result.values) == 41


def test_only_who_was_answered_soon_looks_again_before_it_sleeps(ends, monkeypatch):
    """The core is left to others meanwhile; a long wait, an alarm's end and a bell without a message send the waiter to sleep at once."""
    a, b, _ = ends
    looks = 0

    def leave_the_core():
        nonlocal looks
        looks += 1

    def looked(timeout):
        nonlocal looks
        looks = 0
        if not b.soon(timeout):
            b.wait(timeout, [])
        return looks > 0

    monkeypatch.setattr(board, "SPIN", 0.01)
    monkeypatch.setattr(board.os, "sched_yield", leave_the_core)
    assert not looked(0.001)  # nobody has answered yet
    a.post("peer1", Data(1), 0, 1, 0, 0.0)
    assert not looked(1.0) and len(move(a, b, 1)) == 1  # it is there: this wait was short
    assert looked(0.03)  # in vain
    assert not looked(0.001)
    b.knock()
    assert not looked(1.0) and not looked(0.001)
    a.post("peer1", Data(2), 0, 1, 1, 0.0)
    assert not looked(1.0) and len(move(a, b, 1)) == 1
    monkeypatch.setattr(board.os, "sched_yield", lambda: a.post("peer1", Data(3), 0, 1, 2, 0.0))
    assert b.soon(1.0) and len(move(a, b, 1)) == 1  # seen without sleeping
    monkeypatch.setattr(board.os, "sched_yield", leave_the_core)
    assert looked(0.01) and looks <= board.LOOKS  # of thousands that fit


# -- cores -------------------------------------------------------------------------------------------------


def where(count):
    """Programs that return the cores on which their process may run."""
    def program():
        cores = yield Compute(os.sched_getaffinity, 0)
        return sorted(cores)

    return {f"peer{i}": Node(program()) for i in range(count)}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system keeps no process on a core")
def test_unpaced_processes_share_the_cores_out_where_there_is_one_for_each(transport):
    ours = sorted(os.sched_getaffinity(0))
    for count in {1, 2, len(ours)}:
        found = run(partial(where, count), transport=transport).values
        if count <= len(ours):
            assert sorted(core for cores in found.values() for core in cores) == ours and all(found.values())
    crowd = run(partial(where, len(ours) + 1), transport=transport).values
    paced = run(partial(where, 1), Machine(compute="fixed(0.01)"), transport=transport).values
    assert all(cores == ours for cores in [*crowd.values(), *paced.values()])
    assert sorted(os.sched_getaffinity(0)) == ours


# -- sockets -----------------------------------------------------------------------------------------------


def pair(secret_a, secret_b, caller=1, called=0, expected=(1,)):
    """A caller and a called side with their secrets; what each got."""
    listener = socket.create_server(("127.0.0.1", 0))
    out: dict[str, Any] = {}

    def calls():
        try:
            out["caller"] = tcp.call(listener.getsockname(), secret_a, caller, called, timeout=2.0)
        except (OSError, tcp.HandshakeError) as error:
            out["caller"] = error

    thread = threading.Thread(target=calls)
    thread.start()
    try:
        out["called"] = tcp.answer(listener, secret_b, 0, set(expected), timeout=1.0)
    except (OSError, tcp.HandshakeError) as error:
        out["called"] = error
    thread.join()
    listener.close()
    return out["caller"], out["called"]


def close(*things):
    for thing in things:
        for one in thing.values() if isinstance(thing, dict) else [thing]:
            if isinstance(one, socket.socket):
                one.close()


def test_who_knows_the_secret_is_let_in():
    """And both ends then carry bytes."""
    caller, called = pair(b"s" * 32, b"s" * 32)
    caller.sendall(b"hello")
    called[1].setblocking(True)
    assert called[1].recv(5) == b"hello"
    close(caller, called)


def test_who_does_not_know_the_secret_is_refused_on_both_sides(caplog):
    """The caller sees that the called side proves nothing; the called side drops the caller and logs it."""
    with caplog.at_level(logging.WARNING):
        caller, called = pair(b"s" * 32, b"t" * 32)
    assert isinstance(caller, tcp.HandshakeError) and "does not know the secret" in str(caller)
    assert isinstance(called, TimeoutError) and "not called by [1]" in str(called)
    assert any("refused a connection from 127.0.0.1:" in r.getMessage() for r in caplog.records)


def test_a_stranger_who_names_another_place_is_refused():
    """Only expected callers, each once, to the right place."""
    caller, called = pair(b"s" * 32, b"s" * 32, caller=5)
    assert isinstance(caller, tcp.HandshakeError) and isinstance(called, TimeoutError)
    caller, called = pair(b"s" * 32, b"s" * 32, called=3)
    assert isinstance(caller, tcp.HandshakeError) and isinstance(called, TimeoutError)


def test_a_reflected_proof_is_no_proof():
    """A called side that sends the caller's own challenge back, with whatever it likes, is refused."""
    listener = socket.create_server(("127.0.0.1", 0))

    def reflect():
        s, _ = listener.accept()
        hello = s.recv(tcp.HELLO.size)
        s.sendall(hello[-32:] + os.urandom(32))
        s.close()

    thread = threading.Thread(target=reflect)
    thread.start()
    with pytest.raises(tcp.HandshakeError):
        tcp.call(listener.getsockname(), b"s" * 32, 1, 0, timeout=2.0)
    thread.join()
    listener.close()


def test_strangers_do_not_disturb_a_run(caplog):
    """Silent ones, noisy ones and ones that leave, all before the peers have met."""
    strangers = []

    class Visited(tcp.Listeners):
        def __init__(self, *args):
            super().__init__(*args)
            for address in self.addresses.values():
                for said in (b"", b"GET / HTTP/1.0\r\n\r\n" * 20, tcp.MAGIC, os.urandom(400)):
                    s = socket.create_connection(address)
                    s.sendall(said)
                    strangers.append(s)
                strangers[-1].close()

    processes.NETWORKS["visited"] = Visited
    try:
        with caplog.at_level(logging.WARNING):
            result = run(partial(exchange, n=3, steps=5), transport="visited", deadline=10.0)
    finally:
        del processes.NETWORKS["visited"]
        close(*strangers)
    assert len(result.trace.marks("update")) == 5
    assert sum("refused a connection" in r.getMessage() for r in caplog.records) >= 8


def test_frames_of_others_end_the_run_with_their_origin():
    """A peer that has proved itself and then sends noise is named."""
    def main():
        yield Compute(abs, -1)
        yield Recv(Data)

    class Noisy(tcp.Listeners):
        def connect(self, host):
            sockets = super().connect(host)
            if host == "peer1":
                sockets._peers["peer0"].sendall(b"\xff" * 100)
            return sockets

    processes.NETWORKS["noisy"] = Noisy
    try:
        with pytest.raises(processes.RunFailed, match=r"peer0 .*WireError: from peer1 came a frame of"):
            run(lambda: {"peer0": Node(main()), "peer1": Node(main())}, transport="noisy", deadline=5.0)
    finally:
        del processes.NETWORKS["noisy"]


def test_a_frame_larger_than_the_run_needs_is_refused_before_memory_is_taken(monkeypatch):
    """Its head alone, with a description that fits it, as a peer in good standing could forge it; the largest allowed passes."""
    largest = 1 << 20

    def main(other, size):
        yield Send(other, Data(np.zeros(size, np.uint8)))
        _, data = yield Recv(Data)
        return data.values.size

    class Oversized(tcp.Listeners):
        def connect(self, host):
            self.largest = largest + 1 if host == "peer1" else largest  # peer1 would send what peer0 refuses
            return super().connect(host)

    monkeypatch.setattr(processes, "Listeners", Oversized)
    start = partial(run, transport="tcp", deadline=5.0, largest=largest)
    assert start({"peer0": Node(main("peer1", 3)), "peer1": Node(main("peer0", largest))}).values == {"peer0": largest, "peer1": 3}
    with pytest.raises(processes.RunFailed, match=rf"peer0 .*WireError: from peer1 came a frame of {largest + 1} bytes with .* at most {largest} "):
        start({"peer0": Node(main("peer1", 3)), "peer1": Node(main("peer0", largest + 1))})


def test_a_message_larger_than_the_run_needs_is_refused_by_its_sender(transport):
    """With its class and both sizes; memory, in which nobody is a stranger, takes it."""
    def main():
        yield Send("peer1", Data(np.zeros(2000, np.uint8)))

    def other():
        return (yield Recv(Data))[1].values.size

    programs = {"peer0": Node(main()), "peer1": Node(other())}
    if transport == "shm":
        assert run(programs, transport=transport, largest=1000).values["peer1"] == 2000
        return
    with pytest.raises(processes.RunFailed, match="peer0: .* sends a message Data of 2000 bytes .* at most 1000 "):
        run(programs, transport=transport, largest=1000, deadline=5.0)


def test_what_a_run_needs_follows_from_its_model():
    """A vector of every node fits, an unreasonable frame does not."""
    experiment = prepare("bsp", data="quadratic", workers=5, servers=2)
    nbytes = experiment.problem.x0.nbytes
    assert 7 * nbytes < experiment.largest_message < 15 * nbytes + (2 << 20)


def test_a_repeated_frame_ends_the_run():
    """Each message of a channel has its number: what comes twice, or too early, changes no run."""
    def sends():
        yield Send("peer1", Data(1))
        yield Recv(Data)

    def receives():
        while True:
            yield Recv(Data)

    class Repeats(tcp.Listeners):
        def connect(self, host):
            sockets = super().connect(host)
            post = sockets.post
            sockets.post = lambda *message: (post(*message), post(*message))
            return sockets

    processes.NETWORKS["repeats"] = Repeats
    try:
        with pytest.raises(processes.RunFailed, match=r"peer1 .*message 0 of peer0 to peer1 came twice or out of turn"):
            run(lambda: {"peer0": Node(sends()), "peer1": Node(receives())}, transport="repeats", deadline=5.0)
    finally:
        del processes.NETWORKS["repeats"]


def test_a_caller_that_dawdles_is_dropped_and_others_are_served(monkeypatch, caplog):
    """One byte a time, slower than the patience of the called side."""
    monkeypatch.setattr(tcp, "CALL", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    slow, done = socket.create_connection(listener.getsockname()), threading.Event()

    def dawdle():
        with contextlib.suppress(OSError):
            for byte in tcp.MAGIC * 10:
                slow.sendall(bytes([byte]))
                if done.wait(0.05):
                    break

    def late():
        done.wait(0.6)
        out.append(tcp.call(listener.getsockname(), b"s" * 32, 1, 0, timeout=2.0))

    out: list[Any] = []
    threads = [threading.Thread(target=dawdle), threading.Thread(target=late)]
    for thread in threads:
        thread.start()
    with caplog.at_level(logging.WARNING):
        found = tcp.answer(listener, b"s" * 32, 0, {1}, timeout=5.0)
    done.set()
    for thread in threads:
        thread.join()
    close(slow, found, *out)
    listener.close()
    assert list(found) == [1] and any("has not proved itself within 0.3 s" in r.getMessage() for r in caplog.records)


FAULTS = """
import resource
import numpy as np
from refsgd.effects import Compute, Node
from refsgd.runtimes import arena, processes

def main():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        yield Compute(lambda: [np.ones(1 << 18, np.float32) for _ in range(4)])
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

for transport in ("shm", "tcp"):
    print(processes.run({"worker0": Node(main())}, transport=transport).values["worker0"])

def refused(hosts):
    raise OSError

arena.Arenas = refused
print(processes.run({"worker0": Node(main())}, transport="tcp").values["worker0"])
processes.keep_memory = lambda: None
print(processes.run({"worker0": Node(main())}, transport="tcp").values["worker0"])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep what is freed, or not, as they like")
def test_fresh_vectors_use_memory_that_is_there():
    """Four of 1 MB have 1,024 pages, which without an arena and without `keep_memory` are faulted in each of 20 times."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=60)
    *arenas, kept, given_back = map(int, done.stdout.split())
    assert max(*arenas, kept) < 5 * 1024 and given_back > 10 * 1024
