"""A run of the second implementation, with the times that a simulated run drew."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from benchmarks.oracle import layers, pipeline, queues, scripts, ways
from benchmarks.oracle.gate import Fresh, Table
from benchmarks.oracle.scripts import (
    MARK,
    RECEIVE,
    SEND,
    WORK,
    Order,
    Peers,
    Script,
    Step,
    gathered,
    periodic,
    reduced,
)
from refsgd.algorithms.exchange import of
from refsgd.experiment.options import exchanges, pipelines
from refsgd.experiment.prepare import Experiment
from refsgd.theory.algorithms.gossip import hears
from refsgd.theory.setting import slices
from refsgd.trace import Computed, Trace


class Found(NamedTuple):
    """What the second implementation says of a run."""

    seconds: float
    staleness: float | None  #: mean age of applied gradients; None where nothing ages


def drawn(trace: Trace, node: str) -> list[float]:
    """Times of a node's gradients, without the rounding of the clock; the passes of one are put together."""
    passes = [e for e in trace.of(Computed, node) if e.work == "gradient"]
    ends = [g.time for g in trace.gradients if g.node == node]
    times = [0.0] * len(ends)
    for e in passes:
        times[bisect_left(ends, e.time)] += e.time - e.start
    return [round(time, 13) for time in times]


def evaluated(e: Experiment, trace: Trace, jitter: float = 0.0) -> Found | None:
    """The run again; None for an algorithm or a collective that has no second implementation.

    With `jitter`, times differ by up to that share, so that nothing is due at one moment.
    """
    options = e.own
    update = 0.0 if e.machine.update is None else e.machine.update.mean
    own = [update / e.machine.speed(i) for i in range(e.workers)]
    rng = random.Random(len(trace.events))
    times = [[time * (1 + jitter * rng.random()) for time in drawn(trace, w)] for w in trace.workers]
    if e.name in SERVED:
        return _served(e, options, times, update, own)
    order = _order(e, options)
    if order is None:
        return None
    links, way = scripts.wired(e.machine, e.workers)
    peers = Peers(links, way, [order(i, _rounds(e, options), iter(times[i]), repeat(own[i]))
                               for i in range(e.workers)])
    return Found(max(ends[-1] for ends in peers.ends), None)


SERVED = {"bsp", "asp", "ssp", "consgd", "dynsgd", "dc-asgd", "softsync", "staleness-aware", "dssp", "downpour",
          "easgd", "backup-workers"}


def _served(e: Experiment, options: dict[str, Any], times: Table, update: float, own: Sequence[float]) -> Found:
    """Workers and servers."""
    rotated = e.machine.colocated and e.servers == e.workers
    rule, arguments = _rule(e, options, rotated)
    plan = exchanges.plan(e.facts, options, e.problem, e.servers, e.machine.codec)
    nbytes, servers = 4 * e.problem.x0.size, 1 if e.name == "backup-workers" else e.servers
    sizes = [(part.up, part.down) for part in plan.parts] if plan else [
        (float(b), float(b)) for b in slices(nbytes, servers)]
    homes: int | list[int] = [part.server for part in plan.parts] if plan and not plan.even else servers
    paths = ways.of_machine(e.machine, e.workers, homes, sizes, rotated)
    if e.name in ("downpour", "easgd"):
        each = own if e.name == "easgd" else [0.0] * e.workers
        arguments = (*arguments, [[u] * e.steps for u in each])
    run = layers.of(rule, plan)(paths, plan, times, repeat(update), *arguments)
    run.run()
    return Found(run.seconds(), run.staleness())


def _rule(e: Experiment, options: dict[str, Any], rotated: bool) -> tuple[type[Any], tuple[Any, ...]]:
    """How servers answer, and its arguments."""
    if e.name == "ssp":
        rules = {"fresh": Fresh, "lazy": queues.Lazy, "eager": queues.Eager}
        return rules[options["refresh"]], (options["staleness"],)
    if e.name in ("softsync", "staleness-aware"):
        return queues.Batched, (e.workers // int(options["splitting"] or e.workers),)
    found: dict[str, tuple[type[Any], tuple[Any, ...]]] = {
        "bsp": (queues.Bulk, (rotated,)), "asp": (Fresh, ()), "dc-asgd": (Fresh, ()),
        "consgd": (Fresh, (options.get("staleness"),)), "dynsgd": (Fresh, (options.get("staleness"),)),
        "dssp": (queues.Granting, (options.get("lower"), options.get("upper"))),
        "downpour": (queues.Fetching, (options.get("fetch_every"), options.get("push_every"), False)),
        "easgd": (queues.Centred if options.get("mode") == "sync" else queues.Fetching,
                  (options.get("period"), 1, True)),
        "backup-workers": (queues.Quorum, (min(options.get("backups", 1), e.workers - 1), e.steps))}
    return found[e.name]


def _rounds(e: Experiment, options: dict[str, Any]) -> list[int]:
    """Gradients between two averages."""
    if e.name not in ("local-sgd", "post-local", "diloco"):
        return [1] * e.steps
    h, early = int(options["period"]), min(int(options.get("switch", 0)), e.steps)
    rounds, rest = divmod(e.steps - early, h) if h else (0, e.steps - early)
    return [1] * early + [h] * rounds + [rest] * (rest > 0)


def _order(e: Experiment, options: dict[str, Any]) -> Order | None:
    """What peers do, if messages are those of a ring, of neighbours or of GPipe's stages.

    A trace does not tell apart the passes of PipeDream's batches in flight.
    """
    n, sizes, reduction = e.workers, slices(4 * e.problem.x0.size, e.workers), e.machine.reduction

    def around(i: int, _: int) -> Iterable[Step]:
        return scripts.ring(i, n, sizes, reduction)

    ring = options.get("collective", "ring") == "ring" and not exchanges.asked(of(e.problem))
    if e.name == "allreduce" and ring:
        return periodic(around, after=1)
    if e.name in ("local-sgd", "post-local", "diloco"):
        return periodic(around, before=1, after=int(e.name == "diloco"))
    if e.name == "dpsgd":
        return _heard(hears(options["graph"], n), 4 * e.problem.x0.size, options["order"] == "cta", False)
    if e.name == "sgp":
        return _heard(hears(options["graph"], n), 4 * e.problem.x0.size + 4, False, False)
    if e.name == "zero" and not options["flat"]:
        return _sharded(e, int(options["stage"]))
    stages = pipelines.plan(e.facts, options, e.problem, n, e.steps)
    if stages and ring and e.name == "gpipe":
        return pipeline.together(stages, int(options["micro"]), reduction, options["passes"] == "fill-drain")
    return None


def _heard(rounds: Sequence[Sequence[Sequence[int]]], nbytes: float, before: bool, rotated: bool) -> Order:
    """Peers that send to their neighbours, `before` or after their gradients, and wait for theirs."""
    n = len(rounds[0])
    sent = [[[i for i in range(n) if j in heard[i]] for j in range(n)] for heard in rounds]

    def send(i: int, k: int) -> Iterable[Step]:
        for j in sent[k % len(sent)][i]:
            yield SEND, j, nbytes

    def hear(i: int, k: int) -> Iterable[Step]:
        yield from () if before else send(i, k)
        for j in rounds[k % len(rounds)][i]:
            yield RECEIVE, j, 0

    return periodic(hear, first=send if before else None, before=int(not before), after=int(before))


def _sharded(e: Experiment, stage: int) -> Order:
    """ZeRO: a layer's messages are those of its equal parts."""
    n, nbytes, reduction = e.workers, 4 * e.problem.x0.size, e.machine.reduction
    plan = exchanges.plan(e.facts, e.own, e.problem, 1, 0.0)
    assert plan is not None
    parts = [(nbytes, 1 / 3, 2 / 3)] if stage == 1 else [
        (int(part.down), f, b) for part, f, b in zip(plan.parts, plan.forward, plan.backward, strict=True)]
    sections = [slices(size, n) for size, *_ in parts]

    def script(i: int, gradients: Sequence[int], times: Iterator[float], updates: Iterator[float]) -> Script:
        for _ in gradients:
            time = next(times)
            for sizes, (_, f, _) in zip(sections, parts, strict=True):
                yield from gathered(i, n, sizes) if stage == 3 else ()
                yield WORK, i, time * f
            for sizes, (_, _, b) in reversed(list(zip(sections, parts, strict=True))):
                yield from gathered(i, n, sizes) if stage == 3 else ()
                yield WORK, i, time * b
                yield from reduced(i, n, sizes, reduction)
            yield WORK, i, next(updates)
            for sizes in sections if stage < 3 else ():
                yield from gathered(i, n, sizes)
            yield MARK, i, 0

    return script
