"""Graur's chapter 2: what the survey of systems says of how they scale, asked of their algorithms here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.studies.lab import Lab, Trial
from benchmarks.studies.study import Claim, Line, Panel, Part, judged
from refsgd.cluster.presets import load_machine
from refsgd.experiment.prepare import predict
from refsgd.theory.phenomena.checkpoints import checkpoints

#: the systems' algorithms with their options
SYSTEMS = {"DistBelief, Downpour": ("downpour", {"adagrad": True}), "DistBelief, Sandblaster": ("sandblaster", {}),
           "Petuum": ("ssp", {"staleness": 3}), "MXNet": ("asp", {})}
#: 90 passes over ImageNet's 1,281,167 images in an hour, on 256 GPUs with 32 images each
GRADIENT = 3600 * 256 * 32 / (90 * 1_281_167)
RACE = Path(__file__).parents[1] / "results" / "fair" / "batches.json"
SERVED, WORKERS = load_machine("das5-ethernet"), 8  # of which a gradient of 32 images is timed
YEAR = 365 * 24 * 3600.0  # s
GBPS = (10, 25, 40, 50, 56, 100)  # Ethernet's and InfiniBand's


def survey(lab: Lab) -> Part:
    """What other groups found of DistBelief, MXNet, Petuum and Caffe2, as the thesis quotes it."""
    workers = (1, 10) if lab.quick else (1, 2, 5, 10, 20)
    length = {"DistBelief, Sandblaster": {"steps": 10 if lab.quick else 40}}
    what = {"data": "digits", "servers": 4, "seed": lab.seed}
    seen = lab.each({(name, n): Trial(algorithm, {**what, **options, "workers": n, **length.get(name, {"epochs": 3})})
                     for name, (algorithm, options) in SYSTEMS.items() for n in workers})
    pace = {(name, n): seen[name, 1].measured["seconds"] / seen[name, n].measured["seconds"] for name, n in seen}
    sent = {n: seen["DistBelief, Sandblaster", n].measured["bytes_sent"] for n in workers}
    accuracy = {key: run.accuracy for key, run in seen.items()}
    lines = [line for name, n in seen for line in (
        Line(f"{name}, {n} workers: times as fast as one", simulated=pace[name, n]),
        Line(f"{name}, {n} workers: accuracy", simulated=accuracy[name, n]))]
    central = lab.runs([Trial("bsp", {"data": "quadratic", "workers": 8, "steps": 8, "seed": lab.seed})])[0].measured
    through = 2 * central["bytes_sent_by_node"]["server0"] / central["bytes_sent"]  # each gradient has its answer
    efficiency = {rate: scaled(rate) for rate in GBPS}
    lines += [Line(f"256 GPUs, {rate} Gbps a host of 8: share of the efficiency of 8", 0.9, found)
              for rate, found in efficiency.items()]
    claims = [
        judged("Downpour SGD scales very well", "2.5.1", pace["DistBelief, Downpour", 10] > 8,
               f"{pace['DistBelief, Downpour', 10]:.2f} times as fast with 10 workers; accuracy after the same passes "
               f"{accuracy['DistBelief, Downpour', 1]:.2f} with one, {accuracy['DistBelief, Downpour', 10]:.2f} with 10",
               shape=True),
        _adagrad(lab),
        judged("Sandblaster L-BFGS makes efficient use of the bandwidth, with a high potential to scale", "2.5.1",
               sent[10] < 1.5 * sent[1] and pace["DistBelief, Sandblaster", 10] > 7,
               f"10 workers send {sent[10] / sent[1]:.2f} times as much as one for the same updates, and are "
               f"{pace['DistBelief, Sandblaster', 10]:.2f} times as fast", shape=True),
        judged("Petuum's speed-up is nearly linear", "2.5.5", pace["Petuum", 10] > 8,
               f"SSP with slack 3 is {pace['Petuum', 10]:.2f} times as fast with 10 workers", shape=True),
        judged("MXNet's speed-up from 1 to 10 machines is more than linear", "2.5.4", pace["MXNet", 10] > 10,
               f"{pace['MXNet', 10]:.2f} times: waiting for links cannot make a worker faster than alone; a cache that "
               "holds a tenth of the images could"),
        judged("and its convergence slower", "2.5.4", accuracy["MXNet", 10] < accuracy["MXNet", 1] - 0.02,
               f"accuracy after the same passes: {accuracy['MXNet', 1]:.2f} with one worker, {accuracy['MXNet', 10]:.2f} "
               "with 10 at the same rate", shape=True),
        judged("256 GPUs keep 90 % of the efficiency of 8: batches of 8192, 1 hour (Goyal et al.)", "2.5.3",
               efficiency[100] >= 0.9,
               "hierarchical all-reduce after the gradient, without overlap: "
               + ", ".join(f"{rate} Gbps {found:.0%}" for rate, found in efficiency.items())
               + f"; a gradient takes {GRADIENT:.3f} s, as an hour for 90 passes says; the thesis states no link",
               shape=True),
        judged("a parameter server is a decentralised topology", "2", through < 0.5,
               f"{through:.0%} of the bytes of BSP go to its one server or come from it: what others, and this library, "
               "call centralised")]
    kept = {nodes: checkpoints(300.0, YEAR, nodes) for nodes in (100, 5000)}
    claims += [judged("checkpoints and restarts suit 100 nodes and more, but not thousands", "2.5.5",
                      kept[100].value > 0.9 and kept[5000].value < 0.75,
                      "where a node fails once a year and a checkpoint takes five minutes, the best period leaves "
                      + ", ".join(f"{nodes} nodes {p.value:.0%} of the time" for nodes, p in kept.items()), shape=True)]
    alone, together = to_target(1), to_target(WORKERS)
    claims += [judged("large batches pay with a parameter server", "6.2, future work",
                      min(together, key=together.__getitem__) > min(alone, key=alone.__getitem__),
                      f"seconds to the target by the sum of batches, {WORKERS} workers and a server: {_said(together)}; one "
                      f"worker without exchange: {_said(alone)}. An exchange takes as long for any batch, so fewer and "
                      "larger ones pay, until their gradients no longer become fewer", shape=True)]
    panels = [Panel("systems", "workers", "times as fast as one",
                    {name: [(n, pace[name, n]) for n in workers] for name in SYSTEMS} | {
                        "linear": [(n, n) for n in workers]}),
              Panel("256 GPUs, 8 a host", "Gbps of a host", "share of the efficiency of 8",
                    {"formula": list(efficiency.items()), "90 % (paper)": [(rate, 0.9) for rate in GBPS]}),
              Panel("ResNet-50's steps, the small net's gradients", "images of a step", "seconds to the target",
                    {f"{WORKERS} workers, a server": list(together.items()), "one worker": list(alone.items())}, log="xy")]
    return Part("survey", "What the survey says of other systems", "2.5", lines, claims, panels, note=(
        "The small net on the digits with the default machine and four servers, three passes (Sandblaster: the same "
        "updates): the systems' algorithms, not their programs. The 256 GPUs are on 32 hosts of eight (`hosts-4x8` "
        "with other links)."))


def to_target(workers: int) -> dict[int, float]:
    """Seconds to the target of the race of batches by the sum of all workers' batches: its gradients, which the small net
    needs at the best rate of each batch, times the seconds of a step of ResNet-50 with one server on DAS-5."""
    found = dict[int, float]()
    for row in json.loads(RACE.read_text(encoding="utf-8"))["rows"]:
        batch = row["arguments"]["batch"]
        if batch < workers:
            continue
        gradients, each = row["passes"] * row["per_pass"], batch // workers
        step = predict("bsp" if workers > 1 else "sequential", net="shapes:resnet50@224x224x3", data="none",
                       workers=workers, steps=1, batch=each, machine=SERVED.with_(speeds=(32 / each,) * workers))
        found[batch] = gradients * float(step["seconds_per_iteration"].value)
    return dict(sorted(found.items()))


def scaled(gbps: float) -> float:
    """The efficiency of 256 GPUs relative to the eight of one host, by the bandwidth of a host."""
    machine = load_machine("hosts-4x8").with_(compute=f"fixed({GRADIENT})", bandwidth=gbps * 1e9 / 8)
    seconds = {hosts: predict("allreduce", collective="hierarchical", net="shapes:resnet50@224x224x3", data="none",
                              workers=8 * hosts, steps=1, batch=32, machine=machine.with_(hosts=f"{hosts}x8"))
               ["seconds_per_iteration"].value for hosts in (1, 32)}
    return float(seconds[1] / seconds[32])


def _said(seconds: Mapping[int, float]) -> str:
    """Seconds by batch, in words."""
    return ", ".join(f"{batch}: {each:.0f}" for batch, each in seconds.items())


def _adagrad(lab: Lab) -> Claim:
    """Whether Downpour gains by AdaGrad, each at the best of some rates."""
    rates = (0.01, 0.03, 0.1, 0.3)
    seen = lab.each({(adagrad, rate): Trial("downpour", {"data": "digits", "workers": 4, "servers": 4, "epochs": 1,
                                                         "seed": lab.seed, "lr": rate, "adagrad": adagrad})
                     for adagrad in (False, True) for rate in rates})
    best = {adagrad: max((seen[adagrad, rate].accuracy, rate) for rate in rates) for adagrad in (False, True)}
    return judged("AdaGrad gives Downpour a large speed-up", "2.5.1", best[True][0] > best[False][0] + 0.05,
                  f"accuracy after one pass, at the best of the rates {', '.join(map(str, rates))}: {best[True][0]:.2f} with "
                  f"AdaGrad ({best[True][1]}), {best[False][0]:.2f} without ({best[False][1]})", shape=True)
