"""Pani, Hand and Yalamanchili, "Performance Analysis of Distributed Deep Learning", report for CSE 812,
Michigan State University, 2020.

Data parallelism over the GPUs of one machine for a small and for a larger net, by batch size; and what a slow
machine beside a fast one can contribute.  A batch is split over the devices, as PyTorch's DataParallel does.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.lab import Lab, Seen, Trial
from benchmarks.studies.study import Document, Line, Panel, Part, decided, interval, judged, shown
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import load_machine
from refsgd.cluster.prices import left
from refsgd.problems.nn import nets

DEVICES = (1, 2, 4, 8)
PAIR = load_machine(str(Path(__file__).with_name("pani2020.toml")))  #: a fast and a slow device
FAST, SLOW = PAIR.compute
#: assumed of the GPUs' bus, which the report does not state: PCIe, one launch of all kernels
BUS, LAUNCH = 12e9, 2e-4  # bytes/s, s
IMAGES = {"mnist": 60_000, "digits": 1437}  # of a pass
SMALLEST = 32  # of the report's batches
#: TFLOPS in single precision: graphics cards at boost clock, processors by cores, clock and width (AVX2: 32 a cycle)
PEAKS = {"RTX 2080 Ti": 13.4, "GTX 1660 Ti": 5.4, "Ryzen 5 3600": 0.69, "Core i7-5500U": 0.15,
         "Xeon Silver 4214, one core": 0.07}
FASTEST, HOME = "RTX 2080 Ti", "GTX 1660 Ti"


def data(lab: Lab) -> dict[str, Any]:
    """MNIST with the report's shallow net, or the digits with a small one when quick."""
    if lab.quick:
        return {"data": "digits", "net": "tiny", "lr": 0.01}
    return {"data": "mnist", "net": "shallow", "lr": 0.01}


def batches(lab: Lab) -> Part:
    """Figs. 1 and 2: loss and accuracy by batch size, at the same number of passes."""
    sizes = (32, 64, 128, 256, 512) if lab.quick else (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    what = {**data(lab), "epochs": 3, "seed": lab.seed}
    seen = dict(zip(sizes, lab.runs([Trial("sequential", {**what, "batch": b}) for b in sizes])))
    loss = {b: run.the_result.loss for b, run in seen.items()}
    few = (sizes[0], sizes[len(sizes) // 2], sizes[-1])
    trials = {b: Trial("sequential", {**what, "net": f"{what['net']}:likelihood", "batch": b}) for b in few}
    likelihood = {b: run.the_result.loss for b, run in lab.each(trials).items()}
    accuracy = {b: run.accuracy for b, run in seen.items()}
    lines = [Line(f"batch {b}: training loss", None, None, loss[b]) for b in sizes] + [
        Line(f"batch {b}: test accuracy", None, None, accuracy[b]) for b in sizes]
    lines += [Line(f"batch {b}: minus the probability of the right class", None, None, v)
              for b, v in likelihood.items()]
    low, high = sizes[0], sizes[-1]
    claims = [
        judged("the loss rises with the batch size", "Fig. 1", list(loss.values()) == sorted(loss.values()),
               ", ".join(f"{b}: {loss[b]:.3f}" for b in (low, sizes[len(sizes) // 2], high))),
        judged("the classification error decreases with the batch size", "IV-A",
               accuracy[high] > accuracy[low],
               f"accuracy falls from {accuracy[low]:.1%} to {accuracy[high]:.1%}, so the error rises; the "
               "sentence contradicts the report's own "
               "rising loss, and what its Fig. 2 shows is unknown"),
        judged("losses are negative", "Figs. 1 and 4 to 6", max(likelihood.values()) < 0,
               "with PyTorch's NLLLoss applied to softmax, not its logarithm: "
               + ", ".join(f"{b}: {v:.3f}" for b, v in likelihood.items())
               + "; cross-entropy is never negative", shape=True)]
    panels = [Panel("after three passes", "batch", "training loss", {"sequential": list(loss.items())},
                    log="x"),
              Panel("after three passes", "batch", "test accuracy", {"sequential": list(accuracy.items())},
                    log="x")]
    return Part("batches", "Batch sizes", "Figs. 1 and 2", lines, claims, panels, note=(
        f"{what['net']} on {what['data']}, learning rate 0.01 for every batch. The report trains on MNIST, "
        "60,000 images and 10,000 for "
        "testing; among its batches is 2024 (sic), where ours is 2048. At a fixed rate and number of "
        "passes a larger batch makes "
        "fewer updates: that alone raises the loss."))


def deeper(lab: Lab) -> Part:
    """Figs. 4 and 5: ResNet-18 by batch size, at the same number of images."""
    sizes, images = ((32, 128, 512), 1024) if lab.quick else ((32, 128, 512, 2048, 8192), 16384)
    name, net = ("digits", "resnet18:2") if lab.quick else ("mnist", "resnet18:4")
    what = {"data": name, "net": net, "lr": 0.01, "seed": lab.seed}
    seen = dict(
        zip(sizes,
            lab.runs([Trial("sequential", {**what, "batch": b, "steps": images // b}) for b in sizes])))
    accuracy = {b: run.accuracy for b, run in seen.items()}
    failed = [b for b, run in seen.items() if run.failed]
    raw = {**what, "net": f"{net},score"}  # of no softmax at all: the loss has no lower bound
    scores = lab.each({b: Trial("sequential", {**raw, "batch": b, "steps": images // b}) for b in sizes})
    low = {b: run.the_result.loss for b, run in scores.items() if not run.failed}
    smallest, longer = (4, 10) if lab.quick else (32, 6)
    on = lab.runs([Trial("sequential", {**raw, "batch": smallest, "epochs": longer})])[0]
    again, apart, small = (60, 0.8, (4, 32, 128)) if lab.quick else (20, 0.96, (8, 32, 128))
    fitted = lab.each({b: Trial("sequential", {**what, "batch": b, "epochs": again, "validation": apart}) for b in small})
    gap = {b: run.the_result.accuracy["train"] - run.accuracy for b, run in fitted.items()}
    return Part("deeper", "ResNet-18", "Figs. 4 and 5",
                [*(Line(f"batch {b}: test accuracy", None, None, a) for b, a in accuracy.items()),
                 *(Line(f"batch {b}: minus the score of the right class", None, None, v)
                   for b, v in low.items())], [
        judged("larger batches are better for ResNet-18", "IV-B", accuracy[sizes[-1]] > accuracy[sizes[0]],
               ", ".join(f"{b}: {a:.1%} after {images // b} updates"
                         for b, a in accuracy.items()) + ": at the same number of images a larger batch "
               "makes fewer updates; longer training is not tried"),
        judged("the loss is less negative, the larger the batch", "IV-B",
               len(low) == len(sizes) and list(low.values()) == sorted(low.values()) and low[sizes[0]] < 0,
               "with minus the score of the right class: "
               + ", ".join(f"{b}: {v:.3g}" for b, v in low.items()), shape=True),
        judged("training at small batches gives NaN", "IV-B", bool(on.failed),
               f"at batch {smallest}, minus the score falls below what a float32 can hold within {longer} passes; "
               f"with cross-entropy {len(failed)} of {len(sizes)} runs diverged", shape=True),
        judged("small batches over-fit", "IV-B", gap[small[0]] == max(gap.values()),
               f"accuracy in training, in testing, and their difference after {again} passes over "
               f"{round(IMAGES[name] * (1 - apart)):,} images: "
               + "; ".join(f"{b}: {run.the_result.accuracy['train']:.1%}, {run.accuracy:.1%}, {100 * gap[b]:.1f} points"
                           for b, run in fitted.items()), shape=True)],
        [Panel(f"after {images} images", "batch", "test accuracy", {"sequential": list(accuracy.items())},
               log="x")],
        note=f"{net} (one input channel, first kernel 3x3, not pre-trained) on {name}, learning rate 0.01, "
             f"{images:,} images.")


def same_learning(lab: Lab) -> Part:
    """Figs. 1 and 2: devices change neither loss nor accuracy."""
    batch = 64
    what = {**data(lab), "lr": 0.05, "steps": 60 if lab.quick else 400, "seed": lab.seed}
    seen = dict(
        zip(DEVICES,
            lab.runs([Trial("allreduce", {**what, "workers": n, "batch": batch // n}) for n in DEVICES])))
    accuracy = {n: run.accuracy for n, run in seen.items()}
    loss = [run.the_result.loss for run in seen.values()]
    apart = max(accuracy.values()) - min(accuracy.values())
    return Part("same_learning", "Devices and learning", "Figs. 1 and 2",
                [Line(f"{n} devices: accuracy", None, None, a) for n, a in accuracy.items()], [
        judged("the number of devices changes neither loss nor accuracy", "IV-A",
               apart < 0.01 and max(loss) - min(loss) < 0.01,
               f"accuracy {100 * apart:.2f} points apart, loss {max(loss) - min(loss):.1e}: the same sum of "
               "gradients in another order")],
        note="The same batches of 64, split over the devices: all see the same images in the same order.")


def _shapes(net: str) -> str:
    """The name of a shape-only net for MNIST."""
    return f"shapes:{net}@28x28x1"


def _divided(net: str, batch: int, devices: int) -> dict[str, Any]:
    """Arguments of a run whose batch is split over devices."""
    machine = Machine(compute=replace(FAST, overhead=LAUNCH), latency=LAUNCH, bandwidth=BUS)
    return {"net": _shapes(net), "data": "none", "workers": devices, "batch": max(1, batch // devices),
            "steps": 20, "machine": machine, "collective": "root"}


def devices(lab: Lab) -> Part:
    """Figs. 3 and 6: the time of a step with one to eight devices, for a small and a larger net."""
    sizes = (32, 512, 8192)
    keys = [(net, b, n) for net in ("shallow", "resnet18") for b in sizes for n in DEVICES]
    trials = [Trial("allreduce", {**_divided(*key), "seed": lab.seed}) for key in keys]
    seen = dict(zip(keys, lab.runs(trials)))
    time = {key: 1e3 * run.measured["seconds_per_iteration"] for key, run in seen.items()}
    formula = {key: 1e3 * run.the_result.predicted["seconds_per_iteration"]["value"]
               for key, run in seen.items()}
    lines = [Line(f"{net}, batch {b}, {n} devices", None, formula[net, b, n], time[net, b, n], unit="ms")
             for net, b, n in keys]
    small = [time["shallow", 32, n] for n in DEVICES]
    cross = {net: crossing(net) for net in ("shallow", "resnet18")}
    flat = {b: [time["resnet18", b, n] / time["resnet18", b, 1] for n in DEVICES] for b in sizes}
    claims = [
        judged("the small net is slower on more devices: 1 before 2 before 4 before 8", "Fig. 3",
               small == sorted(small),
               "batch 32: " + ", ".join(f"{t:.2f}" for t in small) + " ms", shape=True),
        judged("that order holds for every batch up to 8192", "Fig. 3", cross["shallow"] > 8192,
               f"in the model two devices pay from batch {cross['shallow']:.0f} on; the report sees no gain, "
               "so something that it did not split, "
               "such as loading images, took the time"),
        judged("the larger net's time hardly changes from 1 to 8 devices, batch 32", "Fig. 6",
               max(flat[32]) / min(flat[32]) < 2,
               ", ".join(f"{f:.2f}"
                         for f in flat[32]) + " of one device's: less than a factor of two between any",
                         shape=True),
        judged("the larger net's time hardly changes at every batch", "Fig. 6",
               all(max(f) / min(f) < 2 for f in flat.values()),
               ", ".join(f"batch {b}: {shown(time['resnet18', b, 1])} to {shown(time['resnet18', b, 8])} ms"
                         for b in sizes) + " from 1 to 8 "
               f"devices; in the model two pay from batch {cross['resnet18']:.0f} on"),
        judged("distribution pays only where the gain in computing exceeds the cost of coordination",
               "conclusion",
               all((time[net, b, 2] < time[net, b, 1]) == (b > cross[net]) for net in cross for b in sizes),
               "two devices beat one exactly above the crossing C (1 - 1/n) = overhead in all six cases")]
    panels = [Panel(f"{net}, batch {b}", "devices", "ms a step",
                    {"formula": [(n, formula[net, b, n]) for n in DEVICES],
                                                            "simulated": [
                                                                (n, time[net, b, n]) for n in DEVICES]})
              for net, b in (("shallow", 32), ("shallow", 8192), ("resnet18", 32))]
    return Part("devices", "More devices", "Figs. 3 and 6", lines, claims, panels, note=(
        "Gradients go to one device and the result back, as in DataParallel. The report states only names of "
        "devices: eight RTX 2080 Ti beside a "
        "Xeon Silver 4214 of 2.2 GHz. Assumed: "
        f"{FAST.rate / 1e12:g} TFLOP/s, {BUS / 1e9:g} GB/s and {1e3 * LAUNCH:g} ms a launch or transfer."))


def crossing(net: str) -> float:
    """Batch from which two devices beat one: b c (1 - 1/2) = 2 (latency + bytes/bandwidth)."""
    built = nets.build(net, (28, 28, 1))
    each = 3 * sum(row.flops for row in built.leaves) / FAST.rate
    return 2 * 2 * (LAUNCH + 4 * built.parameters / BUS) / each


def local(lab: Lab) -> Part:
    """Figs. 7 to 10: single devices, and the baseline on one processor of this machine."""
    sizes, near = (32, 512, 8192), (384, 448, 512, 576, 640)
    rates = {name: FAST.rate / PEAKS[FASTEST] * peak for name, peak in PEAKS.items()}
    keys = [(net, b, name) for net in ("shallow", "resnet18") for b in sizes for name in PEAKS]
    seen = lab.each({(net, b, name): Trial("sequential", {
        "net": _shapes(net), "data": "none", "batch": b, "steps": 20, "seed": lab.seed,
        "machine": Machine(compute=replace(FAST, rate=rates[name], overhead=LAUNCH))}) for net, b, name in keys})
    rate = {key: run.measured["images_per_second"] for key, run in seen.items()}
    here = {**data(lab), "machine": Machine()}
    one = {"shallow": {**here, "batch": 32, "steps": 30},
           "resnet18": {**here, "net": "resnet18:4" if lab.quick else "resnet18", "batch": 32, "steps": 4}}
    around = {**here, "steps": 4, **({} if lab.quick else {"net": "resnet18:16"})}
    measured = lab.each({net: Trial("sequential", what, "processes", formulas=False) for net, what in one.items()}
                        | {(b, again): Trial("sequential", {**around, "batch": b, "seed": lab.seed + again}, "processes",
                                             formulas=False) for again in range(3) for b in near})
    speed: dict[Any, float] = {key: run.measured["images_per_second"] for key, run in measured.items()}
    speed |= {b: float(np.median([speed[b, again] for again in range(3)])) for b in near}
    lines = [Line(f"{net}, batch {b}, {name}", None, b / seen[net, b, name].predicted("seconds_per_iteration"),
                  rate[net, b, name], unit="images/s") for net, b, name in keys]
    lines += [Line(f"{what['net']}, batch 32, one processor here", processes=speed[net], unit="images/s")
              for net, what in one.items()]
    lines += [Line(f"{around['net']}, batch {b}, one processor here", processes=speed[b], unit="images/s") for b in near]
    card, processor, laptop = ("GTX 1660 Ti", "Ryzen 5 3600", "Core i7-5500U")
    slower = speed[512] / float(np.mean([speed[b] for b in near if b != 512]))
    each = {name: rate["resnet18", 512, name] for name in PEAKS}
    panels = [Panel("ResNet-18", "batch", "seconds of a pass",
                    {name: [(b, IMAGES["mnist"] / rate["resnet18", b, name]) for b in sizes] for name in PEAKS}, log="xy"),
              Panel(f"{around['net']} on one processor here", "batch", "images/s", {"processes": [(b, speed[b]) for b in near]})]
    claims = [
        judged("a large increase in run time from the old hardware to the newer", "Figs. 7 to 9",
               each[card] > each[processor] > 2 * each[laptop],
               ", ".join(f"{name} {each[name]:,.0f}" for name in (card, processor, laptop)) + " images/s of ResNet-18, by peaks and a "
               "share of them that are assumed; loss and accuracy do not depend on the device", shape=True),
        judged("a doubled run time at batch 512", "Fig. 10", slower < 0.67,
               f"here, medians of three, batch 512 has {slower:.2f} of the images per second of its neighbours "
               f"({', '.join(str(b) for b in near if b != 512)})")]
    if not lab.quick:  # where other nets are timed here
        claims += [judged("one processor is a baseline that a graphics card beats", "III-A",
                          all(rate[net, 32, FASTEST] > speed[net] for net in one),
                          "; ".join(f"{net}, batch 32: {speed[net]:,.0f} images/s here, {rate[net, 32, FASTEST]:,.0f} on a "
                                    f"simulated {FASTEST}" for net in one), shape=True)]
    return Part("local", "Single devices", "Figs. 7 to 10", lines, claims, panels, note=(
        "Each device has the same share of the peak that its cores, clock and width of vectors give: "
        + ", ".join(f"{name} {peak:g} TFLOPS" for name, peak in PEAKS.items())
        + f"; a launch takes {1e3 * LAUNCH:g} ms. Beside them one unpaced process on this machine."))


def here(lab: Lab) -> Part:
    """Not in the report: the same question asked of this machine, with unpaced processes."""
    cores = os.cpu_count() or 1
    workers, sizes = (1, 2, 4), (32, 512) if lab.quick else (32, 128, 512)
    what = {**data(lab), "machine": Machine(), "steps": 30 if lab.quick else 60}
    seeds = range(lab.seed, lab.seed + (1 if lab.quick else 5))
    keys = [(b, n, seed) for seed in seeds for b in sizes for n in workers]
    seen = lab.runs([Trial("allreduce", {**what, "workers": n, "batch": b // n, "seed": seed}, "processes")
                     for b, n, seed in keys])
    each = {key: run.measured["images_per_second"] for key, run in zip(keys, seen)}
    spread = {(b, n): interval([each[b, n, seed] for seed in seeds]) for b in sizes for n in workers}
    rate = {key: mean for key, (mean, _) in spread.items()}
    lines = [Line(f"batch {b}, {n} workers", processes=mean, unit="images/s", half=half)
             for (b, n), (mean, half) in spread.items()]
    panels = [Panel(f"{what['net']} on {cores} processors", "workers", "images/s",
                    {f"batch {b}": [(n, rate[b, n]) for n in workers] for b in sizes})]
    gain = {b: [each[b, 2, seed] / each[b, 1, seed] for seed in seeds] for b in sizes}
    return Part("here", "On this machine", "ours", lines, [
        decided("a larger batch gains more from a second worker", "ours",
                [large - small for large, small in zip(gain[sizes[-1]], gain[sizes[0]])],
                ", ".join(f"batch {b}: {np.mean(g):.2f} times" for b, g in gain.items()))], panels, note=(
        f"Allreduce SGD as unpaced processes over shared memory on {cores} processors, {len(seeds)} "
        f"run{'s' if len(seeds) > 1 else ''} each: the "
        "figures are this machine's."))


def _split(lab: Lab, batch: int, slow: int | None = None) -> Seen:
    """A run on the two devices with this many images of each batch on the slow one, by default in proportion
    to speed; a device that gets none is left out."""
    parts = {0: batch - (slow or 0), 1: slow}
    used = [rank for rank, images in parts.items() if images != 0]
    each = f"auto:{batch}" if slow is None else ",".join(str(parts[rank]) for rank in used)
    return lab.runs([Trial("allreduce", {
        "net": _shapes("resnet18"), "data": "none", "workers": len(used), "batch": each, "steps": 20,
        "machine": left(PAIR, used, 0.0), "seed": lab.seed})])[0]


def unequal(lab: Lab) -> Part:
    """Section V: a machine 20 times slower than the other takes at most 1/21 of a batch."""
    sizes, batch = (32, 128, 512, 1024, 8192), 462  # 2 x 11 x 21
    auto = _split(lab, batch)
    share = auto.the_result.problem["batches"][1]
    enough = {b: max(round(b / 21), SMALLEST) for b in sizes}
    keys = [(batch, 0), (batch, batch // 2), (batch, batch // 11),
            *((b, slow) for b in sizes for slow in (0, enough[b]))]
    seen = {(batch, share): auto} | {key: _split(lab, *key) for key in keys}
    time = {key: run.measured["seconds_per_iteration"] for key, run in seen.items()}
    lines = [Line(f"batch {b}, {slow} to the slow one: a step", None,
                  1e3 * (run.predicted("seconds_per_iteration") or 0.0), 1e3 * time[b, slow], unit="ms")
             for (b, slow), run in seen.items()]
    gain = {(b, slow): time[b, 0] / found for (b, slow), found in time.items()}
    rounds = lab.runs([Trial("local-sgd", {"data": "digits", "workers": 4, "steps": 32, "seed": lab.seed})])[0]
    best, small = gain[batch, share], [b for b in sizes if b < 21 * SMALLEST]
    return Part("unequal", "Unequal machines", "V", lines, [
        judged("the weaker machine can take at most 1/21 of the load", "V",
               share * 21 == batch and gain[batch, batch // 11] < 1 < best,
               f"--batch auto:{batch} gives it {share} images; a step then takes {1 / best:.4f} (20/21) of the time "
               f"on the fast machine alone, and {1 / gain[batch, batch // 11]:.3g} times as long with 1/11"),
        judged("no gain if the slow machine's batch leaves the trainable range", "V",
               all(gain[b, enough[b]] <= 1 for b in small),
               f"1/21 of a batch of {small[-1]} is {small[-1] / 21:.1f} images, and the report trains on no "
               f"fewer than {SMALLEST}; if the slow machine takes at least these, a step is so many times as "
               "fast as on the fast one alone: "
               + ", ".join(f"batch {b}: {gain[b, enough[b]]:.3g}" for b in sizes), shape=True),
        judged("an RTX 2080 Ti is 20 times as fast as a GTX 1660 Ti", "V", PEAKS[FASTEST] / PEAKS[HOME] > 10,
               f"{PEAKS[FASTEST]:g} and {PEAKS[HOME]:g} TFLOPS in single precision at boost clock: "
               f"{PEAKS[FASTEST] / PEAKS[HOME]:.1f} times; the figures of this part take the report's factor"),
        judged("SparkNet is asynchronous", "II", rounds.measured["staleness_max"] > 0,
               f"it averages parameters in rounds, as local SGD here, whose staleness is at most "
               f"{rounds.measured['staleness_max']:g}"),
        judged("no gain with equal batches", "V", gain[batch, batch // 2] < 1,
               f"{1 / gain[batch, batch // 2]:g} times as long")],
        note=f"ResNet-18 on {FAST} and {SLOW}, `benchmarks/studies/pani2020.toml`; no network. The gain of 5 % "
             "is lost if exchanging takes 1/21 of the time.")


LEARN = """* More devices can take more time: below a certain batch, the exchange costs more than half a gradient. The report sees no such limit up to 8,192
  images, which suggests that something took time that was not divided among the devices.
* At a fixed rate and number of passes, the loss rises with the batch, because fewer updates are made; so does the classification error.
* Minus the score of the right class has no lower bound. It falls until it is NaN, and first with small batches, which make more updates. The loss
  is at fault, not the batch."""

DOCUMENT = Document(__doc__.split("\n\n")[0], (batches, deeper, same_learning, devices, local, here, unequal), LEARN)
