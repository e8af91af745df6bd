"""Formulas on machines whose nodes share links: hand-computed cases, and the simulator."""

import pytest

from benchmarks import machines
from refsgd.cluster.machine import Machine
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.problems.shapes import shape_only
from refsgd.theory import predict
from refsgd.theory.phenomena import scripts, ways

D = 1200
W = 0.004  # seconds of the model on a link
FLAT = Machine(compute="fixed(0.02)", latency=0.001, bandwidth=4 * D / W)


def seconds(name, machine, workers, steps, servers=1, **options):
    """Predicted, which is exact, and simulated seconds of a run."""
    p = predict(name, machine, workers=workers, servers=servers, nbytes=4 * D, steps=steps, options=options)
    run = perform(prepare(name, shape_only(D), workers=workers, servers=servers, steps=steps, machine=machine,
                          **options), "simulator")
    assert p["seconds"].kind == "exact", p["seconds"]
    return p["seconds"].value, run.trace.seconds


@pytest.mark.parametrize("n", [1, 3, 6])
def test_workers_of_one_host_share_its_link(n):
    """n models leave one after the other: n M / B on the outgoing link, then the last passes the server's."""
    found = seconds("bsp", FLAT.with_(hosts=f"1x{n}"), n, 1)
    assert found == pytest.approx([0.02 + 2 * 0.001 + 2 * n * W] * 2, rel=1e-12)


def test_a_worker_and_a_server_on_one_host():
    """Only the other worker's model travels, each way."""
    found = seconds("bsp", FLAT.with_(hosts="cyclic:2"), 2, 3)
    assert found == pytest.approx([3 * (0.02 + 2 * 0.001 + 2 * W)] * 2, rel=1e-12)


def test_two_groups_with_one_uplink_each():
    """Two workers, one in each group, and the server in the second: the first one's model crosses two slow
    links, whose tail is 3 W behind the head."""
    machine = FLAT.with_(groups=((0,), (1, 2)), uplink=f"5ms,{4 * D / (3 * W)}B/s")
    found = seconds("asp", machine, 2, 1)
    crossing = 2 * 0.001 - 0.001 + 0.005 + 3 * W  # the latency within the group and the uplink's, and the tail
    assert found == pytest.approx([0.02 + 2 * crossing] * 2, rel=1e-12)


def test_a_ring_leaves_each_host_once():
    """Four ranks on two hosts, in order: a chunk crosses in W / 4 as if each had a link; in turn, two share
    one."""
    inside = {"inside": f"1ms,{4 * D / W}B/s"}
    ordered = seconds("allreduce", FLAT.with_(hosts="2x2", **inside), 4, 1)
    dealt = seconds("allreduce", FLAT.with_(hosts="cyclic:2", **inside), 4, 1)
    assert ordered == pytest.approx([0.02 + 6 * (0.001 + W / 4)] * 2, rel=1e-12)
    assert dealt[0] == pytest.approx(dealt[1], rel=1e-12) and dealt[0] > ordered[0] * 1.03


@pytest.mark.parametrize("seed", range(3))
def test_a_few_random_machines(seed):
    """Figures that call themselves exact equal the simulation."""
    found = machines.held(machines.draw(seed, 8))
    assert len(found) > 20


def test_the_stored_points():
    """At least 300, of which 100 on devices; no figure other than it calls itself, approximations within their
    limits."""
    found = machines.load()
    labels = {row.label for row in found}
    assert len(labels) >= 300 and sum("device(" in label for label in labels) >= 100
    sure = [row for row in found if row.kind in ("exact", "numerical")]
    assert all(row.equal for row in sure if not row.error)
    assert sum(abs(row.predicted - row.simulated) <= 3 * row.error or row.equal for row in sure) > 0.99 * len(sure)
    assert not [row for row in found if machines.far(row)] and machines.worst(found)


@pytest.mark.slow
def test_many_random_machines():
    """As above, and drawn times within their own error bars."""
    machines.held(machines.draw(100, 150))
    machines.held(machines.draw(200, 40, drawn=True))


def test_heads_without_events_would_be_noticed(monkeypatch):
    """An uplink that takes messages in the order in which their workers began, not in that of their heads."""
    machine = FLAT.with_(groups=((0, 1), (2,)), uplink="0ms,1MB/s", speeds=(0.5, 1))
    expected, right = seconds("asp", machine, 2, 3), ways.meeting
    monkeypatch.setattr(ways, "meeting", lambda found: right(found) - {max(right(found)) - 1, max(right(found))})
    wrong = seconds("asp", machine, 2, 3)
    assert expected[0] == pytest.approx(expected[1], rel=1e-9) and abs(wrong[0] / wrong[1] - 1) > 1e-3


def test_links_of_their_own_would_be_noticed(monkeypatch):
    """A placement that is ignored: every node with links of its own."""
    right = ways.Network.of
    monkeypatch.setattr(ways.Network, "of", lambda machine, *count: right(
        machine.with_(hosts="", colocated=False, groups=(), uplink=None), *count))
    with pytest.raises(AssertionError):
        for seed in range(3):
            for point in machines.draw(seed, 8):
                machines.held([point])


def test_a_shorter_ring_would_be_noticed(monkeypatch):
    """One step less than 2 (n - 1)."""
    right = scripts.ring
    machine = FLAT.with_(hosts="3x2", groups=((0,), (1, 2)), uplink="1ms,1MB/s", speeds=(1, 0.5, 1, 2, 1, 1))
    expected = seconds("allreduce", machine, 6, 3)
    monkeypatch.setattr(scripts, "ring", lambda *given: list(right(*given))[:-2])
    wrong = seconds("allreduce", machine, 6, 3)
    assert expected[0] == pytest.approx(expected[1], rel=1e-9) and wrong[0] < wrong[1] * (1 - 1e-3)


def test_a_prediction_that_would_take_long_is_refused():
    """With the reason, and the simulator still answers."""
    machine = FLAT.with_(hosts="64x4", colocated=True)
    found = predict("asp", machine, workers=256, servers=256, nbytes=4 * D, steps=10)
    assert found == {} and "too many" in found.missing["seconds"]
