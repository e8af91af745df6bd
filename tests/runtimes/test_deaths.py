"""Deaths that a run survives: told to who asks, the same in virtual time and among processes."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import refsgd
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Died, Mark, Node, Recv, RunEnded, Send
from refsgd.runtimes import simulator
from refsgd.runtimes.errors import Deadlock, RunFailed
from refsgd.runtimes.faults import Fault
from refsgd.runtimes.processes.driver import Driver
from refsgd.runtimes.processes.local import run
from refsgd.trace import Crashed
from tests.runtimes.deployments import exchange


class Push(NamedTuple):
    grad: Any


class Model(NamedTuple):
    x: Any


class Done(NamedTuple):
    pass


kill = partial(Fault, "kill")


@pytest.fixture(params=["simulator", "shm", "tcp"])
def world(request):
    """``world(factory, machine, faults=...)`` in every world that has deaths."""
    if request.param == "simulator":
        return simulator.simulate
    return partial(run, transport=request.param, on_death="continue", deadline=10.0)


def worker(rank, server, x, steps, gradient):
    for t in range(steps):
        g = yield Compute(gradient, x, rank, t)
        yield Send(server, Push(g))
        _, (x,) = yield Recv(Model, src=server)
    yield Send(server, Done())
    return rank


def server(workers, x):
    """Answers each worker that pushes, until all are done or dead."""
    left, applied, dead = set(workers), 0, []
    while left:
        src, message = yield Recv(Push, Done, Died)
        if isinstance(message, Push):
            x = yield Compute(np.subtract, x, np.float32(0.1) * message.grad, kind="update")
            applied += 1
            yield Mark("update", version=applied - 1, reads=[(src, applied - 1)])
            yield Send(src, Model(x))
        else:
            left.discard(src)
            if isinstance(message, Died):
                assert message.node == src
                dead.append(src)
    return applied, sorted(dead)


def asp(n=4, steps=12, gradient=lambda x, rank, t: x + np.float32(1), d=50):
    """Asynchronous workers and a server that outlives them."""
    workers, x = [f"worker{i}" for i in range(n)], np.zeros(d, np.float32)
    return {"server0": Node(server(workers, x), role="server", survives=True)} | {
        w: Node(worker(i, "server0", x, steps, gradient)) for i, w in enumerate(workers)}


MACHINES = [Machine(compute="fixed(0.005)", latency=0.001, bandwidth=1e7),
            Machine(compute="exponential(0.005)", update=0.001), Machine()]


@pytest.mark.filterwarnings("ignore:real computing overran")
@pytest.mark.parametrize("machine", MACHINES, ids=["link", "update", "unpaced"])
def test_the_others_go_on_and_who_asks_is_told(world, machine):
    """Worker 2 dies before its gradient 5: five of its gradients count, all of the others'."""
    result = world(asp, machine, faults=[kill("worker2", 5)])
    assert result.values == {"server0": (12 * 3 + 5, ["worker2"]), "worker0": 0, "worker1": 1, "worker3": 3}
    (death,) = result.trace.of(Crashed)
    assert death.node == "worker2" and result.trace.nodes == ["server0", *(f"worker{i}" for i in range(4))]
    assert len(result.trace.marks("update")) == 41


def test_of_two_that_lose_their_connection_the_worker_ends(world):
    """Both live and both see it; never the server, with which the run would end."""
    result = world(asp, MACHINES[0], faults=[Fault("drop", "worker1", 5, to="server0")])
    assert result.values == {"server0": (12 * 3 + 5, ["worker1"]), "worker0": 0, "worker2": 2, "worker3": 3}
    (death,) = result.trace.of(Crashed)
    assert "worker1" in death.reason and "server0" in death.reason


def test_all_but_one_may_die(world):
    """At the first step, too."""
    result = world(asp, MACHINES[0], faults=[kill("worker0", 0), kill("worker1", 3), kill("worker3", 3)])
    assert result.values == {"server0": (12 + 6, ["worker0", "worker1", "worker3"]), "worker2": 2}


def test_large_messages_on_their_way_to_the_dead_are_dropped(world):
    """What fills the pipes to a dead process holds up nobody."""
    def floods():
        for _ in range(10):
            yield Send("peer1", Model(np.zeros(500_000, np.float32)))
        yield Recv(Died)
        for _ in range(10):
            yield Send("peer1", Model(np.zeros(500_000, np.float32)))
        return "sent"

    def dies():
        yield Compute(abs, -1)

    def other():
        yield Compute(abs, -1)
        return "well"

    values = world(lambda: {"peer0": Node(floods()), "peer1": Node(dies()), "peer2": Node(other())},
                   faults=[kill("peer1", 0)]).values
    assert values == {"peer0": "sent", "peer2": "well"}


def test_death_is_the_last_that_is_heard_of_the_dead(world):
    """Five messages are still on a slow link when their sender dies: they come first, in every world."""
    def sends():
        for k in range(5):
            yield Send("peer0", Model(np.full(1000, k, np.float32)))
        yield Compute(abs, -1)

    def hears():
        heard = []
        while "Died" not in heard:
            _, message = yield Recv(Model, Died)
            heard.append("Died" if isinstance(message, Died) else int(message.x[0]))
        return heard

    def other():
        yield Compute(abs, -1)

    found = world(lambda: {"peer0": Node(hears()), "peer1": Node(sends()), "peer2": Node(other())},
                  Machine(compute="fixed(0.005)", latency=0.02, bandwidth=1e5), faults=[kill("peer1", 0)])
    assert found.values["peer0"] == [0, 1, 2, 3, 4, "Died"]


def test_what_is_sent_right_before_a_death_is_heard_before_it(monkeypatch):
    """All of it happens between the receiver's looks at its messages and at the deaths."""
    collect, looked = Driver._collect, []

    def blind(driver):
        if driver.here == "peer0" and not looked:
            looked.append("nothing there")
            while not driver._run.deaths:
                time.sleep(0.001)
        else:
            collect(driver)

    def sends():
        yield Send("peer0", Model(np.zeros(1, np.float32)))
        yield Compute(abs, -1)

    def hears():
        heard = []
        while "Died" not in heard:
            _, message = yield Recv(Model, Died)
            heard.append(type(message).__name__)
        return heard

    monkeypatch.setattr(Driver, "_collect", blind)
    found = run(lambda: {"peer0": Node(hears()), "peer1": Node(sends())}, faults=[kill("peer1", 0)],
                on_death="continue", deadline=10.0)
    assert found.values["peer0"] == ["Model", "Died"]


def test_whoever_waits_in_vain_after_a_death_is_told_if_it_knows(world):
    """A server that lets `RunEnded` end it returns what it has; one that does not is a standstill."""
    def counts():
        got = 0
        with suppress(RunEnded):
            for _ in range(20):
                yield Recv(Push)
                got += 1
        return got

    def ignorant():
        for _ in range(20):
            yield Recv(Push)

    def pushes():
        for _ in range(10):
            yield Compute(abs, -1)
            yield Send("server0", Push(np.ones(1)))

    def build(server, survives):
        return {"server0": Node(server, role="server", survives=survives)} | {f"worker{i}": Node(pushes()) for i in range(2)}

    assert world(lambda: build(counts(), True), MACHINES[0], faults=[kill("worker1", 4)]).values["server0"] == 14
    with pytest.raises(Deadlock,
                       match=r"after the death of worker1: server0 at .*in ignorant waits for Recv\(Push\)"):
        world(lambda: build(ignorant(), False), MACHINES[0], faults=[kill("worker1", 4)])
    with pytest.raises(Deadlock, match=r"after the death of worker1: server0 .*does not catch RunEnded"):
        simulator.simulate(lambda: build(ignorant(), True), MACHINES[0], faults=[kill("worker1", 4)])


def test_a_peer_that_goes_on_asking_the_dead_waits_for_ever(world):
    """It hears of a death once; AD-PSGD therefore strikes the dead off its list, and this one does not."""
    def asks(strikes):
        others, answers = ["peer1", "peer2"], 0
        for t in range(12):
            yield Compute(abs, -1)
            j = others[t % len(others)]
            yield Send(j, Push(np.ones(1)))
            _, answer = yield Recv(Model, Died, src=j)
            answers += isinstance(answer, Model)
            if isinstance(answer, Died) and strikes:
                others.remove(j)
        return answers

    def answers():
        while True:
            src, _ = yield Recv(Push)
            yield Send(src, Model(np.ones(1)))

    def trains():
        for _ in range(12):
            yield Compute(abs, -1)

    def build(strikes):
        return {"peer0": Node(asks(strikes))} | {f"peer{i}": Node(trains(), [answers()]) for i in (1, 2)}

    assert world(lambda: build(True), MACHINES[0], faults=[kill("peer1", 5)]).values["peer0"] >= 9
    with pytest.raises(Deadlock,
                       match=r"after the death of peer1: peer0 at .*in asks waits for Recv\(Model or Died "
                             r"from peer1\)"):
        world(lambda: build(False), MACHINES[0], faults=[kill("peer1", 5)])


def test_handlers_are_closed_after_a_death(world):
    """The counting leaves out what the dead sent and were sent."""
    def main(names, me):
        for t in range(10):
            yield Compute(abs, -t)
            for name in names:
                if name != me:
                    yield Send(name, Push(np.ones(100)))
        return me

    def respond():
        try:
            while True:
                yield Recv(Push)
        except RunEnded:
            return

    names = [f"peer{i}" for i in range(4)]
    result = world(lambda: {n: Node(main(names, n), [respond()]) for n in names}, MACHINES[0],
                   faults=[kill("peer2", 4)])
    assert result.values == {n: n for n in names if n != "peer2"}


def test_a_host_dies_whole(world):
    """With worker 1 the server beside it, and with a server the run."""
    def beside():
        while True:
            src, _ = yield Recv(Push)
            yield Send(src, Model(np.zeros(1)))

    def asks(rank):
        for t in range(5):
            yield Compute(abs, -t)
            for k in range(2):
                yield Send(f"server{k}", Push(np.ones(1)))
                yield Recv(Model)

    machine = Machine(compute="fixed(0.005)", colocated=True)

    def build():
        servers = {f"server{k}": Node(beside(), role="server") for k in range(2)}
        return servers | {f"worker{i}": Node(asks(i)) for i in range(2)}

    with pytest.raises(RunFailed, match=r"worker1 .*was killed .*; the parameters died with it, so no node can "
                                        "continue$"):
        world(build, machine, faults=[kill("worker1", 2)])


def test_a_synchronous_algorithm_stands_still_without_its_worker(world):
    """BSP that does not ask for deaths: a deadlock that names the death."""
    with pytest.raises(Deadlock,
                       match=r"after the death of worker1: .*server0 at .*in server waits for Recv\(Push\)"):
        world(partial(exchange, n=3, steps=20), MACHINES[0], faults=[kill("worker1", 3)])


def test_a_planned_death_ends_a_run_that_does_not_survive_deaths():
    """on_death="stop": the error of any other death."""
    with pytest.raises(RunFailed,
                       match=r"worker1 \(pid \d+\) was killed by SIGKILL .*in Compute\(gradient\) 4 at"):
        run(partial(exchange, n=3, steps=20), MACHINES[0], faults=[kill("worker1", 3)])


@pytest.mark.parametrize(("how", "said"), [
    ("exception", "NaN in layer 3"), ("exit", "exit code 3"), ("sys.exit", "sys.exit(0); expected"), ("signal", "killed by signal 35")])
def test_exceptions_and_exits_are_deaths_too(how, said, caplog):
    """Logged with their line; the others go on."""
    def gradient(x, rank, t):
        if (rank, t) == (1, 4):
            if how == "exit":
                os._exit(3)
            elif how == "sys.exit":
                sys.exit(0)
            elif how == "signal":
                os.kill(os.getpid(), 35)  # which has no name
            raise FloatingPointError("NaN in layer 3")
        return x

    with caplog.at_level(logging.WARNING):
        result = run(partial(asp, gradient=gradient), MACHINES[0], on_death="continue")
    assert result.values["server0"] == (12 * 3 + 4, ["worker1"])
    (line,) = [r.getMessage() for r in caplog.records if "continues without it" in r.getMessage()]
    assert said in line


def test_when_all_are_dead_the_run_has_failed():
    """There is nobody left to go on."""
    def alone():
        yield Compute(abs, -1)

    with pytest.raises(RunFailed, match="peer0"):
        run(lambda: {"peer0": Node(alone())}, on_death="continue", faults=[kill("peer0", 0)])


@pytest.mark.parametrize("runtime", ["simulator", "processes", "tcp"])
def test_a_coordinator_that_cannot_go_on_is_no_death_that_others_survive(runtime):
    """The run has failed, and not only one of its processes."""
    with pytest.raises(Deadlock, match="coordinator waits for messages that cannot arrive"):
        refsgd.run("sandblaster", data="quadratic", workers=2, steps=3, runtime=runtime, on_death="continue",
                   faults=["kill worker 0 at step 1", "kill worker 1 at step 1"])


def test_bad_plans_are_refused():
    """Saying what was expected."""
    for text in ("kill at step 3", "kill worker 1", "stop worker 1 at step 2"):
        with pytest.raises(ValueError, match="expected kill.drop ROLE RANK at step STEP, pause"):
            Fault.parse(text)
    with pytest.raises(ValueError, match="there is no worker9; expected one of server0, worker0"):
        run(partial(asp, n=1), faults=[kill("worker9", 1)])
    with pytest.raises(ValueError, match="a step >= 0, and one end for each node"):
        simulator.simulate(partial(asp, n=1), faults=[kill("worker0", 1), kill("worker0", 2)])
    with pytest.raises(ValueError, match="on_death 'ignore'; expected one of stop, continue"):
        run(asp, on_death="ignore")
