"""Figures of the catalogue beyond BSP, ASP and SSP; gossip has a file of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from refsgd.machine import Law
from refsgd.theory import communication, gossip, iteration, periodic, queueing, ring, staleness
from refsgd.theory import ssp as slack
from refsgd.theory.backup import backup_workers as backup_step
from refsgd.theory.backup import computing, drawn
from refsgd.theory.predict_asp import asp, asp_seconds
from refsgd.theory.predict_ssp import ssp, terms_of
from refsgd.theory.prediction import DomainError, Kind, Prediction, check_count
from refsgd.theory.setting import Figures, Setting, clocks, count, figures, last_of_sums, weaker, zero
from refsgd.theory.stragglers import mean_of_maximum, sum_law

WIDEST = 32  # peers that all hear from all, whose links are drawn one by one


def collective(c: Setting, name: str = "ring") -> communication.Exchange:
    """An allreduce of the setting's model; a ring's largest chunk is a whole number of float32.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    name : str
        One of `refsgd.collectives.ALLREDUCE`.

    Returns
    -------
    Exchange
    """
    link = communication.Link(c.machine.latency, c.machine.bandwidth, c.machine.reduction)
    if name == "ring" and c.nbytes:
        return communication.ring(c.workers, c.nbytes, link, chunk=_largest_chunk(c))
    if name == "double-tree":
        return communication.double_tree(c.workers, c.nbytes, link, chunk=c.nbytes / 16)  # halves in eight pieces
    return communication.allreduce(name, c.workers, c.nbytes, link)


def _largest_chunk(c: Setting) -> float:
    """Bytes of the largest of n chunks: a whole number of float32.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    float
    """
    return 4.0 * -(-c.nbytes // (4 * c.workers))


def _through_ring(c: Setting, step: Prediction, gradients: Sequence[int], *, before: int = 0, after: int = 0,
                 period: int = 1) -> tuple[Prediction, Prediction]:
    """Iteration of the long run (`period` gradients and an exchange) and run of these rounds, by the ring's recursion.

    `step` says what they are if all begin together; it stands where that is so.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    step : Prediction
        Seconds of an iteration, with its terms.
    gradients : sequence of int
        Gradients of each round.
    before, after : int
        Own updates before and after an exchange.
    period : int
        Gradients of a round of the long run.

    Returns
    -------
    (Prediction, Prediction)
    """
    together = len(set(c.laws)) == 1 and c.laws[0].family == "fixed" and (c.machine.update is None or c.machine.update.family == "fixed")
    if c.workers == 1 or not gradients or (together and len(set(c.own)) == 1) or not (c.machine.latency or c.transfer or c.machine.reduction):
        return step, step
    link, own = communication.Link(c.machine.latency, c.machine.bandwidth, c.machine.reduction), [
        c.machine.law(f"worker{i}", "update") for i in range(c.workers)]
    run = ring.rounds(c.laws, gradients, _largest_chunk(c), link, own, before=before, after=after)
    long = ring.rounds(c.laws, [period] * 60, _largest_chunk(c), link, own, before=before, after=after)
    kind: Kind = "approximation" if c.nbytes % (4 * c.workers) else "exact"
    value, u = long.seconds / period, before * iteration.update_mean(c.machine.update) + after * iteration.update_mean(c.machine.update) / period
    mean = iteration.mean_time(c.laws)
    moved = min(step.terms["transfer"], max(value - mean - u, 0.0))
    terms = {"compute E[T]": mean, "straggling": max(value - mean - u - moved, 0.0), "transfer": moved, "update": u,
             "standard error": long.error / period}
    formula = "the ring's recursion t_i = max(t_i, e_i), by Monte Carlo"
    return (Prediction(value, "s", kind, terms, formula, "Patarasuk and Yuan 2009; Baccelli et al. 1992", "equal chunks", upper=step.value),
            Prediction(run.end, "s", kind, {"last rank": run.end, "standard error": run.end_error}, formula, "Patarasuk and Yuan 2009", "equal chunks"))


def heard_from(c: Setting, rounds: Sequence[Sequence[Sequence[int]]], transfer: float, *, before: bool = False,
               rotated: bool = False) -> tuple[Prediction, Prediction]:
    """Iteration and run of peers that wait for messages of others, by the recursion of their links.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    rounds : sequence
        For each round of the cycle, for each peer, the peers it hears from.
    transfer : float
        Seconds of a message on a link.
    before : bool
        Whether messages are sent before computing.
    rotated : bool
        Whether a peer sends to the next rank first.

    Returns
    -------
    (Prediction, Prediction)
        Of an iteration, and of the run.
    """
    mean, u, most = iteration.mean_time(c.laws), max(c.own), max(len(heard) for heard in rounds[0])
    drawn = gossip.neighbours(c.laws, rounds, c.machine.latency, transfer, update=u, before=before, rotated=rotated, steps=max(c.steps, 1))
    waits = drawn.seconds - mean - u
    paid = min(0.0 if before else c.machine.latency + most * transfer, max(waits, 0.0))
    terms = {"compute E[T]": mean, "partner": max(waits - paid, 0.0), "transfer": paid, "update": u}
    together = len(set(c.laws)) == 1 and c.tied
    steady = (c.machine.update is None or c.machine.update.family == "fixed") and len(set(c.own)) == 1
    kind: Kind = "exact" if (not transfer or (together and most == 1)) and steady else "approximation"
    formula, source = "the peers' recursion, by Monte Carlo", "Lian et al. 2017; Assran et al. 2019"
    end = drawn.end if c.steps else 0.0
    return (Prediction(drawn.seconds, "s", kind, terms | ({"standard error": drawn.error} if drawn.error else {}), formula, source),
            Prediction(end, "s", kind, {"last peer": end, **({"standard error": drawn.end_error} if drawn.end_error and c.steps else {})}, formula, source))


def repeat(c: Setting, step: Prediction) -> Prediction:
    """A run of iterations that all are alike.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    step : Prediction
        Seconds of an iteration, with its terms.

    Returns
    -------
    Prediction
        Seconds of the run.
    """
    kind: Kind = "exact" if step.kind == "exact" else "approximation"
    return Prediction(step.value * c.steps, "s", kind, {"iterations": step.value * c.steps}, "steps x iteration",
                      step.source, step.assumptions)


def free(c: Setting, step: Prediction, *, own: float = 0.0, tail: float = 0.0, more: float = 0.0) -> Prediction:
    """A run in which nobody waits for all: the last of the sums, and `tail` seconds until the servers have ended.

    `own`: own updates of an iteration.  `more`: exchanges of the run beyond `steps` iterations' share, in
    iterations.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    step : Prediction
        Seconds of an iteration, with its terms.
    own : float
        Own updates of an iteration.
    tail : float
        Seconds until the servers have ended.
    more : float
        Exchanges of the run beyond those of its iterations, in iterations.

    Returns
    -------
    Prediction
        Seconds of the run.
    """
    mine = [own * u for u in c.own]
    waits = math.fsum(step.terms.get(name, 0.0) for name in ("transfer", "update", "queueing", "straggling", "partner"))
    exchange = max(waits - step.terms.get("own update", 0.0), 0.0)
    last, exact = last_of_sums(c, mine)
    other = (c.steps + more) * exchange
    fixed = all(law.family == "fixed" for law in c.laws) and (not own or c.machine.update is None or c.machine.update.family == "fixed")
    known = fixed or not (exchange or any(mine))
    end = last + other + (tail if c.steps else 0.0)
    return Prediction(end, "s", "exact" if exact and known and step.kind == "exact" else "approximation",
                      {"last of the sums": last, "exchanges": other, "until the servers have ended": tail},
                      "E[max_i of the sum of steps times] + exchanges", step.source, step.assumptions)


def alone(c: Setting, updates: int = 1) -> Prediction:
    """n / sum of rates of workers that do not wait: E[T] and the own updates of an iteration.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    updates : int
        Own updates of an iteration.

    Returns
    -------
    Prediction
        Seconds of an iteration.
    """
    rounds = [law.mean + updates * u for law, u in zip(c.laws, c.own, strict=True)]
    value, u = c.workers / math.fsum(1 / r if r else math.inf for r in rounds), updates * math.fsum(c.own) / c.workers
    return Prediction(value, "s", "exact", {"compute E[T]": value - u, "update": u, "own update": u}, "n / sum 1/(E[T_i] + E[u_i])",
                      "definition", "nobody waits")


def together(c: Setting, p: Prediction) -> Prediction:
    """Own updates of unequal length are priced at the slowest worker's: no longer exact.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    p : Prediction

    Returns
    -------
    Prediction
    """
    return replace(p, kind="approximation") if p.kind == "exact" and len(set(c.own)) > 1 else p


def fresh() -> Figures:
    """No gradient is older than the replica that it is applied to."""
    none = zero("updates", "nothing changes a replica while its gradient is computed")
    return {"staleness_mean": none, "staleness_max": none}


def allreduce(c: Setting) -> Figures:
    """AR-SGD with the collective of the options (default ring).

    A root's answers leave one by one, so ranks start their next gradient one by one: BSP through one collocated
    server, n w and not 2 (n-1) w.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    name = str(c.options.get("collective", "ring"))
    exchange = collective(c, name)
    step = together(c, iteration.allreduce(c.laws, exchange.time, c.own_law))
    run = repeat(c, step)
    if name == "root" and c.workers > 1:
        add = iteration.update_mean(c.machine.update) + (c.workers - 1) * c.nbytes * c.machine.reduction
        one: dict[str, Any] = {"transfer": c.transfer, "latency": c.machine.latency, "update": Law("fixed", (add,)), "collocated": True}
        step, run = iteration.bsp(c.laws, **one), iteration.bsp_run(c.laws, c.steps, **one)
        if c.machine.update is not None:  # every rank's own, after the answer
            step, run = (replace(p, kind="approximation") for p in (step, run))
    elif name == "ring" and c.steps:
        drawn, whole = _through_ring(c, step, [1] * c.steps, after=1)
        step, run = (drawn, whole) if drawn is not step else (step, run)
    elif name == "hierarchical" and step.kind == "exact":
        step, run = (replace(p, kind="approximation") for p in (step, run))
    return {**figures(c, step, run, c.steps, exchange.total), **fresh(),
            **clocks(c, 0, 1, "nobody ends an exchange before all have begun it")}


def dgc(c: Setting) -> Figures:
    """Deep gradient compression: everybody's largest entries to everybody, then the own update.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    link = communication.Link(c.machine.latency, c.machine.bandwidth)
    exchange = communication.sparse_gather(c.workers, c.nbytes // 4, float(c.options.get("ratio", 0.01)), link)
    step = together(c, iteration.allreduce(c.laws, exchange.time, c.own_law))
    run = repeat(c, step)
    if 1 < c.workers <= WIDEST and c.machine.linked and not (c.tied and len(set(c.laws)) == 1):  # late peers need not wait for early ones' entries
        everybody = [[[j for j in range(c.workers) if j != i] for i in range(c.workers)]]
        step, run = heard_from(c, everybody, exchange.busiest / (c.workers - 1) / c.machine.bandwidth, rotated=True)
    return {**figures(c, step, run, c.steps, exchange.total), **fresh(),
            **clocks(c, 0, 1, "nobody has all entries before all have sent theirs")}


def independent(c: Setting) -> Figures:
    """n runs of sequential SGD that never speak.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    step = alone(c)
    return {**figures(c, step, free(c, step, own=1), c.steps, 0.0), **fresh(),
            **clocks(c, math.inf, math.inf, "no bound but the length of the run")}


def hogwild(c: Setting) -> Figures:
    """Shared cells: nobody waits, each read follows the own update, so the identity of ASP holds.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    adds = int(c.options.get("parts", 8)) + 1  # each addition to a cell takes an update's time
    step = alone(c, adds)
    out = figures(c, step, free(c, step, own=adds), c.steps, 0.0)
    out |= clocks(c, math.inf, math.inf, "no bound but the length of the run")
    if c.steps and c.machine.update is None:
        out["staleness_mean"] = staleness.asp_run(c.laws, c.steps)
    return out


def backup(c: Setting) -> Figures:
    """The first n - backups gradients of each step count; one server.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    k = min(int(c.options.get("backups", 1)), c.workers - 1)
    one = replace(c, servers=1)
    if k and c.steps and not c.machine.collocated and (c.transfer or not c.tied):
        return {**_drawn_backup(one, k), **fresh()}
    counted = c.workers - k  # late pushes and answers find the links idle
    if c.machine.collocated:  # worker 0 has no link, and is not always the one that counts
        counted = max(counted, min(c.workers, 2))
    whole = iteration.bsp(c.laws[:counted], **one.network)
    step = backup_step(c.laws, k, exchange=max(whole.value - mean_of_maximum(c.laws[:counted]), 0.0))
    run = Prediction(step.value * c.steps, "s", "approximation", {"iterations": step.value * c.steps},
                     "steps x iteration, late workers' end left out", step.source, step.assumptions)
    out = figures(one, step, run, c.steps, 2 * c.workers * c.nbytes)
    for name in ("bytes_per_iteration", "bytes_sent"):  # late gradients are sent too, at most one per worker and step
        out[name] = Prediction(out[name].value, "bytes", "exact" if not k else "bound", {}, "at most 2 n M per step",
                               "the message protocol", bound="upper" if k else "")
    for name in ("idle_ratio", "idle_by_cause"):  # late workers compute what is discarded
        out.pop(name, None)
    busy = computing(c.laws[0], c.workers, k, step.value) if len(set(c.laws)) == 1 and step.value and c.steps else None
    if busy is not None:
        out["idle_ratio"] = Prediction(1 - busy.value, "1", "approximation" if k or step.kind != "exact" else "exact", busy.terms,
                                       "1 - (N + late) E[T]/(n step)", busy.source, "long run", {})
    return {**out, **fresh()}


def _drawn_backup(c: Setting, k: int) -> Figures:
    """The process itself, drawn: late pushes and answers meet the others on the links, and late workers compute meanwhile.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    k : int
        Backups, at least 1.

    Returns
    -------
    dict of str to Prediction
    """
    w, alpha, update = c.transfer, c.machine.latency, c.machine.update
    kind: Kind = "approximation" if c.tied else "exact"
    p = drawn(c.laws, k, c.steps, transfer=w, latency=alpha, update=update)
    formula, u, mean = "pushes in the order of their heads, by Monte Carlo", iteration.update_mean(update), iteration.mean_time(c.laws)

    def figure(value: float, unit: str, error: float, **terms: float) -> Prediction:
        return Prediction(value, unit, kind, {**(terms or {"mean": value}), "standard error": error}, formula, "Chen et al. 2016",
                          "late workers finish; one server")

    lone = min(2 * (alpha + w), max(p.seconds - u, 0.0))
    step = figure(p.seconds, "s", p.error, **{"compute E[T]": mean, "transfer": lone, "update": u, "straggling": p.seconds - mean - lone - u})
    if not w and not alpha and update is None and len(set(c.laws)) == 1 and c.laws[0].family == "exponential":
        step = backup_step(c.laws, k)
    out = figures(c, step, figure(p.end, "s", p.end_error), c.steps, 2 * c.nbytes * p.pushes / c.steps)
    out.pop("idle_by_cause", None)
    out["idle_ratio"] = figure(1 - p.computing, "1", p.computing_error)
    for name, steps in (("bytes_per_iteration", c.steps), ("bytes_sent", 1)):
        sent = 2 * c.nbytes / steps
        out[name] = figure(sent * p.pushes, "bytes", sent * p.pushes_error)
    return out


def softsync(c: Setting, default: int | None = 1) -> Figures:
    """ASP whose server applies c = floor(n/splitting) gradients at a time; the update counts for the last of them.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    default : int or None
        Splitting where the options name none; None: n.

    Returns
    -------
    dict of str to Prediction
    """
    given = c.options.get("splitting", default)
    splitting = check_count("splitting", int(c.workers if given is None else given))
    if splitting > c.workers:
        raise DomainError(f"splitting {splitting} of {c.workers} workers; softsync assumes at most n")
    size = c.workers // splitting
    update = c.machine.update
    machine = c.machine.with_(update=update.scaled(1 / size)) if update is not None and size > 1 else c.machine
    out = asp(replace(c, machine=machine))
    if machine is not c.machine:
        for name in ("seconds_per_iteration", "seconds", "images_per_second", "idle_ratio"):
            if name in out and out[name].kind == "exact":
                out[name] = replace(out[name], kind="approximation")
    out["updates"] = count(-(-c.workers * c.steps // size), "updates", "ceil(n steps / c)")
    p = out.pop("staleness_mean", None)
    out.pop("staleness_max", None)
    if p is not None:
        out["staleness_mean"] = Prediction(p.value / size, "updates", weaker(p.kind, "exact" if size == 1 else "approximation"),
                                           {"in pushes": p.value}, "(n-1)/c less the end of the run", staleness.SOURCE,
                                           p.assumptions, {"in pushes": "pushes"})
    return out


def staleness_aware(c: Setting) -> Figures:
    """Softsync in time; every gradient an update of its own unless told otherwise.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    return softsync(c, None)


def reached(c: Setting, step: Prediction) -> Prediction:
    """Servers that share nodes with workers: some of the traffic is free, which the formula leaves out.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    step : Prediction
        Seconds of an iteration, with its terms.

    Returns
    -------
    Prediction
    """
    return replace(step, kind="approximation") if c.machine.collocated and c.workers > 1 and step.kind == "exact" else step


def near(c: Setting) -> Setting:
    """A single worker on its server's node has no network.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    Setting
    """
    if c.machine.collocated and c.workers == 1:
        return replace(c, machine=c.machine.with_(latency=0.0, bandwidth=math.inf, collocated=False))
    return c


def _queues(c: Setting) -> bool:
    """Whether the servers' links or processors take time, and their network can be drawn.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    bool
    """
    return bool(c.steps and not c.machine.collocated and (c.transfer or c.machine.update is not None) and c.workers > 1)


def _links(c: Setting) -> queueing.Network:
    """What messages to the servers meet.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    Network
    """
    return queueing.Network(c.servers, c.transfer, c.machine.latency, c.machine.update)


def _fetched(c: Setting, step: Prediction, path: slack.Path) -> tuple[Prediction, Prediction]:
    """Iteration and run of workers that fetch through queues; the terms of `step`, with the queueing that is seen.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    step : Prediction
        Seconds of an iteration, with its terms.
    path : Path
        Of the recursion.

    Returns
    -------
    (Prediction, Prediction)
        Of an iteration, and of the run.
    """
    kind: Kind = "exact" if c.servers == 1 and not c.tied else "approximation"
    queue = max(path.seconds - step.value + step.terms.get("queueing", 0.0), 0.0)
    terms = {**step.terms, "queueing": queue, "standard error": path.error}
    formula = "closed network of links, by Monte Carlo"
    return (Prediction(path.seconds, "s", kind, terms, formula, "Lindley 1952: the queues", "first come first served"),
            Prediction(path.end, "s", kind, {"last": path.end, "standard error": path.end_error}, formula, "Lindley 1952: the queues"))


def _fetched_age(path: slack.Path, step: Prediction) -> Prediction:
    """Updates between a fetch and the application of what was computed with it.

    Parameters
    ----------
    path : Path
        Of the recursion.
    step : Prediction
        Seconds of an iteration, with its terms.

    Returns
    -------
    Prediction
    """
    return Prediction(path.staleness, "updates", step.kind, {"mean": path.staleness, "standard error": path.age_error},
                      "updates between a fetch and its push, by Monte Carlo", "Lindley 1952: the queues")


def downpour(c: Setting) -> Figures:
    """Push at t = 0, n_push, 2 n_push, ... and at the end; fetch at t = 0, n_fetch, ...

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    c = near(c)
    push, fetch = (check_count(name, int(c.options.get(name, 1))) for name in ("push_every", "fetch_every"))
    step = reached(c, periodic.downpour(c.laws, fetch, servers=c.servers, transfer=c.transfer, latency=c.machine.latency,
                                        update=c.machine.update, push_every=push))
    pushes = -(-c.steps // push) + (c.steps > 0 and (c.steps - 1) % push > 0)
    fetches = -(-c.steps // fetch)
    tail = c.machine.latency  # the last push has nobody waiting for it, the first fetch has no push before it
    run, path = free(c, step, tail=tail, more=fetches * fetch - c.steps), None
    if c.steps and not c.machine.collocated and c.workers > 1 and (_queues(c) or push > 1 or fetch > 1):
        path = queueing.fetching(c.laws, _links(c), c.steps, fetch_every=fetch, push_every=push)
    if path is not None and _queues(c):
        step, run = _fetched(c, step, path)
    out = figures(c, step, run, c.workers * pushes, c.workers * c.nbytes * (1 / push + 1 / fetch))
    out["bytes_sent"] = count(c.workers * c.nbytes * (pushes + fetches), "bytes", "n M (pushes + fetches)")
    if path is not None:
        out["staleness_mean"] = _fetched_age(path, step if c.machine.latency else replace(step, kind="approximation"))  # without it all ask at one moment
    elif push == 1 and c.alike and c.steps:
        long = staleness.downpour(c.workers, fetch)
        whole = staleness.asp_run(c.laws, c.steps, c.exchanges)
        ends = whole.value / (c.workers - 1) if c.workers > 1 else 1.0
        out["staleness_mean"] = Prediction(long.value * ends, "updates", "approximation", {"long run": long.value}, long.formula,
                                           long.source, long.assumptions)
    return {**out, **clocks(c, math.inf, math.inf, "no bound but the length of the run")}


def easgd(c: Setting) -> Figures:
    """Elastic exchange with the centre at t = 0, period, ...; each worker updates its own replica.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    c, h = near(c), check_count("period", int(c.options.get("period", 4)))
    own, exchanges = math.fsum(c.own) / c.workers, -(-c.steps // h)
    sync = c.options.get("mode") == "sync"
    step = reached(c, periodic.easgd(c.laws, h, servers=c.servers, transfer=c.transfer, latency=c.machine.latency,
                                     update=c.machine.update))
    if sync:  # the next centre is shown when all forces of the last one are in: SSP with slack 1 over sums of H times
        cycle = h * (math.fsum(step.terms[part] for part in ("transfer", "update", "queueing")) + own)
        sums = [sum_law(law, h)[0] for law in c.laws]
        gate = slack.ssp(sums, 1, exchange=cycle, steps=max(exchanges, 1))
        step = Prediction(gate.value / h - own, "s", "approximation", {**step.terms, "straggling": gate.terms["slack"] / h}, gate.formula,
                          "Zhang et al. 2015", gate.assumptions)
    step = replace(step, value=step.value + own, terms={**step.terms, "update": step.terms["update"] + own, "own update": own})
    after = (c.steps - h * (exchanges - 1)) * (iteration.mean_time(c.laws) + own)  # computing beside the last force
    tail = max(c.machine.latency + c.transfer + iteration.update_mean(c.machine.update) - after, 0.0)
    run = free(c, step, own=1, more=exchanges * h - c.steps, tail=0.0 if sync else tail)
    if sync and c.steps:
        rest = c.steps - h * (exchanges - 1)  # the last round is shorter
        end = slack.recursion(sums, 1, exchanges, cycle).end - (h - rest) * (max(law.mean for law in c.laws) + own)
        run = Prediction(end, "s", "approximation", {"last worker": end}, "end of the recursion F_i(c), slack 1", step.source, step.assumptions)
    if tail and len(set(c.laws)) > 1:
        run = replace(run, kind="approximation")
    path = None
    if not sync and c.steps and not c.machine.collocated:
        path = queueing.fetching(c.laws, _links(c), c.steps, fetch_every=h, elastic=True,
                                 own=[c.machine.law(f"worker{i}", "update") for i in range(c.workers)])
    if path is not None and _queues(c):
        step, run = _fetched(c, step, path)
    out = figures(c, step, run, exchanges * (1 if sync else c.workers), 2 * c.workers * c.nbytes / h)
    if sync:
        out["staleness_mean"] = zero("updates", "all forces are of the centre that they are added to")
        out |= clocks(c, 2 * h - 1, 2 * h, "the next centre is shown when all forces of this one are in")
    elif path is not None and (c.machine.latency or not c.tied):  # without latency all ask at one moment again and again: nobody is first
        out["staleness_mean"] = _fetched_age(path, step if c.machine.latency else replace(step, kind="approximation"))
    out["bytes_sent"] = count(2.0 * c.workers * c.nbytes * exchanges, "bytes", "2 n M ceil(steps/period)")
    return out


def averages(c: Setting, period: int, switch: int) -> tuple[int, int, int]:
    """Iterations that are averaged at once, whole rounds after them, iterations of the last, shorter round.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    period : int
        H, iterations between two exchanges, at least 1.
    switch : int
        Steps with an average after each, before the period applies.

    Returns
    -------
    (int, int, int)
    """
    early = min(switch, c.steps)
    return (early, *divmod(c.steps - early, period)) if period else (early, 0, c.steps - early)


def local_sgd(c: Setting, switch: int = 0, outer: bool = False) -> Figures:
    """Averaging of all replicas by a ring every `period` iterations and after the last one.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    switch : int
        Steps with an average after each, before the period applies.
    outer : bool
        Whether an outer optimiser's step follows each average.

    Returns
    -------
    dict of str to Prediction
    """
    h = int(c.options.get("period", 8))
    if h < 0:
        raise DomainError(f"period {h}; the formula assumes a whole number of at least 0")
    early, rounds, rest = averages(c, h, switch)
    exchange, u = collective(c), max(c.own)
    step = together(c, periodic.local_sgd(c.laws, h or max(c.steps, 1), exchange, c.own_law))
    if outer:  # one more update per round
        step = replace(step, value=step.value + u / (h or 1), terms={**step.terms, "update": u + u / (h or 1)})
    before = together(c, iteration.allreduce(c.laws, exchange.time, c.own_law))
    last, closed = 0.0, True
    if rest:
        sums = [sum_law(law, rest) for law in c.laws]
        last, closed = mean_of_maximum([law for law, _ in sums]) + rest * u + exchange.time.value + u * outer, all(e for _, e in sums)
    parts = {"every step": early * before.value, "whole rounds": rounds * h * step.value, "last round": last}
    kinds: list[Kind] = [step.kind if rounds or rest else "exact", before.kind if early else "exact",
                         "exact" if closed and len(set(c.own)) == 1 else "approximation"]
    run = Prediction(math.fsum(parts.values()), "s", weaker(*kinds), parts, "switch x allreduce + rounds x local + last round", step.source,
                     step.assumptions)
    drawn, whole = _through_ring(c, step, [1] * early + [h] * rounds + [rest] * (rest > 0), before=1, after=int(outer), period=h or max(c.steps, 1))
    if drawn is not step:
        step, run = drawn, whole
    exchanges = early + rounds + (rest > 0)
    out = figures(c, step, run, c.steps, exchange.total / (h or max(c.steps, 1)))
    out["bytes_sent"] = count(exchange.total * exchanges, "bytes", "2 (n-1) M x exchanges", exchanges=float(exchanges))
    return {**out, **fresh(), **clocks(c, max((h or c.steps) - 1, 0), h or c.steps, "a barrier every period")}


def post_local(c: Setting) -> Figures:
    """Allreduce before the switch, local SGD after it.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    return local_sgd(c, switch=check_count("switch", int(c.options.get("switch", 46)), 0))


def diloco(c: Setting) -> Figures:
    """Local SGD with an outer step at each average.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    return local_sgd(c, outer=True)


def dssp(c: Setting) -> Figures:
    """Dynamic SSP waits at most as SSP(lower) does and leads by at most `upper`.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    low, high = (int(c.options.get(name, default)) for name, default in (("lower", 3), ("upper", 15)))
    if not 0 <= low <= high:
        raise DomainError(f"lower {low}, upper {high}; dynamic SSP assumes 0 <= lower <= upper")
    if c.steps and c.workers > 1 and not c.tied and not c.machine.collocated:
        return _granted(c, low, high)
    quick, slow = (ssp(_with(c, staleness=s, refresh="fresh")) for s in (high, low))
    out = {k: v for k, v in slow.items() if not k.startswith(("idle", "staleness_mean"))}
    for name in ("seconds_per_iteration", "seconds"):
        a, b = quick[name], slow[name]
        out[name] = Prediction((a.value + b.value) / 2, "s", "exact" if a.value == b.value and b.kind == "exact" else "approximation",
                               {"SSP(upper)": a.value, "SSP(lower)": b.value}, "between SSP(upper) and SSP(lower)", "Zhao et al. 2019",
                               b.assumptions, lower=min(a.value, b.value), upper=max(a.value, b.value))
    for name in ("idle_ratio", "staleness_mean"):
        if name in quick and name in slow:
            a, b = quick[name], slow[name]
            out[name] = Prediction((a.value + b.value) / 2, b.unit, "approximation", {"SSP(upper)": a.value, "SSP(lower)": b.value},
                                   "between SSP(upper) and SSP(lower)", "Zhao et al. 2019", b.assumptions)
    each = out["seconds_per_iteration"]
    images = c.workers * c.batch / each.value if each.value else math.inf
    out["images_per_second"] = Prediction(images, "images/s", each.kind, {}, "n b / seconds_per_iteration", each.source)
    return {**out, **{k: quick[k] for k in ("clock_gap_max", "lead_max", "staleness_max")}}


def _granted(c: Setting, lower: int, upper: int) -> Figures:
    """Dynamic SSP with the clocks that its server grants, drawn.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    lower, upper : int
        Slack in clocks.

    Returns
    -------
    dict of str to Prediction
    """
    path = queueing.granting(c.laws, _links(c), lower, upper, c.steps)
    kind: Kind = "exact" if c.servers == 1 else "approximation"
    formula, source = "closed network of links with granted clocks, by Monte Carlo", "Zhao et al. 2019: the grants; Lindley 1952: the queues"

    def drawn(value: float, unit: str, error: float, terms: dict[str, float]) -> Prediction:
        return Prediction(value, unit, kind, {**terms, "standard error": error}, formula, source, "first come first served")

    step = drawn(path.seconds, "s", path.error, terms_of(c, path, 1.0))
    out = figures(c, step, drawn(path.end, "s", path.end_error, {"last": path.end}), c.workers * c.steps, 2 * c.workers * c.nbytes)
    out["staleness_mean"] = drawn(path.staleness, "updates", path.age_error, {"mean": path.staleness})
    out["staleness_max"] = staleness.ssp_bound(c.workers, upper, c.steps)
    return {**out, **clocks(c, upper, upper + 1, "started: upper, completed: upper + 1")}


def approximate(c: Setting) -> Figures:
    """Two data centres, half of the workers in each: ASP within each.

    What is significant depends on the data, so times are lower bounds where bytes take time, and bytes are.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    centers = min(2, c.workers)
    half = replace(c, workers=-(-c.workers // centers), servers=1,
                   machine=c.machine if c.workers == 1 else c.machine.with_(collocated=False))
    step = replace(asp(half)["seconds_per_iteration"], kind="approximation")
    run = replace(asp_seconds(replace(half, workers=c.workers), step), kind="approximation")  # the last of both halves
    out = figures(c, step, run, c.workers * c.steps, 2 * c.workers * c.nbytes)
    for name in ("bytes_per_iteration", "bytes_sent"):
        out[name] = Prediction(out[name].value, "bytes", "bound", {}, "2 n M within the centres, and what is significant",
                               "the message protocol", bound="lower")
    if c.transfer and c.workers > 1:  # what crosses between the centres takes the servers' links too
        for name, side in (("seconds_per_iteration", "lower"), ("seconds", "lower"), ("images_per_second", "upper")):
            out[name] = replace(out[name], kind="bound", bound="lower" if side == "lower" else "upper", lower=None)
        for name in ("idle_ratio", "idle_by_cause"):
            out.pop(name, None)
    return out


def _with(c: Setting, **options: Any) -> Setting:
    return replace(c, options={**c.options, **options})


CATALOGUE = {
    "allreduce": allreduce, "dgc": dgc, "independent": independent, "hogwild": hogwild, "backup-workers": backup, "softsync": softsync,
    "staleness-aware": staleness_aware, "dc-asgd": asp, "downpour": downpour, "easgd": easgd, "local-sgd": local_sgd,
    "post-local": post_local, "diloco": diloco, "consgd": ssp, "dynsgd": ssp, "dssp": dssp, "approximate": approximate,
}
