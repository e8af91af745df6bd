"""Dynamic SSP (DSSP): the slack of a worker is chosen at run time, anywhere from `lower` to `upper`.

A worker that reaches SSP's bound waits for the slowest worker's next push.  The server predicts both workers'
next pushes from their last intervals and grants the number of iterations after which the wait is shortest.

Quick facts
-----------
synchronous: bounded | centralised: yes | roles: n workers, K servers with a part each | messages per worker
and iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | clock gap: at most
`upper` started, upper + 1 completed | staleness: at most (2 upper + 1)(n - 1) updates | momentum: at the
server | aggregation: sum, as SSP | deterministic: given the order of arrival

lower = upper is SSP.  A grant is never withdrawn, and the bound holds even if speeds change after it.
Unequal batches: every push has the same weight, whatever its number of examples, as in the paper.

What differs from the paper
---------------------------
A program reads no clock: intervals are counted in pushes that the server received in the meantime.  This
measures time as long as the total rate of the workers is constant.  With lower = 0 workers alternate, all
look equally fast and little is granted.  The paper grants only to the fastest worker; here any worker that
reaches the bound may get a grant, and one push of the slowest ends the wait that follows, as its controller
assumes. Other controllers take the push nearest in time to one of the slowest worker's, before or after it;
here the length of the wait decides, and it is long after a push that was just missed.

References
----------
Zhao, An, Liu and Chen, "Dynamic stale synchronous parallel distributed training for deep learning", ICDCS
2019, arXiv:1908.11848: the server, and the controller that simulates the next pushes.
"""

from __future__ import annotations

from collections.abc import Sequence

from refsgd.algorithms.facts import ONE_WORKER, SERVED, declare, each_push
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Died, Mark, Program, Send


def server(shard: Shard, workers: Sequence[str], steps: int, lower: int, upper: int) -> Program[Array]:
    """Answer a worker within its bound, which grants move between `lower` and `upper`; returns its part."""
    clock, waiting = dict.fromkeys(workers, 0), set()  # gradients received from each living worker
    pushed = dict.fromkeys(workers, (0, 0))  # arrival of the last two of each, counted in pushes
    granted, bound = dict.fromkeys(workers, 0), dict.fromkeys(workers, lower)
    while min(clock.values(), default=steps) < steps:
        w, message = yield from shard.recv(Push, Died)
        if isinstance(message, Died):
            clock.pop(w, None)  # the others no longer wait for it
            slowest = min(clock.values(), default=steps)
        else:
            yield from shard.apply(w, message)
            clock[w] += 1
            pushed[w] = pushed[w][1], shard.version
            waiting.add(w)
            slowest = min(clock.values())
            if not granted[w] and clock[w] > slowest + lower:
                granted[w] = grant(w, clock, pushed, upper)
            ahead = clock[w] - slowest
            bound[w] = max(lower, ahead if granted[w] else ahead - 1)  # no grant: once the slowest advances
            granted[w] = max(0, granted[w] - 1)  # one clock of the grant is used
            if clock[w] > slowest + bound[w]:
                yield Mark("block", worker=w)
        ready = [w for w in clock if w in waiting and clock[w] <= slowest + bound[w]]
        for w in ready:
            waiting.remove(w)
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


def grant(w: str, clock: dict[str, int], pushed: dict[str, tuple[int, int]], upper: int) -> int:
    """The controller: how many more iterations w, which has just pushed, may start without waiting."""
    slowest, (before, now) = min(clock.values()), pushed[w]
    next_push = {}  # of those that hold the slowest clock back, with the interval
    for other, (previous, last) in pushed.items():
        if clock.get(other) == slowest:
            interval = max(last - previous, now - last)
            next_push[last + interval] = last, interval
    return extra(now, now - before, *next_push[max(next_push)], upper + 1 - clock[w] + slowest)


def extra(now: int, interval: int, slow: int, slow_interval: int, most: int) -> int:
    """The least r in 0 ... `most` after which the wait for the slowest worker's next push is shortest.

    The worker pushes at now + r * interval, the slowest at slow + k * slow_interval, k = 1, 2, ...

    >>> extra(now=10, interval=2, slow=9, slow_interval=7, most=4)  # 10, 12, 14, 16, 18 and 16, 23
    3
    """
    return min(range(most + 1), key=lambda r: (slow - now - r * interval) % slow_interval)


@declare(SERVED, updates=each_push, mean_of=ONE_WORKER, formula="dssp",
         lost="the gradient that it was computing; the bound then counts the living workers",
         gate=lambda options: (options["lower"], options["upper"]),
         tight=({"lower": 0, "upper": 1}, {"lower": 1, "upper": 1}), recursion="waits")
def dssp(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1,
         rotated: bool = False, *, lower: int = 3, upper: int = 15) -> Deployment:
    """Deploy DSSP.

    Parameters
    ----------
    lower, upper : int
        Slack in clocks, 0 <= lower <= upper.
    """
    if not 0 <= lower <= upper or upper == float("inf"):
        raise ValueError(f"lower {lower}, upper {upper}; expected finite clocks, 0 <= lower <= upper")
    return deploy(problem, workers, steps, sgd, servers, rotated,
                  lambda shard, workers: server(shard, workers, steps, lower, upper))
