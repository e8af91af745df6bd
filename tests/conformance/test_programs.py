"""What the effects promise about programs, nodes and the end of a run, held against every runtime."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from refsgd.cluster.machine import Machine
from refsgd.effects import Choose, Compute, Mark, Node, Recv, RunEnded, Send
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.programs import ForgottenYield
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Computed, Marked, Received

pytestmark = pytest.mark.usefixtures("few_draws_throughout")


class Push(NamedTuple):
    grad: Any


class Model(NamedTuple):
    x: Any


class Ask(NamedTuple):
    x: Any


class Answer(NamedTuple):
    x: Any


def gradient(x, rank, t):
    """A pure function of (x, rank, step)."""
    return (x * np.float32(0.5) + np.sin(np.arange(len(x), dtype=np.float32) + rank + t)).astype(np.float32)


def worker(rank, servers, xs, steps):
    for t in range(steps):
        x = np.concatenate(xs)
        g = yield Compute(gradient, x, rank, t)
        at = 0
        for server, part in zip(servers, xs):
            yield Send(server, Push(g[at : at + len(part)]))
            at += len(part)
        xs = []
        for server in servers:
            _, (part,) = yield Recv(Model, src=server)
            xs.append(part)
    return np.concatenate(xs)


def server(workers, x, steps):
    for t in range(steps):
        grads = {}
        for _ in workers:
            src, push = yield Recv(Push)
            grads[src] = push.grad
        x = yield Compute(step, x, *[grads[w] for w in workers], kind="update")
        yield Mark("update", version=t, x=x)
        for w in workers:
            yield Send(w, Model(x))
    return x


def step(x, *grads):
    return x - np.float32(0.1) * sum(grads) / np.float32(len(grads))


def bsp(n=3, k=1, d=101, steps=8):
    """A parameter server in two programs."""
    workers, servers = [f"worker{i}" for i in range(n)], [f"server{j}" for j in range(k)]
    xs = np.array_split(np.zeros(d, np.float32), k)
    return ({s: Node(server(workers, x, steps), role="server") for s, x in zip(servers, xs)}
            | {w: Node(worker(i, servers, xs, steps)) for i, w in enumerate(workers)})


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("colocated", [False, True])
def test_every_world_and_every_number_of_servers_gives_the_same_bits(world, servers, colocated):
    """Sums are in the order of workers and slices joined in the order of servers."""
    machine = Machine(compute="exponential(0.003)", latency=0.0005, bandwidth=1e7, colocated=colocated)
    expected = simulate(bsp).values["worker0"]
    values = world(lambda: bsp(k=servers), machine).values
    assert values["worker0"].tobytes() == expected.tobytes()
    assert np.concatenate([values[f"server{j}"] for j in range(servers)]).tobytes() == expected.tobytes()


def test_the_same_events_in_every_world(world):
    """Kinds, programs, values of marks and counts of events agree with the simulator's, node by node."""
    machine = Machine(compute="exponential(0.004)", update=0.001, latency=0.001, bandwidth=1e6)
    expected, trace = simulate(bsp, machine, 5).trace, world(bsp, machine, 5).trace
    for node in trace.nodes:
        ours, theirs = ([(e.program, type(e), sorted(e.values) if isinstance(e, Marked) else [])
                         for e in one.events if e.node == node] for one in (trace, expected))
        assert ours == theirs
    assert trace.bytes_sent == expected.bytes_sent and trace.nodes == expected.nodes
    slipped = trace.lateness.get("worker1", {}).get("slipped", 0.0)
    drawn = [sum(e.time - e.start for e in one.of(Computed, "worker1")) for one in (trace, expected)]
    assert drawn[0] == pytest.approx(drawn[1] + slipped)


def test_choices_are_the_same_in_every_world(world):
    """Drawn from the stream of (seed, node, program)."""
    def chooser():
        out = []
        for _ in range(50):
            out.append((yield Choose([1, 2, 3, 4])))
            out.append((yield Choose("ab", p=[0.9, 0.1])))
        return out

    def build():
        return {"peer0": Node(chooser()), "peer1": Node(chooser())}

    values = world(build, None, 7).values
    assert values == simulate(build, None, 7).values and values["peer0"] != values["peer1"]


def test_handlers_are_closed_when_nothing_is_under_way(world):
    """All that was sent is handled first; a responder may catch RunEnded and return."""
    def main(replica, others):
        for other in others:
            for i in range(30):
                yield Send(other, Ask(i))
        return replica

    def respond(replica):
        try:
            while True:
                _, (value,) = yield Recv(Ask)
                replica.total += value
        except RunEnded:
            replica.closed = True
            return "ignored"

    def build():
        names = [f"peer{i}" for i in range(3)]
        out = {}
        for name in names:
            box = Box()
            out[name] = Node(main(box, [n for n in names if n != name]), [respond(box)])
        return out

    values = world(build).values
    assert {name: (box.total, box.closed)
            for name, box in values.items()} == {f"peer{i}": (870, True) for i in range(3)}


class Box:
    """What the programs of one node share; returned by the main program, it must be picklable."""

    def __init__(self):
        self.total, self.closed = 0, False


def test_a_responder_that_does_not_catch_the_end_is_fine(world):
    """RunEnded ends it quietly."""
    def main():
        yield Send("peer1", Ask(1))
        _, (value,) = yield Recv(Answer)
        return value

    def idle():
        yield Recv(Answer)

    def respond():
        while True:
            src, (value,) = yield Recv(Ask)
            yield Send(src, Answer(value + 1))

    def nothing():
        return 3
        yield

    values = world(lambda: {"peer0": Node(main(), [idle()]), "peer1": Node(nothing(), [respond()])}).values
    assert values == {"peer0": 2, "peer1": 3}


def test_two_programs_of_a_node_work_at_the_same_time(world):
    """A responder answers while its node's main program computes."""
    machine = Machine(compute="fixed(0.06)")

    def main():
        yield Compute(abs, -1)

    def respond():
        while True:
            src, _ = yield Recv(Ask)
            yield Send(src, Answer(0))

    def asks():
        yield Send("peer0", Ask(0))
        yield Recv(Answer)

    trace = world(lambda: {"peer0": Node(main(), [respond()]), "peer1": Node(asks())}, machine).trace
    (answered,) = trace.of(Received, "peer1")
    assert answered.time < 0.05 and trace.seconds >= 0.06


def test_one_core_is_shared_by_the_programs_of_a_node(world):
    """With cores=1 two Computes that begin together take twice as long; a later one of half the work
    slows the first down meanwhile."""
    def main(rest, work):
        yield Compute(abs, -1, kind=rest)
        yield Compute(abs, -1, kind=work)

    machine = Machine(compute="fixed(0.06)", update="fixed(0.03)", cores=1)
    both = pytest.approx((0.0, 0.12), abs=0.01)
    expected = {("peer0", 0, "gradient"): both, ("peer0", 1, "gradient"): both,
                ("peer1", 0, "gradient"): both,  # 0.06 beside two updates of 0.03
                ("peer1", 1, "update"): pytest.approx((0.06, 0.12), abs=0.01)}
    for _ in range(3):  # a machine that is busy with other things may spoil one run
        trace = world(lambda: {"peer0": Node(main("none", "gradient"), [main("none", "gradient")]),
                               "peer1": Node(main("none", "gradient"), [main("update", "update")])},
                      machine).trace
        found = {(e.node, e.program, e.work): (e.start, e.time) for e in trace.of(Computed)
                 if e.work != "none"}
        if found == expected:
            break
    assert found == expected


def test_programs_that_take_no_time(world):
    """Nothing is computed and nothing is sent: the run is over at once."""
    def marks():
        for t in range(3):
            yield Mark("clock", t=t)
        return "done"

    run = world(lambda: {"worker0": Node(marks()), "worker1": Node(marks())}, Machine(compute="fixed(0.01)"))
    assert run.values == {"worker0": "done",
                          "worker1": "done"} and run.trace.seconds == pytest.approx(0.0, abs=1e-3)
    assert [e.values["t"] for e in run.trace.marks("clock") if e.node == "worker1"] == [0, 1, 2]


def test_a_node_may_return_at_once(world):
    """What is sent to it afterwards is delivered to nobody, and the run ends."""
    def returns():
        return 1
        yield

    def sends():
        yield Compute(abs, -1)
        yield Send("peer0", Ask(np.zeros(100_000)))
        return 2

    assert world(lambda: {"peer0": Node(returns()), "peer1": Node(sends())}).values == {
        "peer0": 1, "peer1": 2}


def test_a_single_node_is_a_run(world):
    """Sequential SGD is a deployment of one node, which may also write to itself."""
    def alone():
        x = np.ones(3, np.float32)
        for t in range(3):
            x = x - (yield Compute(gradient, x, 0, t))
        yield Send("worker0", Model(x))
        src, (x,) = yield Recv(Model)
        return src, float(x.sum())

    assert world(lambda: {"worker0": Node(alone())}).values == simulate(
        lambda: {"worker0": Node(alone())}).values


def test_kinds_without_a_law_take_no_nominal_time(world):
    """An update that the machine does not price is free."""
    def main():
        for t in range(5):
            yield Compute(abs, -t)
            yield Compute(abs, -t, kind="update")

    trace = world(lambda: {"worker0": Node(main())}, Machine(compute="fixed(0.01)")).trace
    slipped = trace.lateness.get("worker0", {}).get("slipped", 0.0)  # a Compute that the machine ended late
    updates = [e.time - e.start for e in trace.of(Computed) if e.work == "update"]
    assert updates == [0.0] * 5 and trace.seconds == pytest.approx(0.05 + slipped)


def test_links_are_shared_by_the_nodes_of_a_host(world):
    """Two servers beside one worker send through one link; what they say to it never enters the network."""
    machine = Machine(compute="fixed(0.01)", bandwidth=1e6, latency=0.002, colocated=True)

    def sends(*to):
        for node in to:
            yield Send(node, Model(np.zeros(5000, np.float32)))

    def receives(count):
        for _ in range(count):
            yield Recv(Model)

    def build():
        return {"server0": Node(sends("worker0", "worker1"), role="server"), "server1": Node(sends("worker1"), role="server"),
                "worker0": Node(receives(1)), "worker1": Node(receives(2))}

    trace = world(build, machine).trace
    # server0 lives with worker0 and server1 with worker1: only server0's second message crosses.
    local = [e for e in trace.of(Received) if e.src[-1] == e.node[-1]]
    (across,) = [e for e in trace.of(Received) if e not in local]
    assert [e.time for e in local] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert across.time == pytest.approx(0.022, abs=1e-6)


@pytest.mark.parametrize("where", ["program", "gradient"])
def test_exceptions_reach_the_caller_with_the_programs_line(world, where):
    """The type, the text, and the line of the program."""
    def bad_gradient(t):
        if t == 3:
            raise ValueError("NaN in layer 3")
        return t

    def main():
        for t in range(10):
            yield Compute(bad_gradient if where == "gradient" else abs, t)
            if t == 5:
                raise ValueError("NaN in layer 3")

    def waits():
        yield Recv(Answer)

    with pytest.raises((ValueError, RuntimeError), match="NaN in layer 3") as caught:
        world(lambda: {"worker0": Node(main()), "worker1": Node(waits())})
    error = caught.value if isinstance(caught.value, ValueError) else caught.value.__cause__
    assert isinstance(error, ValueError)
    text = "\n".join([str(error.__cause__ or ""), getattr(caught.value, "traceback", ""), *error.__notes__,
                      *map(str, _lines(error))])
    assert "worker0" in text and "test_programs.py" in text and "in main" in text


def _lines(error):
    trace = error.__traceback__
    while trace is not None:
        yield f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno} in {trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next


def test_a_deadlock_is_named(world):
    """Each node's line and what it waits for."""
    def waits(other):
        yield Compute(abs, -1)
        yield Recv(Answer, src=other)

    with pytest.raises(Deadlock) as caught:
        world(lambda: {"peer0": Node(waits("peer1")), "peer1": Node(waits("peer0"))})
    text = str(caught.value)
    for node, other in (("peer0", "peer1"), ("peer1", "peer0")):
        assert f"{node} at " in text and f"Recv(Answer from {other})" in text
    assert "test_programs.py" in text and "in waits" in text and "\n" not in text


def test_a_forgotten_yield_is_named(world):
    """An effect that was built and not yielded."""
    def forgets():
        Send("peer1", Answer(1))
        yield Compute(abs, -1)

    def other():
        yield Recv(Answer)

    with pytest.raises(ForgottenYield,
                       match=r"2 effects were built before .*test_programs.py:\d+ in forgets"):
        world(lambda: {"peer0": Node(forgets()), "peer1": Node(other())})

    def forgets_the_last():
        yield Compute(abs, -1)
        Send("peer1", Answer(1))

    with pytest.raises(ForgottenYield,
                       match="1 effect was built before the end of forgets_the_last and none was yielded"):
        world(lambda: {"peer0": Node(forgets_the_last()), "peer1": Node(other())})


def test_sending_to_nobody_is_named(world):
    """The error lists who there is."""
    def sends():
        yield Send("peer9", Answer(1))

    with pytest.raises((ValueError, RuntimeError),
                       match=r"in sends sends to 'peer9'; expected one of peer0, peer1"):
        world(lambda: {"peer0": Node(sends()), "peer1": Node(sends())})


def test_at_most_64_evenly_spaced_models_are_kept(world):
    """The events stay, and in every world the newest model does."""
    from refsgd.trace import thin

    trace = world(lambda: bsp(steps=200, d=7)).trace
    thin(trace.events)
    marks = trace.marks("update")
    assert len(marks) == 200 and "x" in marks[-1].values and 32 < sum("x" in e.values for e in marks) <= 64
