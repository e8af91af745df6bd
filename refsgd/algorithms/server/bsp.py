"""Bulk-synchronous parallel SGD (BSP, sync-SGD): all workers step together, at the pace of the slowest.

It is sequential SGD with a batch of n*b examples, computed by n workers; only the order of floating-point
additions differs.

Quick facts
-----------
synchronous: yes | centralised: yes | roles: n workers, K servers with a part each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | staleness: 0 | clock gap: 0
while computing | momentum: at the server | aggregation: mean over examples (`sum` as an option) |
deterministic: yes, whatever the order of arrival

Workers of one host may hand their gradients to a leader (`group`), which pushes their mean and hands on the
model: the two levels of MXNet's store, the devices of a machine and the machines.  Then n/g workers push.

What differs from the papers
----------------------------
Valiant's model has no servers; the server here is that of Li et al., who sum the gradients of all examples.
With the mean, the rate need not depend on n.  A server answers a push when all have arrived and been applied,
as in MXNet, so the wait for the slowest worker is part of the push.

References
----------
Valiant, "A bridging model for parallel computation", CACM 33(8), 1990: supersteps.
Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014, algorithm 1.
Chen et al., "MXNet: a flexible and efficient machine learning library for heterogeneous distributed systems",
arXiv:1512.01274, 2015, section 2.3: a server of two levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from refsgd.algorithms.facts import SERVED, Facts, Options, declare, one_of
from refsgd.algorithms.parts import Message, Model, Objective, Push, Servers, Shard, deploy, rotate, worker
from refsgd.algorithms.sgd import SGD, mean_gradient
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, Send

Aggregation = Literal["mean", "sum"]


def mean(*pushes: Push) -> Array:
    """The mean over the examples of several workers, in the order given."""
    return mean_gradient([push.grad for push in pushes], [push.examples for push in pushes])


def total(*pushes: Push) -> Array:
    """The sum of several workers' means, in the order given."""
    return sum((push.grad for push in pushes[1:]), start=pushes[0].grad)


def update(sgd: SGD, x: Array, v: Array, pushes: Sequence[Push], t: int,
           aggregation: Aggregation = "mean") -> tuple[Array, Array]:
    """One step with the gradients of several workers, in the order given."""
    g = mean(*pushes) if aggregation == "mean" else total(*pushes)
    return sgd.step(x, v, g, t)


def leader(rank: int, members: Sequence[int], servers: Sequence[str], problem: Objective, steps: int,
           aggregation: Aggregation, rotated: bool) -> Program[Array]:
    """Push one gradient for a group, pull the model and hand it on to the members; returns the last, (d,)."""
    def whole(x: Array, t: int) -> Program[Array]:
        pushes = [Push((yield Compute(problem.gradient, x, rank, t)), problem.images(rank, t), t)]
        for i in members:
            pushes.append((yield Recv(Push, src=f"worker{i}"))[1])
        rule = mean if aggregation == "mean" else total
        g: Array = yield Compute(rule, *pushes, kind="reduction")
        return g

    x, there = problem.x0, Servers(servers, problem, rank * rotated, whole)
    group = tuple(f"worker{i}" for i in (rank, *members))

    def pushes(t: int) -> Message:
        examples = sum(problem.images(i, t) for i in (rank, *members))
        return lambda s, g: Push(g, examples, there.version[s], group)

    for t in range(steps):
        yield from there.gradient(x, rank, t, pushes(t))
        x = yield from there.pull()
        for w in group[1:]:
            yield Send(w, Model(x, t + 1))
        yield Mark("clock", t=t)
    return x


def member(rank: int, leader: str, problem: Objective, steps: int) -> Program[Array]:
    """Compute a gradient, hand it to the leader and wait for the new model; returns the last, (d,)."""
    x = problem.x0
    for t in range(steps):
        g = yield Compute(problem.gradient, x, rank, t)
        yield Send(leader, Push(g, problem.images(rank, t), t))
        _, (x, _) = yield Recv(Model, src=leader)
        yield Mark("clock", t=t)
    return x


def server(shard: Shard, workers: Sequence[str], steps: int, aggregation: Aggregation = "mean",
           rotated: bool = False) -> Program[Array]:
    """Aggregate one gradient per worker and step, update the shard, answer all; returns its part."""
    for _ in range(steps):  # Li et al., algorithm 1, servers
        pushes = {}
        for _ in workers:
            w, push = yield from shard.recv(Push)
            pushes[w] = push
        # Lines 2 and 3, in worker order: floating-point addition must not depend on the network.
        ordered = [(w, pushes[w]) for w in workers]
        yield from shard.update(ordered, update, [push for _, push in ordered], shard.version, aggregation)
        for w in rotate(workers, shard.part) if rotated else workers:
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


def facts(options: Options) -> Facts:
    """The facts for workers that push, or for leaders that push for their groups."""
    whole = replace(SERVED, lost=Facts.lost, timeless=True, collects=True, formula="bsp", recursion="mean")
    if options["aggregation"] == "sum":
        whole = replace(
            whole, mean_of="the sum of n gradients is already n times their mean",
            recursion="the sum of n gradients is their mean at n times the rate: aggregation mean")
    return whole if options["group"] == 1 else replace(
        whole, collective=True, leads=options["group"],
        takes=tuple(each for each in whole.takes if each != "overlap"),
        because={**whole.because, "overlap": "a leader pushes once it has the gradients of its whole group"})


@declare(facts)
def bsp(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
        aggregation: Aggregation = "mean", group: int = 1) -> Deployment:
    """Deploy BSP.

    Parameters
    ----------
    rotated : bool
        Worker i begins with server i, which answers it first.
    aggregation : {"mean", "sum"}
        Mean over examples, or the sum of the workers' means (then the effective rate is n times as large,
        and gradients are not weighted by their batches).
    group : int
        Consecutive workers, such as those of a host, whose gradients the first of them sums and pushes as
        one; the last group may be smaller.  1: each worker pushes its own.
    """
    one_of("aggregation", aggregation, Aggregation)
    if group < 1:
        raise ValueError(f"group {group}; expected at least 1 worker")

    def client(rank: int, servers: Sequence[str]) -> Program[Array]:
        first = rank - rank % group
        if group == 1:
            return worker(rank, servers, problem, steps, rotated)
        if rank != first:
            return member(rank, f"worker{first}", problem, steps)
        members = range(first + 1, min(first + group, workers))
        return leader(rank, members, servers, problem, steps, aggregation, rotated)

    return deploy(problem, workers, steps, sgd, servers, rotated, lambda shard, workers: server(
        shard, workers[::group], steps, aggregation, rotated), client, survives=False)
