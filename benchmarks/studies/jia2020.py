"""Jia, Saha, Bhimani and Mi, "Performance and Consistency Analysis for Distributed Deep Learning
Applications", IPCCC 2020.

Synchronous against asynchronous SGD over parameter servers, on one host with four executing virtual machines.
MXNet's names: a *push* hands gradients in and, when synchronous, returns when all have; a *pull* fetches
weights.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.studies.jia_claims import balance, idleness, stages
from benchmarks.studies.jia_runs import ALGORITHM, GRADIENT, UPDATE, flat, machine, parameters, timed
from benchmarks.studies.lab import Curve, Lab, Look, Seen, Trial, mean_curve, over
from benchmarks.studies.looks import ages, answers, exchanges, layer_by_layer, pace, waits
from benchmarks.studies.study import (
    Claim,
    Document,
    Line,
    Panel,
    Part,
    averaged,
    decided,
    interval,
    judged,
    untestable,
)
from refsgd.cluster.machine import Machine
from refsgd.experiment.prepare import predict
from refsgd.experiment.result import Result
from refsgd.experiment.run import run
from refsgd.problems import quadratic
from refsgd.problems.layers import Part as Layer
from refsgd.problems.layers import by_work, whole
from refsgd.theory.phenomena.layerwise import first_come

NETS = {"Inception-v1": "inception", "ResNet-18": "resnet18"}
#: Table II: weight updates, milliseconds of one, of a pull and of a push
TABLE2 = {("sync", "Inception-v1"): (931, 6.327, 42, 1114), ("sync", "ResNet-18"): (4067, 5.659, 53, 2534),
          ("async", "Inception-v1"): (7448, 10.117, 52, 86), ("async", "ResNet-18"): (32536, 9.279, 63, 104)}
#: its shares of the processors and of the memory of a virtual machine, in the same order
IN_USE, FILLED = (0.95, 0.96, 0.96, 0.98), (0.65, 0.98, 0.65, 0.96)
WORKERS = (4, 8, 12)
Curves = Mapping[tuple[str, int], list[Curve]]  # by mode and number of workers, one for each seed
Accuracies = Mapping[tuple[str, int], list[float]]


def _pass(mode: str, workers: int, vm: Machine, seed: int, servers: int = 4,
          look: Look | None = None) -> Trial:
    """A pass over 50,000 images in batches of 128, only times."""
    return timed(mode, vm, seed, look=look, workers=workers, servers=servers,
                  steps=round(50_000 / (workers * 128)))


def table2(lab: Lab) -> Part:
    """Table II: weight updates, pulls and pushes with four servers and eight workers, batch 128."""
    steps, seeds = 200 if lab.quick else 931, range(lab.seed, lab.seed + 3)
    vm = machine(f"lognormal({GRADIENT},0.5)", latency=0.05)
    runs = lab.each(
        {(mode, net, seed): timed(mode, vm, seed, NETS[net], exchanges, workers=8, servers=4, steps=steps)
                     for mode in ALGORITHM for net in NETS for seed in seeds})
    seen = {(mode, net): [runs[mode, net, seed] for seed in seeds] for mode in ALGORITHM for net in NETS}
    lines = []
    for (mode, net), found in seen.items():
        paper, formula = TABLE2[mode, net], _exchange(mode, parameters(NETS[net]), vm)
        lines.append(Line(f"{mode} {net}: weight updates", paper[0], steps * (8 if mode == "async" else 1),
                          found[0].measured["updates"]))
        lines += [averaged(f"{mode} {net}: {'one update' if what == 'update' else what}",
                           [1e3 * run.looked[what] for run in found], quoted,
                           None if (said := formula[what]) is None else 1e3 * said, "ms")
                           for what, quoted in zip(("update", "pull", "push"), paper[1:])]
    lines += _update_elsewhere(lab, vm, steps)
    asked = lab.runs([timed("async", vm, lab.seed, NETS["ResNet-18"], answers, workers=8, servers=4, steps=steps)])[0]
    claims = [claim for net in NETS for claim in _compared(net, seen["sync", net], seen["async", net])]
    claims += [untestable("the learning rate adapts to the number of updates", "III",
                          "the document does not say how"),
               judged("the server issues a pull", "III", asked.looked["unasked"] > 0,
                      f"of {asked.looked['sent']:,} messages of servers {asked.looked['unasked']} were not asked for: in "
                      "the framework, and here, workers ask and servers answer"),
               *_filled(lines, seen, vm)]
    return Part("table2", "Profile of synchronous and asynchronous SGD", "Table II", lines, claims, note=(
        f"{steps} iterations a worker in virtual time, {len(seeds)} seeds, messages of the nets' sizes. A "
        "push ends when the server has all the gradients "
        "that it waits for, so with a barrier it includes the wait for the slowest; a pull ends when the "
        "updated weights have arrived, so it includes the update, as in MXNet, whose pull of a key waits until "
        "its update is written. Two workers and a server are on each of four virtual machines, as in Fig. 6. "
        "From the table: an update of 5.7 ms while nobody else computes (synchronous, ResNet-18), a latency of "
        f"50 ms (pulls), and gradients of {GRADIENT} s on average with coefficient of variation 0.5 where "
        "nobody else computes, whose slowest a synchronous push of ResNet-18 waits for; with the same "
        "gradients Inception-v1's comes out too long. Assumed: that a gradient uses all processors of its "
        "virtual machine (egalitarian processor sharing), so that an update beside two takes three times as "
        "long. The document's 1.6 times lies between this and 1, which gradients of one of eight processors "
        "give. Numbers of updates follow from those of iterations, which are not the document's: only their "
        "ratio is compared. Formulas are without queues; the asynchronous update's is u (1 + m (1 - 1/n) p), "
        "m the workers on a machine, p the share of time in which one computes; a barrier between workers that "
        "share processors has none."))


def _update_elsewhere(lab: Lab, vm: Machine, steps: int) -> list[Line]:
    """How much longer an asynchronous update takes on other machines than Fig. 6's."""
    others = _elsewhere(vm)
    found = lab.each({(where, mode): timed(mode, other, lab.seed, look=exchanges, workers=8, servers=4,
                                            steps=steps)
                      for where, other in others.items() for mode in ALGORITHM})
    return [Line(f"{where}: an update, asynchronous over synchronous", None, None,
                 found[where, "async"].looked["update"] / found[where, "sync"].looked["update"])
            for where in others]


def _filled(lines: list[Line], seen: Mapping[tuple[str, str], Sequence[Seen]], vm: Machine) -> list[Claim]:
    """Table II's shares of a virtual machine's processors and of its 8 GB, with two workers and a server; their lines
    are added."""
    cpu, memory = dict[str, float](), dict[str, float]()
    for (mode, net), in_use, full in zip(TABLE2, IN_USE, FILLED):
        found = predict(ALGORITHM[mode], net=f"shapes:{NETS[net]}@32x32x3", data="none", workers=8, servers=4,
                        steps=10, batch=128, machine=vm)
        memory[f"{mode} {net}"] = (2 * found["memory_worker"].value + found["memory_server"].value) / 8e9
        cpu[f"{mode} {net}"] = float(np.mean([run.looked["computing"] for run in seen[mode, net]]))
        lines += [averaged(f"{mode} {net}: processors in use", [run.looked["computing"] for run in seen[mode, net]],
                           in_use),
                  Line(f"{mode} {net}: memory filled", full, memory[f"{mode} {net}"])]

    def said(shares: Mapping[str, float]) -> str:
        return ", ".join(f"{name} {share:.0%}" for name, share in shares.items())

    return [judged("the processors are in use for 95 to 98 % of the time", "Table II", min(cpu.values()) >= 0.95,
                   f"share of the time in which a machine computes: {said(cpu)}"),
            judged("65 to 98 % of the memory is filled, more by ResNet-18", "Table II",
                   all(0.65 <= share <= 0.98 for share in memory.values())
                   and memory["sync ResNet-18"] > memory["sync Inception-v1"],
                   f"two workers and a server by the model of memory, of 8 GB: {said(memory)}")]


def _exchange(mode: str, size: int, vm: Machine, workers: int = 8,
              servers: int = 4) -> dict[str, float | None]:
    """Seconds of an update, a pull and a push by formula, without queues: of workers / servers workers the
    messages stay on their host.  None for a synchronous push, which waits for workers that share processors."""
    beside = workers / servers
    way = (1 - beside / workers) * (vm.latency + 4 * size / servers / vm.bandwidth)
    if mode == "sync":  # under a barrier the workers beside a server wait
        return {"update": UPDATE, "pull": UPDATE + way, "push": None}
    computing = beside * GRADIENT / (beside * GRADIENT + 2 * way + UPDATE)
    # the workers beside a server compute, unless the push is their own
    update = UPDATE * (1 + beside * (1 - 1 / workers) * computing)
    return {"update": update, "pull": update + way, "push": way}


def _compared(net: str, sync: Sequence[Seen], asyn: Sequence[Seen]) -> list[Claim]:
    """What the table says of a net's synchronous and asynchronous training."""
    def ratios(what: str) -> list[float]:
        return [a.looked[what] / b.looked[what] for a, b in zip(asyn, sync)]

    def paper(k: int) -> float:
        return TABLE2["async", net][k] / TABLE2["sync", net][k]

    updates = {a.measured["updates"] / b.measured["updates"] for a, b in zip(asyn, sync)}
    (longer, more), (pull, half), (way, _), (push, _) = map(interval,
                                                            (ratios("update"), ratios("pull"), ratios("way"),
                                                             ratios("push")))
    said = f"{pull:.3f} ± {half:.3f}"
    return [
        judged(f"{net}: asynchronous training makes n = 8 times the weight updates", "Table II",
               updates == {8.0}, f"ratio {max(updates):g}"),
        judged(
            f"{net}: a synchronous push takes ten times an asynchronous one, since it carries the wait for all", "Table II",
               1 / push >= 10, f"{1 / push:.1f} times (paper {1 / paper(3):.1f})", shape=True),
        judged(f"{net}: pulls are similar, at most 1.5 times apart", "Table II",
               pull - half >= 1 / 1.5 and pull + half <= 1.5,
               f"asynchronous over synchronous {said}"),
        decided(f"{net}: an asynchronous pull is the longer one ({paper(2):.2f} times)", "Table II",
                [ratio - 1 for ratio in ratios("pull")],
                f"{said} times, by the longer update; the answers' way alone {way:.3f} times, since after a "
                "barrier all leave at once and queue"),
        judged(f"{net}: an update takes longer when asynchronous ({paper(1):.2f} times)", "Table II",
               longer - more > 1.3,
               f"{longer:.2f} ± {more:.2f} times: two workers compute meanwhile on the same processors, where "
               "under a barrier they wait; the order holds, the size does not", shape=True)]


def resources(lab: Lab) -> Part:
    """Table II, upper part: processors, memory and files of real processes that write a checkpoint after
    each pass."""
    what: dict[str, Any] = {"data": "digits", "workers": 4, "epochs": 3, "seed": lab.seed,
                            "machine": Machine(compute="fixed(0.01)")}  # type: ignore[arg-type]
    used = {}
    for mode, algorithm in ALGORITHM.items():
        lab.say(f"{algorithm} as processes, watched")
        with tempfile.TemporaryDirectory() as folder:
            used[mode] = run(algorithm, runtime="processes", checkpoint=folder, monitor=True,
                             **what).measured["resources"]
    lines = []
    for mode, nodes in used.items():
        lines += [Line(f"{mode}: {node}, processor", processes=f["cpu"], unit="cores")
                  for node, f in nodes.items()]
        lines += [Line(f"{mode}: resident memory of all",
                       processes=sum(f["rss_max"] for f in nodes.values()) / 1e6, unit="MB"),
                  Line(f"{mode}: written by all", processes=sum(f["written"] for f in nodes.values()) / 1e6,
                       unit="MB"),
                  Line(f"{mode}: read by all", processes=sum(f["read"] for f in nodes.values()) / 1e6,
                       unit="MB"),
                  *(Line(f"{mode}: {what} of all", processes=sum(f[what] for f in nodes.values()), unit="calls")
                    for what in ("reads", "writes"))]
    memory = {mode: sum(f["rss_max"] for f in nodes.values()) for mode, nodes in used.items()}
    files = {mode: (sum(f["read"] for f in nodes.values()), sum(f["written"] for f in nodes.values()))
             for mode, nodes in used.items()}
    busy = {mode: sum(f["cpu"] for f in nodes.values()) for mode, nodes in used.items()}
    points = 100 * abs(busy["sync"] - busy["async"]) / (os.cpu_count() or 1)
    claims = [judged("synchronous and asynchronous training need similar memory", "IV-A",
                     max(memory.values()) < 1.2 * min(memory.values()),
                     ", ".join(f"{mode} {v / 1e6:.0f} MB" for mode, v in memory.items()), shape=True),
              judged("and use the processors alike, within 3 points", "Table II", points <= 3,
                     ", ".join(f"{mode} {v:.2f} cores"
                               for mode, v in busy.items()) + f": {points:.1f} points of this machine's "
                                                              f"{os.cpu_count()}", shape=True),
              judged("more is written than read: checkpoints after each pass, data in memory", "IV-A",
                     all(w >= r for r, w in files.values()),
                     ", ".join(f"{mode} {w / 1e6:.2f} MB written, {r / 1e6:.2f} read"
                               for mode, (r, w) in files.items()), shape=True)]
    panels = [panel for mode, nodes in used.items() for panel in (
        Panel(f"{mode}: processor time since the start", "seconds", "processor seconds",
              {node: _since_start(f["samples"]) for node, f in nodes.items()}),
        Panel(f"{mode}: resident memory", "seconds", "MB",
              {node: [(s[0], 1e-6 * s[2]) for s in f["samples"] if s[2]] for node, f in nodes.items()}))]
    return Part("resources", "Processors, memory, files", "Table II", lines, claims, panels, note=(
        "Real processes of this machine, paced to 10 ms a gradient, watched by `--monitor`; the first "
        "process of each run also holds the data. "
        "The document counts reads and writes in its virtual machines: 4/3500 and 80/1600 synchronously "
        "(Inception-v1, ResNet-18), 3/1500 and 50/2000 "
        "asynchronously. The calls counted here include those of pipes and sockets."))


def _since_start(samples: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Processor seconds until each sample, from cores in use since the sample before."""
    times, cores = [s[0] for s in samples], [s[1] for s in samples]
    return list(zip(times, np.cumsum(np.diff(times, prepend=0.0) * cores).tolist()))


#: seconds of each of three layers: forward, backward, and each way of an exchange
FORWARD, BACKWARD, WAY = 0.01, 0.02, 0.0075
STEPS4 = 4  #: iterations of a run of three layers


def three_layers(algorithm: str, way: float = WAY, workers: int = 1, runtime: str = "simulator") -> Result:
    """A run of a quadratic problem of three equal layers, whose parameters travel layer by layer, the first
    layer's first, as in MXNet."""
    size = 15_000
    plain = quadratic(3 * size, workers)
    places = [slice(k * size, (k + 1) * size) for k in range(3)]
    layers = by_work([Layer(f"layer{k}", place, 1.0) for k, place in enumerate(places, 1)],
                     whole(places, plain.gradient))
    seconds = 3 * (FORWARD + BACKWARD)
    return run(algorithm, replace(plain, layers=layers), workers=workers, steps=STEPS4, runtime=runtime,
               machine=Machine(compute=f"fixed({seconds:g})", bandwidth=4 * size / way),  # type: ignore[arg-type]
               layout="layers", overlap="both", priority=True, evaluations=0)


def figure4(lab: Lab) -> Part:
    """Fig. 4: three layers; every exchange but the first layer's can hide behind the backward pass."""
    found = {mode: three_layers(algorithm) for mode, algorithm in ALGORITHM.items()}
    lab.say("bsp as processes, layer by layer")
    paced = three_layers("bsp", runtime="processes")
    wait = {mode: _mean_waits(result) for mode, result in found.items()}
    real = _mean_waits(paced)
    iteration = first_come(3 * FORWARD, [BACKWARD] * 3, [2 * WAY] * 3)
    lines = [Line("iteration", None, 1e3 * iteration, 1e3 * found["sync"].measured["seconds"] / STEPS4,
                  1e3 * paced.measured["seconds"] / STEPS4, "ms"),
             Line("computing", None, 3e3 * (FORWARD + BACKWARD), unit="ms")]
    lines += [Line(f"wait before the forward pass of layer {k + 1}", None,
                   1e3 * (2 * WAY if k == 0 else 0.0), 1e3 * wait["sync"][k], 1e3 * real[k], "ms")
              for k in range(3)]
    sweep = {way: _mean_waits(three_layers("bsp", way)) for way in (WAY * x for x in (0.1, 0.5, 1, 2, 3, 5))}
    crowd = {mode: _mean_waits(three_layers(algorithm, workers=2)) for mode, algorithm in ALGORITHM.items()}
    panels = [Panel("two iterations of a worker, by layer", "seconds", "",
                    layer_by_layer(found["sync"], "worker0", iteration, 3 * iteration), "timeline"),
              Panel("what does not hide", "push and pull of a layer, ms", "ms of an iteration", {
                  "the worker waits": [(2e3 * way, 1e3 * sum(each)) for way, each in sweep.items()],
                  "layer 1's push and pull": [(2e3 * way, 2e3 * way) for way in sweep]})]
    return Part("figure4", "The idle period of layer 1", "Fig. 4", lines, _hidden(wait, sweep, crowd), panels, note=(
        "A run, not a drawing: `--layout layers --overlap both --priority`, three equal layers, one worker and one "
        f"server. A layer takes {1e3 * FORWARD:g} ms forward and {1e3 * BACKWARD:g} ms backward, its parameters "
        f"{1e3 * WAY:g} ms each way, so its push and pull {2e3 * WAY:g} ms; an update takes no time. In the timeline a "
        "number is a layer: the gradient of layer 3 is pushed, and its parameters pulled, while the backward pass "
        "computes layers 2 and 1. Links serve the lowest layer first, as MXNet's do. The processes, "
        "which are paced, really compute and send layer by layer."))


def _mean_waits(result: Result) -> list[float]:
    """Mean wait before the forward pass of each layer, of the first worker."""
    return [float(np.mean(found)) for _, found in sorted(waits(result, "worker0").items())]


def _hidden(wait: Mapping[str, Sequence[float]], sweep: Mapping[float, Sequence[float]],
            crowd: Mapping[str, Sequence[float]]) -> list[Claim]:
    """Claims on which layer's exchange hides: `wait` before each forward pass by mode, of one worker; by
    seconds of a way; and of two workers at one server."""
    first = {way: found[0] for way, found in sweep.items()}
    alone = [way for way in first if abs(first[way] - 2 * way) < 1e-9]
    return [
        judged(
            "push, update and pull of all layers but the first can hide behind the backward pass; an idle period remains", "Fig. 4",
            all(abs(found[0] - 2 * WAY) < 1e-9 and max(found[1:]) < 1e-9 for found in wait.values()),
            f"the forward pass waits {1e3 * wait['sync'][0]:g} ms for layer 1, its whole push and pull, and "
            f"{1e3 * wait['sync'][1]:g} and {1e3 * wait['sync'][2]:g} ms for layers 2 and 3"),
        judged("the exchange of layer 1 cannot be hidden: the next iteration begins with it", "II-D, Fig. 4",
               all(seconds >= 2 * way - 1e-9 for way, seconds in first.items()),
               "wait for layer 1 by its push and pull: "
               + ", ".join(f"{2e3 * way:g} ms: {1e3 * seconds:.3g}" for way, seconds in first.items())
               + f". Up to {2e3 * max(alone):g} ms nothing else is exposed; longer exchanges of the other layers do not "
               "hide, and layer 1 queues behind them on the links"),
        judged("under both synchronous and asynchronous SGD", "II-D",
               all(found[0] >= 2 * WAY - 1e-9 for found in crowd.values()),
               "two workers at one server wait for layer 1 "
               + " and ".join(f"{1e3 * found[0]:.3g} ms ({mode})" for mode, found in crowd.items()))]


def real(lab: Lab) -> dict[str, Any]:
    """What is really trained in virtual time: the digits when quick, else ResNet-18 of width 4 on
    CIFAR-10."""
    if lab.quick:
        return {"data": "digits", "net": "tiny", "batch": 16, "lr": 0.01, "momentum": 0.9}
    return {"data": "cifar10", "net": "resnet18:4", "batch": 16, "lr": 0.05, "momentum": 0.9}


def figure7(lab: Lab) -> Part:
    """Fig. 7: four, eight and twelve workers, the same number of updates for each worker."""
    steps, seeds = 60 if lab.quick else 150, range(lab.seed, lab.seed + (1 if lab.quick else 8))
    what = {**real(lab), "servers": 4, "steps": steps, "machine": flat(vm := machine("lognormal(3,0.5)"))}
    more = seeds if lab.quick else range(lab.seed, lab.seed + 100)  # from 8 to 12 workers asynchronous training loses little
    curves = {**_curves(lab, more, what, ("async",)), **_curves(lab, seeds, what, ("sync",))}
    slower = {**what, "lr": 0.375 * what["lr"]}
    lines = _accuracies(curves) + _gentle(_curves(lab, seeds[:3], slower, ("async",), (4, 12), evaluations=0),
                                          slower["lr"])
    passes = {where: lab.each({(mode, n): _pass(mode, n, place, lab.seed, 8) for mode in ALGORITHM
                               for n in WORKERS})
              for where, place in (("", vm), *_elsewhere(vm).items())}
    timing, later, bars = _passes(passes)
    panels = [Panel(f"{mode}, mean of seeds", "share of the run", "test accuracy",
                    {f"{n} workers": mean_curve(curves[mode, n]) for n in WORKERS})
              for mode in ("async", "sync")]
    return Part("figure7", "More workers", "Fig. 7", lines + timing, _falling(curves) + later, panels + bars,
                note=(
        f"Accuracy: {what['net']} on {what['data']}, {steps} updates of each worker, learning rate "
        f"{what['lr']:g} and momentum 0.9 for any number of "
        f"workers, {_seeds(more)}, {len(seeds)} of synchronous training. A mean gradient of more workers is better; the same step at a staleness "
        "of n - 1 is "
        "too long. Whether it is depends on the rate; the table has asynchronous training also at "
        f"three eighths of it, for {_seeds(seeds[:3])}. Four servers, where the document has eight: their "
        "number changes no sum (Fig. 9), and "
        "with a machine for each worker: where workers share machines, asynchronous updates come in another "
        "order, with the same mean staleness (Fig. 8). Times: 50,000 images, messages of ResNet-18, eight "
        "servers. Four, eight and twelve workers share four virtual machines; a gradient is assumed to use all "
        "processors of its machine, and whether a pass gets shorter depends on that, so the table has it also "
        "on other machines."))


def _curves(lab: Lab, seeds: Sequence[int], arguments: dict[str, Any],
            modes: Sequence[str] = tuple(ALGORITHM),
            workers: Sequence[int] = WORKERS, evaluations: int = 6) -> Curves:
    """Curves by mode and number of workers, one for each seed."""
    seen = lab.each(
        {(mode, n, seed): Trial(ALGORITHM[mode], {**arguments, "workers": n, "seed": seed, "evaluations": evaluations})
                     for mode in modes for n in workers for seed in seeds})
    return {(mode, n): [seen[mode, n, seed].curve for seed in seeds] for mode in modes for n in workers}


def _part(curves: Curves, since: float = 0.0, until: float = 1.0) -> Accuracies:
    """Mean accuracy over a part of each run; from 1 on: at its end."""
    return {key: [over(curve, since, until) for curve in found] for key, found in curves.items()}


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"


def _lost(accuracies: Accuracies, mode: str, few: int = 4, many: int = 12) -> list[float]:
    """For each seed what more workers lose."""
    return [a - b for a, b in zip(accuracies[mode, few], accuracies[mode, many])]


def _points(found: Sequence[float]) -> str:
    """Differences of accuracy in words."""
    value, half = interval(found)
    return f"{100 * value:.1f}" + ("" if math.isnan(half) else f" ± {100 * half:.1f}") + " points"


def _accuracies(curves: Curves) -> list[Line]:
    """Fig. 7(a, b): accuracy at the end and over the run, and what is lost."""
    lines = []
    for mode, quoted in {"sync": (0.08, None), "async": (0.35, 0.2)}.items():
        for suffix, found, paper in (("", _part(curves, 1), quoted[0]),
                                     (", mean over the run", _part(curves), quoted[1])):
            lines += [averaged(f"{mode}, {n} workers: accuracy{suffix or ' at the end'}", found[mode, n])
                      for n in WORKERS]
            lines.append(averaged(f"{mode}: accuracy lost from 4 to 12 workers{suffix}", _lost(found, mode),
                                  paper))
    return lines


def _gentle(curves: Curves, rate: float) -> list[Line]:
    """The same at a smaller rate."""
    end = _part(curves, 1)
    found = {**{f"{n} workers: accuracy at the end": end["async", n] for n in (4, 12)},
             "accuracy lost from 4 to 12 workers": _lost(end, "async")}
    return [averaged(f"async at a rate of {rate:.3g}, {what}", values) for what, values in found.items()]


def _falling(curves: Curves) -> list[Claim]:
    """What Fig. 7(a, b) says of accuracy."""
    mean, early, late = _part(curves), _part(curves, 0, 0.5), _part(curves, 0.5, 1)
    sync, asyn, first, second = _lost(mean, "sync"), _lost(mean,
                                                           "async"), _lost(mean, "async", 4, 8), _lost(
                                                               mean, "async", 8, 12)
    begin, end = _lost(early, "async"), _lost(late, "async")
    return [
        decided("asynchronous accuracy falls from 4 to 12 workers", "Fig. 7(a)", asyn,
                f"mean over the run lower by {_points(asyn)}"),
        decided("asynchronous accuracy falls with each step from 4 over 8 to 12 workers", "Fig. 7(a)",
                min(first, second, key=sum),
                f"mean over the run lower by {_points(first)} from 4 to 8, {_points(second)} from 8 to 12"),
        decided("the gap widens with epochs", "Fig. 7(a)", [b - a for a, b in zip(begin, end)],
                f"{_points(begin)} in the first half of the run, {_points(end)} in the second"),
        decided(
            "asynchronous training loses more accuracy than synchronous training at equal updates of each worker", "Fig. 7(a, b)",
                [a - b for a, b in zip(asyn, sync)],
                f"{_points(asyn)} against {_points(sync)}, mean over the run"),
        decided("synchronous accuracy falls from 4 to 12 workers (by 0.08)", "Fig. 7(b)", sync,
                f"mean over the run lower by {_points(sync)}: at equal updates the mean of more gradients is "
                "the better one"),
        decided("synchronous accuracy loses at most a quarter of that", "Fig. 7(b)",
                [a / 4 - max(b, 0) for a, b in zip(asyn, sync)],
                f"{_points(sync)} against {_points(asyn)}, mean over the run")]


def _elsewhere(vm: Machine) -> dict[str, Machine]:
    """Machines on which workers do not share what a gradient uses."""
    return {"a machine for each worker": flat(vm), "gradients of one of eight processors": vm.with_(cores=8)}


def _passes(places: Mapping[str, Mapping[tuple[str, int], Seen]]) -> tuple[list[Line], list[Claim],
                                                                            list[Panel]]:
    """Fig. 7(c, d): time of a pass over the images, computing and waiting, on Fig. 6's machines ("");
    the time alone on others."""
    seen = places[""]
    seconds = {key: run.measured["seconds"] for key, run in seen.items()}
    waiting = {n: seen["sync", n].measured["idle_ratio"] * seconds["sync", n] for n in WORKERS}
    computing = {n: seconds["sync", n] - waiting[n] for n in WORKERS}
    lines = [Line(f"{mode}, {n} workers: a pass over the images", None, run.predicted("seconds"),
                  seconds[mode, n], unit="s")
             for (mode, n), run in seen.items()]
    elsewhere = {where: {key: run.measured["seconds"] for key, run in found.items()}
                 for where, found in places.items() if where}
    lines += [Line(f"{where}, {mode}: share of a pass's time that remains from 4 to 12 workers", None, None,
                   took[mode, 12] / took[mode, 4]) for where, took in elsewhere.items() for mode in ALGORITHM]

    def told(took: Mapping[tuple[str, int], float]) -> str:
        return "; ".join(f"{m} " + ", ".join(f"{took[m, n]:.0f}" for n in WORKERS) + " s" for m in ALGORITHM)

    claims = [
        judged("the time of a pass falls when workers are added", "Fig. 7(c)",
               all(seconds[m, 4] > seconds[m, 8] > seconds[m, 12] for m in ALGORITHM),
               f"{told(seconds)}: more workers on the same four machines share processors that four already "
               "use in full. It falls "
               + " and ".join(f"with {where} ({told(took)})" for where, took in elsewhere.items()), shape=True),
        judged("asynchronous training is faster", "Fig. 7(c)",
               all(seconds["async", n] < seconds["sync", n] for n in WORKERS),
               ", ".join(f"{n} workers: {seconds['async', n] / seconds['sync', n]:.2f} of the time"
                         for n in WORKERS), shape=True),
        judged("computing falls with more workers", "Fig. 7(d)", computing[4] > computing[8] > computing[12],
               "synchronous: " + ", ".join(f"{computing[n]:.0f}" for n in WORKERS)
               + " s: under a barrier a worker whose neighbour is done has the processors for itself", shape=True),
        judged("communicating stays", "Fig. 7(d)", max(waiting.values()) < 1.1 * min(waiting.values()),
               "what is not computing: "
               + ", ".join(f"{waiting[n]:.0f}"
                           for n in WORKERS) + " s, nearly all of it the wait for the slowest; from 4 to 12 "
               f"workers {waiting[12] / waiting[4]:.2f} of it remain, and {computing[12] / computing[4]:.2f} "
               "of computing", shape=True)]
    bars = [Panel("a pass over the images", "workers", "seconds",
                  {m: [(n, seconds[m, n]) for n in WORKERS] for m in ALGORITHM}, "bars"),
            Panel("synchronous", "workers", "seconds",
                  {"computing": list(computing.items()), "waiting": list(waiting.items())}, "bars")]
    return lines, claims, bars


def figure8(lab: Lab) -> Part:
    """Fig. 8: staleness of asynchronous training by three definitions, over the run."""
    runs = lab.each(
        {n: timed("async", machine("lognormal(3,0.5)"), lab.seed, look=ages, workers=n, servers=4,
                   steps=400 if lab.quick else 4067)
                     for n in WORKERS})
    seen = {n: run.looked["ages"] for n, run in runs.items()}
    final = {n: found[-1] for n, found in seen.items()}
    lines = []
    for (n, (_, mean, rounds, gap)), paper in zip(final.items(), (1, 2, 4)):
        lines += [Line(f"{n} workers: largest staleness, as clocks apart", paper, None, gap),
                  Line(f"{n} workers: largest staleness, as whole rounds of n updates", paper, None, rounds),
                  Line(f"{n} workers: mean staleness in updates", None, n - 1, mean)]
    claims = [
        judged("staleness grows with the number of workers", "Fig. 8",
               all(final[4][i] <= final[8][i] <= final[12][i] > final[4][i] for i in (1, 2, 3)),
               "mean in updates " + ", ".join(f"{final[n][1]:.2f}" for n in WORKERS) + "; whole rounds "
               + ", ".join(f"{final[n][2]}" for n in WORKERS) + "; clocks apart "
               + ", ".join(f"{final[n][3]}" for n in WORKERS),
               shape=True),
        judged("its mean in updates is n - 1", "conservation of gradients in flight",
               all(abs(final[n][1] - (n - 1)) <= (0.03 if lab.quick else 0.01) * (n - 1) for n in WORKERS),
               ", ".join(f"{final[n][1]:.2f} for {n}"
                         for n in WORKERS) + "; less than n - 1 where a run ends, since workers that are "
                                             "done push no more"),
        judged("staleness increases with more epochs", "IV-B",
               all(seen[n][-1][3] > seen[n][0][3] for n in WORKERS),
               "clocks apart drift: " + "; ".join(" ".join(str(row[3]) for row in seen[n]) for n in WORKERS)
               + ". The mean in updates stays, whole rounds hardly grow", shape=True)]
    panels = [Panel(title, "share of the run", y,
                    {f"{n} workers": [(row[0], row[i]) for row in seen[n]] for n in WORKERS})
              for title, y, i in (("in updates", "mean, updates", 1),
                                  ("in rounds", "largest, rounds of n updates", 2),
                                  ("clocks apart", "largest, iterations", 3))]
    return Part("figure8", "Staleness over the run", "Fig. 8", lines, claims, panels, note=(
        "The document's largest are 1, 2 and 4, the 4 at epoch 13. They cannot count updates, whose mean is "
        "n - 1 by conservation, and are listed with both "
        "other readings: whole rounds come near their size, clocks apart drift without bound, as its "
        "sentence on epochs wants; how fast "
        "depends on how unequal the machines are. No reading gives both."))


def figure9(lab: Lab) -> Part:
    """Fig. 9: more servers on the same machines."""
    base = {**real(lab), "workers": 4, "steps": 40 if lab.quick else 100, "machine": flat(machine("fixed(3)"))}
    seeds = {"sync": [lab.seed], "async": range(lab.seed, lab.seed + (1 if lab.quick else 20))}
    seen = lab.each({(m, k, s): Trial(ALGORITHM[m], {**base, "servers": k, "seed": s})
                     for m in ALGORITHM for k in (4, 8) for s in seeds[m]})
    four, eight = (seen["sync", k, lab.seed].the_result.parameters_sha256 for k in (4, 8))
    apart = [seen["async", 4, s].accuracy - seen["async", 8, s].accuracy for s in seeds["async"]]
    mean, half = interval(apart)
    most = abs(mean) + (0.0 if math.isnan(half) else half)
    gain = {batch: _gain(batch) for batch in (16, 512)}
    timing, slower, bars = _more_servers(lab)
    claims = [
        judged("the number of servers does not change accuracy", "Fig. 9(a, b)", four == eight and most < 0.05,
               f"synchronous: {'the same' if four == eight else 'other'} bits; asynchronous: {_points(apart)} apart, "
               f"{_seeds(seeds['async'])}"),
        judged("small batches need more servers", "IV-D", gain[16] > 1.05 * gain[512],
               ", ".join(f"batch {b}: {g:.2f} times as fast with 8 servers as with 4"
                         for b, g in gain.items()) + ", on a machine each and links of 125 MB/s; "
               "the document's own Fig. 9 has more servers slower, on the same machines", shape=True)]
    size = parameters("resnet18") / parameters("inception")
    return Part("figure9", "More servers", "Fig. 9", timing, claims + slower, bars, note=(
        "Slices of the model over more servers change no sum; only times. Four virtual machines with a "
        "worker and one or two servers each, which share its "
        "processors. An update takes 5.7 ms alone, with eight servers as with four: in Table II it takes no "
        "longer for ResNet-18 than for Inception-v1, "
        f"which has 1/{size:.1f} of the weights, so its cost is not that of its bytes. Gradients of 3 s with "
        "coefficient of variation 0.5 assumed, the "
        "same draws for either number of servers."))


def _more_servers(lab: Lab) -> tuple[list[Line], list[Claim], list[Panel]]:
    """Fig. 9(c, d): time of a pass over the images with four and eight servers, of a gradient and of an
    exchange."""
    vm, seeds = flat(machine("lognormal(3,0.5)")), range(lab.seed, lab.seed + (3 if lab.quick else 5))
    runs = lab.each({(m, k, s): _pass(m, 4, vm, s, k, exchanges) for m in ALGORITHM for k in (4, 8)
                     for s in seeds})
    cheap = lab.each({(m, s): _pass(m, 4, vm.with_(update=UPDATE / 2), s, 8) for m in ALGORITHM
                      for s in seeds})
    lines, claims, more, longer = [], [], {}, {}
    for m in ALGORITHM:
        of = {k: [runs[m, k, s] for s in seeds] for k in (4, 8)}
        found = {k: {"a pass": [r.measured["seconds"] for r in of[k]],
                     "a gradient": [r.looked["gradient"] for r in of[k]],
                     "an exchange": [r.looked["push"] + r.looked["pull"] for r in of[k]]} for k in of}
        lines += [averaged(f"{m}, {k} servers: {what}", values, None,
                           of[k][0].predicted("seconds") if what == "a pass" else None, "s")
                  for k in of for what, values in found[k].items()]
        longer[m] = {what: [b - a for a, b in zip(found[4][what], found[8][what])] for what in found[4]}
        more[m] = longer[m]["a pass"], [cheap[m, s].measured["seconds"] - a
                                        for s, a in zip(seeds, found[4]["a pass"])]
        gradient, exchange = longer[m]["a gradient"], longer[m]["an exchange"]
        both = all(mean > half + 1e-9 for mean, half in map(interval, (gradient, exchange)))
        claims.append(judged(f"{m}: computing and exchanging both take longer", "Fig. 9(c, d)", both,
                             f"a gradient longer by {_span(gradient, 1e3)} ms, an exchange by "
                             f"{_span(exchange, 1e3)} ms"
                             + (
                                 "; under a barrier a worker waits while servers update, so they take no processor from a gradient" if m == "sync" else ""),
                             shape=True))
        lines += [averaged(f"{m}: {what} longer with eight servers", values, unit="s")
                  for what, values in longer[m].items()]
    claims.insert(0, decided("time rises with the number of servers on the same machines", "Fig. 9(c, d)",
                             min(more["sync"][0], more["async"][0], key=sum),
                             "; ".join(
                                 f"{m} by {_span(a)} s (if updates of half the weights took half as long: by "
                                 f"{_span(b)} s)"
                                       for m, (a, b) in more.items())))
    panels = [Panel(what, "servers", "seconds more than with four",
                    {m: [(4, 0.0), (8, float(np.mean(longer[m][what])))] for m in ALGORITHM}, "bars")
              for what in ("a pass", "a gradient", "an exchange")]
    return lines, claims, panels


def _span(found: Sequence[float], scale: float = 1.0) -> str:
    """A mean with its interval over seeds, in words."""
    value, half = interval(found)
    return f"{scale * value:.2f} ± {scale * half:.2f}"


def _gain(batch: int) -> float:
    """How many times as fast eight servers are as four, on machines of their own, by formula."""
    thin = Machine(compute=f"fixed({_gradient(batch):g})", latency=0.01,
                   bandwidth=125e6)  # type: ignore[arg-type]
    four, eight = (predict("bsp", net=f"shapes:{parameters('inception')}", data="none", workers=4,
                           servers=k, steps=100, batch=batch, machine=thin)
                   ["seconds_per_iteration"].value for k in (4, 8))
    return float(four / eight)


def figure10(lab: Lab) -> Part:
    """Fig. 10: batch 16 to 512 at a fixed number of passes."""
    batches = (4, 8, 16, 32, 64) if lab.quick else (16, 32, 64, 128, 256, 512)
    what = {**real(lab), "workers": 4, "servers": 4, "epochs": 3, "momentum": 0.0, "lr": 0.1}
    seeds = range(lab.seed, lab.seed + (2 if lab.quick else 1))
    seen = lab.each(
        {(m, b, s): Trial(ALGORITHM[m],
                          {**what, "batch": b, "seed": s,
                           "machine": flat(machine(f"lognormal({_gradient(b):g},0.3)"))})
                     for m in ALGORITHM for b in batches for s in seeds})
    accuracy = {(m, b): float(np.mean([seen[m, b, s].accuracy for s in seeds])) for m in ALGORITHM
                for b in batches}
    seconds = {
        (m, b): float(np.mean([seen[m, b, s].measured["seconds"] for s in seeds if seen[m, b, s].result]))
        for m in ALGORITHM for b in batches}
    gains = {m: [1 - seconds[m, b] / seconds[m, a] for a, b in pairwise(batches)] for m in ALGORITHM}
    paper = {("sync", 16): 0.79, ("async", 16): 0.74, ("sync", 512): 0.52, ("async", 512): 0.44}
    lines = [Line(f"{m}, batch {b}: accuracy after three passes", None if lab.quick else paper.get((m, b)),
                  None, accuracy[m, b])
             for m in ALGORITHM for b in batches]
    lines += [Line(f"{m}: time saved by the first doubling", {"sync": 0.51, "async": 0.54}[m], None,
                   gains[m][0]) for m in ALGORITHM]
    low, high = batches[0], batches[-1]
    ahead = [accuracy["async", b] - accuracy["sync", b] for b in batches]
    both = ", ".join(f"{accuracy['async', b]:.2f}/{accuracy['sync', b]:.2f}" for b in batches) + " (async/sync)"
    claims = [
        judged("time falls with the batch, each doubling saving less", "Fig. 10",
               all(g == sorted(g, reverse=True) and g[-1] > -0.02 for g in gains.values()),
               "; ".join(f"{m} " + ", ".join(f"{g:.0%}" for g in found) for m, found in gains.items()),
               shape=True),
        judged("the first doubling saves 51 % and 54 %", "IV-D", all(g[0] > 0.5 for g in gains.values()),
               f"{gains['sync'][0]:.0%} and {gains['async'][0]:.0%}: halving the number of iterations saves "
               "at most half unless an iteration itself "
               "becomes cheaper with a larger batch"),
        judged("a larger batch gives a lower accuracy after three passes", "Fig. 10",
               all(accuracy[m, low] > accuracy[m, high] for m in ALGORITHM),
               "; ".join(f"{m} {accuracy[m, low]:.2f} to {accuracy[m, high]:.2f}" for m in ALGORITHM),
               shape=True),
        decided("asynchronous accuracy is the lower after three passes (.74 and .79, .44 and .52)", "Fig. 10",
                [-each for each in ahead],
                both + ": n times the updates weigh more here than their staleness of n - 1; judged over the "
                "batches"),
        decided("asynchronous training has the higher accuracy after three passes", "IV-D", ahead,
                both + ": the sentence contradicts the document's own figures, but not ours")]
    panels = [Panel("three passes", "batch", "seconds",
                    {m: [(b, seconds[m, b]) for b in batches] for m in ALGORITHM}, log="xy"),
              Panel("after three passes", "batch", "test accuracy", {
                  **{m: [(b, accuracy[m, b]) for b in batches] for m in ALGORITHM},
                  **({} if lab.quick
                     else {f"{m} (paper)": [(b, a) for (mode, b), a in paper.items() if mode == m]
                           for m in ALGORITHM})}, log="x")]
    return Part("figure10", "Batch sizes", "Fig. 10", lines, claims, panels, note=(
        f"{what['net']} on {what['data']} without momentum, rate {what['lr']:g}, four workers and servers, "
        f"{_seeds(seeds)}. "
        "Time of a gradient assumed: 0.5 s and 20 ms an image."))


def _gradient(batch: int) -> float:
    """Seconds of a gradient, assumed: a fixed part and one for each image."""
    return 0.5 + 0.02 * batch


def figure11(lab: Lab) -> Part:
    """Fig. 11: idleness by servers to workers, batch, and latency; the latter also as paced processes."""
    each = Machine(update="fixed(0.001)", latency=0.01, bandwidth=1.25e9)  # type: ignore[arg-type]

    def idle(workers: int, servers: int, seconds: float) -> tuple[float | None, float]:
        vm = each.with_(compute=f"fixed({seconds:g})")
        run = lab.runs(
            [timed("sync", vm, lab.seed, "inception", workers=workers, servers=servers, steps=100)])[0]
        return run.predicted("idle_ratio"), float(run.measured["idle_ratio"])

    ratios = {f"{k}:{n}": idle(n, k, 0.02 * 96 / n) for k, n in ((1, 3), (2, 2), (3, 1))}
    batches = {b: idle(4, 4, 0.0008 * b) for b in (32, 64, 128)}
    scale = 0.25 if lab.quick else 1.0
    latencies = {ms: _latency(lab, ms, scale) for ms in (10, 100, 200)}
    quoted = {10: 0.10, 100: None, 200: 0.72}
    lines = [Line(f"servers to workers {key}: idle", None, f, s) for key, (f, s) in ratios.items()]
    lines += [Line(f"batch {b}: idle", None, f, s) for b, (f, s) in batches.items()]
    lines += [Line(f"latency {ms} ms: idle", quoted[ms], *found) for ms, found in latencies.items()]
    falls = [s for _, s in ratios.values()], [s for _, s in batches.values()]
    curve = [latencies[ms][1] for ms in (10, 100, 200)]
    claims = [
        judged("idleness falls from 1:3 over 2:2 to 3:1 servers to workers", "Fig. 11(a)",
               falls[0] == sorted(falls[0], reverse=True),
               ", ".join(f"{v:.0%}" for v in falls[0]), shape=True),
        judged("idleness falls with the batch", "Fig. 11(b)", falls[1] == sorted(falls[1], reverse=True),
               ", ".join(f"{v:.0%}" for v in falls[1]), shape=True),
        judged("idleness rises with latency from 10 % to 72 %", "Fig. 11(c)",
               all(abs(latencies[ms][0] - q) <= 0.03 for ms, q in quoted.items() if q),
               "one fitted figure, computing of 160 ms: "
               + ", ".join(f"{latencies[ms][0]:.0%}" for ms in quoted)),
        judged("the rise is concave", "Fig. 11(c)", (curve[1] - curve[0]) / 90 > (curve[2] - curve[1]) / 100,
               ", ".join(f"{v:.1%}" for v in curve)),
        judged("paced processes are as idle as the formula says, within 5 points", "ours",
               all(abs(p - f) <= 0.05 for f, _, p in latencies.values()),
               ", ".join(f"{p:.1%} for {f:.1%}" for f, _, p in latencies.values()))]
    panels = [Panel("servers to workers", "workers; the others of four are servers", "share of time idle",
                    {"bsp": [(n, ratios[key][1]) for key, n in (("1:3", 3), ("2:2", 2), ("3:1", 1))]},
                    "bars"),
              Panel("batch", "batch", "share of time idle",
                    {"bsp": [(b, s) for b, (_, s) in batches.items()]}, "bars"),
              Panel("latency", "latency, ms", "share of time idle", {
                  "formula": [(ms, f) for ms, (f, _, _) in latencies.items()],
                  "simulated": [(ms, s) for ms, (_, s, _) in latencies.items()],
                  "processes": [(ms, p) for ms, (_, _, p) in latencies.items()],
                  "(paper)": [(ms, q) for ms, q in quoted.items() if q]})]
    return Part("figure11", "Idleness", "Fig. 11", lines, claims, panels, note=(
        "A batch is split over the workers, so fewer workers have more work each (a). Idle = 2 latency / (2 "
        "latency + computing) fixes computing "
        "at 160 ms by least squares on the two quoted points "
        f"(c).{' Times are divided by four.' if lab.quick else ''}"))


def _latency(lab: Lab, ms: float, scale: float) -> tuple[float, float, float]:
    """Idle share at a latency: formula, simulation, and paced processes of a small problem."""
    link = Machine(compute=f"fixed({0.16 * scale:g})", latency=1e-3 * ms * scale)  # type: ignore[arg-type]
    common: dict[str, Any] = {"workers": 4, "servers": 4, "steps": 20 if lab.quick else 30, "machine": link,
                              "seed": lab.seed}
    formula = predict("bsp", **common)["idle_ratio"].value
    simulated, processes = lab.runs([Trial("bsp", common), Trial("bsp", common, "processes")])
    return formula, simulated.measured["idle_ratio"], processes.measured["idle_ratio"]


def summary(lab: Lab) -> Part:
    """The summary of the study (2020), which has no figures: slowest worker, stale updates, it depends."""
    speeds = {"equal machines": (1.0,) * 4, "one machine at a quarter": (1.0, 1.0, 1.0, 0.25)}
    what = {"data": "quadratic", "workers": 4, "steps": 40, "seed": lab.seed}
    vms = {name: Machine(compute="fixed(1)", speeds=each)
           for name, each in speeds.items()}  # type: ignore[arg-type]
    seen = lab.each({(mode, name): Trial(ALGORITHM[mode], {**what, "machine": vm}, look=pace)
                     for mode in ALGORITHM for name, vm in vms.items()})
    rate = {key: run.looked["pace"] for key, run in seen.items()}
    stale = {mode: max(row[1] for row in seen[mode, "one machine at a quarter"].looked["ages"])
             for mode in ALGORITHM}
    faster = {name: rate["async", name] / rate["sync", name] for name in speeds}
    step = seen["sync", "one machine at a quarter"].measured["seconds_per_iteration"]
    return Part("summary", "The summary of the study", "summary, 2020", [
        Line(f"{mode}, {name}: gradients a second", None, None, found)
        for (mode, name), found in rate.items()], [
        judged("synchronous training is consistent", "summary", stale["sync"] == 0,
               f"staleness {stale['sync']:g}: every gradient is of the newest model"),
        judged("and as slow as the slowest worker", "summary", abs(step / 4 - 1) < 0.02,
               f"an iteration takes {step:.2f} s, the slow machine's gradient 4 s"),
        judged("asynchronous training is faster, with stale updates", "summary",
               faster["one machine at a quarter"] > 1 and stale["async"] > 0,
               f"{faster['one machine at a quarter']:.2f} times the gradients a second, mean staleness "
               f"{stale['async']:.2f}", shape=True),
        judged("which is best depends on the workload", "summary",
               faster["equal machines"] < 1.05 < faster["one machine at a quarter"],
               "on the machines, here: gradients a second gained "
               + ", ".join(f"{name} {x:.2f} times" for name, x in faster.items())
               + "; what staleness costs is Fig. 7's", shape=True)],
        note="Four workers on the quadratic problem in virtual time, without a network: only speeds differ.")


LEARN = """* Staleness means three things: the updates between reading a model and using it, whose mean is n - 1 under ASP in the long run; whole rounds of updates;
  and the number of clocks between workers. Only the last grows with the epochs.
* With equal updates for each worker, asynchronous training loses accuracy from 4 to 12 workers, and synchronous training gains.
* How much is lost depends on the learning rate. At 0.05 asynchronous training loses 6 points from 4 to 12 workers, most of it up to 8; at three
  eighths of that rate it is better with any number of workers, and the seeds do not tell whether it loses. A statement on staleness and accuracy needs its rate.
* Whether more workers on the same four machines shorten a pass depends on what a gradient uses. If it uses all processors of its machine,
  asynchronous training gains nothing from 4 to 12 workers. If it uses one of eight, or each worker has a machine, a pass takes a third of the time.
* An asynchronous update takes longer, because it shares the processors with workers that compute; at a barrier they wait.
* More servers on the same machines cost time if a smaller part does not make an update cheaper: less than one per cent.
* Doubling a batch saves at most half of the time, unless an iteration becomes cheaper. That the document finds more is a property of its virtual
  machines, not of the algorithms."""

DOCUMENT = Document(__doc__.split("\n\n")[0],
                    (stages, balance, table2, resources, figure4, figure7, figure8, figure9, figure10, figure11, idleness,
                     summary), LEARN)
