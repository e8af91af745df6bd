"""Predictions for algorithms in which all peers wait for all: allreduce, deep gradient compression, ZeRO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from refsgd.cluster import placement
from refsgd.cluster.distributions import Distribution
from refsgd.theory.algorithms.peers import fresh, heard_from, in_rounds, repeat
from refsgd.theory.estimate import WIDEST, Uncovered, certain, kind_of
from refsgd.theory.phenomena import collectives, iteration, layerwise
from refsgd.theory.phenomena.collectives import Exchange, Link, factors
from refsgd.theory.phenomena.layerwise import Plan
from refsgd.theory.phenomena.stragglers import mean_of_maximum
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import Setting, clocks, figures

SOURCE = "Patarasuk and Yuan 2009; Baccelli et al. 1992"
LISTENERS = 32  # most peers that all receive from all and whose links are evaluated one by one


def collective(c: Setting, name: str = "ring") -> Exchange:
    """An allreduce of the setting's model."""
    if name == "hierarchical":
        return _hierarchical(c)
    if name == "ring" and c.workers > 1:
        ring = collectives.ring(c.workers, c.nbytes, c.link, _largest_chunk(c, c.workers))
        return _again(c, ring, c.workers)
    n, rings = c.workers, c.options.get("rings")
    found = collectives.allreduce(name, n, c.nbytes, c.link, rings=rings, columns=c.options.get("columns"))
    chunks = {"rings": n * (rings or 2), "halving-doubling": 1 << n.bit_length() - 1, "pscpu": n, "torus": n}
    return _again(c, found, chunks.get(name, 1))


def group_of(c: Setting) -> int:
    """Number of workers in a group of a hierarchical allreduce, by default that of a host."""
    given, devices = c.options.get("group"), set(placement.devices(c.machine.hosts, c.workers))
    if not c.machine.hosts:
        size = factors(c.workers)[0] if given is None else int(given)
        devices = {size} if c.workers % size == 0 else {0}
    if len(devices) > 1 or (given is not None and int(given) not in devices):
        raise Uncovered("formulas of hierarchical all-reduce assume full groups, the workers of a host; "
                        "other groups can only be simulated or measured")
    return devices.pop()


def _hierarchical(c: Setting) -> Exchange:
    """The exchange in a run of several steps, where the star's messages arrive staggered."""
    g, inside = group_of(c), c.machine.inside
    if inside and inside.duplex == "half" and g > 2:
        raise Uncovered("no formula of hierarchical all-reduce covers half-duplex links inside hosts")
    inner = c.link
    if c.machine.hosts:
        inner = Link(inside.latency, inside.bandwidth) if inside else Link()
    m = c.workers // g
    return _again(c, collectives.hierarchical(g, m, c.nbytes, c.link, inner, _largest_chunk(c, m),
                                              repeated=True), m)


def _again(c: Setting, exchange: Exchange, chunks: int) -> Exchange:
    """An exchange in a run: formulas assume equal chunks, with others ranks do not stay in step."""
    if c.nbytes % (4 * chunks) == 0 or exchange.time.kind != "exact":
        return exchange
    return exchange._replace(time=replace(exchange.time, kind="approximation"))


def _largest_chunk(c: Setting, chunks: int) -> float:
    """Bytes of the largest chunk, a whole number of float32."""
    return 4.0 * -(-c.nbytes // (4 * chunks))


def in_step(c: Setting) -> bool:
    """Whether peers that begin together end together."""
    return c.together and certain(c.machine.update) and len(set(c.own)) == 1


def through_ring(c: Setting, step: Prediction, end: Prediction, gradients: Sequence[int], *, before: int = 0,
                 after: int = 0, period: int = 1) -> tuple[Prediction | None, Prediction | None]:
    """Iteration and run of peers in a ring: `step` and `end` if they are in step, otherwise by its recursion,
    in which a late peer delays only its successors."""
    u = before * c.update + after * c.update / period
    if c.placed and c.workers > 1 and gradients:
        return None, None
    if c.workers == 1 or c.workers > WIDEST or not gradients or in_step(c) or not (
        c.machine.latency or c.transfer or c.machine.reduction):
        return step, end
    chunk = _largest_chunk(c, c.workers)
    run, long = (collectives.rounds(c.times, each, chunk, c.link, c.updates, before=before, after=after)
                 for each in (gradients, [period] * 60))
    last = run.end.continued(run.more, long.pace)
    equal = c.nbytes % (4 * c.workers) == 0
    pace, mean = long.pace.scaled(1 / period), iteration.mean_time(c.times)
    moved = min(step.terms["transfer"], max(pace.value - mean - u, 0.0))
    terms = {"compute E[T]": mean, "straggling": max(pace.value - mean - u - moved, 0.0), "transfer": moved,
             "update": u}
    told = "the ring's recursion t_i = max(t_i, e_i), by Monte Carlo", SOURCE, "equal chunks"
    return (pace.predicted("s", terms, *told, faithful=equal and long.steady, upper=step.value),
            last.predicted("s", {"last rank": last.value}, *told, faithful=equal and run.whole))


def allreduce(c: Setting) -> Figures:
    """All-reduce SGD with the collective of the options, by default the ring."""
    name = str(c.options.get("collective", "ring"))
    if c.options.get("session") == "one":
        raise Uncovered("no formula covers gradients that one session computes in turn")
    if c.plan:
        return _in_parts(c, c.plan, name)
    exchange = collective(c, name)
    closed = in_rounds(c, exchange.time)
    whole = repeat(c, closed)
    step: Prediction | None = closed
    run: Prediction | None = whole
    level = name == "hierarchical" and not (c.machine.groups or c.one_link)
    if name == "root" and c.workers > 1 and not c.placed:  # its answers leave one by one, as in BSP
        add = max(c.own) + (c.workers - 1) * c.nbytes * c.machine.reduction
        step, run = iteration.bsp_run(c.times, c.steps, transfer=c.transfer, latency=c.machine.latency,
                                      update=Distribution("fixed", (add,)), colocated=True)
        if c.machine.update is not None:  # each rank's own update follows the answer
            step, run = (replace(p, kind="approximation") for p in (step, run))
    elif name == "ring":
        step, run = through_ring(c, closed, whole, [1] * c.steps, after=1)
    elif exchange.time.value and (not in_step(c) or (c.placed and not level)):
        step = run = None  # which messages an early peer sends already depends on the collective
    elif name == "hierarchical" and (g := group_of(c)) > 1:
        inside = c.machine.inside.bandwidth if c.machine.inside else math.inf
        first = (g - 2) * c.nbytes / (inside if c.machine.hosts else c.machine.bandwidth)
        run = replace(whole, value=whole.value + first, terms={**whole.terms, "first and last": first},
                      formula="steps x iteration + (g-2) M beta'")
    return figures(c, step, run, c.steps, exchange.total, fresh(),
                   clocks(c, 0, 1, "no peer ends an exchange before all have begun it"))


#: collectives in which ranks that start together end together, for powers of two, for any number of ranks
EVEN, LEVEL = ("recursive-doubling", "halving-doubling"), ("ring", "pscpu")


def _in_parts(c: Setting, plan: Plan, name: str) -> Figures:
    """Buckets that are summed one by one, each when its gradient is ready; those of a nonlinear codec are
    gathered."""
    n, mean, slowest = c.workers, iteration.mean_time(c.times), mean_of_maximum(c.times)
    took, sent = list[float](), 0.0
    for part in plan.parts:
        sums = [collective(replace(c, nbytes=int(size), plan=None), name) for size in part.sums] or [
            collectives.gather(n, part.up, c.link)]
        took.append(math.fsum(each.time.value for each in sums)
                    + plan.codec * part.down * (1 + (len(part.sums) or n)))
        sent += math.fsum(each.total for each in sums)
    moves = plan.moves(range(len(took)))[::-1]
    end = layerwise.first_come(slowest * math.fsum(share for share, _ in plan.stages),
                               [slowest * share for share, _ in moves],
                               [math.fsum(took[j] for j in ready) for _, ready in moves])
    u = max(c.own)
    level = n == 1 or all(not part.sums or (all(size % (4 * n) == 0 for size in part.sums) and (
        name in LEVEL or (name in EVEN and n & (n - 1) == 0))) for part in plan.parts)
    step: Prediction | None = None
    if (in_step(c) or n == 1) and not replace(c, plan=None).placed:
        step = Prediction(
            end + u, "s", kind_of(in_step(c) and level),
            {"compute E[T]": mean, "straggling": slowest - mean, "transfer": max(end - slowest, 0.0),
             "update": u},
            "end of the last bucket + u, end_j = max(end_{j+1}, end of its backward pass) + c_j",
            "Zhang et al. 2017; Sergeev and Del Balso 2018", "all start together; equal chunks",
            lower=slowest, upper=slowest + math.fsum(took) + u)
    return figures(c, step, step and repeat(c, step), c.steps, sent, fresh(),
                   clocks(c, 0, 1, "nobody ends an exchange before all have begun it"))


def dgc(c: Setting) -> Figures:
    """Deep gradient compression: each peer sends its largest entries to all others, then all update."""
    if c.plan:
        return _in_parts(c, c.plan, "ring")
    exchange = collectives.sparse_gather(c.workers, c.nbytes, c.link, float(c.option("ratio", 0.01)))
    closed = in_rounds(c, exchange.time)
    times: tuple[Prediction | None, Prediction | None] = closed, repeat(c, closed)
    if 1 < c.workers <= LISTENERS and c.machine.linked and (c.placed or not c.together):
        everybody = [[[j for j in range(c.workers) if j != i] for i in range(c.workers)]]
        times = heard_from(c, everybody, exchange.total / (c.workers * (c.workers - 1)), rotated=True)
    return figures(c, *times, c.steps, exchange.total, fresh(),
                   clocks(c, 0, 1, "no peer has all entries before all have sent theirs"))


def zero(c: Setting) -> Figures:
    """Peers that own a part of each layer, or in stage 1 and with `flat` shards of the vector.

    In stages 2 and 3 each layer goes round a ring of its own, two or three times, one after another.  Where
    times are random, peers wait only as far as the ring goes.
    """
    n, stage = c.workers, c.whole("stage", 3)
    if stage not in (1, 2, 3):
        raise DomainError(f"stage {stage}; expected 1, 2 or 3")
    layers = [part.down for part in c.plan.parts] if c.plan and stage > 1 else [float(c.nbytes)]
    c = replace(c, plan=None)
    step: Prediction | None = None
    even = all(m % (4 * n) == 0 for m in layers)  # else the largest chunk is not always under way
    ringed = even if stage == 1 else not c.options.get("flat")
    if n == 1 or (ringed and in_step(c) and not c.placed):
        step = in_rounds(c, collectives.sharded(n, layers, c.link, 2 if stage == 3 else 1).time)
        step = step if even or n == 1 else replace(step, kind="approximation")
    sent = (n - 1) * c.nbytes * (3 if stage == 3 else 2)
    return figures(c, step, step and repeat(c, step), c.steps, sent,
                   fresh("gradients of a step update the shards that it reads"),
                   clocks(c, 0, 1, "no peer has its shard of a sum before all have computed their gradients"))
