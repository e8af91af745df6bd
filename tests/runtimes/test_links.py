"""Links that several nodes share, in virtual time and between paced processes: cases counted by hand, and a lock
that no death leaves held."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Deployment, Node, Recv, Send
from refsgd.runtimes.processes.local import run
from refsgd.runtimes.processes.shared import GroupLinks
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Received
from tests.paced import as_simulated, slipped

M = 50_000  # bytes of a message


class Data(NamedTuple):
    x: Any


def node(to=(), expects=0):
    """Computes, sends to each of `to`, and receives so many messages."""
    def program():
        yield Compute(abs, -1)
        for other in to:
            yield Send(other, Data(np.zeros(M, np.uint8)))
        for _ in range(expects):
            yield Recv(Data)
    return Node(program())


def to_one(n):
    """n workers send to one more, the last."""
    return {f"worker{i}": node([f"worker{n}"]) for i in range(n)} | {f"worker{n}": node(expects=n)}


def across(n):
    """Worker i sends to worker n + i."""
    return {f"worker{i}": node([f"worker{n + i}"]) for i in range(n)} | {
        f"worker{n + i}": node(expects=1) for i in range(n)}


def both_ways():
    return {"worker0": node(["worker1"], 1), "worker1": node(["worker0"], 1)}


def beside():
    """Workers 0 and 1 send to the server, which is on the host of worker 0 and answers both."""
    def serve():
        for _ in range(2):
            src, _ = yield Recv(Data)
            yield Send(src, Data(np.zeros(M, np.uint8)))
    return {f"worker{i}": node(["server0"], 1) for i in range(2)} | {"server0": Node(serve(), role="server")}


class Case(NamedTuple):
    """Programs, machine, and when messages arrive [s]; every node computes for 50 ms first.

    A message takes 50 ms on a link between hosts, and the latency is 10 ms.
    """

    build: Callable[[], Deployment]
    machine: Machine
    arrivals: list[float]


flat = Machine(compute="fixed(0.05)", latency=0.01, bandwidth=1e6)
CASES = {
    "four senders of one host": Case(
        partial(to_one, 4), flat.with_(hosts="2x4"), [0.05 + 0.01 + 0.05 * k for k in (1, 2, 3, 4)]),
    # the server's answer to worker 0 takes no link, that to worker 1 the outgoing one of their host
    "worker and server on one host": Case(
        beside, flat.with_(hosts=(("worker0", "server0"), ("worker1",))), [0.05, 0.05, 0.11, 0.17]),
    # the links inside are each node's own: 25 ms a message and 5 ms
    "worker and server on one host with links inside": Case(
        beside, flat.with_(hosts=(("worker0", "server0"), ("worker1",)), inside="5ms,2MB/s"),
        [0.08, 0.11, 0.11, 0.17]),
    "two pairs inside a host": Case(
        partial(across, 2), flat.with_(hosts="1x4", inside="5ms,2MB/s"), [0.08, 0.08]),
    # heads reach the uplink at 60 ms, where each message takes 100 ms, and 30 ms to the other group
    "two groups with one uplink": Case(
        partial(across, 3), flat.with_(groups="2x3", uplink="30ms,500kB/s"),
        [0.05 + 0.01 + 0.03 + 0.1 * k for k in (1, 2, 3)]),
    "two groups of two hosts, each of two workers": Case(
        partial(across, 4), flat.with_(hosts="4x2", groups="2x2", uplink="30ms,500kB/s"),
        [0.05 + 0.01 + 0.03 + 0.1 * k for k in (1, 2, 3, 4)]),
    # the tail comes from the slow link of a host, however fast those of groups are
    "a fast uplink": Case(
        partial(across, 1), flat.with_(groups="2x1", uplink="30ms,1GB/s"), [0.05 + 0.01 + 0.03 + 0.05]),
    "both ways": Case(both_ways, flat, [0.11, 0.11]),
    # a head that comes while the own message leaves waits for it
    "both ways, half duplex": Case(both_ways, flat.with_(duplex="half"), [0.15, 0.15]),
    "both ways inside a host, half duplex": Case(
        both_ways, flat.with_(hosts="1x2", inside="5ms,2MB/s,half"), [0.1, 0.1]),
    # the uplink of either group serves both messages, one after the other; each waits at the first and then
    # at the second for the other one
    "both ways between groups, half duplex": Case(
        both_ways, flat.with_(groups="2x1", uplink="30ms,500kB/s,half"), [0.26, 0.26]),
}


def arrivals(found):
    return sorted(event.arrival for event in found.trace.of(Received))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_messages_arrive_in_virtual_time_as_counted_by_hand(case):
    assert arrivals(simulate(case.build, case.machine)) == pytest.approx(case.arrivals, rel=1e-12)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_messages_of_paced_processes_arrive_as_counted_by_hand(transport, name):
    """Within 5 %, each of them; nominal times are no invention, the clock on the wall saw them too."""
    case = CASES[name]
    began = time.monotonic()
    found, expected = run(case.build, case.machine, transport=transport), simulate(case.build, case.machine)
    took, slips = time.monotonic() - began, slipped(found.trace)
    for arrival, counted in zip(arrivals(found), case.arrivals, strict=True):
        assert as_simulated(arrival, counted, slips)
    assert max(case.arrivals) * 0.99 < took
    assert as_simulated(found.trace.seconds, expected.trace.seconds, slips)
    assert {(use.link, use.src, use.to) for use in found.trace.links} == {
        (use.link, use.src, use.to) for use in expected.trace.links}
    assert found.trace.wires == expected.trace.wires
    assert found.trace.hosts == expected.trace.hosts
    assert found.trace.shared_links == expected.trace.shared_links


def test_a_link_serves_one_message_at_a_time(transport):
    """Of a burst over an uplink that six processes serve: no two uses overlap, none is lost, the link rests not."""
    def burst(n=3, count=20):
        return {f"worker{i}": node([f"worker{n + (i + k) % n}" for k in range(count)]) for i in range(n)} | {
            f"worker{n + i}": node(expects=count) for i in range(n)}

    machine = Machine(compute="fixed(0.01)", bandwidth=1e9, groups="2x3", uplink="0,100MB/s")
    found = run(burst, machine, transport=transport).trace
    names = Network(machine, burst()).links
    for name in ("group0 up", "group1 down"):
        uses = sorted((u.start, u.end) for u in found.links if names[u.link] == name)
        assert len(uses) == 60
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(uses))
        assert uses[-1][1] >= uses[0][0] + 60 * M / 100e6 - 1e-9


# -- what several processes serve --------------------------------------------------------------------------


class Unlocked(GroupLinks):
    """A wrong one: between its look and its store another process may serve."""

    def serve(self, link, head, seconds):
        start = max(head, self.times()[0])
        time.sleep(1e-4)  # all of them are between the two at times, on a busy machine too
        self.times()[0] = start + seconds
        return start


def serving(groups, count, out):
    for _ in range(count):
        os.write(out, b"%d " % groups.serve(7, 0.0, 1.0))


def served_by(kind, processes=3, count=300):
    """The starts that some processes were told by one link, on which each message takes a second."""
    groups, (read, write) = kind([7]), os.pipe()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=serving, args=(groups, count, write)) for _ in range(processes)]
    for child in children:
        child.start()
    os.close(write)
    with os.fdopen(read) as lines:
        text = lines.read()
    for child in children:
        child.join()
        child.close()
    groups.close()
    return sorted(map(int, text.split()))


def test_processes_that_serve_one_link_lose_nothing():
    assert served_by(GroupLinks) == list(range(900))
    assert len(set(served_by(Unlocked))) < 900


def test_a_process_that_dies_while_it_serves_holds_up_nobody():
    """Killed with the lock in hand, before or after its store."""
    import fcntl

    def dies(groups, late):
        def ends(file, how):
            if how == fcntl.LOCK_EX:
                fcntl.lockf(file, how)
            if how == (fcntl.LOCK_UN if late else fcntl.LOCK_EX):
                os.kill(os.getpid(), signal.SIGKILL)

        groups._lock._lockf = ends
        groups.serve(7, 0.0, 1.0)

    for late in (False, True):
        groups = GroupLinks([3, 7])
        assert groups.serve(7, 0.5, 1.0) == 0.5
        child = multiprocessing.get_context("fork").Process(target=dies, args=(groups, late))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        child.close()
        assert groups.serve(7, 0.0, 1.0) == 1.5 + late and groups.serve(3, 0.0, 1.0) == 0.0
        groups.close()
