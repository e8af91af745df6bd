"""Virtual time: the link rule, stepping, looking inside, and errors at the guilty line."""

import gc
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from refsgd.algorithms.server import bsp, ssp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster import prices
from refsgd.cluster.machine import Machine
from refsgd.cluster.prices import Draws
from refsgd.effects import Choose, Compute, Mark, Node, Poll, Recv, RunEnded, Send
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.problems import quadratic
from refsgd.problems.shapes import shape_only
from refsgd.runtimes.errors import Deadlock, RunFailed
from refsgd.runtimes.processes import local as processes
from refsgd.runtimes.programs import ForgottenYield
from refsgd.runtimes.simulator import Simulator, rare_full_collections, simulate
from refsgd.trace import Computed, Marked, Polled, Received, Trace, thin
from refsgd.trace.moments import moments


class Note(NamedTuple):
    body: np.ndarray


class Layers(NamedTuple):
    parts: tuple


HUNDRED = np.zeros(25, np.float32)  # 100 bytes

FREE = prices.at(Machine(), "worker", 0)  #: prices of one node


def sender(*to):
    for other in to:
        yield Send(other, Note(HUNDRED))


def receiver(count, log):
    for _ in range(count):
        src, _ = yield Recv(Note)
        yield Mark("got", src=src)
    return log


def arrivals(deployment, machine):
    trace = simulate(deployment, machine).trace
    return [(e.src, e.arrival) for e in trace.of(Received)]


def test_a_lone_message_takes_latency_plus_bytes_over_bandwidth():
    found = arrivals({"worker0": Node(sender("worker1")), "worker1": Node(receiver(1, 0))},
                     Machine(latency=2, bandwidth=50))
    assert found == [("worker0", 4.0)]


def test_the_outgoing_link_sends_one_message_after_the_other():
    found = arrivals({"worker0": Node(sender("worker1", "worker2")), "worker1": Node(receiver(1, 0)),
                      "worker2": Node(receiver(1, 0))},
                     Machine(latency=2, bandwidth=50))
    assert found == [("worker0", 4.0), ("worker0", 6.0)]


def test_the_incoming_link_receives_one_message_after_the_other_lowest_rank_first():
    nodes = {f"worker{i}": Node(sender("server0")) for i in range(3)} | {"server0": Node(receiver(3, 0), role="server")}
    assert arrivals(nodes, Machine(latency=2, bandwidth=50)) == [("worker0", 4.0), ("worker1", 6.0),
                                                                 ("worker2", 8.0)]


def test_the_incoming_link_serves_heads_in_order_of_their_arrival_not_of_the_sends():
    def late_then_send():
        yield Compute(abs, 0)
        yield Send("server0", Note(HUNDRED))

    def busy_link():
        yield Send("worker1", Note(np.zeros(100, np.float32)))  # keeps the outgoing link for 8 s
        yield Send("server0", Note(HUNDRED))

    nodes = {"worker0": Node(busy_link()), "worker1": Node(receiver(1, 0)), "worker2": Node(late_then_send()),
             "server0": Node(receiver(2, 0), role="server")}
    trace = simulate(nodes, Machine(compute="fixed(3)", bandwidth=50)).trace
    assert [e.src for e in trace.of(Received, "server0")] == ["worker2", "worker0"]


@pytest.mark.parametrize("parts, nbytes", [
    ((np.zeros(10, np.float32), np.zeros(10, np.float32)), 80),
    (((np.zeros(10, np.float32), 3), np.float32(1), ("text", None)), 44), ((1, 2.5), 0),
    ((Note(HUNDRED),), 100)])
def test_arrays_in_tuples_count_and_take_time(parts, nbytes):
    def send():
        yield Send("b", Layers(parts))

    def take():
        yield Recv(Layers)

    for trace in (simulate({"a": Node(send()), "b": Node(take())},
                           Machine(latency=0.0, bandwidth=100.0)).trace,
                  processes.run(lambda: {"a": Node(send()), "b": Node(take())}, None, 0,
                                transport="shm").trace):
        assert [e.nbytes for e in trace.events if e.kind in ("send", "receive")] == [nbytes] * 2
    assert simulate({"a": Node(send()), "b": Node(take())},
                    Machine(latency=0.0, bandwidth=100.0)).trace.seconds == pytest.approx(nbytes / 100)


def test_colocated_nodes_do_not_use_the_network():
    nodes = {"worker0": Node(sender("server0")), "server0": Node(receiver(1, 0), role="server")}
    assert arrivals(nodes, Machine(latency=2, bandwidth=50, colocated=True)) == [("worker0", 0.0)]


def test_who_shares_one_core_takes_longer():
    def compute():
        yield Compute(abs, 1)

    def ends(cores):
        return [e.time for e in simulate({"worker0": Node(compute(), [compute()])},
                                         Machine(compute="fixed(1)", cores=cores)).trace.of(Computed)]

    assert ends(None) == ends(2) == [1, 1]
    assert ends(1) == [2, 2]


def test_the_simulator_is_an_iterator_of_events_and_repeats_itself():
    def deploy():
        return ssp.ssp(quadratic(workers=3), 3, 5, SGD(0.1), staleness=1)

    machine = Machine(compute="exponential(1)", latency=0.1)
    events = list(Simulator(deploy, machine, seed=3))
    assert [e.time for e in events] == sorted(e.time for e in events)
    again = [(e.time, e.node, e.kind) for e in Simulator(deploy, machine, seed=3)]
    assert again == [(e.time, e.node, e.kind) for e in events]
    assert again != [(e.time, e.node, e.kind) for e in Simulator(deploy, machine, seed=4)]


def test_where_shows_line_effect_and_locals_of_every_program():
    sim = Simulator(bsp.bsp(quadratic(workers=2), 2, 3, SGD(0.1)), Machine(compute="exponential(1)"))
    while not any(e.kind == "receive" for e in sim.events):
        next(sim)
    places = {p.node: p for p in sim.where()}
    slow = next(p for p in places.values() if p.waits_for == "Compute(gradient)")
    assert slow.function == "worker" and slow.filename.endswith("parts.py") and slow.locals["t"] == 0
    source = Path(slow.filename).read_text().splitlines()[slow.line - 1]
    assert "yield Compute" in source
    assert places["server0"].function == "recv" and places["server0"].waits_for.startswith("Recv(Push")


def test_a_forgotten_yield_is_named():
    def forgetful():
        Send("worker0", Note(HUNDRED))
        yield Compute(abs, 1)

    with pytest.raises(ForgottenYield, match="2 effects were built"):
        simulate({"worker0": Node(forgetful())})


def test_what_is_no_effect_is_named():
    def sub():
        yield Compute(abs, 1)

    def wrong():
        yield sub()

    def uses():
        yield Compute(abs, 1)
        return sub() / 2

    with pytest.raises(TypeError, match="needs `yield from`"):
        simulate({"worker0": Node(wrong())})
    with pytest.raises(TypeError, match="'generator'") as found:
        simulate({"worker0": Node(uses())})
    assert "a sub-program needs `yield from`" in found.value.__notes__


def test_an_unknown_receiver_is_named():
    with pytest.raises(ValueError, match="sends to 'worker9'; expected one of worker0"):
        simulate({"worker0": Node(sender("worker9"))})


def test_a_deadlock_lists_who_waits_for_what():
    nodes = {f"worker{i}": Node(receiver(1, 0)) for i in range(2)}
    with pytest.raises(Deadlock,
                       match=r"worker0 at .*test_simulator.py:\d+ in receiver waits for Recv\(Note\); "
                             r"worker1"):
        simulate(nodes)


def test_an_array_that_crossed_a_yield_is_read_only():
    def mutating():
        x = np.zeros(3, np.float32)
        yield Send("worker1", Note(x))
        x += 1

    with pytest.raises(ValueError, match="read-only"):
        simulate({"worker0": Node(mutating()), "worker1": Node(receiver(1, 0))})


def test_handlers_are_closed_when_everything_is_handled_and_may_return():
    served = []

    def respond():
        try:
            while True:
                src, _ = yield Recv(Note)
                served.append(src)
        except RunEnded:
            served.append("end")

    def idle():
        return None
        yield

    simulate({"peer0": Node(sender("peer1", "peer1")), "peer1": Node(idle(), [respond()])},
             Machine(latency=5))
    assert served == ["peer0", "peer0", "end"]


def test_poll_does_not_wait_and_choose_is_seeded():
    def polling():
        first = yield Poll(Note)
        picks = []
        for _ in range(20):
            picks.append((yield Choose((0, 1, 2))))
        return first, picks

    runs = [simulate({"worker0": Node(polling())}, seed=s).values["worker0"] for s in (1, 1, 2)]
    assert runs[0][0] is None and runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("effects", [
    (lambda: Poll(Note),), (lambda: Mark("waiting"),),
    (lambda: Choose(("worker1", "worker0")), lambda: Poll(Note)),
    (lambda: Mark("asking"), lambda: Poll(Note), lambda: Send("worker1", Note(HUNDRED)))])
def test_a_program_that_asks_for_ever_while_no_time_passes_is_named(effects, monkeypatch):
    monkeypatch.setattr(Simulator, "patience", 500)

    def spin():
        yield Compute(abs, 1)
        while True:
            for effect in effects:
                yield effect()

    with pytest.raises(RunFailed) as error:
        simulate({"worker0": Node(spin()), "worker1": Node(sender())}, Machine(compute="fixed(2)", latency=1))
    assert str(error.value).startswith(f"worker0: {__file__}:") and error.value.node == "worker0"
    assert str(error.value).endswith(
        " in spin asks again and again at 2 s and no time passes; expected a Recv, or a Compute between two "
        "Polls")


def test_programs_that_go_on_may_ask_as_often_as_they_like(monkeypatch):
    monkeypatch.setattr(Simulator, "patience", 500)

    def patient(rounds):
        for _ in range(rounds):
            for _ in range(499):
                yield Poll(Note)
            yield Compute(abs, 1)

    def talkative():
        for _ in range(3000):
            yield Send("worker2", Note(HUNDRED))
            yield Choose((1, 2))

    def hears():
        for _ in range(3000):
            yield Recv(Note)
            yield Mark("heard")

    for machine in (Machine(), Machine(compute="fixed(1)", latency=0.5, bandwidth=1000)):
        run = simulate({"worker0": Node(patient(20)), "worker1": Node(talkative()), "worker2": Node(hears())},
                       machine)
        assert len(run.trace.of(Polled)) == 499 * 20 and len(run.trace.of(Received)) == 3000


@pytest.mark.parametrize("pace", [0.0, 1.0, 1e-6])
def test_at_most_64_parameter_vectors_are_kept_evenly(pace):
    """Also where no time passes."""
    events = [Marked(pace * v, "server0", 0, "update", {"version": v, "x": v}) for v in range(1000)]
    thin(events)
    versions = [e.values["version"] for e in events if "x" in e.values]
    assert 32 < len(versions) <= 64 and versions[-1] == 999
    assert np.ptp(np.diff(versions[:-1])) <= 1


def test_a_run_without_marks_has_no_moments():
    assert list(moments(Trace([], ["worker0"], 1.0), [])) == [] == Trace([], ["worker0"], 1.0).replica_spread


@pytest.mark.parametrize("limit", [1, 5, 64])
def test_nodes_of_any_speed_keep_what_they_had_at_common_moments(limit):
    """Each in a process of its own, so that nothing but their clocks is common."""
    nodes = {name: [Marked(late + pace * (v + 1), name, 0, "update", {"x": v}) for v in range(count)]
             for name, late, pace, count in (("a", 0, 0.01, 900), ("b", 0.3, 0.037, 240), ("c", 2, 3.1, 3))}
    for events in nodes.values():
        thin(events, limit)
        assert sum("x" in e.values for e in events) <= limit
    trace = Trace(sorted((e for events in nodes.values() for e in events), key=lambda e: e.time), list(nodes), 12.0)
    found = list(moments(trace, trace.of(Marked)))
    assert len(found) > limit / 2
    for moment in found:
        assert moment.newest == {name: last for name, events in nodes.items()
                                 if (last := sum(e.time <= moment.seconds for e in events) - 1) >= 0}


@pytest.mark.parametrize("p", [(0.1, 0.2, 0.7), (0.0, 1.0, 0.0), (0.25, 0.25, 0.5)])
def test_remembered_probabilities_change_no_draw(p):
    remembered, fresh = (Draws(FREE, 7, "peer0") for _ in range(2))
    drawn = [remembered.choose("abc", p) for _ in range(200)]
    assert drawn == [fresh.choose("abc", list(p)) for _ in range(200)]
    assert drawn != [Draws(FREE, 8, "peer0").choose("abc", (1.0, 0.0, 0.0)) for _ in range(200)]


def test_probabilities_of_another_number_of_options_are_refused_also_when_remembered():
    draws, p = Draws(FREE, 0, "peer0"), (0.5, 0.5)
    draws.choose("ab", p)
    with pytest.raises(ValueError, match="same size"):
        draws.choose("abc", p)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bsp", "asp"])
def test_a_thousand_workers_make_a_hundred_iterations_within_a_generous_deadline(name):
    machine, began = Machine("exponential(1)", bandwidth=1.25e9), time.process_time()
    trace = perform(prepare(name, shape_only(25_557_032), workers=1000, servers=1, steps=100, machine=machine),
                    "simulator").trace
    assert sum(trace.iterations.values()) == 100_000
    assert trace.messages == 200_000
    assert time.process_time() - began < 60


def test_the_garbage_collector_is_as_before_after_a_run_that_fails():
    def failing():
        yield Compute(abs, "no number")

    before = gc.get_threshold()
    with pytest.raises(TypeError):
        simulate({"worker0": Node(failing())})
    assert gc.get_threshold() == before
    first, second = ExitStack(), ExitStack()  # of two threads
    for each in (first, second):
        each.enter_context(rare_full_collections())
    first.close()
    assert gc.get_threshold() != before
    second.close()
    assert gc.get_threshold() == before
