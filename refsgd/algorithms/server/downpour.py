"""Downpour SGD: push and fetch at their own periods, and step on a local copy in between.

Gradients are accumulated for `push_every` iterations, and a fetched model is used for `fetch_every`.
Iteration 0 pushes immediately, so the windows have 1, push_every, push_every, ... gradients.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n workers, K servers with a part each | messages per worker and
iteration: K / push_every pushes and K / fetch_every requests up, K / fetch_every down | bytes per worker and
iteration: M / push_every up, M / fetch_every down | staleness: unbounded; mean (n - 1)(f + 1)/2 + (f - 1)/2
updates if push_every = 1, f = fetch_every and messages are free | clock gap: unbounded | momentum: at the
server | aggregation: sum of a window's gradients, each push alone | deterministic: given the order of arrival

A replica of the model may be divided itself, into K stages on as many nodes (section 4.1): each stage
accumulates, pushes and fetches its own parameters, at servers that hold only them, so that the stages of a
replica may have different versions.  They compute as in `gpipe`.

Unequal batches: every push has the same weight, whatever its number of examples, as in the paper.

What differs from the paper
---------------------------
A worker waits for its fetch, whereas the paper's fetch may overlap with computing.  So push_every =
fetch_every = 1 is ASP if messages take no time (otherwise another push can come between a push and its
fetch). The paper's loop is endless; here the last iteration pushes the rest, so no gradient is lost.  AdaGrad
does not change an entry while its squares are 0.  Local steps are plain -lr g, without momentum or weight
decay.  There is no warm start with a single replica.  Replicas are cut between layers only, not within them.

References
----------
Dean et al., "Large scale distributed deep networks", NIPS 2012, section 4.1, and the client in its appendix.
Duchi, Hazan and Singer, "Adaptive subgradient methods", JMLR 12, 2011: the rule of `adagrad`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms.facts import ONE_WORKER, PART, SERVED, Facts, Options, declare
from refsgd.algorithms.parts import Fetch, Model, Servers, Shard, deploy, names
from refsgd.algorithms.pipeline.gpipe import gradient
from refsgd.algorithms.pipeline.stages import deploy as pipeline
from refsgd.algorithms.sgd import SGD
from refsgd.collectives.parts import chunks
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, RunEnded, Send


class Accrued(NamedTuple):
    """worker -> server: the sum of a window's gradients, of the server's part."""

    grad: Array  # (part,)
    versions: tuple[int, ...]  # of the part at which each of them was computed
    examples: int = 0  # in all their means together


def worker(rank: int, workers: int, servers: Sequence[str], problem: Any, steps: int, sgd: SGD,
           push_every: int, fetch_every: int, rotated: bool,
           divided: Callable[[Array, int], Program[Array]] | None = None) -> Program[Array]:
    """The client of the appendix: accumulate gradients and step locally; returns the local copy, (d,).

    With `divided`, which computes its gradients, it is one of a replica's stages, and `problem` that stage.
    """
    x, there = problem.x0, Servers(servers, problem, rank if rotated else 0, divided)
    accrued, reads, examples = np.zeros_like(x), list[dict[str, int]](), 0

    def window(s: str, g: Array) -> Accrued:
        return Accrued(g, tuple(read[s] for read in reads), examples)

    for t in range(steps):
        if t % fetch_every == 0:  # step mod n_fetch = 0
            x = yield from there.fetch(t)
        reads, examples = [*reads, dict(there.version)], examples + problem.images(rank, t)
        if pushes_at(t, steps, push_every):  # step mod n_push = 0
            g = yield from there.gradient(x, rank, t, window, accrued)  # pushes accrued + g
            accrued, reads, examples = np.zeros_like(x), [], 0
        else:
            g = yield from there.compute(x, rank, t)
            accrued = accrued + g
        # g is in push ceil(t / push_every); all workers' earlier pushes are updates
        x = x - sgd.rate(workers * -(-t // push_every)) * g
        yield Mark("clock", t=t)
    return x  # type: ignore[no-any-return]


def pushes_at(t: int, steps: int, push_every: int) -> bool:
    """Whether iteration t ends a window."""
    return t % push_every == 0 or t == steps - 1


def server(shard: Shard, messages: int, adagrad: bool) -> Program[Array]:
    """Apply pushes and answer fetches, `messages` of both together; returns the shard's part."""
    rule = adagrad_step if adagrad else SGD.step
    with suppress(RunEnded):  # raised after a death, when no worker sends any more
        for _ in range(messages):
            w, message = yield from shard.recv(Accrued, Fetch)
            if isinstance(message, Fetch):
                yield Send(w, Model(shard.x, shard.version))
            else:
                shard.x, shard.state = yield Compute(rule, shard.sgd, shard.x, shard.state, message.grad,
                                                     shard.version, kind="update")
                yield from shard.mark(tuple((w, read) for read in message.versions), message.examples)
    return shard.x


def adagrad_step(sgd: SGD, x: Array, squares: Array, a: Array, t: int) -> tuple[Array, Array]:
    """Parameters and summed squares after update t; the rate of an entry is lr / sqrt(its sum of squares)."""
    a = a + np.float32(sgd.weight_decay) * x
    squares = squares + a * a
    root = np.sqrt(np.where(squares > 0, squares, 1)).astype(x.dtype)
    return x - sgd.rate(t) * a / root, squares


def updates(workers: int, steps: int, options: Options) -> int:
    """One for each push, the last of which is at the end."""
    return workers * (1 + -(-(steps - 1) // max(1, options["push_every"]))) if steps else 0


def facts(options: Options) -> Facts:
    """The facts for replicas of one worker each, or divided into stages."""
    whole = replace(
        SERVED, updates=updates, mean_of=ONE_WORKER, holds="replica", formula="downpour",
        because={**SERVED.because, "overlap both": "its workers do not wait for the answer to a push"},
        only_sgd="its workers take local steps along the plain gradient, for which it has adagrad",
        lost="up to `push_every` accrued gradients", recursion="waits" if [options[o] for o in (
            "push_every", "fetch_every", "adagrad")] == [1, 1, False] else "only by running it")
    return whole if options["stages"] == 1 else replace(
        whole, share="replica", holds="stages", unshared=PART, takes=(), recursion=PART,
        because={"": "each of its stages sends the gradient of its layers whole"})


@declare(facts)
def downpour(problem: Any, workers: int, steps: int, sgd: SGD, servers: int = 1,
             rotated: bool = False, *, push_every: int = 1, fetch_every: int = 1,
             adagrad: bool = False, stages: int = 1, micro: int = 1) -> Deployment:
    """Deploy Downpour SGD.

    Parameters
    ----------
    push_every, fetch_every : int
        Iterations between two pushes and between two fetches, at least 1.
    adagrad : bool
        Rates per parameter at the servers; not allowed with momentum.
    stages : int
        K, the nodes of a replica of the model, a divisor of the number of workers.
    micro : int
        Most micro-batches into which a divided replica splits a batch.
    """
    if push_every < 1 or fetch_every < 1:
        raise ValueError(f"push_every {push_every}, fetch_every {fetch_every}; expected at least 1 iteration")
    if adagrad and sgd.momentum:
        raise ValueError(f"momentum {sgd.momentum} with adagrad; expected 0")
    if micro < 1 or (micro > 1 and stages == 1):
        raise ValueError(f"micro {micro} with stages {stages}; expected at least 1, and 1 with one stage")
    messages = updates(1, steps, {"push_every": push_every}) - (-steps // fetch_every)
    given = steps, sgd, push_every, fetch_every, rotated
    if stages == 1:
        return deploy(problem, workers, steps, sgd, servers, rotated,
                      lambda shard, workers: server(shard, messages * len(workers), adagrad),
                      lambda rank, servers: worker(rank, workers, servers, problem, *given))
    names(workers, servers)  # refuses a run without one or the other
    replicas = workers // max(stages, 1)
    own = [[f"server{s}.part{k * servers + s}" for s in range(servers)] for k in range(stages)]
    nodes = dict(pipeline(problem, workers, sgd, stages, "balance", "ring", lambda me: worker(
        me.rank, replicas, own[me.k], me.stages[0], *given,
        lambda x, t: gradient(me, x, t, micro, "fill-drain"))))
    for k, stage in enumerate(problem.split(stages)):  # each stage has a part on every server
        for s, part in enumerate(chunks(stage.x0.size, servers)):
            shard = Shard(k * servers + s, stage.x0[part], sgd)
            nodes[own[k][s]] = Node(server(shard, messages * replicas, adagrad), role="server", rank=s)
    return nodes
