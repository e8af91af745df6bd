"""Links inside hosts, between hosts and between groups: hand-computed times, properties, and wrong links that they catch."""

from heapq import heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cluster.links import Hop, Link, Network
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Node, Recv, Send
from refsgd.runtimes.engine import ARRIVE
from refsgd.runtimes.simulator import Simulator
from refsgd.trace import Received, Sent


class Note(NamedTuple):
    body: np.ndarray


def note(nbytes):
    return Note(np.zeros(nbytes // 4, np.float32))


def sender(*messages):
    """Sends (to, bytes) one after the other; a number is a pause in seconds."""
    for message in messages:
        if isinstance(message, tuple):
            yield Send(message[0], note(message[1]))
        else:
            yield Compute(int, message, kind=f"pause {message}")


def sink(count):
    for _ in range(count):
        yield Recv(Note)


class Paused(Simulator):
    """A Compute of kind "pause 3" takes 3 seconds."""

    def _duration(self, task, kind, nbytes=0):
        return float(kind.removeprefix("pause "))


def deployment(workers, servers=(), **counts):
    """Workers that send lists of messages; each worker in `counts` receives that many."""
    nodes = {f"worker{i}": list(messages) for i, messages in enumerate(workers)}
    nodes |= {f"server{k}": list(messages) for k, messages in enumerate(servers)}
    return {name: Node(sender(*messages), [sink(counts[name])] if name in counts else [],
                       role="server" if name.startswith("server") else "worker")
            for name, messages in nodes.items()}


def arrivals(machine, nodes, simulator=Paused):
    """(from, to, arrival) of every message, in order of arrival."""
    found = [(e.src, e.node, e.arrival) for e in simulator(nodes, machine).run().trace.of(Received)]
    return sorted(found, key=lambda message: message[2])


# -- times by hand: 100 bytes take 2 s at 50 bytes/s -------------------------------------------------------


def test_n_senders_of_one_host_take_n_m_over_b_on_its_outgoing_link():
    for n in (1, 2, 5):
        nodes = deployment([[("server0", 100)]] * n, [[]], server0=n)
        found = arrivals(Machine(latency=3, bandwidth=50, hosts=f"1x{n}"), nodes)
        assert [time for _, _, time in found] == [3 + 2.0 * (i + 1) for i in range(n)]
        assert [src for src, _, _ in found] == [f"worker{i}" for i in range(n)]


def test_n_senders_on_hosts_of_their_own_take_n_m_over_b_on_the_servers_incoming_link():
    nodes = deployment([[("server0", 100)]] * 3, [[]], server0=3)
    assert [t for *_, t in arrivals(Machine(latency=3, bandwidth=50), nodes)] == [5.0, 7.0, 9.0]


def test_a_worker_and_a_server_on_one_host_share_its_links_and_exchange_for_free():
    """Worker 0 beside the server: its message is there at once; that of worker 1, on the other host, waits for none."""
    machine = Machine(latency=3, bandwidth=50, hosts="cyclic:2")
    nodes = deployment([[("server0", 100)], [("server0", 100)]], [[("worker1", 100), ("worker0", 100)]],
                       server0=2, worker0=1, worker1=1)
    assert arrivals(machine, nodes) == [("worker0", "server0", 0.0), ("server0", "worker0", 0.0),
                                        ("worker1", "server0", 5.0), ("server0", "worker1", 5.0)]


def test_the_server_and_the_worker_beside_it_queue_on_their_hosts_outgoing_link():
    machine = Machine(latency=3, bandwidth=50, hosts="cyclic:2")
    nodes = deployment([[("worker1", 100)], []], [[("worker1", 100)]], worker1=2)
    assert arrivals(machine, nodes) == [("worker0", "worker1", 5.0), ("server0", "worker1", 7.0)]


def test_inside_a_host_each_node_has_links_of_its_own():
    """To one node two messages queue, from and to others they do not; another host's link is not involved."""
    machine = Machine(latency=3, bandwidth=50, hosts="1x4", inside=Link(1, 100))
    nodes = deployment([[("worker2", 100)], [("worker2", 100), ("worker3", 100)], [], []], worker2=2, worker3=1)
    assert arrivals(machine, nodes) == [("worker0", "worker2", 2.0), ("worker1", "worker2", 3.0),
                                        ("worker1", "worker3", 3.0)]


def test_a_message_to_itself_needs_no_link():
    machine = Machine(latency=3, bandwidth=50, hosts="1x1", inside=Link(1, 100))
    assert arrivals(machine, deployment([[("worker0", 100)]], worker0=1)) == [("worker0", "worker0", 0.0)]


GROUPS = {"latency": 1, "bandwidth": 50, "groups": ((0, 1), (2, 3))}


def test_two_groups_with_a_slow_uplink_queue_on_it():
    """Heads reach the uplink at 1; it takes 100 / 25 = 4 s for each; heads leave at 1 and 5, 10 s up to down."""
    machine = Machine(**GROUPS, uplink=Link(10, 25))
    nodes = deployment([[("worker2", 100)], [("worker3", 100)], [], []], worker2=1, worker3=1)
    assert arrivals(machine, nodes) == [("worker0", "worker2", 1 + 10 + 4.0), ("worker1", "worker3", 1 + 4 + 10 + 4.0)]


def test_two_messages_overlap_on_a_fast_uplink():
    """Each comes at 50 bytes/s over an uplink of 100: the second's head waits 1 s, its tail not at all."""
    machine = Machine(**GROUPS, uplink=Link(10, 100))
    nodes = deployment([[("worker2", 100)], [("worker3", 100)], [], []], worker2=1, worker3=1)
    assert arrivals(machine, nodes) == [("worker0", "worker2", 1 + 10 + 2.0), ("worker1", "worker3", 1 + 1 + 10 + 2.0)]


def test_the_tail_does_not_wait_where_the_head_has_waited_as_long_as_the_tail_is_late():
    """Three over the uplink: heads leave at 1, 2, 3; the third's tail, due at 3, leaves when the link has passed it."""
    machine = Machine(latency=1, bandwidth=50, groups=((0, 1, 2), (3, 4, 5)), uplink=Link(0, 100))
    nodes = deployment([[("worker3", 100)], [("worker4", 100)], [("worker5", 100)], [], [], []],
                       worker3=1, worker4=1, worker5=1)
    # host's link in: 2 s a message from its head, which leaves up and down links at once
    assert [t for *_, t in arrivals(machine, nodes)] == [3.0, 4.0, 5.0]


def test_messages_within_a_group_do_not_use_the_uplink():
    machine = Machine(**GROUPS, uplink=Link(10, 1))
    nodes = deployment([[("worker1", 100)], [], [], [("worker2", 100)]], worker1=1, worker2=1)
    assert [t for *_, t in arrivals(machine, nodes)] == [3.0, 3.0]


def test_the_downlink_of_a_group_is_shared_by_its_hosts():
    machine = Machine(latency=1, bandwidth=50, groups=((0,), (1,), (2, 3)), uplink=Link(10, 25))
    nodes = deployment([[("worker2", 100)], [("worker3", 100)], [], []], worker2=1, worker3=1)
    assert [t for *_, t in arrivals(machine, nodes)] == [15.0, 19.0]


@pytest.mark.parametrize("machine, full, half", [
    # between hosts: worker 0's message arrives at worker 1's link at 1, which is busy with its own until 2
    (Machine(latency=1, bandwidth=50), [3.0, 3.0], [4.0, 4.0]),
    # inside: each node's link is busy with its own message when the other's head comes
    (Machine(hosts="1x2", inside=Link(1, 50)), [3.0, 3.0], [4.0, 4.0]),
    # uplinks: heads at 1; up link 1 to 5; the other head is down at 1 + 1, and waits for it until 5
    (Machine(latency=1, bandwidth=50, groups=((0,), (1,)), uplink=Link(1, 25)), [6.0, 6.0], [9.0, 9.0])])
def test_half_duplex_at_each_level(machine, full, half):
    def found(m):
        return [t for *_, t in arrivals(m, deployment([[("worker1", 100)], [("worker0", 100)]], worker0=1, worker1=1))]

    assert found(machine) == full
    if machine.inside is not None:
        assert found(machine.with_(inside=Link(1, 50, "half"))) == half
    elif machine.groups:
        assert found(machine.with_(uplink=Link(1, 25, "half"))) == half
    else:
        assert found(machine.with_(duplex="half")) == half


def test_a_link_serves_heads_as_they_arrive_not_as_they_were_sent():
    """Worker 0 sends first, behind 8 s of its host's link; worker 1's head is at the uplink long before."""
    machine = Machine(**GROUPS, uplink=Link(10, 25))
    nodes = deployment([[("worker1", 400), ("worker2", 100)], [1, ("worker3", 100)], [], []], worker1=1, worker2=1,
                       worker3=1)
    found = [m for m in arrivals(machine, nodes) if m[1] != "worker1"]
    assert found == [("worker1", "worker3", 1 + 1 + 10 + 4.0), ("worker0", "worker2", 8 + 1 + 10 + 4.0)]


def test_an_unlimited_link_adds_its_latency_only():
    for uplink, expected in ((Link(10), 1 + 10 + 2.0), (Link(), 1 + 2.0)):
        machine = Machine(**GROUPS, uplink=uplink)
        nodes = deployment([[("worker2", 100)], [], [], []], worker2=1)
        assert [t for *_, t in arrivals(machine, nodes)] == [expected]
    free = Machine(latency=1, groups=((0, 1), (2, 3)), uplink=Link(10, 25))
    nodes = deployment([[("worker2", 100)], [], [], []], worker2=1)
    assert [t for *_, t in arrivals(free, nodes)] == [1 + 10 + 4.0]


# -- the network itself ------------------------------------------------------------------------------------


def test_the_way_of_a_message_and_the_names_of_links():
    nodes = deployment([[]] * 4, [[]])
    network = Network(Machine(latency=1, bandwidth=50, hosts=(("worker0", "server0"), ("worker1",), ("worker2",),
                                                              ("worker3",)),
                              inside=Link(0.5, 100, "half"), groups=((0, 1), (2, 3)), uplink=Link(10, 25)), nodes)
    names = [(network.links[hop.link], hop.byte_time, hop.latency_after) for hop in network.way("worker0", "worker2")]
    assert names == [("host0 out", 0.02, 1), ("group0 up", 0.04, 10), ("group1 down", 0.04, 0), ("host2 in", 0.02, 0)]
    assert [network.links[hop.link] for hop in network.way("worker0", "server0")] == ["worker0 inside",
                                                                                      "server0 inside"]
    assert {network.links[i] for i in network.shared} == {"group0 up", "group0 down", "group1 up", "group1 down"}
    assert network.way("worker0", "worker0") == () and not network.flat
    assert network.hosts == ["host0", "host1", "host2", "host3"]


def test_a_flat_network_has_the_links_of_its_hosts_only():
    network = Network(Machine(bandwidth=50, latency=1), deployment([[], []]))
    assert network.flat and not network.shared
    assert network.links == ["worker0 out", "worker0 in", "worker1 out", "worker1 in"]
    assert network.way("worker1", "worker0") == (Hop(2, 0.02, 1.0), Hop(1, 0.02, 0.0))
    assert Network(Machine(), deployment([[], []])).way("worker1", "worker0") == (Hop(2, 0.0, 0.0),)


# -- properties --------------------------------------------------------------------------------------------

FIGURES = {"latency": st.sampled_from([0.0, 0.1, 0.7]), "bandwidth": st.sampled_from([30.0, 70.0, 1000.0, float("inf")]),
           "duplex": st.sampled_from(["full", "half"])}
LINKS = st.builds(Link, **FIGURES)
SENDS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from([4, 40, 52, 400]),
                           st.sampled_from([0, 0, 0.3, 1.1])), min_size=1, max_size=25)


def busy(sends):
    """Six workers; each sends its messages in order, some after a pause."""
    out, counts = [[] for _ in range(6)], {}
    for src, to, nbytes, pause in sends:
        out[src] += [*([pause] if pause else []), (f"worker{to}", nbytes)]
        counts[f"worker{to}"] = counts.get(f"worker{to}", 0) + 1
    return deployment(out, **counts)


@st.composite
def machines(draw):
    figures = draw(LINKS)
    hosts = draw(st.sampled_from(["", "6x1", "3x2", "2x3", "cyclic:3", "1x6"]))
    groups = draw(st.sampled_from([(), ((0, 1, 2, 3, 4, 5),), ((0, 2, 4), (1, 3, 5)), "3x2"]))
    return Machine(latency=figures.latency, bandwidth=figures.bandwidth, duplex=figures.duplex, hosts=hosts,
                   inside=draw(st.none() | LINKS), groups=groups, uplink=draw(LINKS) if groups else None)


def hops(machine, nodes, trace):
    """Of each message (src, to, number) the links that served it: (link, head's arrival, start, end)."""
    network = Network(machine, nodes)
    sent = {}
    for pair in {(e.node, e.to) for e in trace.of(Sent)}:
        way = network.way(*pair)
        uses = [[u for u in trace.links if (u.src, u.to) == pair and u.link == hop.link] for hop in way]
        for n, event in enumerate(e for e in trace.of(Sent) if (e.node, e.to) == pair):
            head, found = event.time, []
            for hop, served in zip(way, uses):
                found.append((hop.link, head, served[n].start, served[n].end))
                head = served[n].start + hop.latency_after
            sent[*pair, event.number] = event, way, found
    return sent


def check(machine, nodes, simulator=Paused):
    """Everything that a network promises; AssertionError names what is broken."""
    trace = simulator(nodes, machine).run().trace
    got = {(e.src, e.node, e.number): e.arrival for e in trace.of(Received)}
    if Network(machine, nodes).flat:
        return
    sent, served = hops(machine, nodes, trace), {}
    for event, way, found in sent.values():
        for hop, (link, head, start, end) in zip(way, found):
            assert start >= head, "served before its head is there"
            assert end - start == pytest.approx(event.nbytes * hop.byte_time), "more than the bandwidth"
            served.setdefault(link, []).append((start, end, head))
    for uses in served.values():
        uses.sort()
        for (_, end, before), (start, _, after) in pairwise(uses):
            assert start >= end, "two messages at once"
            assert before <= after, "a head that came later is served first"
    for (src, to, number), (event, way, _) in sent.items():
        arrival = got[src, to, number]
        latency, slowest = sum(h.latency_after for h in way), max((h.byte_time for h in way), default=0.0)
        assert arrival >= (event.start + latency + event.nbytes * slowest) * (1 - 1e-12), "faster than its slowest link"
        assert arrival >= got.get((src, to, number - 1), 0.0), "overtaken in its channel"


@given(machine=machines(), sends=SENDS)
def test_links_keep_their_promises(machine, sends):
    check(machine, busy(sends))


@given(sends=SENDS, figures=LINKS, servers=st.booleans())
def test_with_equal_figures_a_host_a_group_and_the_flat_machine_agree_to_the_last_bit(sends, figures, servers):
    """All hosts in one group; each in a group with a free uplink; all nodes on one host with the link inside."""
    flat = Machine(latency=figures.latency, bandwidth=figures.bandwidth, duplex=figures.duplex)
    others = [message for message in sends if message[0] != message[1]] or [(0, 1, 4, 0)]
    expected = Paused(busy(others), flat).run().trace.events
    for same in (flat.with_(hosts="6x1"), flat.with_(groups="1x6", uplink=Link(1.0, 1.0)),
                 flat.with_(groups="6x1", uplink=Link()), Machine(hosts="1x6", inside=figures)):
        assert Paused(busy(others), same).run().trace.events == expected


# -- wrong links -------------------------------------------------------------------------------------------


class InOrderOfSends(Paused):
    """Books all links of a way when a message is sent."""

    def post(self, task, to, body, number, nbytes, start):
        from refsgd.trace import Use

        lag, way = 0.0, self._ways[task.node, to]
        for k, (link, byte_time, latency) in enumerate(way):
            if k:
                head = start
                start = max(head, self._free[link])
                self._free[link] = start + nbytes * byte_time
                self.uses.append(Use(link, start, self._free[link], task.node, to))
                lag += head - start
            lag = max(nbytes * byte_time, lag)
            last, start = start, start + latency
            lag = lag if k + 1 < len(way) else last + latency + lag
        self._sequence += 1
        heappush(self._agenda, (lag if way else start, ARRIVE, task.rank, self._sequence, self.deliver,
                                (to, task.node, body, number, nbytes)))


class TailForgotten(Paused):
    """A message has arrived when its last link has passed as many bytes, though they are not there yet."""

    def _head(self, head, way, at, lag, message):
        super()._head(head, way, at, 0.0, message)


class Unlimited(Paused):
    """Links after the first serve all messages at the same time."""

    def _head(self, head, way, at, lag, message):
        self._free[way[at].link] = 0.0
        super()._head(head, way, at, lag, message)


class Swapped(Paused):
    """Half-duplex links as if they were full: the two directions have free times of their own."""

    def _head(self, head, way, at, lag, message):
        free, self._free = self._free, getattr(self, "other", [0.0] * len(self._free))
        super()._head(head, way, at, lag, message)
        self.other, self._free = self._free, free


CROSSED = [(0, 1, 400, 0), (0, 3, 100, 0), (1, 4, 100, 0.3), (4, 1, 100, 0), (2, 5, 400, 0), (2, 5, 40, 0)]


@pytest.mark.parametrize("wrong, says, uplink, duplex", [
    (InOrderOfSends, "a head that came later", Link(0.5, 25), "full"),
    (TailForgotten, "faster than its slowest", Link(0.5, 20), "full"),
    (Unlimited, "two messages at once", Link(0.5, 25), "full"),
    (Swapped, "two messages at once", Link(0.5, 25), "half")])
def test_each_promise_catches_a_wrong_link(wrong, says, uplink, duplex):
    machine = Machine(latency=0.5, bandwidth=50, duplex=duplex, groups=((0, 1, 2), (3, 4, 5)), uplink=uplink)
    check(machine, busy(CROSSED))
    with pytest.raises(AssertionError, match=says):
        check(machine, busy(CROSSED), wrong)
