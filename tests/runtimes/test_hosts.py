"""Several nodes on one host: one OS process drives them all, and they mean what they mean in the simulator."""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import pytest

import refsgd
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Died, Node, Recv, Send
from refsgd.experiment.prepare import prepare
from refsgd.runtimes import simulator
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.faults import Fault, check, draw, parse
from refsgd.runtimes.processes.local import run
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Computed, Crashed
from tests.marks import mostly_slow
from tests.paced import as_simulated, slipped
from tests.runtimes.deployments import Push, bad_gradient, exchange

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
TWO = Machine(hosts="2x2")  # two hosts of two workers; servers have their own
PACED = TWO.with_(compute="exponential(0.006)", latency=0.001, bandwidth=1e7)


def kill(node, step):
    return Fault("kill", node, step)


@pytest.mark.parametrize(("algorithm", "runtime", "machine"), mostly_slow(
    [(algorithm, runtime, machine) for algorithm in ("bsp", "allreduce", "local-sgd", "dpsgd", "independent")
     for runtime in ("processes", "tcp") for machine in ("unpaced", "paced", "dealt")],
    ("bsp", "processes", "unpaced"), ("allreduce", "tcp", "dealt"), ("dpsgd", "processes", "paced")))
def test_parameters_are_those_of_the_simulator(algorithm, runtime, machine):
    """A real net, whose gradients two threads of a process compute at the same time; and where no host is
    shared."""
    on = {"unpaced": TWO, "dealt": Machine(hosts="cyclic:2"),
          "paced": PACED.with_(compute="exponential(0.02)", inside="0.1ms,1GB/s")}[machine]
    batch = 8 if on.paced else 64  # which two cores can compute in time
    hashes = {refsgd.run(algorithm, workers=4, steps=6, batch=batch, machine=where, runtime=how, seed=1,
                         evaluations=0).parameters_sha256
              for how, where in ((runtime, on), ("simulator", on), ("simulator", Machine()))}
    assert len(hashes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["asp", "ssp", "gosgd", "adpsgd", "easgd", "hogwild"])
def test_algorithms_with_a_schedule_end_as_well(algorithm, tmp_path):
    """And their records reproduce them, bit for bit, with shared memory and handlers in one process."""
    found = refsgd.run(algorithm, data="quadratic", workers=4, steps=12, lr=0.05, machine=PACED,
                       runtime="processes", record=tmp_path / "record", evaluations=0)
    assert len(found.trace.of(Computed)) >= 48
    assert refsgd.replay(tmp_path / "record").parameters_sha256 == found.parameters_sha256


def test_a_run_whose_host_died_is_resumed(tmp_path):
    """From the records of all its nodes, to the same bits as without the death."""
    arguments = {"data": "quadratic", "workers": 4, "steps": 8, "lr": 0.05, "machine": PACED, "evaluations": 0}
    with pytest.raises(RunFailed, match="host1 .*kill worker3 at step 4"):
        refsgd.run("bsp", runtime="processes", checkpoint=tmp_path, faults=["kill worker 3 at step 4"], **arguments)
    resumed = refsgd.run("bsp", runtime="processes", resume=tmp_path)
    assert resumed.measured["updates"] == 8
    assert resumed.parameters_sha256 == refsgd.run("bsp", runtime="simulator", **arguments).parameters_sha256


@pytest.mark.parametrize("runtime", ["simulator", "processes"])
def test_a_replay_knows_on_which_links_workers_waited(runtime, tmp_path):
    """Shares of idle time by cause follow from the ways of messages, which the machine of the record describes."""
    machine = PACED.with_(groups="2x1", uplink="5ms,10kB/s", inside="1ms,100kB/s")
    found = refsgd.run("allreduce", data="quadratic", workers=4, steps=4, lr=0.05, machine=machine,
                       runtime=runtime, record=tmp_path / "record", evaluations=0)
    assert refsgd.replay(tmp_path / "record").measured["idle_by_cause"] == pytest.approx(
        found.measured["idle_by_cause"])


@pytest.mark.parametrize("runtime", ["simulator", "processes", pytest.param("tcp", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("algorithm", "on_death", "updates"), mostly_slow(
    [("asp", "continue", None), ("adpsgd", "continue", None), ("bsp", "shrink", 8), ("allreduce", "shrink", 8),
     ("allreduce", "restart", 8), ("hogwild", "continue", None)],
    ("asp", "continue", None), ("allreduce", "shrink", 8)))
def test_a_host_dies_as_a_whole(algorithm, on_death, updates, runtime):
    """`kill worker 2` kills worker 3 beside it; the same policies hold, with the same result where no
    schedule matters."""
    found = refsgd.run(algorithm, data="quadratic", workers=4, steps=8, lr=0.05, machine=PACED,
                       runtime=runtime, faults=["kill worker 2 at step 5"], on_death=on_death, evaluations=0)
    names = [node for node in found.trace.nodes if found.trace.is_worker(node)]
    assert [event.node for event in found.trace.of(Crashed)] == names[2:]
    if updates is not None:
        assert found.measured["updates"] == updates
        flat = refsgd.run(algorithm, data="quadratic", workers=4, steps=8, lr=0.05, runtime="simulator",
                          machine=PACED, faults=["kill worker 2 at step 5"], on_death=on_death, evaluations=0)
        assert found.parameters_sha256 == flat.parameters_sha256


def peers(steps=6):
    """Two on each host; those of the first host wait for both deaths on the second."""
    def waits(rank):
        yield Compute(np.add, np.zeros(1), rank)
        gone = []
        while len(gone) < 2:
            src, died = yield Recv(Died)
            assert src == died.node
            gone.append(src)
        return sorted(gone)

    def works(rank):
        for t in range(steps):
            yield Compute(np.add, np.zeros(1), t)
            yield Send("peer0", Push(np.zeros(1)))
        yield Recv(Push)

    return {f"peer{i}": Node(waits(i) if i < 2 else works(i), survives=True) for i in range(4)}


@pytest.mark.parametrize("world", ["simulator", "shm", "tcp"])
def test_every_survivor_is_told_of_each_node_of_a_host_that_dies(world):
    go = simulator.simulate if world == "simulator" else partial(run, transport=world, on_death="continue",
                                                              deadline=10.0)
    found = go(peers, PACED, faults=[kill("peer3", 4)])
    assert found.values == {"peer0": ["peer2", "peer3"], "peer1": ["peer2", "peer3"]}
    assert [event.node for event in found.trace.of(Crashed)] == ["peer2", "peer3"]


def test_what_a_node_returned_dies_with_its_host():
    """Peer 1 has long returned when its host is killed: its replica is lost, in every runtime and in the
    record."""
    def one(steps):
        for t in range(steps):
            yield Compute(np.add, np.zeros(1), t)
        return np.ones(1)

    def build():
        return {"peer0": Node(one(30), survives=True), "peer1": Node(one(1), survives=True),
                "peer2": Node(one(30), survives=True)}

    machine = Machine(compute="fixed(0.004)", hosts=(("peer0", "peer1"), ("peer2",)))
    plan = [kill("peer0", 20)]
    for found in (simulator.simulate(build, machine, faults=plan),
                  run(build, machine, faults=plan, on_death="continue")):
        assert list(found.values) == ["peer2"]


def test_errors_name_the_host_and_the_node(transport):
    """An exception, a death: the host, and what each of its nodes was doing."""
    build = partial(exchange, n=4, steps=8, gradient=bad_gradient)
    with pytest.raises(RunFailed, match=r"^host1 \(pid \d+\): FloatingPointError: NaN in layer 3, "
                                        r"in Compute\(gradient\) of worker2, yielded at .*deployments.py"):
        run(build, TWO, transport=transport)
    with pytest.raises(RunFailed, match=r"^host1 \(pid \d+\) was killed by SIGKILL \(as planned: kill worker2 at "
                                        r"step 3\): worker2 in Compute\(gradient\) 4 at .*; worker3 in ") as caught:
        run(partial(exchange, n=4, steps=8), PACED, transport=transport, faults=[kill("worker2", 3)])
    assert caught.value.node == "host1" and "\n" not in str(caught.value)


def test_the_log_names_a_death_once(caplog):
    """Two nodes, one host, one reason."""
    refsgd.run("allreduce", data="quadratic", workers=4, steps=6, lr=0.05, machine=TWO, runtime="simulator",
               faults=["kill worker 2 at step 3"], on_death="shrink", evaluations=0)
    (line,) = [r.getMessage() for r in caplog.records if "continues from iteration" in r.getMessage()]
    assert line.count("killed") == 1 and line.endswith("with peer0, peer1")


def test_records_in_the_log_say_which_node_of_a_process_wrote_them(caplog):
    """From helper threads, too: each gradient logs its rank."""
    log = logging.getLogger("refsgd.test")

    def tells(x, rank, t):
        log.warning("%d at %d", rank, t)
        return x

    run(partial(exchange, n=4, steps=5, gradient=tells), TWO)
    lines = [(r.getMessage(), r.node, r.processName) for r in caplog.records if r.name == "refsgd.test"]
    assert sorted(lines) == sorted((f"{i} at {t}", f"worker{i}", f"host{i // 2}")
                                   for i in range(4) for t in range(5))


def test_a_process_is_sampled_once_for_all_its_nodes():
    used = refsgd.run("bsp", data="quadratic", workers=4, steps=30, machine=PACED, runtime="processes",
                      monitor=True).measured["resources"]
    assert set(used) == {"worker0", "worker2", "server0", "launcher"}


@pytest.mark.parametrize("runtime", ["simulator", "processes", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_pause_stops_the_whole_host(runtime):
    """Six steps of 10 ms end after half a second on the host that is paused, and long before on the other."""
    found = refsgd.run("independent", data="quadratic", workers=4, steps=6, lr=0.05, evaluations=0,
                       machine=TWO.with_(compute="fixed(0.01)"), runtime=runtime,
                       faults=["pause worker 1 at step 3 for 0.5"]).trace
    ends = [max(e.time for e in found.of(Computed, node)) for node in found.nodes]
    assert [end > 0.5 for end in ends] == [True, True, False, False]


@pytest.mark.alone
def test_two_workers_share_the_core_of_their_host(transport):
    """30 ms of each on one core: both end at 60 ms, and 0.36 s for six steps."""
    def program():
        for t in range(6):
            yield Compute(abs, t)

    def build():
        return {f"worker{i}": Node(program()) for i in range(4)}

    def ends(found):
        return {node: [e.time for e in found.trace.of(Computed, node)] for node in ("worker1", "worker2")}

    machine = Machine(compute="fixed(0.03)", cores=1, hosts=(("worker0", "worker1"), ("worker2",), ("worker3",)))
    counted = {"worker1": [0.06 * k for k in range(1, 7)], "worker2": [0.03 * k for k in range(1, 7)]}
    for node, times in ends(simulate(build, machine)).items():
        assert times == pytest.approx(counted[node], rel=1e-12)
    found = run(build, machine, transport=transport)
    for node, times in ends(found).items():
        assert as_simulated(times[-1], counted[node][-1], slipped(found.trace))


# -- plans -------------------------------------------------------------------------------------------------


def test_a_connection_within_a_host_cannot_be_lost():
    deployment = prepare("asp", data="quadratic", workers=4, machine=TWO).deploy()
    host = TWO.place(deployment)
    with pytest.raises(ValueError, match="both are on host1; expected two nodes with a connection"):
        parse(["drop worker 3 to worker 2 at step 1"], deployment, 5, host)
    assert parse(["drop worker 3 to worker 0 at step 1"], deployment, 5, host)


def test_of_two_hosts_that_lose_their_connection_the_later_one_ends():
    """Dealt hosts: worker 2 is on the first one, which therefore stays, whatever the number of the node."""
    role = {f"worker{i}": "worker" for i in range(4)}
    host = {f"worker{i}": f"host{i % 2}" for i in range(4)}
    with pytest.raises(ValueError, match="of two workers the one on the later host"):
        check([Fault("drop", "worker2", 1, to="worker1")], role, host)
    check([Fault("drop", "worker1", 1, to="worker2")], role, host)


def test_random_faults_leave_a_host_alive():
    nodes = [f"worker{i}" for i in range(6)]
    host = {node: f"host{i // 2}" for i, node in enumerate(nodes)}
    for seed in range(60):
        ended = {host[f.node] for f in draw(8, seed, nodes, 20, host) if f.kind in ("kill", "drop")}
        assert len(ended) < 3
