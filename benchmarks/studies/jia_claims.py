"""Sentences of Jia et al. without a figure: model parallelism, multiples of four, idleness of asynchronous SGD."""

from __future__ import annotations

from typing import Any

from benchmarks.studies.jia_runs import ALGORITHM, GRADIENT, machine, timed
from benchmarks.studies.lab import Lab, Trial
from benchmarks.studies.study import Line, Panel, Part, judged
from refsgd.cluster.machine import Machine

BATCH, HOSTS = 128, 4
IN = {"sync": "synchronous", "async": "asynchronous"}


def _trial(algorithm: str, lab: Lab, machine: Machine, **arguments: Any) -> Trial:
    """A run of ResNet-18 that computes nothing: only times."""
    return Trial(algorithm, {"net": "shapes:resnet18@32", "data": "none", "batch": BATCH, "machine": machine,
                             "seed": lab.seed, **arguments}, formulas=False)


def stages(lab: Lab) -> Part:
    """Section II-B: layers on four machines, one after the other, beside one machine and data parallelism."""
    vm, steps = machine(f"fixed({GRADIENT})"), 5 if lab.quick else 20
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "one machine": ("sequential", {"workers": 1}),
        "model parallelism, four stages": ("gpipe", {"workers": HOSTS, "micro": 1}),
        "data parallelism, four workers": ("bsp", {"workers": HOSTS, "servers": HOSTS}),
        "a pipeline, four stages, 8 micro-batches": ("gpipe", {"workers": HOSTS, "micro": 8})}
    seen = {way: run.measured for way, run in lab.each({
        way: _trial(algorithm, lab, vm, steps=steps, **more) for way, (algorithm, more) in ways.items()}).items()}
    one, model, data, pipeline = (float(found["images_per_second"]) for found in seen.values())
    alone = BATCH / GRADIENT
    formula = dict(zip(ways, (alone, alone, HOSTS * alone, None)))
    lines = [Line(f"{way}: images", None, formula[way], found["images_per_second"], unit="images/s")
             for way, found in seen.items()]
    lines += [Line(f"{way}: idle", None, None, 100 * found["idle_ratio"], unit="%") for way, found in seen.items()]
    claims = [
        judged("model parallelism gives no speed-up", "II-B", model <= 1.01 * one,
               f"{model / one:.3f} times the images of one machine: one stage works at a time, and the machines "
               f"are idle {seen['model parallelism, four stages']['idle_ratio']:.0%} of the time. With 8 micro-batches in "
               f"flight the same stages have {pipeline / one:.2f} times the images", shape=True),
        judged("data parallelism is faster", "II-B", data > 1.5 * max(one, model),
               f"{data / one:.2f} times the images of one machine with four", shape=True)]
    return Part("stages", "Model parallelism", "II-B", lines, claims, note=(
        f"ResNet-18 in batches of {BATCH} on the four virtual machines, {GRADIENT} s a gradient of one that uses all "
        "processors of a machine. The formula has no messages. Layers are divided where stages take about equally long."))


def balance(lab: Lab) -> Part:
    """Section III-B: workers and servers in multiples of the four machines."""
    counts, steps, vm = (4, 8, 9, 10, 11, 12), 10 if lab.quick else 40, machine(f"fixed({GRADIENT})")
    found = {(mode, n, k): float(run.measured["images_per_second"]) for (mode, n, k), run in lab.each({
        (mode, n, k): _trial(ALGORITHM[mode], lab, vm, workers=n, servers=k, steps=steps)
        for mode, n, k in [*((mode, n, HOSTS) for mode in ALGORITHM for n in counts),
                           *(("sync", 8, k) for k in (5, 6, 8))]}).items()}
    rate = {(mode, n): value for (mode, n, k), value in found.items() if k == HOSTS}
    spread = {k: value for (mode, n, k), value in found.items() if (mode, n) == ("sync", 8)}
    formula = {n: n * BATCH / (GRADIENT * -(-n // HOSTS)) for n in counts}
    lines = [Line(f"{mode}, {n} workers, 4 servers", None, formula[n] if mode == "sync" else None, rate[mode, n],
                  unit="images/s") for mode, n in rate]
    lines += [Line(f"sync, 8 workers, {k} servers", None, None, value, unit="images/s") for k, value in spread.items()
              if k != HOSTS]
    lost = {mode: [1 - rate[mode, n] / rate[mode, 8] for n in (9, 10, 11)] for mode in ALGORITHM}
    apart = 1 - min(spread.values()) / max(spread.values())
    claims = [
        judged("workers must be launched in multiples of four, or the load is unbalanced", "III-B",
               min(x for each in lost.values() for x in each) > 0.05,
               "; ".join(f"with 9, 10, 11 workers {IN[mode]} training has " + ", ".join(f"{x:.0%}" for x in each)
                         + " fewer images a second than with 8" for mode, each in lost.items())
               + ": the machine with three workers, which share its processors, ends last", shape=True),
        judged("and servers, too", "III-B", apart > 0.05,
               "images a second of 8 workers by servers " + ", ".join(f"{k}: {v:.1f}" for k, v in spread.items())
               + f": {apart:.1%} apart, since a server's work is little beside gradients, and waits for them anyway")]
    panel = Panel("four servers on four machines", "workers", "images/s",
                  {IN[mode]: [(n, rate[mode, n]) for n in counts] for mode in ALGORITHM})
    return Part("balance", "Multiples of four", "III-B", lines, claims, [panel], note=(
        f"ResNet-18 in batches of {BATCH} a worker, {GRADIENT} s a gradient of a worker that has a machine's processors "
        "for itself. The formula has no messages: a step takes as long as the gradients of the fullest machine."))


def idleness(lab: Lab) -> Part:
    """Section IV-E: Fig. 11's sweeps for asynchronous training, beside synchronous."""
    vm = Machine(update="fixed(0.001)", latency=0.01, bandwidth=1.25e9)  # type: ignore[arg-type]
    ratios = [(f"servers to workers {k}:{n}", n, k, 0.02 * 96 / n, 0.01) for k, n in ((1, 3), (2, 2), (3, 1))]
    batches = [(f"batch {b}", 4, 4, 0.0008 * b, 0.01) for b in (32, 64, 128)]
    latencies = [(f"latency {ms} ms", 4, 4, 0.16, 1e-3 * ms) for ms in (10, 100, 200)]
    sweeps = {"servers to workers": ratios, "batch": batches, "latency": latencies}
    trials = {(what, mode): timed(mode, vm.with_(compute=f"fixed({seconds:g})", latency=latency), lab.seed, "inception",
                                  workers=n, servers=k, steps=50 if lab.quick else 100)
              for rows in sweeps.values() for what, n, k, seconds, latency in rows for mode in ALGORITHM}
    seen = lab.each(trials)
    idle = {key: float(found.measured["idle_ratio"]) for key, found in seen.items()}
    lines = [Line(f"{mode}, {what}: idle", None, seen[what, mode].predicted("idle_ratio"), idle[what, mode])
             for what, mode in trials]
    curves = {(name, mode): [idle[row[0], mode] for row in rows] for name, rows in sweeps.items() for mode in ALGORITHM}
    asynchronous = {name: curves[name, "async"] for name in sweeps}

    def told(name: str, mode: str = "async") -> str:
        return ", ".join(f"{x:.0%}" for x in curves[name, mode])

    claims = [
        judged("idleness exists under asynchronous training, too", "II-D, IV-E",
               min(x for each in asynchronous.values() for x in each) > 0.01,
               "; ".join(f"{name} {told(name)} (synchronous {told(name, 'sync')})" for name in sweeps), shape=True),
        judged("asynchronous idleness falls from 1:3 over 2:2 to 3:1 servers to workers and with the batch, and rises "
               "with latency", "Fig. 11",
               all(asynchronous[name] == sorted(asynchronous[name], reverse=name != "latency") for name in sweeps),
               "; ".join(f"{name} {told(name)}" for name in sweeps), shape=True)]
    panels = [Panel(name, name, "share of time idle", {
        IN[mode]: list(enumerate(curves[name, mode])) for mode in ALGORITHM}, "bars",
        names=[row[0].removeprefix(f"{name} ") for row in rows]) for name, rows in sweeps.items()]
    return Part("idleness", "Idleness of asynchronous training", "IV-E, Fig. 11", lines, claims, panels, note=(
        "The sweeps of Fig. 11, for both. Messages of Inception-v1's size, a machine for each worker and server; "
        "a batch is split over the workers; 160 ms a gradient in the sweep of latency, as there."))
