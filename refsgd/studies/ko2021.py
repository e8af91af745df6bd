"""Ko, Choi, Seo and Kim, "An In-Depth Analysis of Distributed Training of Deep Neural Networks", IPDPS 2021.

Seven algorithms on 24 GPUs, ResNet-50 and VGG-16, 10 and 56 Gbps.  Its slides give one table of accuracies and no
speed-ups in figures, so speed-ups are tested as orders only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refsgd.experiment import predict
from refsgd.machine import Machine
from refsgd.nn import nets
from refsgd.studies.lab import Lab, Seen, Trial
from refsgd.studies.study import Claim, Document, Line, Panel, Part, interval, judged, untestable
from refsgd.theory import collectives, overlap
from refsgd.theory.exchange import Link

WORKERS = (4, 8, 16, 24)
#: columns of Table III: algorithm and options
COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    "BSP": ("bsp", {"aggregation": "sum"}), "ASP": ("asp", {}),
    "SSP s=3": ("ssp", {"staleness": 3, "refresh": "lazy"}), "SSP s=10": ("ssp", {"staleness": 10, "refresh": "lazy"}),
    "EASGD 4": ("easgd", {"period": 4}), "EASGD 8": ("easgd", {"period": 8}),
    "GoSGD p=1": ("gosgd", {"p": 1.0}), "GoSGD p=0.1": ("gosgd", {"p": 0.1}), "GoSGD p=0.01": ("gosgd", {"p": 0.01}),
    "AD-PSGD": ("adpsgd", {}), "SSP s=10, fresh reads": ("ssp", {"staleness": 10, "refresh": "fresh"}), "AD-PSGD, rate not scaled": ("adpsgd", {})}
TABLE3 = {
    4: (.7514, .7508, .7480, .7462, .7028, .7027, .7160, .6892, .6775, .7483),
    8: (.7509, .7482, .7450, .7412, .6357, .6269, .6529, .6173, .5845, .7447),
    16: (.7496, .7447, .7393, .7147, .5416, .5237, .5492, .5135, .4922, .7439),
    24: (.7511, .7459, .7282, .6448, .4709, .4528, .4641, .4475, .3938, .7411)}
Accuracies = Mapping[tuple[str, int], Sequence[float]]
#: columns whose parameters are the mean of the workers' own, so that their spread is known; of EASGD the centre is evaluated
REPLICAS = ("GoSGD p=1", "GoSGD p=0.1", "GoSGD p=0.01", "AD-PSGD")
TESTED = 360  # test images of the digits


def table3(lab: Lab) -> Part:
    """Table III: accuracy of seven algorithms at a fixed total number of passes.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    workers, seeds = ((4, 24), range(lab.seed, lab.seed + 1)) if lab.quick else (WORKERS, range(lab.seed, lab.seed + 8))
    accuracy, spread = _train(lab, list(COLUMNS), workers, seeds)
    mean = {key: float(np.mean(found)) for key, found in accuracy.items()}
    lines = [Line(f"{n} workers, {c}", dict(zip(COLUMNS, TABLE3[n])).get(c), None, mean[c, n], half=interval(accuracy[c, n])[1])
             for n in workers for c in COLUMNS]
    last = workers[-1]

    def order(says: str, *columns: str) -> Claim:
        return _ordered(says, accuracy, columns, workers)

    near = {c: abs(mean[c, last] - mean[c, 4]) for c in ("BSP", "ASP", "AD-PSGD")}
    falls = {c: mean[c, 4] - mean[c, last] for c in ("SSP s=10", "EASGD 4", "EASGD 8", "GoSGD p=1", "GoSGD p=0.1", "GoSGD p=0.01")}
    claims = [
        order("BSP is at least as accurate as ASP, and ASP as AD-PSGD", "BSP", "ASP", "AD-PSGD"),
        order("ASP is above SSP with s = 3, and that above s = 10", "ASP", "SSP s=3", "SSP s=10"),
        order("EASGD is better with period 4 than with 8", "EASGD 4", "EASGD 8"),
        order("GoSGD is the better the more it sends: p = 1, 0.1, 0.01", "GoSGD p=1", "GoSGD p=0.1", "GoSGD p=0.01"),
        judged("BSP, ASP and AD-PSGD hardly depend on the number of workers", "Table III", max(near.values()) < 0.02,
               ", ".join(f"{c} {100 * d:.1f} points" for c, d in near.items()) + f" between 4 and {last} workers", shape=True),
        judged("SSP with s = 10, EASGD and GoSGD fall with the number of workers", "Table III", min(falls.values()) > 0.05,
               ", ".join(f"{c} {100 * d:.0f} points" for c, d in falls.items()), shape=True),
        judged("communicating now and then costs accuracy (F1)", "F1", mean["BSP", last] - mean["EASGD 4", last] > 0.05,
               f"at {last} workers BSP {mean['BSP', last]:.1%}, EASGD {mean['EASGD 4', last]:.1%}; but GoSGD with p = 1 sends in every iteration and has "
               f"{mean['GoSGD p=1', last]:.1%}: what these share is that a worker sees 1/n of the images at an unscaled rate", shape=True),
        judged("bounding staleness costs accuracy: SSP is below unbounded ASP", "Table III", mean["SSP s=10, fresh reads", last] < mean["ASP", last] - 0.02,
               f"at {last} workers ASP {mean['ASP', last]:.1%}, SSP s=10 that trains on cached parameters {mean['SSP s=10', last]:.1%}, with fresh reads "
               f"{mean['SSP s=10, fresh reads', last]:.1%}: it is the cache, not the bound")]
    if not lab.quick:
        claims.append(judged("GoSGD with p = 1 beats EASGD with period 4 up to 16 workers and loses at 24", "Table III",
                             all(mean["GoSGD p=1", n] > mean["EASGD 4", n] for n in (4, 8, 16)) and mean["GoSGD p=1", 24] < mean["EASGD 4", 24],
                             ", ".join(f"{n}: {mean['GoSGD p=1', n]:.3f} against {mean['EASGD 4', n]:.3f}" for n in workers)))
    columns = list(COLUMNS)[:10]
    lost = {c: mean[c, 4] - mean[c, last] for c in columns}
    lines += [Line(f"{c}: accuracy lost from 4 to {last} workers", TABLE3[4][i] - TABLE3[last][i], None, lost[c]) for i, c in enumerate(columns)]
    lines += [Line(f"{n} workers: ASP above AD-PSGD", TABLE3[n][1] - TABLE3[n][9], None, mean["ASP", n] - mean["AD-PSGD", n]) for n in workers]
    flat = ("BSP", "ASP", "AD-PSGD")
    apart = {n: max(mean[c, n] for c in flat) - min(mean[c, n] for c in flat) for n in workers}
    ties = {n: abs((a := _interval(accuracy["AD-PSGD", n]))[0] - (b := _interval(accuracy["SSP s=3", n]))[0]) <= a[1] + b[1] for n in workers}
    correlation = float(np.corrcoef([spread[c, last] for c in REPLICAS], [lost[c] for c in REPLICAS])[0, 1])
    claims += [
        judged("BSP, ASP and AD-PSGD are within a point of each other", "Table III", max(apart.values()) <= 0.01,
               ", ".join(f"{n}: {100 * x:.1f} points" for n, x in apart.items()), shape=True),
        judged("AD-PSGD and SSP with s = 3 tie at 4 and 8 workers, AD-PSGD is above from 16 on", "Table III",
               all(tie == (n < 16) for n, tie in ties.items()),
               ", ".join(f"{n}: AD-PSGD {mean['AD-PSGD', n]:.3f}, SSP {mean['SSP s=3', n]:.3f}{' (intervals overlap)' if ties[n] else ''}" for n in workers)),
        order("centralised training is more accurate than decentralised: ASP above AD-PSGD", "ASP", "AD-PSGD"),
        judged("the variance of parameters across workers goes with the loss of accuracy", "F1", correlation > 0.5,
               f"correlation {correlation:.2f} over GoSGD and AD-PSGD at {last} workers: " + ", ".join(
                   f"{c} {spread[c, last]:.2g}/{round(100 * lost[c])} points" for c in REPLICAS)
               + "; AD-PSGD's rate is n times the others', which spreads its workers", shape=True)]
    gossip = [spread[c, last] for c in ("GoSGD p=1", "GoSGD p=0.1", "GoSGD p=0.01")]
    claims.append(judged("sending less lets the workers' parameters drift apart", "F1", gossip == sorted(gossip),
                         ", ".join(f"{s:.2g}" for s in gossip) + " mean squared distance from the mean", shape=True))
    panels = [Panel("ours", "workers", "test accuracy", {c: [(n, mean[c, n]) for n in workers] for c in list(COLUMNS)[:10]}),
              Panel("Table III (ResNet-50, ImageNet)", "workers", "test accuracy",
                    {c: [(n, TABLE3[n][i]) for n in WORKERS] for i, c in enumerate(list(COLUMNS)[:10])})]
    return Part("table3", "Accuracy of seven algorithms", "Table III", lines, claims, panels, note=(
        f"The net tiny on the digits, {len(seeds)} seeds, {10 if lab.quick else 20} passes in all however many the workers are: with 24 each sees 1/24 "
        "of the images. "
        "The slides state neither rates nor batches. Here every gradient counts with the same rate at the server (BSP sums); AD-PSGD's rate is multiplied "
        "by the number of workers, as its authors do, the others' is not; the column without that scaling falls like GoSGD. SSP trains on cached parameters "
        "(lazy): the only reading under which a bound can cost accuracy. Orders are judged where intervals of 95 % do not overlap."))


def _train(lab: Lab, columns: Sequence[str], workers: Sequence[int], seeds: range) -> tuple[Accuracies, dict[tuple[str, int], float]]:
    """Test accuracies by column and workers, one for each seed; and the mean spread of the replicas."""
    rate, epochs = (0.02, 10) if lab.quick else (0.01, 20)
    keys = [(c, n, s) for c in columns for n in workers for s in seeds]
    trials = []
    for c, n, s in keys:
        algorithm, options = COLUMNS[c]
        scaled = rate * n if c == "AD-PSGD" else rate
        trials.append(Trial(algorithm, {"data": "digits", "workers": n, "seed": s, "lr": scaled, "epochs": epochs, "batch": 16, **options}))
    found = dict(zip(keys, lab.runs(trials)))
    accuracy = {(c, n): [found[c, n, s].accuracy for s in seeds] for c in columns for n in workers}
    spread = {(c, n): float(np.mean([r.consensus_distance if (r := found[c, n, s].result) else math.nan for s in seeds])) for c in columns for n in workers}
    return accuracy, spread


def _interval(found: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % interval: Student's t over the seeds, or binomial over the test images where there are few seeds."""
    p, half = interval(found)
    return p, half if len(found) > 2 else 1.96 * math.sqrt(p * (1 - p) / (TESTED * len(found)))


def _ordered(says: str, accuracy: Accuracies, columns: Sequence[str], workers: Sequence[int]) -> Claim:
    """Whether each column is above the next one: judged by the rows in which the intervals do not overlap."""
    against, towards, rows = [], 0, []
    for n in workers:
        found = [_interval(accuracy[c, n]) for c in columns]
        rows.append(f"{n}: " + ", ".join(f"{m:.3f}±{h:.3f}" for m, h in found))
        for (a, ha), (b, hb), one, other in zip(found, found[1:], columns, columns[1:]):
            towards += a - b > ha + hb
            if b - a > ha + hb:
                against.append(f"{one} below {other} at {n}")
    why = "; ".join(rows)
    if against:
        return judged(says, "Table III", False, f"{'; '.join(against)} ({why})")
    if not towards:
        return untestable(says, "Table III", f"no difference beyond the intervals ({why})")
    return judged(says, "Table III", True, why, shape=True)


def sensitivity(lab: Lab) -> Part:
    """Hyper-parameters: slack, period and moving rate, probability.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    n, seeds = 8, range(lab.seed, lab.seed + (1 if lab.quick else 3))
    what = {"data": "digits", "workers": n, "lr": 0.02, "epochs": 5 if lab.quick else 10, "batch": 16}
    grid: list[tuple[str, dict[str, Any]]] = [("ssp", {"refresh": "lazy", "staleness": s}) for s in (1, 3, 10)]
    grid += [("easgd", {"period": p, "alpha": a}) for p in (1, 4, 16) for a in (0.02, 0.1)]
    grid += [("gosgd", {"p": p}) for p in (1.0, 0.1, 0.01)]
    keys = [(i, s) for i in range(len(grid)) for s in seeds]
    found = dict(zip(keys, lab.runs([Trial(grid[i][0], {**what, **grid[i][1], "seed": s}) for i, s in keys])))
    seen = [interval([found[i, s].accuracy for s in seeds]) for i in range(len(grid))]
    mean = [m for m, _ in seen]
    names = [f"{a} " + ", ".join(f"{k} {v:g}" for k, v in o.items() if k != "refresh") for a, o in grid]
    easgd = [m for m, (a, _) in zip(mean, grid) if a == "easgd"]
    return Part("sensitivity", "Sensitivity to hyper-parameters", "experiments on hyper-parameters", [
        Line(name, None, None, m, half=half) for name, (m, half) in zip(names, seen)], [
        judged("EASGD's accuracy depends on its period and moving rate", "F1", max(easgd) - min(easgd) > 0.02,
               f"{min(easgd):.1%} to {max(easgd):.1%}", shape=True)],
        note=f"{n} workers on the digits, {len(seeds)} seeds. The slides name this experiment without figures.")


#: assumed: a third of a Titan V's 14.9 TFLOP/s, 32 images a gradient
RATE, BATCH = 5e12, 32
NETS = {"ResNet-50": "resnet50", "VGG-16": "vgg16"}
SPEEDUP: dict[str, dict[str, Any]] = {"bsp": {}, "asp": {}, "ssp": {"staleness": 3}, "easgd": {"period": 4}, "allreduce": {}, "gosgd": {"p": 0.1}, "adpsgd": {}}
CENTRAL = ("bsp", "asp", "ssp")


@functools.cache
def _net(name: str) -> tuple[int, float]:
    """Parameters, and seconds of a gradient, of a net at 224 pixels."""
    built = nets.build(NETS[name], (224, 224, 3), classes=1000)
    return built.parameters, 3 * BATCH * sum(row.flops for row in built.describe()) / RATE


def _arguments(algorithm: str, net: str, gbps: int, workers: int, seed: int, servers: int = 1, steps: int = 20) -> dict[str, Any]:
    """Arguments of a run with messages of the net's size."""
    parameters, compute = _net(net)
    machine = Machine(compute=f"lognormal({compute:g},0.1)", latency=2e-5, bandwidth=gbps * 1.25e8)  # type: ignore[arg-type]
    own = {"servers": servers} if algorithm in CENTRAL else {}
    return {"net": f"phantom:{parameters}", "data": "none", "workers": workers, "batch": BATCH, "steps": steps, "machine": machine,
            "seed": seed, **SPEEDUP.get(algorithm, {}), **own}


def _runs(lab: Lab, keys: Sequence[tuple[str, str, int, int]], servers: int = 1, steps: int = 20) -> dict[tuple[str, str, int, int], Seen]:
    """Virtual runs by (algorithm, net, Gbps, workers), with messages of the nets' sizes."""
    trials = [Trial(a, _arguments(a, net, gbps, n, lab.seed, servers, steps)) for a, net, gbps, n in keys]
    return dict(zip(keys, lab.runs(trials)))


def _predicted(run: Seen, key: str) -> float | None:
    """A closed form's figure, where there is one."""
    found = run.the_result.predicted.get(key)
    return found["value"] if found else None


def scalability(lab: Lab) -> Part:
    """Speed-up of the seven algorithms at 10 and 56 Gbps.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    workers = (8, 24) if lab.quick else (2, 4, 8, 16, 24)
    keys = [(a, net, g, n) for a in SPEEDUP for net in NETS for g in (10, 56) for n in workers]
    seen = _runs(lab, keys, steps=12 if lab.quick else 20)
    one = {net: BATCH / _net(net)[1] for net in NETS}
    speedup = {key: run.measured["images_per_second"] / one[key[1]] for key, run in seen.items()}
    formula = {key: p / one[key[1]] if (p := _predicted(run, "images_per_second")) else None for key, run in seen.items()}
    last = workers[-1]
    lines = [Line(f"{net}, {g} Gbps, {last} workers, {a}: speed-up", None, formula[a, net, g, last], speedup[a, net, g, last])
             for net in NETS for g in (10, 56) for a in SPEEDUP]
    worst = [(net, g, min(("bsp", "asp", "ssp", "allreduce", "gosgd", "adpsgd"), key=lambda a: speedup[a, net, g, last])) for net in NETS for g in (10, 56)]
    ps = {(net, g): max(speedup[a, net, g, last] for a in CENTRAL) for net in NETS for g in (10, 56)}
    free = {(net, g): min(speedup[a, net, g, last] for a in ("allreduce", "gosgd", "adpsgd")) for net in NETS for g in (10, 56)}
    wire = {(net, g): 4 * _net(net)[0] / (1.25e8 * g) for net in NETS for g in (10, 56)}
    cap = {(net, g): _net(net)[1] / w for (net, g), w in wire.items()}
    lines += [Line(f"{net}, {g} Gbps: one transfer of the model", {("ResNet-50", 10): 0.08, ("VGG-16", 10): 0.41}.get((net, g)), w, unit="s")
              for (net, g), w in wire.items()]
    lines += [Line(f"{net}, {g} Gbps: {last} transfers one way, at least an iteration through one server", {
        ("ResNet-50", 10): 1.9, ("VGG-16", 10): 9.8}.get((net, g)) if last == 24 else None, last * w,
        BATCH * last / seen["bsp", net, g, last].measured["images_per_second"], unit="s") for (net, g), w in wire.items()]
    lines += [Line(f"{net}, {g} Gbps: a ring's transfers among {last}", {
        ("ResNet-50", 10): 0.15, ("VGG-16", 10): 0.79}.get((net, g)) if last == 24 else None, 2 * (last - 1) / last * w, unit="s")
        for (net, g), w in wire.items()]
    lines += [Line(f"{net}, {g} Gbps: largest speed-up through one server", None, x, speedup["asp", net, g, last]) for (net, g), x in cap.items()]
    bound = [k for k, x in cap.items() if x < last / 2]  # where the server's link decides
    claims = [
        judged("a server's speed-up saturates at computing / transfer workers", "first principles",
               all(abs(speedup["asp", *k, last] / cap[k] - 1) < 0.1 for k in bound),
               "; ".join(f"{net} {g} Gbps: cap {cap[net, g]:.2f}, ASP {speedup['asp', net, g, last]:.2f}" for net, g in bound)
               + " (links carry both directions at once; half of that if not)", shape=True),
        untestable("up to 191 % more throughput than a synchronous algorithm, 34 % more than the best decentralised one (ALADDIN)", "CIKM 2021",
                   "another system of the same group; its settings are not in the abstract"),
        judged("decentralised algorithms avoid the bottleneck: all scale better than all centralised ones", "F3", all(free[k] > ps[k] for k in ps),
               "; ".join(f"{net} {g} Gbps: at least {free[net, g]:.1f} against at most {ps[net, g]:.1f}" for net, g in ps), shape=True),
        judged("ASP always has the worst speed-up", "F3", all(a == "asp" for *_, a in worst),
               "; ".join(f"{net} {g} Gbps: {a} ({speedup[a, net, g, last]:.2f}; asp {speedup['asp', net, g, last]:.2f})" for net, g, a in worst)
               + ". With one link both ways saturate alike: BSP's answers leave together, so it is not faster than ASP in this model"),
        judged("VGG-16 scales worse than ResNet-50 under every algorithm", "first principles",
               all(speedup[a, "VGG-16", g, last] <= speedup[a, "ResNet-50", g, last] * 1.001 for a in SPEEDUP for g in (10, 56)),
               ", ".join(f"{a} {speedup[a, 'VGG-16', 10, last]:.1f}/{speedup[a, 'ResNet-50', 10, last]:.1f}" for a in SPEEDUP) + " at 10 Gbps", shape=True),
        judged("a faster network helps the centralised algorithms most", "F3",
               min(speedup[a, "VGG-16", 56, last] / speedup[a, "VGG-16", 10, last] for a in CENTRAL)
               > max(speedup[a, "VGG-16", 56, last] / speedup[a, "VGG-16", 10, last] for a in ("gosgd",)),
               ", ".join(f"{a} {speedup[a, 'VGG-16', 56, last] / speedup[a, 'VGG-16', 10, last]:.1f}" for a in SPEEDUP) + " times (VGG-16)", shape=True)]
    panels = [Panel(f"{net}, {g} Gbps", "workers", "speed-up", {a: [(n, speedup[a, net, g, n]) for n in workers] for a in SPEEDUP})
              for net in NETS for g in (10, 56)]
    return Part("scalability", "Speed-up", "F3", lines, claims, panels, note=(
        "Virtual time, messages of the nets' sizes, one parameter server. Assumed, since the slides give no times: gradients of "
        + " and ".join(f"{_net(net)[1]:.2f} s ({net})" for net in NETS) + ", a third of the GPU's peak. The document's speed-ups could not be had."))


def waiting(lab: Lab) -> Part:
    """F3: the waiting time at the server grows with the number of workers.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    workers = (4, 24) if lab.quick else WORKERS
    keys = [("asp", net, 10, n) for net in NETS for n in workers]
    seen = _runs(lab, keys, steps=15)
    idle = {(net, n): run.measured["idle_ratio"] for (_, net, _, n), run in seen.items()}
    queueing = {(net, n): run.measured["idle_by_cause"].get("queueing", 0.0) for (_, net, _, n), run in seen.items()}
    lines = [Line(f"{net}, {n} workers: waiting", None, _predicted(seen["asp", net, 10, n], "idle_ratio"), idle[net, n]) for net in NETS for n in workers]
    lines += [Line(f"{net}, {n} workers: of it behind others", None, None, queueing[net, n]) for net in NETS for n in workers]
    return Part("waiting", "Waiting at the server", "F3", lines, [
        judged("the waiting time at the server grows with the number of workers", "F3",
               all([idle[net, n] for n in workers] == sorted(idle[net, n] for n in workers) for net in NETS),
               "; ".join(f"{net} " + ", ".join(f"{idle[net, n]:.0%}" for n in workers) for net in NETS), shape=True)],
        [Panel("ASP, 10 Gbps", "workers", "share of time waiting", {net: [(n, idle[net, n]) for n in workers] for net in NETS}, "bars")])


def techniques(lab: Lab) -> Part:
    """Effects of optimisation techniques: sharding, layer-wise overlap, gradient compression.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    n, gbps = 24, 10
    shards = (1, 8) if lab.quick else (1, 2, 4, 8, 24)
    asp = {k: _runs(lab, [("asp", net, gbps, n) for net in NETS], servers=k, steps=12) for k in shards}
    rate = {(net, k): asp[k]["asp", net, gbps, n].measured["images_per_second"] for net in NETS for k in shards}
    lines = [Line(f"{net}, ASP with {k} server{'s' if k > 1 else ''}", None,
                  _predicted(asp[k]["asp", net, gbps, n], "images_per_second"), rate[net, k], unit="images/s")
             for net in NETS for k in shards]
    hidden, full, most = {}, {}, {}
    for net in NETS:
        layers = [row for row in nets.build(NETS[net], (224, 224, 3), classes=1000).describe() if row.parameters]
        forward = [BATCH * row.flops / RATE for row in layers]
        backward = [2 * f for f in forward]
        link = Link(2e-5, gbps * 1.25e8)
        exchange = [collectives.ring(n, 4 * row.parameters, link).time.value for row in layers]
        full[net], hidden[net] = overlap.serial(forward, backward, exchange).value, overlap.first_come(forward, backward, exchange).value
        most[net] = min(sum(exchange), sum(backward))
        lines += [Line(f"{net}, allreduce layer by layer without overlap", None, full[net], unit="s"),
                  Line(f"{net}, allreduce with layer-wise overlap", None, hidden[net], unit="s")]
    seconds = {(a, net): predict(a, **_arguments(a, net, gbps, n, lab.seed))["seconds_per_iteration"].value for a in ("allreduce", "dgc") for net in NETS}
    lines += [Line(f"{net}, {a}: an iteration", None, seconds[a, net], unit="s") for a, net in seconds]
    claims = [
        judged("sharding the server raises its ceiling", "techniques", all(rate[net, shards[-1]] > 2 * rate[net, 1] for net in NETS),
               "; ".join(f"{net} " + ", ".join(f"{k}: {rate[net, k]:.0f}" for k in shards) for net in NETS) + " images/s", shape=True),
        judged("layer-wise overlap hides communication behind the backward pass, and no more than that", "techniques",
               all(0 < full[net] - hidden[net] <= most[net] for net in NETS),
               ", ".join(f"{net} {full[net]:.2f} to {hidden[net]:.2f} s, at most {most[net]:.2f} s can be hidden" for net in NETS), shape=True),
        untestable("compression does not help algorithms that exchange parameters", "first principles", "it is defined on gradients, whose rest is kept "
                   "for later; parameters have no such rest, so no deployment of it exists here"),
        judged("compressed gradients (0.1 %) help where communication binds", "techniques", seconds["dgc", "VGG-16"] < seconds["allreduce", "VGG-16"],
               f"VGG-16 {seconds['allreduce', 'VGG-16']:.2f} to {seconds['dgc', 'VGG-16']:.2f} s an iteration", shape=True)]
    return Part("techniques", "Sharding, overlap, compression", "optimisation techniques", lines, claims, [
        Panel(f"ASP, {n} workers, {gbps} Gbps", "servers", "images/s", {net: [(k, rate[net, k]) for k in shards] for net in NETS})],
        note="Overlap is computed from the nets' layers: forward, twice as long backward, a ring for each layer with parameters.")


LEARN = """A bound on staleness cannot cost accuracy: SSP falls below ASP only if its workers train on cached parameters between refreshes, and with
fresh reads the loss is gone. At a fixed number of passes a method whose workers each see 1/n of the images falls with n, however often it
communicates: GoSGD with p = 1 does, and AD-PSGD does too unless its rate is multiplied by n. Where our intervals overlap the page says "not
testable", and where GoSGD's order is the reverse of the paper's it says so. That ASP is always slowest is not what one link gives: there BSP is."""

DOCUMENT = Document(__doc__.split("\n")[0], (table3, sensitivity, scalability, waiting, techniques), LEARN)
