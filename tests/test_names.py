"""Nodes of one's own with names of their own: what counts as a worker, in figures and after a death."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

import numpy as np
import pytest

import refsgd
from refsgd.algorithms.parameter_server import Model, Push, names, worker
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.machine import Machine
from refsgd.runtimes.simulator import RunFailed

PACED = {"data": "quadratic", "workers": 3, "steps": 10, "lr": 0.05, "machine": Machine(compute="fixed(0.01)")}


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
        nodes["server0"] = Node(server(ws, problem.x0, steps, sgd.lr, bool(name)))
        return nodes | ({name: Node(scheduler(steps, dies))} if name else {})

    return deploy


@pytest.mark.parametrize("name", ["scheduler", "server-scheduler", "coordinator7"])
def test_a_node_that_computes_no_gradient_is_left_out_of_the_figures_of_workers(name):
    """All figures, and the parameters, are those of the run without it, whatever it is called."""
    plain, found = (refsgd.run(scheduled(which), **PACED) for which in ("", name))
    assert found.parameters_sha256 == plain.parameters_sha256
    assert found.trace.workers == plain.trace.workers == ["worker0", "worker1", "worker2"]
    for figure in ("idle_ratio", "seconds_per_iteration", "images_per_second", "clock_gap", "lead", "idle_by_cause"):
        assert found.measured.get(figure) == plain.measured.get(figure), figure
    assert (found.trace.lead, found.trace.clock_gap) == (plain.trace.lead, plain.trace.clock_gap) == (1, 0)


def test_nodes_of_any_name_that_compute_gradients_are_workers():
    """As the page on one's own algorithm says; a server that computes one is none."""
    def alone(x):
        for _ in range(2):
            x = yield Compute(np.negative, x)
        return x

    trace = refsgd.runtimes.simulator.simulate({n: Node(alone(np.ones(2))) for n in ("stage0", "server0")}, Machine(compute="fixed(1)")).trace
    assert trace.workers == ["stage0"] and (trace.lead, trace.clock_gap) == (0, 0)


def test_the_death_of_a_server_by_name_ends_the_run():
    """Nobody can do its work, so even restart gives up, with one line that names it."""
    with pytest.raises(RunFailed, match=r"^server-scheduler \(pid \d+\) was killed by SIGKILL"):
        refsgd.run(scheduled("server-scheduler", dies=True), runtime="processes", on_death="restart", **PACED)
