"""Figures of the rest of the catalogue: allreduce, periodic, gossip, backup workers, softsync and the like."""

from __future__ import annotations

import math
from typing import Any

from refsgd.theory import communication, gossip, iteration, periodic, staleness
from refsgd.theory.backup import backup_workers as backup_step
from refsgd.theory.predict_asp import asp
from refsgd.theory.predict_ssp import ssp
from refsgd.theory.prediction import DomainError, Kind, Prediction, check_count, check_share
from refsgd.theory.setting import Figures, Setting, clocks, count, figures, last_of_sums, weaker, zero
from refsgd.theory.stragglers import sum_law


def _link(c: Setting) -> communication.Link:
    return communication.Link(c.machine.latency, c.machine.bandwidth, c.machine.reduction)


def _repeat(c: Setting, step: Prediction) -> Prediction:
    """A run of iterations that all are alike."""
    kind: Kind = "exact" if step.kind == "exact" else "approximation"
    return Prediction(step.value * c.steps, "s", kind, {"iterations": step.value * c.steps}, "steps x iteration",
                      step.source, step.assumptions)


def _free(c: Setting, step: Prediction) -> Prediction:
    """A run in which nobody waits for all: the last of the sums."""
    total, exact = last_of_sums(c) if all(math.isfinite(law.variance) for law in c.laws) else (c.busy, False)
    other = c.steps * max(step.value - step.terms["compute E[T]"], 0.0)
    fixed = all(law.family == "fixed" for law in c.laws) and (c.machine.update is None or c.machine.update.family == "fixed")
    sure = exact and step.kind == "exact" and (fixed or not other)
    return Prediction(total + other, "s", "exact" if sure else "approximation", {"last of the sums": total, "exchanges": other},
                      "E[max_i of the sum of steps times] + exchanges", step.source, step.assumptions)


def _alone(c: Setting) -> Prediction:
    """n / sum of rates of workers that do not wait: E[T] and the own update."""
    u = iteration.update_mean(c.machine.update)
    rounds = [law.mean + u for law in c.laws]
    value = c.workers / math.fsum(1 / r if r else math.inf for r in rounds)
    return Prediction(value, "s", "exact", {"compute E[T]": max(value - u, 0.0), "update": u}, "n / sum 1/(E[T_i] + E[u])", "definition",
                      "nobody waits")


def _counted(out: Figures, expected: float, formula: str, steps: int) -> Figures:
    """Bytes that depend on chance: their expectation."""
    for name, value in (("bytes_per_iteration", expected), ("bytes_sent", expected * steps)):
        out[name] = Prediction(value, "bytes", "approximation", {"expected": value}, formula, "the message protocol")
    return out


def allreduce(c: Setting) -> Figures:
    """AR-SGD with the collective of the options (default ring)."""
    exchange = communication.allreduce(str(c.options.get("collective", "ring")), c.workers, c.nbytes, _link(c))
    step = iteration.allreduce(c.laws, exchange.time, c.machine.update)
    fresh = zero("updates", "all gradients in each step")
    return {**figures(c, step, _repeat(c, step), c.steps, exchange.total), "staleness_mean": fresh, "staleness_max": fresh,
            **clocks(c, 1, 1, "nobody ends an exchange before all have begun it")}


def independent(c: Setting) -> Figures:
    """n runs of sequential SGD that never speak; hogwild without contention."""
    step = _alone(c)
    return {**figures(c, step, _free(c, step), c.steps, 0.0), **clocks(c, math.inf, math.inf, "no bound but the length of the run")}


def backup(c: Setting) -> Figures:
    """The first n - backups gradients of each step count."""
    k = int(c.options.get("backups", 1))
    whole = iteration.bsp(c.laws, **c.network)
    exchange = whole.value - whole.terms["compute E[T]"] - whole.terms["straggling"]
    step = backup_step(c.laws, k, exchange=exchange)
    out = figures(c, step, _repeat(c, step), c.steps, 2 * c.workers * c.nbytes)
    for name in ("bytes_per_iteration", "bytes_sent", "idle_ratio", "idle_by_cause"):
        out.pop(name, None)  # late workers compute what is discarded, as often as they can
    return {**out, "staleness_mean": zero("updates", "stale gradients are discarded"),
            "staleness_max": zero("updates", "stale gradients are discarded")}


def softsync(c: Setting) -> Figures:
    """ASP whose server applies c = floor(n/splitting) gradients at a time."""
    splitting = check_count("splitting", int(c.options.get("splitting") or c.workers))
    if splitting > c.workers:
        raise DomainError(f"splitting {splitting} of {c.workers} workers; softsync assumes at most n")
    collected = c.workers // splitting
    out = asp(c)
    out["updates"] = count(c.workers * c.steps // collected, "updates", "floor(n steps / c)")
    for name in ("staleness_mean", "staleness_max"):
        p = out.pop(name, None)
        if p is not None and name == "staleness_mean":
            out[name] = Prediction(p.value / collected, "updates", weaker(p.kind, "exact" if collected == 1 else "approximation"),
                                   {"in pushes": p.value}, "(n-1)/c less the end of the run", staleness.SOURCE, p.assumptions,
                                   {"in pushes": "pushes"})
    return out


def downpour(c: Setting) -> Figures:
    """Push every n_push, fetch every n_fetch iterations."""
    push, fetch = (check_count(name, int(c.options.get(name, 1))) for name in ("push_every", "fetch_every"))
    step = periodic.downpour(c.laws, fetch, transfer=c.transfer / c.servers, latency=c.machine.latency, update=c.machine.update,
                             push_every=push)
    sent = c.workers * c.nbytes * (1 / push + 1 / fetch)
    out = figures(c, step, _free(c, step), c.workers * -(-c.steps // push), sent)
    if push == 1 and len(set(c.laws)) == 1:
        out["staleness_mean"] = staleness.downpour(c.workers, fetch)
    whole = float(c.workers * c.nbytes * (-(-c.steps // push) + -(-c.steps // fetch)))
    out["bytes_sent"] = Prediction(whole, "bytes", "approximation", {}, "n M (ceil(steps/n_push) + ceil(steps/n_fetch))",
                                   "the message protocol")
    return {**out, **clocks(c, math.inf, math.inf, "no bound but the length of the run")}


def easgd(c: Setting) -> Figures:
    """Elastic exchange with the centre every `period` iterations."""
    h = check_count("period", int(c.options.get("period", 4)))
    if c.options.get("mode") in ("sync", "synchronous"):
        bulk = iteration.bsp([sum_law(law, h)[0] for law in c.laws], **c.network)
        step = Prediction(bulk.value / h, "s", "approximation", {k: v / h for k, v in bulk.terms.items()},
                          "BSP with sums of H times, over H", "Zhang et al. 2015", bulk.assumptions)
        run = _repeat(c, step)
    else:
        step = periodic.easgd(c.laws, h, servers=c.servers, transfer=c.transfer, latency=c.machine.latency, update=c.machine.update)
        run = _free(c, step)
    exchanges = -(-c.steps // h)
    out = figures(c, step, run, c.workers * exchanges, 2 * c.workers * c.nbytes / h)
    out["bytes_sent"] = count(2.0 * c.workers * c.nbytes * exchanges, "bytes", "2 n M ceil(steps/period)")
    return out


def local_sgd(c: Setting) -> Figures:
    """Averaging of all replicas every `period` iterations by an allreduce; also post-local and diloco."""
    h = check_count("period", int(c.options.get("period", 8)))
    exchange = communication.allreduce(str(c.options.get("collective", "ring")), c.workers, c.nbytes, _link(c))
    step = periodic.local_sgd(c.laws, h, exchange, c.machine.update)
    switch = min(int(c.options.get("switch", 0) or 0), c.steps)
    before = iteration.allreduce(c.laws, exchange.time, c.machine.update)
    total = switch * before.value + (c.steps - switch) * step.value
    whole = (c.steps - switch) % h == 0
    run = Prediction(total, "s", weaker(step.kind, before.kind if switch else "exact", "exact" if whole else "approximation"),
                     {"every step": switch * before.value, "periodic": (c.steps - switch) * step.value},
                     "switch x allreduce + (steps - switch) x local", step.source, step.assumptions)
    out = figures(c, step, run, c.steps, exchange.total / h)
    sent = exchange.total * (switch + (c.steps - switch) // h)
    out["bytes_sent"] = Prediction(sent, "bytes", "exact" if whole else "approximation", {},
                                   "exchanges x bytes of one", "the message protocol")
    return {**out, **clocks(c, h, h, "a barrier every period")}


def gosgd(c: Setting) -> Figures:
    """With probability p a peer sends its replica to a random other; nobody waits."""
    p = check_share("p", float(c.options.get("p", 0.1)))
    step = _alone(c)
    out = figures(c, step, _free(c, step), c.steps, 0.0)
    expected = p * c.workers * c.nbytes if c.workers > 1 else 0.0
    return {**_counted(out, expected, "p n M expected", c.steps), **clocks(c, math.inf, math.inf, "no bound but the length of the run")}


def adpsgd(c: Setting) -> Figures:
    """Half of the peers ask (odd ranks), the others answer; averaging beside the computing."""
    asks = c.workers // 2
    rates = []
    for i, law in enumerate(c.laws):
        asking = i % 2 == 1
        each = gossip.adpsgd(law, c.transfer, c.machine.latency).value if asking else law.mean
        rates.append(1 / (each + iteration.update_mean(c.machine.update)) if each else math.inf)
    value = c.workers / math.fsum(rates)
    mean, u = iteration.mean_time(c.laws), iteration.update_mean(c.machine.update)
    quiet = not c.machine.linked
    step = Prediction(value, "s", "exact" if quiet else "approximation",
                      {"compute E[T]": mean, "update": u, "partner": max(value - mean - u, 0.0)},
                      "n / sum of rates; askers E[max(T, 2 (alpha + w))], asked E[T]", "Lian et al. 2018",
                      "askers do not meet at one partner")
    out = figures(c, step, _free(c, step), c.steps, 2.0 * asks * c.nbytes)
    return _counted(out, 2.0 * asks * c.nbytes, "2 M per asker", c.steps)


def _graph(name: str, n: int) -> list[list[list[int]]]:
    """Whom each peer hears from, by round: ring, complete, or one-peer exponential."""
    if n == 1:
        return [[[]]]
    if name == "ring":
        return [[sorted({(i - 1) % n, (i + 1) % n} - {i}) for i in range(n)]]
    if name == "complete":
        return [[[j for j in range(n) if j != i] for i in range(n)]]
    if name in ("exponential", "one-peer-exponential"):
        return [[[(i - (1 << k)) % n] for i in range(n)] for k in range(max((n - 1).bit_length(), 1))]
    raise DomainError(f"graph {name!r}; the formula covers ring, complete, one-peer-exponential")


def _gossip(c: Setting, graph: str) -> Figures:
    rounds = _graph(graph, c.workers)
    degree = len(rounds[0][0])
    exchange = c.machine.latency + degree * c.transfer
    seconds, error = gossip.neighbours(c.laws, rounds, exchange if degree else 0.0)
    mean, u = iteration.mean_time(c.laws), iteration.update_mean(c.machine.update)
    kind: Kind = "exact" if not c.transfer and not u else "approximation"
    paid = min(exchange, seconds - mean) if degree else 0.0
    terms = {"compute E[T]": mean, "partner": max(seconds - mean - paid, 0.0), "transfer": paid, "update": u}
    step = Prediction(seconds + u, "s", kind, terms | ({"standard error": error} if error else {}),
                      "F_i(t) = T + max(F_i(t-1), max_j F_j(t-1) + alpha + degree w), by Monte Carlo",
                      "Lian et al. 2017; Assran et al. 2019", "constant exchange")
    run = Prediction(step.value * c.steps, "s", "approximation", {"iterations": step.value * c.steps}, "steps x iteration", step.source)
    return figures(c, step, run, c.steps, float(degree * c.workers * c.nbytes))


def dpsgd(c: Setting) -> Figures:
    """Each peer averages with its neighbours in every iteration."""
    return _gossip(c, str(c.options.get("graph", "ring")))


def sgp(c: Setting) -> Figures:
    """Push-sum on a directed graph; one message out and in per iteration on the one-peer exponential graph."""
    return _gossip(c, str(c.options.get("graph", "one-peer-exponential")))


def dssp(c: Setting) -> Figures:
    """Dynamic SSP waits at most as SSP(lower) does and leads by at most `upper`."""
    low, high = (int(c.options.get(name, default)) for name, default in (("lower", 1), ("upper", 4)))
    if not 0 <= low <= high:
        raise DomainError(f"lower {low}, upper {high}; dynamic SSP assumes 0 <= lower <= upper")
    quick, slow = (ssp(_with(c, staleness=s)) for s in (high, low))
    out = {k: v for k, v in slow.items() if not k.startswith(("idle", "staleness_mean"))}
    for name in ("seconds_per_iteration", "seconds"):
        a, b = quick[name], slow[name]
        out[name] = Prediction((a.value + b.value) / 2, "s", "approximation", {"SSP(upper)": a.value, "SSP(lower)": b.value},
                               "between SSP(upper) and SSP(lower)", "Zhao et al. 2019", b.assumptions, lower=a.value, upper=b.value)
    each = out["seconds_per_iteration"]
    images = c.workers * c.batch / each.value if each.value else math.inf
    out["images_per_second"] = Prediction(images, "images/s", "approximation", {}, "n b / seconds_per_iteration", each.source)
    return {**out, **{k: quick[k] for k in ("clock_gap_max", "lead_max", "staleness_max")}}


def _with(c: Setting, **options: Any) -> Setting:
    return Setting(c.machine, c.workers, c.servers, c.nbytes, c.batch, c.steps, {**c.options, **options})


CATALOGUE = {
    "allreduce": allreduce, "independent": independent, "hogwild": independent, "backup-workers": backup, "softsync": softsync,
    "staleness-aware": softsync, "dc-asgd": asp, "downpour": downpour, "easgd": easgd, "local-sgd": local_sgd, "post-local": local_sgd,
    "diloco": local_sgd, "gosgd": gosgd, "adpsgd": adpsgd, "dpsgd": dpsgd, "sgp": sgp, "consgd": ssp, "dynsgd": ssp, "dssp": dssp,
}
