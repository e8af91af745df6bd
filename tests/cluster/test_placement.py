"""Where nodes live: shorthands and lists of hosts and groups, by algorithm, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cluster import placement
from refsgd.cluster.links import Link, Network
from refsgd.cluster.machine import Machine
from refsgd.effects import Mark, Node


def idle():
    yield Mark("idle")


def run_of(workers, servers=0, worker="worker"):
    nodes = {f"{worker}{i}": Node(idle(), rank=i) for i in range(workers)}
    return nodes | {f"server{k}": Node(idle(), role="server", rank=k) for k in range(servers)}


def together(machine, deployment):
    """The nodes of each host, in order of its number."""
    network = Network(machine, deployment)
    return [[n for n, host in network.host.items() if host == h] for h in network.hosts]


def test_no_hosts_is_a_host_for_each_node():
    assert together(Machine(), run_of(2, 1)) == [["worker0"], ["worker1"], ["server0"]]
    assert together(Machine(colocated=True), run_of(2, 3)) == [["worker0", "server0", "server2"], ["worker1", "server1"]]


def test_so_many_hosts_of_so_many_workers_and_servers_on_their_own():
    assert together(Machine(hosts="2x2"), run_of(4, 1)) == [["worker0", "worker1"], ["worker2", "worker3"], ["server0"]]
    assert together(Machine(hosts="3x2", colocated=True), run_of(4, 2)) == [
        ["worker0", "worker1", "server0"], ["worker2", "worker3", "server1"], []]


def test_cyclic_deals_workers_and_servers_in_turn():
    """Jia et al., figure 6: two workers and a server on each of four virtual machines."""
    found = together(Machine(hosts="cyclic:4"), run_of(8, 4))
    assert found == [[f"worker{i}", f"worker{i + 4}", f"server{i}"] for i in range(4)]


LISTED = Machine(hosts="worker0,worker1,server0; worker2 , worker3")


def test_lists_name_nodes_by_role_and_rank_or_by_their_own_names():
    expected = [["worker0", "worker1", "server0"], ["worker2", "worker3"]]
    assert together(LISTED, run_of(4, 1)) == expected
    assert LISTED.hosts == (("worker0", "worker1", "server0"), ("worker2", "worker3"))
    assert together(LISTED, run_of(4, worker="peer")) == [["peer0", "peer1"], ["peer2", "peer3"]]  # and no server
    own = {"alice": Node(idle()), "hub": Node(idle(), role="server")}
    assert together(Machine(hosts=[["hub"], ["alice"]]), own) == [["hub"], ["alice"]]
    assert together(Machine(hosts=[["worker0"], ["worker1"]], colocated=True), run_of(2, 2)) == [
        ["worker0", "server0"], ["worker1", "server1"]]


def test_a_node_that_names_its_host_lives_there():
    nodes = {"worker0": Node(idle(), host="den"), "worker1": Node(idle(), host="den"), "worker2": Node(idle())}
    assert together(Machine(hosts="1x3"), nodes) == [["worker2"], ["worker0", "worker1"]]


def test_a_machine_for_fewer_workers_has_no_places_for_the_others():
    assert LISTED.for_workers(1).hosts == (("worker0", "server0"), ())
    assert together(LISTED.for_workers(1), run_of(1)) == [["worker0"], []]


@pytest.mark.parametrize("machine, workers, servers, says", [
    (Machine(hosts="2x2"), 5, 1, "hosts 2x2 have room for 4 workers, but worker4 is number 5; expected hosts for all, "
                                 "such as 3x2"),
    (LISTED, 3, 1, "hosts: worker3 on host 1 is not a node of this run; expected some of worker0, worker1, worker2, server0"),
    (LISTED, 5, 1, "hosts: worker4 is on no host; expected every node of the run, as worker4 or by its own name"),
    (LISTED, 4, 2, "hosts: server1 is on no host"),
    (Machine(hosts="wroker0; worker1"), 2, 0, "hosts: wroker0 on host 0 is not a node of this run"),
    (Machine(groups="2x2", uplink="1ms,1Gbps"), 4, 1,
     "groups 2x2: host 4, where server0 runs, is in no group; expected a group for each host"),
])
def test_what_does_not_fit_a_run(machine, workers, servers, says):
    with pytest.raises(ValueError, match="^" + says.replace("(", r"\(")):
        Network(machine, run_of(workers, servers))


def test_one_node_under_two_names():
    with pytest.raises(ValueError, match="hosts: node peer0 is on hosts 0 and 1; expected each node once"):
        Network(Machine(hosts="worker0;peer0"), run_of(1, worker="peer"))


@pytest.mark.parametrize("fields, says", [
    ({"hosts": "4 by 2"}, "hosts '4 by 2'; expected 4x2 (four hosts of two workers each), cyclic:4"),
    ({"hosts": "0x2"}, "hosts '0x2'; expected 4x2"),
    ({"hosts": [["worker0"], "worker1"]}, "hosts [['worker0'], 'worker1']; expected 4x2"),
    ({"hosts": 4}, "hosts 4; expected 4x2"),
    ({"hosts": "worker0,worker1;worker0"}, "hosts: node worker0 appears in hosts 0 and 1; expected each node once"),
    ({"hosts": [["worker0", "worker0"]]}, "hosts: node worker0 appears in host 0 twice; expected each node once"),
    ({"groups": "2x"}, "groups '2x'; expected 2x8 (two groups of eight hosts) or the hosts of each group"),
    ({"groups": [[0], [-1]]}, "groups [[0], [-1]]; expected 2x8"),
    ({"groups": [[0], []]}, "groups [[0], []]; expected 2x8"),
    ({"groups": [[0, True]]}, "groups [[0, True]]; expected 2x8"),
    ({"groups": "0-3;3-5"}, "groups: host 3 appears in groups 0 and 1; expected each host once"),
    ({"groups": "2x2"}, "groups 2x2 without an uplink; expected latency and bandwidth of each group's link, such as "
                        "uplink 1ms,1Gbps"),
    ({"uplink": "1ms,1Gbps"}, "uplink 1 ms, 1 Gbps without groups; expected 2x8"),
    ({"inside": "fast"}, "inside: 'fast'; expected a latency and a bandwidth, such as 25us,10Gbps or 25us,10Gbps,half"),
    ({"inside": "1us,-5"}, "inside: bandwidth -5.0 bytes/s; expected a number of bytes/s > 0 (inf: unlimited)"),
    ({"inside": Ellipsis}, "inside: Ellipsis; expected a latency and a bandwidth"),
    ({"inside": {"latency": float("nan")}}, "inside: latency nan s; expected a finite number of seconds >= 0"),
    ({"inside": {"speed": 3}}, "inside: unknown keys ['speed'] of a link; expected some of ['latency', 'bandwidth', 'duplex']"),
    ({"inside": "1us,1GB/s,both"}, "inside: duplex 'both'; expected full or half"),
    ({"latency": float("inf")}, "latency inf s; expected a finite number of seconds >= 0"),
    ({"bandwidth": float("nan")}, "bandwidth nan bytes/s; expected a number of bytes/s > 0 (inf: unlimited)"),
])
def test_wrong_machines(fields, says):
    with pytest.raises(ValueError) as error:
        Machine(**fields)
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


def test_the_text_of_groups():
    assert placement.read_groups("0-2,7; 3-6") == ((0, 1, 2, 7), (3, 4, 5, 6))
    for groups in (((0, 1), (2, 3)), ((0, 1, 2, 7), (3, 4, 5, 6)), ((1,), (0,))):
        assert placement.read_groups(placement.written_groups(groups)) == groups
    assert placement.written_groups(((0, 1), (2, 3))) == "2x2"


LINK = st.builds(Link, st.floats(0, 1e3), st.floats(1, 1e12) | st.just(float("inf")), st.sampled_from(["full", "half"]))


@given(machine=st.builds(
    Machine, compute=st.none() | st.just("exponential(0.02)"), latency=st.floats(0, 10), bandwidth=st.floats(1, 1e12),
    hosts=st.sampled_from(["", "4x2", "cyclic:4", "worker0,worker1;server0"]), inside=st.none() | LINK,
    groups=st.sampled_from(["2x2", ((0, 2), (1, 3, 4))]), uplink=LINK))
def test_a_machine_survives_json(machine):
    import json

    assert Machine.from_json(json.loads(json.dumps(machine.to_json(), allow_nan=False))) == machine


def test_the_json_of_a_flat_machine_is_what_it_was():
    assert set(Machine("1s", 0.1, 1e9).to_json()) == {"compute", "latency", "bandwidth", "update", "reduction", "speeds",
                                                      "colocated", "cores", "duplex"}


def test_ten_times_slower_is_slower_at_every_level():
    machine = Machine("1s", 1, 100, hosts="2x2", inside=Link(0.1, 1000), groups="2x1", uplink=Link(10, 10, "half"))
    slow = machine.slow_motion(10)
    assert (slow.inside, slow.uplink, slow.groups) == (Link(1, 100), Link(100, 1, "half"), machine.groups)


@pytest.mark.parametrize("fields, hosts", [
    ({"hosts": "2x2"}, ((), ("worker0", "worker1"), ("server0",))),
    ({"groups": "0,1; 2-4", "uplink": "1ms,1Gbps"}, (("worker0",), (), ("worker1",), ("worker2",), ("server0",)))])
def test_survivors_stay_where_they_are(fields, hosts, monkeypatch):
    """Without worker 1 of four, and who lives on its host, the others have new numbers and their old places."""
    import refsgd
    from refsgd.experiment.execution import elastic

    seen, attempt = [], elastic.Attempts._attempt
    monkeypatch.setattr(elastic.Attempts, "_attempt", lambda *args: seen.append(attempt(*args)) or seen[-1])
    machine = Machine("fixed(0.1)", latency=0.01, **fields)
    whole = refsgd.run("bsp", data="quadratic", workers=4, steps=4, machine=machine, on_death="shrink",
                       faults=["kill worker 1 at step 2"]).trace
    assert list(whole.hosts) == list(whole.nodes) and whole.shared_links
    assert [found.experiment.machine.hosts for found in seen] == [hosts]
    assert seen[0].experiment.machine.groups == machine.groups
