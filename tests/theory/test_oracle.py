"""Two implementations of the same timing: by hand, on random configurations, and wrong variants of either."""

import itertools
from itertools import repeat

import pytest

from benchmarks import layerwise, machines
from benchmarks.oracle import compare, gate, layers, scripts, ways
from benchmarks.oracle.evaluated import evaluated
from refsgd.cluster.machine import Machine
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.problems.shapes import shape_only
from refsgd.theory.phenomena.layerwise import Part, Plan

D = 1200
W = 0.004  # seconds of the model on a link
FLAT = Machine(compute="fixed(0.02)", latency=0.001, bandwidth=4 * D / W)


def seconds(name, machine, workers, steps, servers=1, **options):
    """Of both implementations."""
    experiment = prepare(name, shape_only(D), workers=workers, servers=servers, steps=steps, machine=machine,
                         **options)
    trace = perform(experiment, "simulator").trace
    return evaluated(experiment, trace).seconds, trace.seconds


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


#: three layers: forward 1, 1, 2 s, backward 2, 2, 4 s; 3, 1, 2 s on a link
SLOW = Machine(compute="fixed(12)", bandwidth=4)
SHARES = (1 / 12, 1 / 12, 2 / 12), (2 / 12, 2 / 12, 4 / 12)
PARTS = Part(0, (0,), 12, 12), Part(0, (1,), 4, 4), Part(0, (2,), 8, 8)


def pace(overlap, priority=False, parts=PARTS):
    """Seconds of an iteration of a lone worker whose gradients travel in parts."""
    plan = Plan(parts, *SHARES, overlap, priority, even=False)
    paths = ways.of_machine(SLOW, 1, [0] * len(parts), [(part.up, part.down) for part in parts], False)
    run = layers.of(gate.Fresh, plan)(paths, plan, [[12.0] * 40], repeat(0.0))
    run.run()
    return (run.ends[0][30] - run.ends[0][10]) / 20


def test_one_worker_by_hand():
    """Gradients are ready 8, 10 and 12 s after the start, and leave until 10, 11 and 15 s.  Answers are there
    at 12, 13 and 18 s, that of the first layer last: `both` gains nothing in this order, until that is urgent."""
    assert pace("none") == pytest.approx(12 + 6 + 3)  # the answer to the first part follows its push
    assert pace("backward") == pytest.approx(18) == pytest.approx(pace("both"))
    small = Part(0, (0,), 4, 4), Part(0, (1,), 4, 4), Part(0, (2,), 16, 16)
    # pushed until 12, 13 and 14 s, answered until 16, 17 and 18 s; the first layer second, with priority
    assert pace("both", parts=small) == pytest.approx(18)
    assert pace("both", True, parts=small) == pytest.approx(17)


def few(seed):
    """Some random configurations of few events."""
    drawn = itertools.chain(machines.draw(seed, 6), machines.draw(seed, 6, True), layerwise.staged(seed, 3), (
        point for point in layerwise.draw(seed, 9, "fixed") if point.net.startswith("tiny") and point.workers < 5))
    return [point for point in drawn if point.steps < 100]


@pytest.mark.parametrize("seed", range(3))
def test_a_few_random_configurations(seed):
    found = list(compare.rows(few(seed)))
    assert len(found) > 5 and not [row for row in found if not (row.equal or row.tied)]


@pytest.mark.slow
def test_three_hundred_random_configurations():
    """Other ones than the stored ones."""
    others = itertools.chain(machines.draw(117, 130), machines.draw(171, 120, True), layerwise.draw(118, 35, "fixed"),
                             layerwise.draw(181, 20, "exponential"), layerwise.staged(119, 50))
    found = list(compare.rows(others))
    assert len(found) >= 300 and not [row for row in found if not (row.equal or row.tied)]
    assert sum(row.tied for row in found) < 0.03 * len(found)


def test_the_stored_configurations():
    found = compare.load()
    assert len(found) >= 300 and all(row.equal or row.tied for row in found)
    assert sum(row.tied for row in found) < 0.03 * len(found)
    assert all(any(f" {n} workers" in row.label for row in found) for n in (2, 3, 5, 12))


@pytest.mark.slow
def test_a_forward_pass_that_waits_only_for_its_first_layer_is_noticed(monkeypatch):
    right = Plan.stages.fget
    monkeypatch.setattr(Plan, "stages", property(lambda plan: [
        (sum(share for share, _ in right(plan)) * (k == 0), parts) for k, (_, parts) in enumerate(right(plan))]))
    assert exchanged()


@pytest.mark.slow
def test_links_without_priorities_are_noticed(monkeypatch):
    monkeypatch.setattr(gate, "Urgent", ways.Agenda)
    assert exchanged()


def exchanged():
    return [row for row in compare.rows(layerwise.draw(18, 30, "fixed")) if not (row.equal or row.tied)]


def test_links_of_their_own_are_noticed(monkeypatch):
    """A placement that is ignored: every node with links of its own."""
    right = ways.Network.of
    monkeypatch.setattr(ways.Network, "of", lambda machine, *count: right(
        machine.with_(hosts="", colocated=False, groups=(), uplink=None), *count))
    assert [row for seed in range(3) for row in compare.rows(few(seed)) if not (row.equal or row.tied)]


def test_heads_in_the_order_of_their_senders_are_noticed(monkeypatch):
    """An uplink that takes messages in the order in which their workers began, not in that of their heads."""
    machine = FLAT.with_(groups=((0, 1), (2,)), uplink="0ms,1MB/s", speeds=(0.5, 1))
    expected, right = seconds("asp", machine, 2, 3), ways.meeting
    monkeypatch.setattr(ways, "meeting", lambda found: right(found) - {max(right(found)) - 1, max(right(found))})
    wrong = seconds("asp", machine, 2, 3)
    assert expected[0] == pytest.approx(expected[1], rel=1e-9) and abs(wrong[0] / wrong[1] - 1) > 1e-3


def test_a_shorter_ring_is_noticed(monkeypatch):
    """One step less than 2 (n - 1)."""
    right = scripts.ring
    monkeypatch.setattr(scripts, "ring", lambda *given: list(right(*given))[:-2])
    wrong = seconds("allreduce", FLAT.with_(hosts="3x2", speeds=(1, 0.5, 1, 2, 1, 1)), 6, 3)
    assert wrong[0] < wrong[1] * (1 - 1e-3)
