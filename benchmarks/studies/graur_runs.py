"""Runs in virtual time of the strategies that Graur's thesis measured, forward passes without training
among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import published
from benchmarks.studies import graur_terms
from benchmarks.studies.architectures import ARCHITECTURES, PULLS
from benchmarks.studies.graur_figures import Key
from benchmarks.studies.lab import Lab, Seen, Trial
from refsgd.algorithms.parts import Fetch, Model, Objective, names
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Node, Program, Recv, Send
from refsgd.experiment.prepare import predict
from refsgd.experiment.result import Result
from refsgd.trace import Sent
from refsgd.trace.resources import column

PARAMETERS = published.RESNET50 // 4
STEPS = 15  #: batches of a run, as in the thesis
BY_LAYER = 1  #: of a run that sums its 107 layers one by one: its batches take equally long
OWN_NODE = ("parameter-server", "parameter-server-extra-worker")  #: with a server on a node of its own
SIMULATED = 16  #: most nodes of such a run; the formula meets it to four digits, and takes no minute


def forward_server(workers: Sequence[str], x: Array, steps: int) -> Program[Array]:
    """Answer with the model when all have asked: a step of the thesis begins for all nodes at once."""
    for _ in range(steps):
        for _ in workers:
            yield Recv(Fetch)
        for worker in workers:
            yield Send(worker, Model(x, 0))
    return x


def forward_worker(rank: int, server: str, problem: Objective, steps: int) -> Program[None]:
    """Fetch the model and pass a batch through it."""
    for t in range(steps):
        yield Send(server, Fetch(t))
        _, model = yield Recv(Model)
        yield Compute(problem.gradient, model.x, rank, t)


def forward_only(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1) -> Deployment:
    """Passes without training through one server: every worker pulls the model in every step."""
    ws, (s, *_) = names(workers, servers)
    deployment = {w: Node(forward_worker(i, s, problem, steps)) for i, w in enumerate(ws)}
    return deployment | {s: Node(forward_server(ws, problem.x0, steps), role="server")}


def traffic(result: Result) -> dict[str, Any]:
    """Bytes per second out of the server (else of a peer) and of a worker, in tenths of the run."""
    trace = result.trace
    assert trace is not None
    server = next((n for n in trace.nodes if n.startswith("server")), trace.nodes[0])
    worker = trace.workers[-1]
    out: dict[str, list[float]] = {"server": [0.0] * 10, "worker": [0.0] * 10}
    for e in trace.of(Sent):
        for role, node in (("server", server), ("worker", worker)):
            if e.node == node:
                out[role][min(9, int(10 * e.start / trace.seconds))] += e.nbytes / (
                    trace.seconds / 10)
    return out


def runs(lab: Lab, keys: Iterable[Key], *, terms: bool = False) -> dict[Key, Seen]:
    """Virtual runs of experiments; a server of its own takes one of the nodes."""
    keys = list(dict.fromkeys(keys))
    return dict(zip(keys, lab.runs([_trial(lab.seed, key, terms) for key in keys])))


def steps(key: Key) -> int:
    """Batches of an experiment's run."""
    return BY_LAYER if _by_layer(key) else STEPS


def _by_layer(key: Key) -> bool:
    """Whether the exchange overlaps with the backward pass."""
    return key.pass_ == "F+B" and "overlap" in ARCHITECTURES[key.strategy].options


def _workers(key: Key) -> int:
    """Nodes that pass batches through the net: a server of its own takes one."""
    return key.nodes - (key.strategy in OWN_NODE and key.nodes > 1)


def _trial(seed: int, key: Key, terms: bool) -> Trial:
    how = ARCHITECTURES[key.strategy]
    common: dict[str, Any] = {"net": published.NET, "data": "none", "workers": _workers(key),
                              "batch": key.batch, "steps": steps(key),
                              "machine": (graur_terms.implemented if terms else graur_terms.by_messages)(key),
                              "seed": seed}
    if key.pass_ == "F+B":
        return Trial(how.algorithm, {**common, **how.options}, look=traffic)
    if key.strategy in PULLS:
        return Trial(forward_only, {**common, "servers": 1}, look=traffic)
    return Trial("independent", common, look=traffic)


def rate(key: Key, seen: Seen) -> float:
    """Images per second that pass through the net, whether or not gradients are applied."""
    return _workers(key) * key.batch * steps(key) / float(seen.measured["seconds"])


def rates(lab: Lab, keys: Iterable[Key], *, terms: bool = False) -> dict[Key, float]:
    """Images per second of experiments."""
    keys = list(dict.fromkeys(keys))
    found = runs(lab, [key for key in keys if not (_by_layer(key) and key.nodes > SIMULATED)], terms=terms)
    return {key: rate(key, found[key]) if key in found else by_formula(lab, key, terms) for key in keys}


def by_formula(lab: Lab, key: Key, terms: bool = False) -> float:
    """The same without a run."""
    trial = _trial(lab.seed, key, terms)
    return float(predict(trial.algorithm, **trial.arguments)["images_per_second"].value)


def sampled(result: Result) -> dict[str, Any]:
    """Series of the process that sends most, the mean of the others', and sums of all nodes."""
    used = list(result.measured["resources"].values())
    busiest = max(used, key=lambda each: (each["bytes_sent"], each["cpu"]))
    others = [each for each in used if each is not busiest] or [busiest]
    names = {"time": "time", "cpu": "cpu", "out": "bytes_sent", "in": "bytes_received", "messages": "messages_sent"}
    out: dict[str, Any] = {role: {name: np.mean([column(each, what) for each in group], axis=0).tolist()
                                  for name, what in names.items()}
                           for role, group in (("busiest", [busiest]), ("workers", others))}
    out["all"] = {"out": sum(each["bytes_sent"] for each in used), "in": sum(each["bytes_received"] for each in used),
                  "cpu": float(np.mean([each["cpu"] for each in used if each["cpu"]]))}
    return out


def watched(lab: Lab, keys: Iterable[Key]) -> dict[Key, Seen]:
    """Virtual runs by messages in which every node is sampled once a second."""
    trials = {key: _trial(lab.seed, key, terms=False) for key in keys}
    return lab.each({key: replace(trial, arguments={**trial.arguments, "monitor": 1.0}, look=sampled)
                     for key, trial in trials.items()})
