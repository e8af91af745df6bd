"""Predictions for local SGD, post-local SGD, AdaComm and DiLoCo, eager and streaming too, whose replicas a
ring averages periodically, and for NoLoCo, whose replicas average in pairs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from refsgd.theory.algorithms.allreduce import collective, in_step, through_ring
from refsgd.theory.algorithms.peers import fresh, in_rounds
from refsgd.theory.estimate import check_count
from refsgd.theory.phenomena.iteration import mean_time
from refsgd.theory.phenomena.stragglers import mean_of_maximum, sum_of
from refsgd.theory.prediction import DomainError, Figures, Kind, Prediction
from refsgd.theory.setting import TIMES, Setting, clocks, count, figures, slices, weaker


def local_sgd(c: Setting, switch: int = 0, outer: bool = False) -> Figures:
    """A ring averages all replicas every `period` iterations and after the last one."""
    h = c.whole("period", 8)
    if h < 0:
        raise DomainError(f"period {h}; the formula assumes a whole number of at least 0")
    early = min(switch, c.steps)  # iterations with an average after each; then rounds and a shorter one
    rounds, rest = divmod(c.steps - early, h) if h else (0, c.steps - early)
    if early == c.steps:
        h = 1
    exchange, u = collective(c), max(c.own)
    usual = in_rounds(c, exchange.time, h or c.steps)
    if outer:  # one more update per round
        usual = replace(usual, value=usual.value + u / (h or 1),
                              terms={**usual.terms, "update": u + u / (h or 1)})
    before = in_rounds(c, exchange.time)
    last, closed = 0.0, True
    if rest:
        sums = [sum_of(time, rest) for time in c.times]
        last, closed = mean_of_maximum(
            [time for time, _ in sums]) + rest * u + exchange.time.value + u * outer, all(e for _, e in sums)
    parts = {"every step": early * before.value, "whole rounds": rounds * h * usual.value, "last round": last}
    kinds: list[Kind] = [usual.kind if rounds or rest else "exact", before.kind if early else "exact",
                         "exact" if closed and len(set(c.own)) == 1 else "approximation"]
    whole = Prediction(math.fsum(parts.values()), "s", weaker(*kinds), parts,
                       "switch x allreduce + rounds x local + last round", usual.source, usual.assumptions)
    step, run = through_ring(c, usual, whole, [1] * early + [h] * rounds + [rest] * (rest > 0), before=1,
                             after=int(outer), period=h or c.steps)
    exchanges, each = early + rounds + (rest > 0), exchange.total / (h or c.steps)
    if step and 0 < early < c.steps:  # the mean of the run
        shares = (before, early / c.steps), (step, 1 - early / c.steps)
        each = exchange.total * exchanges / c.steps
        step = replace(step, value=math.fsum(share * p.value for p, share in shares), terms={
            name: math.fsum(share * p.terms.get(name, 0.0) for p, share in shares)
            for name in {**before.terms, **step.terms}}, kind=weaker(before.kind, step.kind), assumptions=(
                f"{step.assumptions}; before the switch {before.value:.4g} s, then {step.value:.4g} s"))
    out = figures(c, step, run, c.steps, each, fresh(),
                  clocks(c, max((h or c.steps) - 1, 0), h or c.steps, "a barrier every period"))
    out["bytes_sent"] = count(exchange.total * exchanges, "bytes", "2 (n-1) M x exchanges",
                              exchanges=float(exchanges))
    return out


def post_local(c: Setting) -> Figures:
    """Allreduce before the switch, local SGD after it."""
    return local_sgd(c, switch=check_count("switch", c.whole("switch", 46), 0))


def adacomm(c: Setting) -> Figures:
    """Local SGD as long as its period is the first; then the loss decides."""
    h, interval = c.whole("period", 16), c.option("interval", 1)
    if c.workers == 1 or interval * h >= c.steps:
        return local_sgd(c.with_options(period=h))
    out = figures(c, None, None, c.steps, 0.0, fresh(), clocks(c, h - 1, h, "a barrier every period"))
    return out.leave("no closed form: the period follows the loss", *TIMES, "bytes_per_iteration",
                     "bytes_sent")


def diloco(c: Setting) -> Figures:
    """Local SGD with an outer step at each average."""
    return local_sgd(c, outer=True)


def eager_diloco(c: Setting) -> Figures:
    """A round is exchanged during the next one, and only the last round waits for its own exchange."""
    h = check_count("period", c.whole("period", 8))
    rounds, exchange = -(-c.steps // h), collective(c)
    last = c.steps - (rounds - 1) * h
    step = run = None
    if c.workers == 1 or (in_step(c) and not c.placed):
        mean, u, e = mean_time(c.times), c.own[0], exchange.time.value
        kind, told = exchange.time.kind, ("Kale et al. 2025", "equal fixed times")
        each, end = (max(k * (mean + u) + u, e) for k in (h, last))
        terms = {"compute E[T]": mean, "transfer": each / h - mean - u - u / h, "update": u + u / h}
        step = Prediction(each / h, "s", kind, terms, "max(H (T + u) + u, exchange)/H", *told)
        parts = {"first round": (h if rounds > 1 else last) * (mean + u), "rounds": max(rounds - 2, 0) * each,
                 "last round": end if rounds > 1 else 0.0, "its exchange": e + u}
        run = Prediction(math.fsum(parts.values()), "s", kind, parts,
                         "H (T + u) + the other rounds + exchange + u", *told)
    out = figures(c, step, run, c.steps, exchange.total / h, fresh(),
                  clocks(c, 2 * h - 1, 2 * h, "a mean ends no round before all have ended the one before"))
    out["bytes_sent"] = count(exchange.total * rounds, "bytes", "2 (n-1) M x rounds", rounds=float(rounds))
    return out


def streaming_diloco(c: Setting) -> Figures:
    """Fragments are exchanged one after the other, and each has some steps to arrive."""
    h, fragments, tau = (check_count(name, c.whole(name, usual), least) for name, usual, least in (
        ("period", 8, 1), ("fragments", 4, 1), ("delay", 1, 0)))
    exchanges = [collective(replace(c, nbytes=size)) for size in slices(c.nbytes, fragments)]
    turns = [max(-(-(c.steps - h * p // fragments) // h), min(c.steps, 1)) for p in range(fragments)]
    step = run = None
    if c.workers == 1 or (in_step(c) and not c.placed):
        mean, u, took = mean_time(c.times), c.own[0], [e.time.value for e in exchanges]
        kind, told = weaker(*(e.time.kind for e in exchanges)), ("Douillard et al. 2025", "equal fixed times")
        gap, equal = h / fragments, h % fragments == 0 and len(set(took)) == 1
        hidden = tau * (mean + u) if tau < gap or fragments == 1 else gap * (mean + u) + u
        stall = math.fsum(max(e - hidden, 0.0) for e in took)
        terms = {"compute E[T]": mean, "transfer": stall / h, "update": u + fragments * u / h}
        step = Prediction(math.fsum(terms.values()), "s", kind if equal else weaker(kind, "approximation"),
                          terms, "T + u + P (u + max(0, e - min(tau, H/P) (T + u)))/H", *told)
        end = _streamed(c.steps, h, tau, mean + u, took, u)
        run = Prediction(end, "s", kind, {"run": end}, "the recursion of turns and arrivals", *told)
    out = figures(c, step, run, c.steps, math.fsum(e.total for e in exchanges) / h, fresh(),
                  clocks(c, h + tau - 1, h + tau, "nobody has a mean before all have sent their fragments"))
    sent = math.fsum(k * e.total for k, e in zip(turns, exchanges, strict=True))
    out["bytes_sent"] = count(sent, "bytes", "2 (n-1) M/P x turns", turns=float(sum(turns)))
    return out


def noloco(c: Setting) -> Figures:
    """A peer waits for one partner at the end of a round; who has sat out, with an odd n, comes early."""
    h = check_count("period", c.whole("period", 8))
    rounds, sent = -(-c.steps // h), 2.0 * (c.workers // 2) * c.nbytes
    step = run = None
    if c.workers == 1 or (c.workers % 2 == 0 and in_step(c) and not c.placed):
        mean, u = mean_time(c.times), c.own[0]
        e = c.machine.latency + c.transfer if c.workers > 1 else 0.0
        told = ("Kolehmainen et al. 2025", "equal fixed times")
        terms = {"compute E[T]": mean, "transfer": e / h, "update": u + u / h}
        step = Prediction(math.fsum(terms.values()), "s", "exact", terms, "T + u + (L + M/B + u)/H", *told)
        parts = {"compute": c.steps * mean, "exchanges": rounds * e, "update": (c.steps + rounds) * u}
        run = Prediction(math.fsum(parts.values()), "s", "exact", parts,
                         "steps (T + u) + rounds (L + M/B + u)", *told)
    out = figures(c, step, run, c.steps, sent / h, fresh())
    out["bytes_sent"] = count(sent * rounds, "bytes", "2 M x pairs x rounds", rounds=float(rounds))
    return out.without("grows with the number of peers; no formula", "clock_gap_max", "lead_max")


def _streamed(steps: int, h: int, tau: int, step: float, took: Sequence[float], update: float) -> float:
    """The end of a run, in which fragment p takes `took[p]` from its turn, or the end of the one before."""
    now, free, due = 0.0, 0.0, deque[tuple[int, float]]()
    for t in range(steps):
        now, last = now + step, t == steps - 1
        for sends in (False, True) if last or tau == h else (True,):
            for p, e in enumerate(took if sends else ()):
                turn = t + 1 - h * p // len(took)
                if last or (turn > 0 and turn % h == 0):
                    free = max(free, now) + e
                    due.append((t + tau, free))
            while due and (last or due[0][0] <= t):
                now = max(now, due.popleft()[1]) + update
    return now
