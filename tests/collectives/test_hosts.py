"""Hierarchical all-reduce on hosts of several devices, and the sizes of groups and rows as options.

alpha', w': latency, and the whole vector on the link inside a host; alpha, w: between hosts; c: the whole vector
reduced once; g devices on each of m hosts.
"""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.collectives import hierarchical_allreduce, ring_allreduce
from refsgd.collectives.levels import torus_allreduce
from refsgd.effects import Node
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients
from refsgd.runtimes.simulator import simulate
from refsgd.theory import predict
from refsgd.theory.phenomena.collectives import Link, hierarchical, ring
from refsgd.trace import Sent
from tests.wrong import wrong_deployment

CHUNK = 840  #: float32 numbers that 1 to 8 hosts cut into equal parts


def seconds(collective, machine, n, **options):
    """Of one exchange of a vector of `CHUNK` numbers, all ranks together, in the order of the hosts."""
    peers = [f"peer{i}" for i in range(n)]
    return simulate({p: Node(collective(i, peers, np.ones(CHUNK, np.float32), **options))
                     for i, p in enumerate(peers)}, machine).trace.seconds


def machine_of(g, m, inner, outer, gamma=0.0, **more):
    """m hosts of g devices; links are (latency, seconds of the whole vector)."""
    inside, between = (Link(latency, 4 * CHUNK / wire if wire else math.inf) for latency, wire in (inner, outer))
    return Machine(latency=between.latency, bandwidth=between.bandwidth, hosts=f"{m}x{g}", reduction=gamma / CHUNK / 4,
                   inside={"latency": inside.latency, "bandwidth": inside.bandwidth}, **more)


def formula(g, m, inner, outer, c):
    (a_, w_), (a, w) = inner, outer
    return 2 * a_ * (g > 1) + (g - 1) * (2 * w_ + c) + 2 * (m - 1) * (a + w / m) + (m - 1) / m * c


def same(a, b):
    return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12)


# -- times -------------------------------------------------------------------------------------------------


def test_two_hosts_of_two_devices_by_hand():
    """Inside 1 s + 2 s a vector, between 3 s + 4 s: up 1 + 2, ring 2 (3 + 4/2), down 1 + 2; and adding 0.5 s
    in the star and 0.25 s in the ring."""
    machine = machine_of(2, 2, (1.0, 2.0), (3.0, 4.0), 0.5)
    assert same(seconds(hierarchical_allreduce, machine, 4, group=2), 3 + 0.5 + 10 + 0.25 + 3)


def test_eight_devices_on_one_host_are_a_star():
    machine = machine_of(8, 1, (0.5, 1.0), (9.0, 9.0))
    assert same(seconds(hierarchical_allreduce, machine, 8, group=8), 0.5 + 7 + 0.5 + 7)


links = st.tuples(st.sampled_from([0.0, 0.03, 0.7]), st.sampled_from([0.0, 0.2, 1.0, 3.7]))


@given(g=st.integers(1, 5), m=st.integers(1, 6), inner=links, outer=links, c=st.sampled_from([0.0, 0.1, 2.0]))
def test_an_exchange_over_two_levels_equals_the_formula_to_the_last_digit(g, m, inner, outer, c):
    machine = machine_of(g, m, inner, outer, c)
    found = seconds(hierarchical_allreduce, machine, g * m, group=g)
    assert same(found, formula(g, m, inner, outer, c))
    between, inside = (Link(a, 4 * CHUNK / w if w else math.inf, c / CHUNK / 4) for a, w in (outer, inner))
    assert same(found, hierarchical(g, m, 4 * CHUNK, between, inside).time.value)


def priced(pair, c=0.0):
    return Link(pair[0], 4 * CHUNK / pair[1] if pair[1] else math.inf, c / CHUNK / 4)


def ring_of_hosts(g, m, nbytes, link, inner):
    """Seconds of the flat ring in the order of m hosts of g ranks: only one edge of each host leaves it.

    Step s of the rank on seat j of its host ends at e_j(s) = max(t_{j-1}(s-1) + alpha_j, e_j(s-1)) + b_j, and
    t_j = e_j plus the addition in the first n-1 steps; alpha_0 and b_0 = w/n are those between hosts, all
    others those inside.
    """
    n = g * m
    edges = [link if seat == 0 and m > 1 else inner for seat in range(g)]
    ready, ends = [0.0] * g, [0.0] * g
    for s in range(2 * (n - 1)):
        ends = [max(ready[seat - 1] + e.latency, ends[seat]) + e.wire(nbytes / n)
                for seat, e in enumerate(edges)]
        ready = [end + (s < n - 1) * nbytes / n * link.reduction for end in ends]
    return max(ready)


@given(g=st.integers(1, 5), m=st.integers(1, 5), inner=links, outer=links, c=st.sampled_from([0.0, 0.1, 2.0]))
def test_a_ring_through_hosts_equals_its_recursion_to_the_last_digit(g, m, inner, outer, c):
    """In the order of the hosts; without additions it has a closed form too."""
    d = CHUNK * 5
    machine, n = machine_of(g, m, inner, outer, c), g * m
    vector = [np.ones(d - d % n, np.float32)] * n
    peers = [f"peer{i}" for i in range(n)]
    found = simulate({p: Node(ring_allreduce(i, peers, vector[i])) for i, p in enumerate(peers)},
                     machine).trace.seconds
    assert same(found, ring_of_hosts(g, m, vector[0].nbytes, priced(outer, c), priced(inner, c)))
    (a_, b_), (a, b) = ((latency, wire * vector[0].nbytes / 4 / CHUNK / n) for latency, wire in (inner, outer))
    if n > 1 and m > 1 and not c and a_ + b_ <= b:
        crossings = (2 * n + g - 3) // g
        assert same(found, 2 * (n - 1) * b + max(a, crossings * a - (crossings - 1) * (g - 1) * (b - a_ - b_)))


@given(g=st.integers(2, 4), m=st.integers(2, 4), inner=links, outer=links, c=st.sampled_from([0.0, 0.1]))
def test_it_beats_the_ring_exactly_where_the_formulas_say_so(g, m, inner, outer, c):
    machine, between, inside = machine_of(g, m, inner, outer, c), priced(outer, c), priced(inner, c)
    n = g * m
    star = seconds(hierarchical_allreduce, machine, n, group=g)
    flat = seconds(ring_allreduce, machine, n)
    first = hierarchical(g, m, 4 * CHUNK, between, inside).time.value
    second = ring_of_hosts(g, m, 4 * CHUNK, between, inside)
    if CHUNK % n == 0:
        assert same(star, first) and same(flat, second)
        assert (star < flat) == (first < second) or same(first, second)


@pytest.mark.parametrize(("inner", "hosts", "wins"), [
    ((0.001, 0.05), "4x4", False), ((0.1, 0.0), "4x4", True), ((0.001, 0.05), "cyclic:4", True)])
def test_where_it_wins(inner, hosts, wins):
    """Four hosts of four devices.  A ring in the order of the hosts crosses few links between them, so two
    levels save latencies inside only; ranks that are dealt in turn make every step of a ring cross."""
    machine = machine_of(4, 4, inner, (0.05, 0.4), compute="fixed(1)").with_(hosts=hosts)
    times = {}
    for collective in ("hierarchical", "ring"):
        experiment = refsgd.experiment.prepare.prepare("allreduce", integer_gradients(d=CHUNK, workers=16), workers=16,
                                                       steps=1, machine=machine, collective=collective)
        times[collective] = simulate(experiment.deploy(), machine).trace.seconds
    assert (times["hierarchical"] < times["ring"]) == wins, times


@given(g=st.integers(1, 4), m=st.integers(1, 4), inner=links, outer=links, steps=st.integers(1, 4),
       update=st.sampled_from([0.0, 0.3]), placed=st.booleans())
def test_a_run_of_several_steps_equals_the_prediction(g, m, inner, outer, steps, update, placed):
    """By default groups are hosts, however workers are dealt to them; equal fixed times."""
    machine = machine_of(g, m, inner, outer, 0.1, compute="fixed(1)", update=update or None)
    machine = machine.with_(hosts=f"cyclic:{m}") if placed else machine
    sizes = {"workers": g * m, "steps": steps}
    trace = simulate(lambda: refsgd.experiment.prepare.prepare(
        "allreduce", integer_gradients(d=CHUNK, workers=g * m), machine=machine, lr=0.25,
        collective="hierarchical", **sizes).deploy(), machine).trace
    found = predict("allreduce", machine, nbytes=4 * CHUNK, options={"collective": "hierarchical"}, **sizes)
    assert found["seconds"].kind == "exact" and same(found["seconds"].value, trace.seconds)
    assert found["bytes_sent"].value == sum(trace.bytes_sent.values())


# -- groups and rows as options ----------------------------------------------------------------------------


def between_groups(trace, size):
    """Vectors that ranks of different groups exchange."""
    return sum(e.nbytes for e in trace.of(Sent)
               if int(e.node[4:]) // size != int(e.to[4:]) // size) / (4 * CHUNK)


def hold_sizes(deploy, collective, option, size, n=8):
    problem = integer_gradients(d=CHUNK, workers=n)
    run = simulate(deploy(problem, n, 1, SGD(0.25), collective=collective, **{option: size}))
    expected = simulate(deploy(problem, n, 1, SGD(0.25)))
    assert np.array_equal(final_parameters(run), final_parameters(expected))
    messages = Counter(e.node for e in run.trace.of(Sent))
    if collective == "hierarchical":  # leaders send a ring's steps and the sums
        hosts = -(-n // size)
        assert messages["peer0"] == 2 * (hosts - 1) + size - 1 and messages["peer1"] == (
            1 if size > 1 else 2 * (hosts - 1))
        assert same(between_groups(run.trace, size), 2 * (hosts - 1))
    else:
        assert set(messages.values()) == {2 * (size - 1) + 2 * (n // size - 1)}
        assert same(between_groups(run.trace, size), 2 * (n / size - 1))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize(("collective", "option"), [("hierarchical", "group"), ("torus", "columns")])
def test_the_size_is_an_option(collective, option, size):
    hold_sizes(CATALOGUE["allreduce"], collective, option, size)


def test_a_last_group_may_be_smaller():
    problem = integer_gradients(d=5, workers=5)
    runs = [final_parameters(simulate(CATALOGUE["allreduce"](problem, 5, 3, SGD(0.25), **options)))
            for options in ({}, {"collective": "hierarchical", "group": 3})]
    assert np.array_equal(*runs)


@pytest.mark.parametrize(("right", "wrong", "case"), [
    ("[group[rank] for rank in order], x, size)", "[group[rank] for rank in order], x, None)",
     ("hierarchical", "group", 4)),
    ("partial(torus_allreduce, columns=columns)", "torus_allreduce", ("torus", "columns", 2)),
])
def test_a_size_that_is_ignored_is_caught(right, wrong, case):
    deploy = wrong_deployment(CATALOGUE["allreduce"], right, wrong)
    with pytest.raises(AssertionError):
        for size in (case[2], 1):
            hold_sizes(deploy, case[0], case[1], size)


@pytest.mark.parametrize("hosts", ["4x2", "cyclic:4", (("worker0", "worker5"), ("worker1", "worker4"),
                                                       ("worker2", "worker7"), ("worker3", "worker6"))])
def test_by_default_a_group_is_a_host(hosts):
    """No link between hosts carries more than the leaders' ring."""
    machine = Machine(compute="fixed(1)", hosts=hosts, inside="0s,1GB/s")
    experiment = refsgd.experiment.prepare.prepare("allreduce", integer_gradients(d=CHUNK, workers=8), workers=8,
                                                   steps=1, machine=machine, collective="hierarchical")
    place = machine.place(experiment.deploy())
    trace = simulate(experiment.deploy(), machine).trace
    crossing = sum(e.nbytes for e in trace.of(Sent) if place[e.node] != place[e.to])
    assert crossing == 2 * 3 * 4 * CHUNK
    plain = simulate(CATALOGUE["allreduce"](integer_gradients(d=CHUNK, workers=8), 8, 1, SGD(0.15)), machine)
    assert np.allclose(final_parameters(simulate(experiment.deploy(), machine)), final_parameters(plain))


def test_a_torus_of_columns_takes_the_time_of_its_formula():
    machine = Machine(latency=0.5, bandwidth=4 * CHUNK)
    for columns in (1, 2, 4, 8):
        rows = 8 // columns
        expected = 2 * (columns - 1) * (0.5 + 1 / columns) + 2 * (rows - 1) * (0.5 + 1 / 8)
        assert same(seconds(torus_allreduce, machine, 8, columns=columns), expected)
        found = predict("allreduce", machine.with_(compute="fixed(1)"), workers=8, nbytes=4 * CHUNK,
                        options={"collective": "torus", "columns": columns})
        assert same(found["seconds"].value, 1 + expected)
    assert seconds(torus_allreduce, machine, 8, columns=4) < seconds(torus_allreduce, machine, 8, columns=8)


@pytest.mark.parametrize(("options", "said"), [
    ({"group": 2}, "group 2 with collective ring; expected collective hierarchical"),
    ({"collective": "hierarchical", "columns": 2}, "columns 2 with collective hierarchical; expected collective torus"),
    ({"collective": "hierarchical", "group": 0}, "group 0; expected 1 to 10000"),
    ({"collective": "torus", "columns": 3}, "columns 3; expected a divisor of 8"),
    ({"collective": "torus", "columns": 0}, "columns 0; expected a divisor of 8"),
    ({"collective": "hierarchical", "machine": Machine(hosts=(("worker0", "worker1", "worker2"), (
        "worker3", "worker4", "worker5", "worker6", "worker7")))},
     "hosts with 3, 5 workers; expected the same number on each for hierarchical all-reduce, or a group: --group 2")])
def test_wrong_sizes_are_refused_in_one_line(options, said):
    with pytest.raises(ValueError, match=f"^{said}$"):
        refsgd.run("allreduce", data="quadratic", workers=8, steps=1, **options)


def test_no_formula_knows_groups_that_are_not_hosts():
    machine = Machine(compute="fixed(1)", hosts="4x2", bandwidth=1e6)
    for options in ({"group": 4}, {"group": 3}):
        found = predict("allreduce", machine, workers=8, nbytes=800,
                        options={"collective": "hierarchical", **options})
        assert not found and "workers of a host" in found.missing["seconds"]
    grouped = machine.with_(groups="2x2", uplink="1ms,1MB/s")
    assert "seconds" in predict("allreduce", grouped, workers=8, nbytes=800, options={"collective": "hierarchical"}).open


def test_same_as_ring():
    """One worker on each host: the ring itself."""
    machine = machine_of(1, 6, (9.0, 9.0), (0.3, 1.0))
    between = Link(0.3, 4 * CHUNK)
    assert same(seconds(hierarchical_allreduce, machine, 6, group=1), ring(6, 4 * CHUNK, between).time.value)
