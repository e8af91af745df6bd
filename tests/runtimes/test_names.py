"""Your own nodes, with names of their own: what counts as a worker, in figures and after a death."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

import refsgd
from refsgd.algorithms.parts import Model, Push, Shard, names, worker
from refsgd.algorithms.server import asp
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.runtimes.errors import RunFailed
from refsgd.trace import Crashed

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
PACED = {"data": "quadratic", "workers": 3, "steps": 10, "lr": 0.05,
         "machine": Machine(compute="fixed(0.01)")}


class Go(NamedTuple):
    t: int


def server(ws, x, steps, lr, scheduled):
    for t in range(steps):
        if scheduled:
            yield Recv(Go)
        gs = {}
        for _ in ws:
            src, push = yield Recv(Push)
            gs[src] = push.grad
        x = x - np.float32(lr) * sum(gs[w] for w in ws) / np.float32(len(ws))
        yield Mark("update", version=t, reads=tuple((w, t) for w in ws), x=x)
        for w in ws:
            yield Send(w, Model(x, t + 1))
    return x


def scheduler(steps, dies):
    for t in range(steps):
        if dies and t == 3:
            yield Compute(lambda: os.kill(os.getpid(), signal.SIGKILL), kind="update")
        yield Send("server0", Go(t))


def scheduled(name, dies=False):
    """BSP, in which a node of this name allows each step; without a name plain BSP."""
    def deploy(problem, workers, steps, sgd):
        ws, _ = names(workers, 1)
        nodes = {w: Node(worker(i, ["server0"], problem, steps)) for i, w in enumerate(ws)}
        nodes["server0"] = Node(server(ws, problem.x0, steps, sgd.lr, bool(name)), role="server")
        return nodes | ({name: Node(scheduler(steps, dies), role="server")} if name else {})

    return deploy


@pytest.mark.parametrize("name", ["scheduler", "server-scheduler", "coordinator7"])
def test_a_node_that_computes_no_gradient_is_left_out_of_the_figures_of_workers(name):
    """All figures, and the parameters, are those of the run without it, whatever it is called."""
    plain, found = (refsgd.run(scheduled(which), **PACED) for which in ("", name))
    assert found.parameters_sha256 == plain.parameters_sha256
    assert found.trace.workers == plain.trace.workers == ["worker0", "worker1", "worker2"]
    for figure in ("idle_ratio", "seconds_per_iteration", "images_per_second", "clock_gap_max", "lead_max",
                   "idle_by_cause"):
        assert found.measured[figure] == plain.measured[figure], figure
    assert (found.trace.lead, found.trace.clock_gap) == (plain.trace.lead, plain.trace.clock_gap) == (1, 0)


def test_nodes_of_any_name_that_compute_gradients_are_workers():
    """A server that computes one is none, whatever it is called."""
    def alone(x):
        for _ in range(2):
            x = yield Compute(np.negative, x)
        return x

    nodes = {"server": Node(alone(np.ones(2))), "worker": Node(alone(np.ones(2)), role="server")}
    trace = refsgd.runtimes.simulator.simulate(nodes, Machine(compute="fixed(1)")).trace
    assert trace.workers == ["server"] and (trace.lead, trace.clock_gap) == (0, 0)


def test_the_death_of_a_server_by_name_ends_the_run():
    """Nobody can do its work, so even restart gives up, with one line that names it."""
    with pytest.raises(RunFailed, match=r"^server-scheduler \(pid \d+\) was killed by SIGKILL"):
        refsgd.run(scheduled("server-scheduler", dies=True), runtime="processes", on_death="restart", **PACED)


def freely_named(problem, workers, steps, sgd):
    """ASP among nodes whose names say nothing, in no order of ranks."""
    names = ["alice", "bob", "carol"][:workers]
    nodes = {"hub": Node(asp.server(Shard(0, problem.x0, sgd), workers * steps), role="server", survives=True)}
    return nodes | {name: Node(worker(rank, ["hub"], problem, steps), rank=rank, host="left" if rank < 2 else None)
                    for rank, name in reversed(list(enumerate(names)))}


@pytest.mark.parametrize("runtime", ["simulator", "processes", "tcp"])
def test_a_deployment_may_choose_its_names(runtime):
    """Metrics, speeds and faults follow role and rank, and nodes of one `host` share a process."""
    run = partial(refsgd.run, freely_named, data="quadratic", workers=3, steps=8, lr=0.05, runtime=runtime,
                  machine=Machine(compute="fixed(0.02)", speeds=(1, 1, 0.5)))
    found = run()
    assert (found.trace.workers, found.servers) == (["carol", "bob", "alice"], 1)
    drawn = found.trace.busy if runtime == "simulator" else {
        w: found.trace.lateness[w]["drawn"] for w in found.trace.workers}
    assert drawn == pytest.approx({"alice": 0.16, "bob": 0.16, "carol": 0.32})
    assert found.measured["staleness_mean"] > 0.5 and found.history[-1][2] == found.history[-1][1]
    died = run(faults="kill worker 2 at step 3", on_death="continue")
    assert [e.node for e in died.trace.of(Crashed)] == ["carol"]
    both = run(faults="kill bob at step 3", on_death="continue")
    assert {e.node for e in both.trace.of(Crashed)} == {"alice", "bob"}, "a host dies whole"


def test_a_deployment_of_any_names_is_explored():
    from refsgd.testing import explore_algorithm

    assert "2 workers, 2 steps" in explore_algorithm(freely_named)


def test_a_run_whose_server_does_not_survive_is_refused():
    def fragile(problem, workers, steps, sgd):
        nodes = freely_named(problem, workers, steps, sgd)
        nodes["hub"].survives = False
        return nodes

    with pytest.raises(ValueError, match="on_death continue with fragile, whose programs wait for every worker"):
        refsgd.run(fragile, on_death="continue", **PACED)
    with pytest.raises(ValueError, match="role 'peer' of a Node; expected worker or server"):
        Node(iter(()), role="peer")
