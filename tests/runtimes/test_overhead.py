"""Overheads of messages, updates priced by their bytes, and crowded hosts."""
from itertools import pairwise
from typing import NamedTuple

import pytest

import refsgd
from refsgd.cli import main
from refsgd.cluster.links import Overhead
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Died, Node, Recv, Send
from refsgd.runtimes.faults import Fault
from refsgd.runtimes.processes import local as processes
from refsgd.runtimes.simulator import Faulty, Simulator, simulate
from refsgd.trace import Computed, Received, Sent
from tests.paced import as_simulated, slipped


class Token(NamedTuple):
    value: int


QUIET = Machine(compute="fixed(1)", overhead="10ms")


def one_way(messages=1):
    def source():
        for k in range(messages):
            yield Send("worker1", Token(k))
        yield Compute(abs, 1)

    def sink():
        for _ in range(messages):
            yield Recv(Token)
        yield Compute(abs, 1)

    return {"worker0": Node(source(), rank=0), "worker1": Node(sink(), rank=1)}


def test_both_ends_of_a_message_take_the_overhead():
    """LogP: a message of latency L is in the receiver's hands o + L + o after the sender began."""
    trace = simulate(one_way, QUIET.with_(latency=0.1)).trace
    assert [e.time for e in trace.of(Sent)] == pytest.approx([0.01])
    assert [e.time for e in trace.of(Received)] == pytest.approx([0.11])
    assert [e.start for e in trace.of(Computed)] == pytest.approx([0.01, 0.12])


def test_messages_follow_one_another_at_the_pace_of_the_overhead():
    """LogP's gap: k messages take k o at the sender, and the receiver, as fast, keeps up."""
    trace = simulate(lambda: one_way(5), QUIET).trace
    assert [b.time - a.time for a, b in pairwise(trace.of(Sent))] == pytest.approx([0.01] * 4)
    assert trace.of(Computed, "worker1")[0].start == pytest.approx(0.06)


class AtOneEnd(Simulator):
    """A wrong one: receivers take messages for nothing."""

    def spends(self, task, nbytes, call, *args):
        if call == self.answer:
            call(task, *args)
        else:
            super().spends(task, nbytes, call, *args)


def test_a_simulator_that_charges_senders_alone_is_caught():
    assert AtOneEnd(one_way, QUIET).run().trace.of(Computed, "worker1")[0].start != pytest.approx(0.02)
    assert Simulator(one_way, QUIET).run().trace.of(Computed, "worker1")[0].start == pytest.approx(0.02)


def beside(kind, amount=0.0, simulator=Faulty):
    """When a message leaves that needs 1 s, from a host to which the fault happens at 0.5 s."""
    def computing():
        yield Compute(abs, 1)
        yield Compute(abs, 1)

    def source():
        yield Send("peer2", Token(1))

    def sink():
        yield Recv(Token, Died)

    nodes = {"peer0": Node(computing(), host="h"), "peer1": Node(source(), host="h"), "peer2": Node(sink())}
    machine = Machine(compute="0.5", overhead="1s")
    return [e.time for e in simulator(nodes, machine, faults=[Fault(kind, "peer0", 1, amount)],
                                      on_death="continue").run().trace.of(Sent)]


class Restless(Faulty):
    """A wrong one: what a message costs ends in time, even at who is dead or paused."""

    def _spent(self, task, call, *args):
        call(task, *args)


def test_no_message_leaves_the_dead_and_that_of_the_paused_waits():
    assert (beside("kill"), beside("pause", 3)) == ([], [3.5])
    assert (beside("kill", simulator=Restless), beside("pause", 3, Restless)) == ([1], [1])


@pytest.mark.parametrize(("algorithm", "ends"), [("bsp", 4 + 3), ("allreduce", 2 * 2 * 3), ("dpsgd", 2 * 2)])
def test_rounds_by_hand(algorithm, ends):
    """Four workers: a server takes three more pushes after the first worker's, a ring has 2 (n - 1) steps of two ends,
    D-PSGD sends to two neighbours and hears from both."""
    found = refsgd.run(algorithm, data="quadratic", workers=4, steps=50, machine=Machine(compute="1", overhead="10ms"))
    last = [e.time for e in found.trace.of(Computed, found.trace.workers[0]) if e.work == "gradient"]
    assert (last[-1] - last[9]) / 40 == pytest.approx(1 + ends * 0.01, abs=1e-3)
    assert found.predicted["seconds"]["value"] == pytest.approx(found.measured["seconds"])
    assert found.measured["idle_by_cause"]["overhead"] > 0.9 * found.measured["idle_ratio"]


@pytest.mark.alone
def test_paced_processes_spend_the_overhead():
    machine = Machine(compute="20ms", latency="1ms", overhead="2ms,1ns/B")
    for algorithm in ("bsp", "asp", "allreduce"):
        of = {runtime: refsgd.run(algorithm, data="quadratic", workers=2, steps=8, machine=machine, runtime=runtime)
              for runtime in ("simulator", "processes")}
        assert as_simulated(of["processes"].measured["seconds"], of["simulator"].measured["seconds"],
                            slipped(of["processes"].trace), rel=0.02)
        if algorithm != "asp":
            assert of["processes"].parameters.tobytes() == of["simulator"].parameters.tobytes()


def test_unpaced_processes_spend_their_own():
    run = processes.run(one_way, Machine(overhead="10"))  # seconds
    assert run.trace.seconds < 5


def test_an_update_is_priced_by_the_bytes_that_it_reads():
    """x, v and the gradients of n workers, 4 d bytes each: a mean of more takes longer."""
    for n in (1, 4):
        machine = Machine(compute="1", update="0.5", updating=1e-3)
        found = refsgd.run("bsp", data="quadratic", workers=n, steps=2, momentum=0.9, machine=machine)
        d = found.parameters.size
        took = [e.time - e.start for e in found.trace.of(Computed) if e.work == "update"]
        assert took == pytest.approx([0.5 + 1e-3 * 4 * d * (2 + n)] * 2)


@pytest.mark.parametrize(("crowding", "load", "ends"), [((1, 1.5), "", 1.5), ((1, 1.5, 2), "worker0: 2@0", 2.5)])
def test_programs_of_a_host_crowd_each_other(crowding, load, ends):
    machine = Machine(compute="1", hosts="cyclic:1", crowding=crowding, loads=load)
    found = refsgd.run("independent", data="quadratic", workers=2, steps=1, machine=machine)
    assert found.trace.of(Computed, "peer0")[0].time == pytest.approx(ends)
    alone = refsgd.run("independent", data="quadratic", workers=2, steps=1, machine=machine.with_(hosts=""))
    assert alone.trace.of(Computed, "peer1")[0].time == 1


def test_crowded_and_short_of_cores():
    """Three programs on two cores, each at 2/3 of 1/1.2."""
    machine = Machine(compute="1", hosts="cyclic:1", cores=2, crowding=(1, 1.1, 1.2))
    found = refsgd.run("independent", data="quadratic", workers=3, steps=1, machine=machine)
    assert found.measured["seconds"] == pytest.approx(1.5 * 1.2)


@pytest.mark.parametrize(("text", "found"), [
    ("20us", Overhead(20e-6)), ("20us,0.2ns/B", Overhead(20e-6, 0.2e-9)), (0.001, Overhead(0.001)), ("0", None),
    ({"fixed": 0.0, "per_byte": 1e-9}, Overhead(0.0, 1e-9)), (None, None)])
def test_an_overhead_is_read_in_every_form(text, found):
    machine = Machine(compute="1", overhead=text)
    assert machine.overhead == found
    assert Machine.from_json(machine.to_json()) == machine
    assert machine.slow_motion(2).overhead == (found and found.scaled(2))


@pytest.mark.parametrize("text", ["20us,0.2ns", "-1", "fast", "1,2,3", float("inf"), {"fixed": "1"}, True])
def test_what_is_no_overhead_is_refused(text):
    with pytest.raises((ValueError, TypeError), match="overhead"):
        Machine(compute="1", overhead=text)


def test_an_overhead_of_an_algorithm_without_messages_is_refused(capsys):
    assert main(["run", "sequential", "--data", "quadratic", "--steps", "2", "--overhead", "1ms"]) == 2
    assert "--overhead changes nothing of sequential: it sends no messages" in capsys.readouterr().err
