"""Graur's chapter 5 over time: processors, memory, network out and in, and requests, a sample a second.

Network and processors are those of runs in virtual time at the thesis' sizes; memory and processors, too, of
real processes of this machine, which train a small net or only pass batches through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks import published
from benchmarks.studies.architectures import ARCHITECTURES, PULLS
from benchmarks.studies.graur_figures import SERVER, Key
from benchmarks.studies.graur_runs import forward_only, steps, watched
from benchmarks.studies.lab import Lab, Seen
from benchmarks.studies.study import Claim, Grid, Panel, Part, judged
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Array, Compute, Deployment, Node, Program
from refsgd.experiment.run import run
from refsgd.problems import Problem
from refsgd.problems.data import load
from refsgd.problems.nn import nets
from refsgd.problems.problem import classification

STRATEGIES = (SERVER, "parameter-server", "distributed-replicated", "distributed-allreduce-pscpu",
              "distributed-allreduce-ringx1", "collective-allreduce", "caffe2")
CENTRAL = STRATEGIES[:4]  #: one process gathers and answers
PASSED = (SERVER, "distributed-replicated")  #: those that the thesis also watched without training
LINKS, MOST, BATCH = tuple(published.LINKS), 16, 128
NET, REAL_BATCH, REAL_STEPS = "resnet18:16", 64, 6  #: of real processes: activations outweigh parameters
SHOWN = 3  #: batches of a picture

Series = Mapping[str, Mapping[str, Sequence[float]]]


def _key(strategy: str, pass_: str, link: str, nodes: int) -> Key:
    """An experiment of chapter 5; Caffe2's batches were of 32."""
    return Key(strategy, pass_, link, nodes, 32 if strategy == "caffe2" else BATCH)


def series(lab: Lab) -> Part:
    """Chapter 5 and annex C: the series of every strategy and process, and what they decide."""
    nodes = (8, MOST) if lab.quick else (4, 8, 12, MOST)
    keys = [_key(s, "F+B", link, n) for s in STRATEGIES for link in LINKS for n in nodes]
    keys += [_key(s, "F", link, MOST) for s in PASSED for link in LINKS]
    seen = watched(lab, keys)
    real = _real(lab)
    grids = [*_totals(seen, keys), _of_processes(real)]
    claims = [*_network(seen, nodes), *_passes(seen), *_processors(seen), *_memory(real)]
    return Part("series", "Resources over time (RQ3)", "figures 5.1 to 5.14, annex C", (), claims,
                _panels(seen, real), grids=grids, note=(
        f"A sample a second. Batches of {BATCH} of ResNet-50 in virtual time, of Caffe2 32, {SHOWN} of them in the "
        "pictures; as in the thesis the workers are averaged and the process that sends most is apart. "
        f"Below, real processes of this machine: two workers, {NET} on digits, {REAL_STEPS} batches of "
        f"{REAL_BATCH}, memory since the start beside what the memory model predicts."))


# -- in virtual time ---------------------------------------------------------------------------------------


def _step(seen: Mapping[Key, Seen], key: Key, role: str, what: str) -> float:
    """A sum of the whole run, by batch."""
    return float(seen[key].looked[role][what][-1]) / steps(key)


def _peak(seen: Mapping[Key, Seen], key: Key, role: str, what: str) -> float:
    """The largest rate between two samples."""
    return max(_rates(seen[key].looked[role], what), default=0.0)


def _rates(found: Mapping[str, Sequence[float]], what: str) -> list[float]:
    """How fast a sum grows, sample by sample."""
    return [float(x) for x in np.diff(found[what]) / np.maximum(np.diff(found["time"]), 1e-9)]


def _totals(seen: Mapping[Key, Seen], keys: Sequence[Key]) -> list[Grid]:
    """Annex C by nodes: what all of them send in a batch, requests of the busiest process, processors."""
    nodes = sorted({key.nodes for key in keys})

    def grid(title: str, value: Callable[[Key], float], links: Sequence[str]) -> Grid:
        rows = dict[str, dict[int, float]]()
        for key in keys:
            if key.link in links:
                name = f"{key.strategy}, {key.pass_}" + f", {key.link}" * (len(links) > 1)
                rows.setdefault(name, {})[key.nodes] = value(key)
        return Grid(title, [f"{n} nodes" for n in nodes],
                    {name: [row.get(n) for n in nodes] for name, row in rows.items()})

    same = "on either network"
    return [grid(f"Megabytes that all nodes send in a batch, and receive, {same}",
                 lambda key: float(seen[key].looked["all"]["out"]) / steps(key) / 1e6, LINKS[:1]),
            grid(f"Messages of the busiest process in a batch, {same}",
                 lambda key: _step(seen, key, "busiest", "messages"), LINKS[:1]),
            grid("Share of the time in which a node computes, in per cent",
                 lambda key: 100 * float(seen[key].looked["all"]["cpu"]), LINKS)]


def _network(seen: Mapping[Key, Seen], nodes: Sequence[int]) -> list[Claim]:
    """Figures 5.1 to 5.3, C.1, C.2."""
    grows = {(s, what): _step(seen, _key(s, "F+B", "Ethernet", nodes[-1]), "busiest", what)
             / _step(seen, _key(s, "F+B", "Ethernet", 8), "busiest", what)
             for s in STRATEGIES for what in ("out", "in")}
    held = {link: [rate for rate in _rates(seen[_key(SERVER, "F+B", link, MOST)].looked["busiest"], "out")
                   if rate > 0.95 * published.LINKS[link]] for link in LINKS}
    share = {s: {link: _peak(seen, _key(s, "F+B", link, MOST), "busiest", "out") / published.LINKS[link]
                 for link in LINKS} for s in STRATEGIES}
    rate = {(s, role): _step(seen, key, role, "out") * steps(key) / float(seen[key].measured["seconds"]) / 125e6
            for s in CENTRAL for key in [_key(s, "F+B", "Ethernet", MOST)] for role in ("busiest", "workers")}
    burst = _peak(seen, _key(SERVER, "F+B", "Ethernet", MOST), "workers", "out")
    return [
        judged("traffic of a ring's process stays from 8 to 16 nodes, that of a central one grows", "5.4.1, 5.4.2",
               all((ratio > 1.5) == (s in CENTRAL) for (s, _), ratio in grows.items()),
               "; ".join(f"{s} {grows[s, 'out']:.2f} times out, {grows[s, 'in']:.2f} in" for s in STRATEGIES),
               shape=True),
        judged("a parameter server's traffic has plateaus on Ethernet and none on InfiniBand", "figures 5.1e, 5.2d",
               len(held["Ethernet"]) > 10 * max(1, len(held["InfiniBand"])),
               f"{MOST} nodes: {len(held['Ethernet'])} seconds of the run above 95 % of the link on Ethernet, "
               f"{len(held['InfiniBand'])} on InfiniBand", shape=True),
        judged("its workers make little use of the bandwidth meanwhile", "5.4.2",
               all(rate[s, "workers"] < 0.25 * rate[s, "busiest"] for s in CENTRAL),
               "; ".join(f"{s} {rate[s, 'workers']:.1%}, its busiest process {rate[s, 'busiest']:.0%}"
                         for s in CENTRAL)
               + f" of the link, mean of the run; in a burst of one second {burst / 1e6:.0f} MB/s, since here "
               "gradients wait before the server's link and not in the workers", shape=True),
        judged("Caffe2 and Collective Allreduce use well below the bandwidth of Ethernet", "5.4.1, figure 5.1",
               all(share[s]["Ethernet"] < 0.5 for s in ("collective-allreduce", "caffe2")),
               ", ".join(f"{s} {100 * each['Ethernet']:.0f} %" for s, each in share.items())
               + " of it in the second of most traffic: by messages Caffe2 sends at the link's rate, with "
               "nothing to hide it behind; Collective Allreduce divides its ring by layers"),
        judged("InfiniBand raises the traffic of strategies with a central process", "figure 5.3",
               all(share[s]["InfiniBand"] * published.LINKS["InfiniBand"] > 1.5 * share[s]["Ethernet"] * 125e6
                   for s in CENTRAL),
               ", ".join(f"{s} from {share[s]['Ethernet'] * 125:.0f} to {share[s]['InfiniBand'] * 7000:.0f} MB/s"
                         for s in CENTRAL) + " in the second of most traffic", shape=True)]


def _passes(seen: Mapping[Key, Seen]) -> list[Claim]:
    """Figures 5.4 and 5.5: forward only against both passes."""
    peaks = {(s, p, link): _peak(seen, _key(s, p, link, MOST), "busiest", "out") / 1e6
             for s in PASSED for p in ("F", "F+B") for link in LINKS}
    sent = {(s, p): _step(seen, _key(s, p, "Ethernet", MOST), "busiest", "out") / 1e6 for s in PASSED
            for p in ("F", "F+B")}
    got = {p: _step(seen, _key(SERVER, p, "Ethernet", MOST), "busiest", "in") / 1e6 for p in ("F", "F+B")}
    return [
        judged("a parameter server's process depends on the bandwidth in forward passes, too", "figure 5.4",
               all(peaks[SERVER, p, "Ethernet"] > 0.95 * 125 < peaks[SERVER, p, "InfiniBand"]
                   for p in ("F", "F+B")),
               f"out of it {sent[SERVER, 'F']:.0f} MB a batch forward and {sent[SERVER, 'F+B']:.0f} with training, "
               f"at most {peaks[SERVER, 'F', 'Ethernet']:.0f} and {peaks[SERVER, 'F+B', 'Ethernet']:.0f} MB/s on "
               f"Ethernet, {peaks[SERVER, 'F', 'InfiniBand']:.0f} and "
               f"{peaks[SERVER, 'F+B', 'InfiniBand']:.0f} on InfiniBand; only training sends gradients, into it "
               f"{got['F']:.0f} and {got['F+B']:.0f} MB", shape=True),
        judged("Distributed Replicated communicates very little in forward passes, on either network", "figure 5.5",
               sent["distributed-replicated", "F"] < 0.05 * sent["distributed-replicated", "F+B"],
               f"{sent['distributed-replicated', 'F']:.0f} MB a batch forward, "
               f"{sent['distributed-replicated', 'F+B']:.0f} with training", shape=True)]


def _processors(seen: Mapping[Key, Seen]) -> list[Claim]:
    """Figures 5.10 to 5.14: the share of time in which a node computes."""
    busy = {(s, link): float(seen[_key(s, "F+B", link, MOST)].looked["all"]["cpu"])
            for s in STRATEGIES for link in LINKS}
    gain = {s: busy[s, "InfiniBand"] - busy[s, "Ethernet"] for s in STRATEGIES}
    few = {s: float(seen[_key(s, "F+B", "Ethernet", 8)].looked["all"]["cpu"]) for s in STRATEGIES}
    forward = {s: [float(seen[_key(s, "F", link, MOST)].looked["all"]["cpu"]) for link in LINKS] for s in PASSED}
    return [
        judged("InfiniBand raises the processor use of Parameter Server only", "5.4.1, figure 5.12",
               all((x > 0.1) == (s in (SERVER, "parameter-server")) for s, x in gain.items()),
               "; ".join(f"{s} {busy[s, 'Ethernet']:.0%} and {busy[s, 'InfiniBand']:.0%}" for s in STRATEGIES)
               + f" of the time computing, {MOST} nodes on Ethernet and on InfiniBand: by messages it rises with all "
               "that exchange through one process, and with Caffe2, whose batches are short"),
        judged("processor use does not depend on the number of nodes, but for Parameter Server", "5.4.1, figure 5.10",
               all(abs(few[s] - busy[s, "Ethernet"]) < 0.1 for s in STRATEGIES[2:]),
               "; ".join(f"{s} {few[s]:.0%} and {busy[s, 'Ethernet']:.0%}" for s in STRATEGIES)
               + f" of the time computing, 8 and {MOST} nodes on Ethernet: all that exchange through one process "
               "wait longer the more send", shape=True),
        judged("forward passes of Distributed Replicated keep processors as busy on Ethernet as on InfiniBand, those "
               "of Parameter Server do not", "figures 5.13, 5.14",
               forward["distributed-replicated"][1] - forward["distributed-replicated"][0] < 0.05
               and forward[SERVER][1] - forward[SERVER][0] > 0.1,
               "; ".join(f"{s} {a:.0%} and {b:.0%}" for s, (a, b) in forward.items()) + " of the time computing",
               shape=True)]


# -- real processes ----------------------------------------------------------------------------------------


class Used(NamedTuple):
    """What the busiest process and a worker without a server have used."""

    server: Mapping[str, Any]
    worker: Mapping[str, Any]


def alone(problem: Problem, workers: int, steps: int, sgd: SGD) -> Deployment:
    """Passes without training on copies of the model: nothing is sent."""
    def program(rank: int) -> Program[Array]:
        for t in range(steps):
            yield Compute(problem.gradient, problem.x0, rank, t)
        return problem.x0

    return {f"worker{i}": Node(program(i)) for i in range(workers)}


def problem_of(pass_: str, workers: int) -> Problem:
    """Batches of digits; what passes forward only gives the loss and the accuracy in place of a gradient."""
    data, net = load("digits"), nets.build(NET, (8, 8, 1))
    trained = classification(data, net, workers, REAL_BATCH)
    if pass_ == "F+B":
        return trained

    def forward(x: Any, rank: int, t: int) -> Any:
        first = (t * workers + rank) * REAL_BATCH % (len(data.train_labels) - REAL_BATCH)
        part = slice(first, first + REAL_BATCH)
        loss, _ = net.loss_and_accuracy(np.ascontiguousarray(x), data.train_images[part], data.train_labels[part],
                                          data.train_images[part])
        return np.broadcast_to(np.float32(loss), x.shape)  # of the size of a gradient, without its memory

    return replace(trained, gradient=forward, work=None, layers=None, chain=None)


def _real(lab: Lab) -> dict[tuple[str, str], Used]:
    """What real processes used, by strategy and pass: of the last worker, and of the one that sends most."""
    found = {}
    for strategy in STRATEGIES:
        how = ARCHITECTURES[strategy]
        for pass_ in ("F+B", "F") if strategy in PASSED else ("F+B",):
            lab.say(f"{strategy}, {pass_}, as processes, watched")
            algorithm = how.algorithm if pass_ == "F+B" else forward_only if strategy in PULLS else alone
            options = how.options if pass_ == "F+B" else {}
            used = run(algorithm, problem_of(pass_, 2), workers=2, steps=REAL_STEPS, seed=lab.seed, lr=0.01,
                       runtime="processes", evaluations=0, monitor=0.02, machine=Machine(colocated=how.colocated),
                       **options).measured["resources"]
            nodes = [each for each in used.values() if each["role"] != "launcher"]
            workers = [each for each in nodes if each["role"] == "worker"]
            found[strategy, pass_] = Used(max(nodes, key=lambda each: each["bytes_sent"]), workers[-1])
    return found


def _of_processes(real: Mapping[tuple[str, str], Used]) -> Grid:
    """Peaks of memory beside the model's, processors, and traffic of real processes."""
    return Grid("Real processes of this machine", [
        "memory of a worker since its start [MB]", "predicted [MB]", "processor of a worker [cores]",
        "out of the busiest process, a batch [MB]", "its messages, a batch"], {
            f"{strategy}, {pass_}": [
                used.worker["grown"] / 1e6, used.worker["predicted"] / 1e6 if pass_ == "F+B" else None,
                used.worker["cpu"], used.server["bytes_sent"] / REAL_STEPS / 1e6,
                used.server["messages_sent"] / REAL_STEPS]
            for (strategy, pass_), used in real.items()})


def _memory(real: Mapping[tuple[str, str], Used]) -> list[Claim]:
    """Figures 5.6 to 5.9."""
    grown = {key: used.worker["grown"] / 1e6 for key, used in real.items()}
    trained = {s: grown[s, "F+B"] for s in STRATEGIES}
    most = {s: mb for s, mb in trained.items() if s != "collective-allreduce"}
    ahead = trained["collective-allreduce"] / max(most.values())
    return [
        judged("forward passes need a small part of the memory of training", "figures 5.8, 5.9",
               all(grown[s, "F"] < 0.5 * grown[s, "F+B"] for s in PASSED),
               "; ".join(f"{s} {grown[s, 'F']:.1f} and {grown[s, 'F+B']:.1f} MB" for s in PASSED)
               + " of a worker beyond its start, real processes", shape=True),
        judged("Collective Allreduce needs the most memory", "figure 5.6", ahead > 1.2,
               "; ".join(f"{s} {mb:.1f} MB" for s, mb in trained.items())
               + f" of a worker beyond its start: {ahead:.2f} times the next. Those that sum among workers keep "
               "partial sums, a server's workers do not; growth with the elapsed time is TensorFlow's")]


# -- pictures ----------------------------------------------------------------------------------------------


def _panels(seen: Mapping[Key, Seen], real: Mapping[tuple[str, str], Used]) -> list[Panel]:
    """Rows of three: network out, network in and processors, requests and passes, memory."""
    def of(title: str, unit: str, role: str, what: str, link: str, scale: float = 1e-6) -> Panel:
        return Panel(f"{title}, {link}", "seconds", unit, {
            s: _curve(seen[key], role, what, key, scale) for s in STRATEGIES
            for key in [_key(s, "F+B", link, MOST)]}, "series")

    def passes(strategy: str, pass_: str) -> Panel:
        key = _key(strategy, pass_, "Ethernet", MOST)
        return Panel(f"{strategy}, {pass_}, Ethernet: busiest", "seconds", "MB/s", {
            way: _curve(seen[key], "busiest", way, key, 1e-6) for way in ("out", "in")}, "series")

    memory = [Panel(f"real processes, {p}: memory of a worker", "seconds", "MB", {
        s: [(row[0], row[used.worker["columns"].index("grown")] / 1e6) for row in used.worker["samples"]]
        for (s, each), used in real.items() if each == p}, "series") for p in ("F+B", "F")]
    return [of("out of the busiest process", "MB/s", "busiest", "out", "Ethernet"),
            of("out of the busiest process", "MB/s", "busiest", "out", "InfiniBand"),
            of("out of the other nodes", "MB/s", "workers", "out", "Ethernet"),
            of("into the busiest process", "MB/s", "busiest", "in", "Ethernet"),
            of("into the busiest process", "MB/s", "busiest", "in", "InfiniBand"),
            of("computing of a node", "cores", "workers", "cpu", "Ethernet", 1.0),
            of("requests of the busiest process", "messages/s", "busiest", "messages", "Ethernet", 1.0),
            passes(SERVER, "F"), passes(SERVER, "F+B"),
            memory[0], memory[1], passes("distributed-replicated", "F")]


def _curve(seen: Seen, role: str, what: str, key: Key, scale: float) -> list[tuple[float, float]]:
    """A series of the first batches; processor use as it is, sums as rates."""
    found, end = seen.looked[role], SHOWN * float(seen.measured["seconds"]) / steps(key)
    values = list(found[what][1:]) if what == "cpu" else _rates(found, what)
    return [(t, scale * value) for t, value in zip(found["time"][1:], values) if t <= end]
