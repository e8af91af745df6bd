"""Rings, blocks and sockets, each by itself and in runs that press on their limits."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Node, Recv, Send
from refsgd.experiment.prepare import prepare
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.processes import local as processes
from refsgd.runtimes.processes.local import run
from refsgd.runtimes.simulator import simulate
from refsgd.runtimes.transports import blocks, tcp, transport
from refsgd.runtimes.transports.blocks import LARGE, STAGGER, Pools
from refsgd.runtimes.transports.shared_memory import Rings, Segment
from refsgd.runtimes.transports.wire import WireError
from tests.runtimes.deployments import exchange

pytestmark = pytest.mark.usefixtures("few_draws_throughout")


class Data(NamedTuple):
    values: Any
    more: Any = None


HOSTS = ["peer0", "peer1", "peer2"]
PLACES = {host: frozenset([i]) for i, host in enumerate(HOSTS)}


@pytest.fixture(params=[False, True], ids=["rings", "blocks"])
def ends(request):
    """Both ends of small rings, in one process."""
    segment = Segment(HOSTS, PLACES, ring=4096, pool=request.param)
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


@pytest.fixture(scope="module")
def rings():
    """Both ends of small rings without blocks; what is left over from one message is met by the next."""
    segment = Segment(HOSTS, PLACES, ring=4096, pool=False)
    out = [Rings(segment, host) for host in HOSTS]
    yield out
    out.clear()
    gc.collect()
    segment.close()


@given(sizes=st.lists(st.integers(0, 30_000), min_size=1, max_size=8))
def test_messages_larger_than_the_ring_stream_through_it(rings, sizes):
    """In order and whole, whatever wraps where."""
    a, b, _ = rings
    for k, size in enumerate(sizes):
        a.post("peer1", Data(np.full(size, k, np.int32), k), 0, 1, k, 0.0)
    frames = move(a, b, len(sizes))
    assert [f.number
            for f in frames] == list(range(len(sizes))) and all((f.fields[0] == f.number).all()
                                                                for f in frames)
    assert [len(f.fields[0]) for f in frames] == sizes


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


FLOAT = np.dtype(np.float32)


@pytest.fixture
def pools():
    """Pools with room for two arrays of LARGE float32 each."""
    pools = Pools(HOSTS, 2 * (4 * LARGE + 4096))
    yield pools
    gc.collect()
    pools.close()


def lent(pool, to, array):
    """The block that a pool lends of an array; None if it streams."""
    loan = pool.lend(to, array)
    return None if loan is None else loan // pool._stride


def test_an_array_sent_to_many_is_copied_once(pools):
    """One block, two receivers; free when both have dropped it."""
    mine, theirs = pools.of(0), [pools.of(0), pools.of(0)]
    x, y, z = (np.full(LARGE, k, np.float32) for k in range(3))
    loans = [mine.lend(1, x), mine.lend(2, x)]
    assert loans == [blocks.LOANS, blocks.LOANS + 1] and lent(mine, 1, y) == 1
    assert lent(mine, 1, z) is None  # no room: it streams
    views = [theirs[k].borrow(k + 1, loans[k], x.shape, FLOAT) for k in range(2)]
    assert all((array == 0).all() and not array.flags.writeable for array in views)
    del x
    for _ in range(2):
        assert lent(mine, 2, z) is None  # somebody reads on
        views.pop()
    loan = mine.lend(2, z)
    assert loan == loans[0] and (theirs[1].borrow(2, loan, z.shape, FLOAT) == 2).all()
    mine.forget(1)
    assert [lent(mine, 2, np.zeros(LARGE, np.float32)) for _ in range(3)] == [0, 1, None]


def test_an_array_sent_to_one_receiver_again_is_not_copied_again(pools):
    """Several loans of one block: all end before it is used again; where none is left the array is copied."""
    mine, theirs, x = pools.of(0), pools.of(0), np.arange(LARGE, dtype=np.float32)
    most = len(HOSTS) + blocks.AGAIN
    views = [theirs.borrow(1, mine.lend(1, x), x.shape, FLOAT) for _ in range(most)]
    assert lent(mine, 1, x) == 1 and lent(mine, 1, x[1:]) is None
    for _ in range(most):
        assert all((view == x).all() for view in views)
        assert lent(mine, 2, x[1:]) is None
        views.pop()
    assert lent(mine, 2, x[1:]) == 0


def test_a_block_holds_an_array_in_the_order_of_its_elements(pools):
    """Columns before rows, and with gaps between."""
    mine, x = pools.of(0), np.arange(2 * LARGE, dtype=np.float32).reshape(256, -1)
    for array in (x[:, ::2].T, x[::2]):
        assert (pools.of(0).borrow(1, mine.lend(1, array), array.shape, FLOAT) == array).all()


def test_a_small_array_takes_a_large_block_where_there_is_no_better_one(pools):
    """Else one of at most twice its size; blocks begin at different places of a page."""
    mine, small = pools.of(0), [np.zeros(LARGE, np.uint8) for _ in range(20)]
    assert lent(mine, 1, np.zeros(LARGE, np.float32)) == 0 and lent(mine, 1, small[0]) == 1
    assert mine._words[mine._stride] == 4 * LARGE + STAGGER
    mine.forget(1)
    assert [lent(mine, 1, array) for array in small] == [1, 2, 3, 4, 0, *[None] * 15]


def test_small_and_huge_arrays_stream(pools):
    assert pools.of(0).lend(1, np.zeros(LARGE - 1, np.uint8)) is None
    assert pools.of(0).lend(1, np.zeros(9 * LARGE, np.uint8)) is None


def test_nobody_reads_what_was_not_lent(pools):
    """A forged message: no loan, another's, the table's own words, an array that is too large."""
    mine, theirs = pools.of(0), pools.of(0)
    loan = mine.lend(1, np.zeros(LARGE, np.uint8))
    for me, forged, shape in ((2, loan, (4,)), (1, loan + 1, (4,)), (1, loan + mine._stride, (4,)),
                              (1, loan, (LARGE // 4 + 1,)), (1, loan, (1 << 40, 1 << 40)), (1, 0, (4,)),
                              (LARGE - 1, blocks.ROOM, (4,)), (1, 1 << 62, (4,)), (1, -mine._stride, (4,))):
        with pytest.raises(WireError, match="which does not exist"):
            theirs.borrow(me, forged, shape, FLOAT)
    assert theirs.borrow(1, loan, (LARGE // 4,), FLOAT).size == LARGE // 4


def flood(other, count, size):
    for k in range(count):
        yield Send(other, Data(np.full(size, k, np.float32)))
    kept = []
    for _ in range(count):
        _, data = yield Recv(Data)
        kept.append(data.values)
    return [float(v[-1]) for v in kept]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["small rings", "small rings, no blocks", "tcp"])
def test_two_nodes_flood_each_other_through_small_pipes(network, monkeypatch):
    """Twenty times two megabytes each way before either receives, and all of it is kept."""
    monkeypatch.setitem(processes.TRANSPORTS, "small rings", partial(Segment, ring=1 << 16))
    monkeypatch.setitem(processes.TRANSPORTS, "small rings, no blocks",
                        partial(Segment, ring=1 << 16, pool=False))
    values = run(lambda: {"peer0": Node(flood("peer1", 20, 500_000)),
                          "peer1": Node(flood("peer0", 20, 500_000))},
                 transport=network, deadline=10.0).values
    assert values == {"peer0": list(range(20)), "peer1": list(range(20))}


def test_large_models_give_the_same_bits(transport):
    """1.7 MB a message: blocks, rings and sockets agree with the simulator."""
    build = partial(exchange, n=3, d=431_080, steps=4)
    expected, got = simulate(build).values, run(build, transport=transport).values
    assert all(got[node].tobytes() == expected[node].tobytes() for node in expected)


@pytest.mark.slow
def test_forty_workers(transport):
    """Many more processes than cores run to the end, and none is left."""
    result = run(partial(exchange, n=40, steps=3), Machine(compute="fixed(0.05)"), transport=transport)
    assert len(result.trace.marks("update")) == 3 and len(result.values) == 41


def test_only_who_was_answered_soon_looks_again_before_it_sleeps(ends, monkeypatch):
    """The core is left to others meanwhile; a long wait, an alarm's end and a wake-up without a message send
    the waiter to sleep at once."""
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

    monkeypatch.setattr(transport, "SPIN", 0.01)
    monkeypatch.setattr(transport.os, "sched_yield", leave_the_core)
    assert not looked(0.001)  # nobody has answered yet
    a.post("peer1", Data(1), 0, 1, 0, 0.0)
    assert not looked(1.0) and len(move(a, b, 1)) == 1  # it is there: this wait was short
    assert looked(0.03)  # in vain
    assert not looked(0.001)
    b.knock()
    assert not looked(1.0) and not looked(0.001)
    a.post("peer1", Data(2), 0, 1, 1, 0.0)
    assert not looked(1.0) and len(move(a, b, 1)) == 1
    monkeypatch.setattr(transport.os, "sched_yield", lambda: a.post("peer1", Data(3), 0, 1, 2, 0.0))
    assert b.soon(1.0) and len(move(a, b, 1)) == 1  # seen without sleeping
    monkeypatch.setattr(transport.os, "sched_yield", leave_the_core)
    assert looked(0.01) and looks <= transport.LOOKS  # of thousands that fit


# -- cores -------------------------------------------------------------------------------------------------


def where(count):
    """Programs that return the cores on which their process may run."""
    def program():
        cores = yield Compute(os.sched_getaffinity, 0)
        return sorted(cores)

    return {f"peer{i}": Node(program()) for i in range(count)}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system keeps no process on a core")
def test_unpaced_processes_share_the_cores_out_where_there_is_one_for_each(usual):
    ours = sorted(os.sched_getaffinity(0))
    for count in {1, 2, len(ours)}:
        found = run(partial(where, count), transport=usual).values
        if count <= len(ours):
            assert sorted(core for cores in found.values() for core in cores) == ours and all(found.values())
    crowd = run(partial(where, len(ours) + 1), transport=usual).values
    paced = run(partial(where, 1), Machine(compute="fixed(0.01)"), transport=usual).values
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
        out["called"] = tcp.answer(listener, secret_b, 0, expected, timeout=1.0)
    except (OSError, tcp.HandshakeError) as error:
        out["called"] = error
    thread.join()
    listener.close()
    return out["caller"], out["called"]


def close(*things):
    for thing in things:
        thing.close()


def test_who_knows_the_secret_is_let_in():
    """And both ends then carry bytes."""
    caller, called = pair(b"s" * 32, b"s" * 32)
    caller.sendall(b"hello")
    called[0].setblocking(True)
    assert called[0].recv(5) == b"hello"
    close(caller, *called)


def test_who_does_not_know_the_secret_is_refused_on_both_sides(caplog):
    """The caller sees that the called side proves nothing; the called side drops the caller and logs it."""
    with caplog.at_level(logging.INFO):
        caller, called = pair(b"s" * 32, b"t" * 32)
    assert isinstance(caller, tcp.HandshakeError) and "does not know the secret" in str(caller)
    assert isinstance(called, TimeoutError) and "not called by [1]" in str(called)
    assert any("refused a connection from 127.0.0.1:" in r.getMessage() for r in caplog.records)


@pytest.mark.slow
def test_a_stranger_who_names_another_place_is_refused():
    """Only expected callers, each once, to the right place."""
    caller, called = pair(b"s" * 32, b"s" * 32, caller=5)
    assert isinstance(caller, tcp.HandshakeError) and isinstance(called, TimeoutError)
    caller, called = pair(b"s" * 32, b"s" * 32, called=3)
    assert isinstance(caller, tcp.HandshakeError) and isinstance(called, TimeoutError)


def test_a_reflected_proof_is_no_proof():
    """A called side that sends the caller's own proof back is refused."""
    listener = socket.create_server(("127.0.0.1", 0))

    def reflect():
        s, _ = listener.accept()
        hello = s.recv(tcp.HELLO.size)
        s.sendall(hello[-32:])
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

    processes.TRANSPORTS["visited"] = Visited
    try:
        with caplog.at_level(logging.INFO):
            result = run(partial(exchange, n=3, steps=5), transport="visited", deadline=10.0)
    finally:
        del processes.TRANSPORTS["visited"]
        close(*strangers)
    assert len(result.trace.marks("update")) == 5
    assert sum("refused a connection" in r.getMessage() for r in caplog.records) >= 8
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warned) == 1 and "connections from strangers" in warned[0], warned


def test_where_no_more_files_can_be_opened_the_oldest_stranger_leaves_or_the_limit_is_named():
    class Full(socket.socket):
        """A listener without a free descriptor at some of its calls."""

        calls, full = 0, ()

        def accept(self):
            self.calls += 1
            if self.calls in self.full or not self.full:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    def answered(full):
        refused = []
        with Full() as listener:
            listener.full = full
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            with socket.create_connection(listener.getsockname()):
                caller = threading.Timer(0.2, lambda: kept.append(tcp.call(listener.getsockname(), b"s", 1, 0)))
                if full:
                    caller.start()
                found = tcp.answer(listener, b"s", 0, [1], timeout=5.0, refuse=lambda: refused.append(1))
                if full:
                    caller.join()  # its socket is closed below
        close(*found)
        return len(refused)

    kept = []
    assert answered((2,)) == 1
    close(*kept)
    began = time.process_time()
    with pytest.raises(OSError, match=r"cannot accept a connection \(Too many open files\); .* ulimit -n"):
        answered(())
    assert time.process_time() - began < 0.5


def test_a_command_says_once_that_strangers_have_called_and_nothing_if_it_is_to_be_quiet(caplog, monkeypatch):
    real = tcp.Listeners.__init__

    def visited(self, *args, **more):
        real(self, *args, **more)
        for address in self.addresses.values():
            with socket.create_connection(address) as s:
                s.sendall(b"GET / HTTP/1.0\r\n\r\n" * 20)

    monkeypatch.setattr(tcp.Listeners, "__init__", visited)
    command = ["run", "bsp", "--data", "quadratic", "--steps", "2", "--runtime", "tcp", "--compute", "none"]
    for quiet, lines in (([], 1), (["--quiet"], 0)):
        caplog.clear()
        assert main([*command, *quiet]) == 0
        assert [r.levelname for r in caplog.records if r.name == "refsgd.tcp"] == ["WARNING"] * lines


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

    processes.TRANSPORTS["noisy"] = Noisy
    try:
        with pytest.raises(RunFailed, match=r"peer0 .*WireError: peer1 sent a frame of"):
            run(lambda: {"peer0": Node(main()), "peer1": Node(main())}, transport="noisy", deadline=5.0)
    finally:
        del processes.TRANSPORTS["noisy"]


def test_a_frame_larger_than_the_run_needs_is_refused_before_memory_is_taken(monkeypatch):
    """Its head alone, with a description that fits it, as a peer in good standing could forge it; the
    largest allowed passes."""
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
    assert start({"peer0": Node(main("peer1", 3)), "peer1": Node(main("peer0", largest))}).values == {
        "peer0": largest, "peer1": 3}
    with pytest.raises(RunFailed,
                       match=rf"peer0 .*WireError: peer1 sent a frame of {largest + 1} bytes with .* at "
                             rf"most {largest} "):
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
    with pytest.raises(RunFailed,
                       match="peer0: .* sends a message Data of 2000 bytes .* at most 1000 "):
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

    processes.TRANSPORTS["repeats"] = Repeats
    try:
        with pytest.raises(RunFailed,
                           match=r"peer1 .*message 0 of peer0 to peer1 arrived twice or out of order"):
            run(lambda: {"peer0": Node(sends()), "peer1": Node(receives())}, transport="repeats",
                deadline=5.0)
    finally:
        del processes.TRANSPORTS["repeats"]


@pytest.mark.alone  # the other caller comes 0.3 s after the patience has ended
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
    refused: list[int] = []
    with caplog.at_level(logging.INFO):
        found = tcp.answer(listener, b"s" * 32, 0, [1], timeout=5.0, refuse=lambda: refused.append(1))
    done.set()
    for thread in threads:
        thread.join()
    close(slow, *found, *out)
    listener.close()
    (record,) = (r for r in caplog.records if "has not proved itself within 0.3 s" in r.getMessage())
    assert len(found) == len(refused) == 1 and record.levelno == logging.INFO  # the launcher counts and warns


FAULTS = """
import resource
import numpy as np
from refsgd.effects import Compute, Node
from refsgd.runtimes.processes import child
from refsgd.runtimes.processes import local as processes

def main():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        yield Compute(lambda: [np.ones(1 << 18, np.float32) for _ in range(4)])
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

for transport in ("shm", "tcp"):
    print(processes.run({"worker0": Node(main())}, transport=transport).values["worker0"])
child.keep_memory = lambda: None
print(processes.run({"worker0": Node(main())}, transport="tcp").values["worker0"])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc",
                    reason="other allocators keep what is freed, or not, as they like")
def test_fresh_vectors_use_memory_that_is_there():
    """Four of 1 MB have 1,024 pages, which without `keep_memory` are faulted in each of 20 times."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=60)
    *kept, given_back = map(int, done.stdout.split())
    assert max(kept) < 5 * 1024 and given_back > 10 * 1024
