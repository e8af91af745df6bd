"""Sandblaster L-BFGS: a full-batch method whose coordinator never sees a parameter.

The shards hold their parts of all vectors and execute small commands (`vector_shards`); the coordinator runs
the algorithm and sees only scalars.  The gradient of the whole batch is divided into many more portions than
workers, so no evaluation waits for a straggler (`portions`).

Quick facts
-----------
synchronous: yes, without waiting for stragglers | centralised: yes | roles: a coordinator, K shards
(servers), n workers | messages per evaluation: 2 K per worker for x, K + 2 per portion | bytes per
evaluation: M per worker down, M per portion and duplicate up | coordinator: about 4 m + 12 commands to each
shard per iteration, scalars, for any d | staleness: 0 | clock gap: unbounded | momentum: refused |
aggregation: mean over examples, in portion order | deterministic: yes, whatever the schedule

What differs from the paper
---------------------------
Workers push each portion's gradient instead of sums of several, so that a shard can drop a duplicate.  A
shard adds portions in portion order, so the result does not depend on which worker computed them.  The paper
leaves the line search open: this one uses only slopes, so a step may overshoot the minimum along p and even
raise a convex loss, but an uphill slope at its end is at most half as steep as the downhill slope at its
start. The paper does not give the length of the first direction, either: here it is -lr g.

A portion is a batch of the first epoch, `problem.gradient(x, 0, i)` with weight `images(0, i)`, so `--batch`
is its size; a step takes an epoch or, where the line search halves, several.

References
----------
Dean et al., "Large scale distributed deep networks", NIPS 2012, section 4.2, and the coordinator in its
appendix.
Nocedal and Wright, "Numerical optimization", 2nd edition, algorithm 7.4: the two loops; equation 7.20: the
scaling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refsgd.algorithms.facts import Facts, declare
from refsgd.algorithms.parts import names
from refsgd.algorithms.server.portions import Crew, dismiss, evaluate, worker
from refsgd.algorithms.server.vector_shards import OLD_G, OLD_X, PAIRS, G, P, X, combine, dot, parameter_shard
from refsgd.algorithms.sgd import SGD
from refsgd.collectives.parts import chunks
from refsgd.effects import Deployment, Node, Program


def coordinator(workers: Sequence[str], shards: Sequence[str], steps: int, sgd: SGD, portions: int,
                history: int) -> Program[int]:
    """L-BFGS in scalars; returns the number of evaluations."""
    pairs, crew, number = list[tuple[int, float, float]](), Crew(workers), 0
    yield from evaluate(shards, crew, number, portions)
    for t in range(steps):
        yield from direct(shards, pairs, float(sgd.rate(t)))
        slope = yield from dot(shards, P, G)
        if slope >= 0:  # NaN continues, into the parameters
            break
        yield from combine(shards, OLD_X, 1, X)
        yield from combine(shards, OLD_G, 1, G)
        for halvings in range(30):  # x_old + p, x_old + p / 2, ... until it is at most half as steep, uphill
            yield from combine(shards, X, 1, OLD_X, 0.5**halvings, P)
            number += 1
            yield from evaluate(shards, crew, number, portions)
            if not (yield from dot(shards, P, G)) > -slope / 2:
                break
        s = min({PAIRS + 2 * i for i in range(history + 1)} - {pair[0] for pair in pairs})
        yield from combine(shards, s, 1, X, -1, OLD_X)  # s = x - x_old
        yield from combine(shards, s + 1, 1, G, -1, OLD_G)  # y = g - g_old
        sy, yy = (yield from dot(shards, s, s + 1)), (yield from dot(shards, s + 1, s + 1))
        if sy > 1e-10 * yy:
            pairs = [*pairs, (s, sy, yy)][max(0, len(pairs) + 1 - history):]
    yield from dismiss(crew, number + 1)
    return number + 1


def direct(shards: Sequence[str], pairs: Sequence[tuple[int, float, float]], rate: float) -> Program[None]:
    """P = -H G by algorithm 7.4, -rate G without a pair, which is its first register, <s, y> and <y, y>."""
    yield from combine(shards, P, -1 if pairs else -rate, G)
    alpha = {}
    for s, sy, _ in reversed(pairs):
        alpha[s] = (yield from dot(shards, s, P)) / sy  # alpha_i = <s_i, p> / <s_i, y_i>
        yield from combine(shards, P, 1, P, -alpha[s], s + 1)  # p = p - alpha_i y_i
    if pairs:
        yield from combine(shards, P, pairs[-1][1] / pairs[-1][2], P)  # p = p <s, y> / <y, y>, equation 7.20
    for s, sy, _ in pairs:
        beta = (yield from dot(shards, s + 1, P)) / sy  # beta = <y_i, p> / <s_i, y_i>
        yield from combine(shards, P, 1, P, alpha[s] - beta, s)  # p = p + (alpha_i - beta) s_i


@declare(Facts(
    ("servers",), "all", portions=True, dealt=True,
    because={"": "its shards compute with whole vectors, in equal parts"},
    mean_of="each of its steps uses all data, for any number of workers",
    only_sgd="L-BFGS computes a direction of its own",
    unscheduled="its line search sets the length of each step, and the rate only that of the first",
    lost="nothing: others compute its portions", timeless=True, compared=False,
    recursion="its steps are those of L-BFGS, which are not linear",
    no_formula="how many evaluations a line search takes, and how many portions are computed twice, depends "
               "on the data and on chance"))
def sandblaster(problem: Any, workers: int, steps: int, sgd: SGD, servers: int = 1, *,
                portions: int | None = None, history: int = 5) -> Deployment:
    """Deploy L-BFGS.

    Parameters
    ----------
    steps : int
        Steps of L-BFGS, >= 0; it stops earlier if the slope is 0.
    sgd : SGD
        Its rate is the length of a direction, in gradients, as long as there are no pairs.  No momentum.
    portions : int, optional
        Of the batch, at least 1; by default the problem's `steps_per_epoch`, which cover the data once, or
        2 n where it has none.
    history : int
        m, number of stored pairs, >= 0; 0 is gradient descent.
    """
    ws, ss = names(workers, servers)
    count = problem.describe.get("steps_per_epoch", 2 * workers) if portions is None else portions
    if count < 1 or history < 0:
        raise ValueError(f"portions {count}, history {history}; expected at least 1 portion and a history "
                         ">= 0")
    if sgd.momentum:
        raise ValueError(f"momentum {sgd.momentum} with L-BFGS, which computes a direction of its own; "
                         "expected 0")
    nodes = {w: Node(worker("coordinator", ss, problem)) for w in ws}
    program = coordinator(ws, ss, steps, sgd, count, history)
    nodes["coordinator"] = Node(program, role="server", rank=len(ss), survives=True)
    images = [problem.images(0, i) for i in range(count)]
    for k, (s, part) in enumerate(zip(ss, chunks(problem.x0.size, servers), strict=True)):
        shard = parameter_shard(k, problem.x0[part], workers, images, sgd.weight_decay)
        nodes[s] = Node(shard, role="server", rank=k, survives=True)
    return nodes
