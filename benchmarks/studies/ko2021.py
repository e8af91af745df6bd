"""Ko, Choi, Seo and Kim, "An In-Depth Analysis of Distributed Training of Deep Neural Networks", IPDPS 2021.

Seven algorithms on 24 GPUs, ResNet-50 and VGG-16, 10 and 56 Gbps.  Its slides give one table of accuracies
and no speed-ups in figures, so speed-ups are tested as orders only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy  # scipy.special is loaded when it is asked for

from benchmarks.studies.ko_runs import BATCH, CENTRAL, DECENTRAL, NETS, SPEEDUP, runs, size_of
from benchmarks.studies.ko_techniques import techniques
from benchmarks.studies.lab import Lab, Seen, Trial
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

WORKERS = (4, 8, 16, 24)
#: columns of Table III: algorithm and options
COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    "BSP": ("bsp", {"aggregation": "sum"}), "ASP": ("asp", {}),
    "SSP s=3": ("ssp", {"staleness": 3, "refresh": "lazy"}),
    "SSP s=10": ("ssp", {"staleness": 10, "refresh": "lazy"}),
    "EASGD 4": ("easgd", {"period": 4}), "EASGD 8": ("easgd", {"period": 8}),
    "GoSGD p=1": ("gosgd", {"p": 1.0}), "GoSGD p=0.1": ("gosgd", {"p": 0.1}),
    "GoSGD p=0.01": ("gosgd", {"p": 0.01}),
    "AD-PSGD": ("adpsgd", {}), "SSP s=10, fresh reads": ("ssp", {"staleness": 10, "refresh": "fresh"}),
    "AD-PSGD, rate not scaled": ("adpsgd", {})}
TABLE3 = {
    4: (.7514, .7508, .7480, .7462, .7028, .7027, .7160, .6892, .6775, .7483),
    8: (.7509, .7482, .7450, .7412, .6357, .6269, .6529, .6173, .5845, .7447),
    16: (.7496, .7447, .7393, .7147, .5416, .5237, .5492, .5135, .4922, .7439),
    24: (.7511, .7459, .7282, .6448, .4709, .4528, .4641, .4475, .3938, .7411)}
Accuracies = Mapping[tuple[str, int], Sequence[float]]
Pair = tuple[str, str, int]  # a column, the one said to be below it, and the workers
#: columns whose parameters are the mean of the workers' own, so that their spread is known; of EASGD the
#: centre is evaluated
REPLICAS = ("GoSGD p=1", "GoSGD p=0.1", "GoSGD p=0.01", "AD-PSGD")
FLAT = ("BSP", "ASP", "AD-PSGD")
FALLING = ("SSP s=10", "EASGD 4", "EASGD 8", "GoSGD p=1", "GoSGD p=0.1", "GoSGD p=0.01")
TESTED = 360  # test images of the digits
LEAST = 2 / TESTED  # a difference of accuracy that counts


class Trained(NamedTuple):
    """What the runs of Table III gave, by column and workers: one figure for each seed."""

    accuracy: Accuracies
    spread: Accuracies  #: mean squared distance of the workers' parameters from their mean
    diverged: int  #: runs that overflowed; their accuracy counts as chance

    def mean(self, column: str, workers: int) -> float:
        """Mean accuracy over the seeds."""
        return float(np.mean(self.accuracy[column, workers]))


def table3(lab: Lab) -> Part:
    """Table III: accuracy of seven algorithms at a fixed total number of passes."""
    workers, seeds = ((4, 24),
                      range(lab.seed, lab.seed + 1)) if lab.quick else (
                          WORKERS, range(lab.seed, lab.seed + 8))
    trained = _train(lab, list(COLUMNS), workers, seeds)
    columns = list(COLUMNS)[:10]
    panels = [Panel("ours", "workers", "test accuracy",
                    {c: [(n, trained.mean(c, n)) for n in workers] for c in columns}),
              Panel("Table III (ResNet-50, ImageNet)", "workers", "test accuracy",
                    {c: [(n, TABLE3[n][i]) for n in WORKERS] for i, c in enumerate(columns)})]
    claims = _orders(trained.accuracy, workers) + _trends(trained, workers)
    accuracies = [x for found in trained.accuracy.values() for x in found]
    return Part("table3", "Accuracy of seven algorithms", "Table III", _accuracies(trained.accuracy, workers),
                claims, panels, note=(
        f"The net tiny on the digits, {len(seeds)} seeds, {10 if lab.quick else 20} passes in all however "
        "many the workers are: with 24 each sees "
        "1/24 of the images. Accuracies of this net are not comparable in size with those of ResNet-50 on "
        "ImageNet: only orders and trends are "
        "judged. The slides state neither rates nor batches. Here every gradient counts with the same rate "
        "at the server (BSP sums); AD-PSGD's rate "
        "is multiplied by the number of workers, as its authors do, the others' is not; the column without "
        "that scaling falls like GoSGD. SSP trains "
        "on cached parameters (lazy): of the two readings tried here, the one under which SSP falls below "
        "ASP. An order is judged by the differences on "
        "the same seeds: one counts if it is beyond its interval, of 95 % for all differences of a claim "
        "together, and more than two of the 360 test "
        f"images. A run that diverges counts as chance, 0.1: of {len(accuracies)} runs "
        f"{trained.diverged or 'none'} did, "
        f"and {sum(x < 0.2 for x in accuracies) - trained.diverged} ended below 0.2 without."))


def _accuracies(accuracy: Accuracies, workers: Sequence[int]) -> list[Line]:
    """Table III; what each column loses from the fewest to the most workers; ASP's lead over AD-PSGD."""
    columns, last = list(COLUMNS)[:10], workers[-1]
    lines = [averaged(f"{n} workers, {c}", accuracy[c, n], dict(zip(COLUMNS, TABLE3[n])).get(c))
             for n in workers for c in COLUMNS]
    lines += [averaged(f"{c}: accuracy lost from 4 to {last} workers",
                       _minus(accuracy[c, 4], accuracy[c, last]), TABLE3[4][i] - TABLE3[last][i])
              for i, c in enumerate(columns)]
    return lines + [averaged(f"{n} workers: ASP above AD-PSGD",
                             _minus(accuracy["ASP", n], accuracy["AD-PSGD", n]), TABLE3[n][1] - TABLE3[n][9])
                    for n in workers]


def _orders(accuracy: Accuracies, workers: Sequence[int]) -> list[Claim]:
    """Claims that one column is above another."""
    last = workers[-1]

    def order(says: str, *columns: str) -> Claim:
        return _ordered(says, accuracy, columns, workers)

    def at(column: str) -> str:
        return f"{np.mean(accuracy[column, last]):.3f}"

    sends = order("communicating now and then costs accuracy (F1): GoSGD with p = 0.01 is below p = 1",
                  "GoSGD p=1", "GoSGD p=0.01")
    sends = sends._replace(where="F1", because=(
        f"{sends.because}. At {last} workers EASGD, every 4th iteration, has {at('EASGD 4')}; GoSGD in every "
        f"iteration {at('GoSGD p=1')}, in every "
        f"hundredth {at('GoSGD p=0.01')}; AD-PSGD, in every iteration, {at('AD-PSGD, rate not scaled')} with "
        "the others' rate. What these share is "
        "that a worker's own parameters are moved by 1/n of the images at an unscaled rate; BSP's "
        f"{at('BSP')} is with the sum of all gradients"))
    crossing = _compared("GoSGD with p = 1 beats EASGD with period 4 up to 16 workers and loses at 24",
                         "Table III", accuracy,
                         [("GoSGD p=1", "EASGD 4", n) if n < 24 else ("EASGD 4", "GoSGD p=1", n)
                          for n in workers])
    tie = _compared("AD-PSGD and SSP with s = 3 tie at 4 and 8 workers, AD-PSGD is above from 16 on",
                    "Table III", accuracy,
                    [("AD-PSGD", "SSP s=3", n) for n in workers if n >= 16],
                    [("AD-PSGD", "SSP s=3", n) for n in workers if n < 16])
    return [order("BSP is at least as accurate as ASP, and ASP as AD-PSGD", *FLAT),
            order("ASP is above SSP with s = 3", "ASP", "SSP s=3"),
            order("SSP with s = 3 is above s = 10", "SSP s=3", "SSP s=10"),
            order("EASGD is better with period 4 than with 8", "EASGD 4", "EASGD 8"),
            order("GoSGD is the better the more it sends: p = 1, 0.1, 0.01", "GoSGD p=1", "GoSGD p=0.1",
                  "GoSGD p=0.01"), sends, crossing, tie,
            order("centralised training is more accurate than decentralised: ASP above AD-PSGD", "ASP",
                  "AD-PSGD")]


def _trends(trained: Trained, workers: Sequence[int]) -> list[Claim]:
    """Claims on what the number of workers, a bound and the spread of the replicas do."""
    last, accuracy = workers[-1], trained.accuracy
    lost = {c: trained.mean(c, 4) - trained.mean(c, last) for c in COLUMNS}
    apart = {n: max(trained.mean(c, n) for c in FLAT) - min(trained.mean(c, n) for c in FLAT)
             for n in workers}
    widest = max(_interval(accuracy[c, n])[1] for c in FLAT for n in workers)
    fresh, half = _difference(accuracy["SSP s=10, fresh reads", last], accuracy["ASP", last])
    return [
        judged("BSP, ASP and AD-PSGD hardly depend on the number of workers", "Table III",
               max(abs(lost[c]) for c in FLAT) < 0.02,
               ", ".join(f"{c} {100 * abs(lost[c]):.1f} points"
                         for c in FLAT) + f" between 4 and {last} workers, means within ±{100 * widest:.1f}",
               shape=True),
        judged("SSP with s = 10, EASGD and GoSGD fall with the number of workers", "Table III",
               min(lost[c] for c in FALLING) > 0.05,
               ", ".join(f"{c} {100 * lost[c]:.0f} points" for c in FALLING), shape=True),
        judged("bounding staleness costs accuracy: SSP is below unbounded ASP", "Table III", fresh < -0.02,
               f"at {last} workers ASP {trained.mean('ASP', last):.1%}, SSP s=10 that trains on cached "
               "parameters "
               f"{trained.mean('SSP s=10', last):.1%}, with fresh reads "
               f"{trained.mean('SSP s=10, fresh reads', last):.1%}, "
               f"{100 * fresh:+.1f}±{100 * half:.1f} points from ASP: here it is the cache, not the bound"),
        judged("BSP, ASP and AD-PSGD are within a point of each other", "Table III",
               max(apart.values()) <= 0.01,
               ", ".join(f"{n}: {100 * x:.1f} points"
                         for n, x in apart.items()) + f", means within ±{100 * widest:.1f}", shape=True),
        *_drift(trained, last)]


def _drift(trained: Trained, workers: int) -> list[Claim]:
    """Claims on how far the workers' parameters are apart."""
    spread = {c: float(np.mean(trained.spread[c, workers])) for c in REPLICAS}
    lost = {c: trained.mean(c, 4) - trained.mean(c, workers) for c in REPLICAS}
    correlation = float(np.corrcoef(list(spread.values()), list(lost.values()))[0, 1])
    often, seldom, hardly = (trained.spread[c, workers] for c in REPLICAS[:3])
    return [
        judged("the variance of parameters across workers goes with the loss of accuracy", "F1",
               correlation > 0.5,
               f"correlation {correlation:.2f} over GoSGD and AD-PSGD at {workers} workers: " + ", ".join(
                   f"{c} {spread[c]:.2g}/{round(100 * lost[c])} points" for c in REPLICAS)
               + "; AD-PSGD's rate is n times the others', which spreads its workers", shape=True),
        decided("sending less lets the workers' parameters drift apart", "F1",
                [min(a, b) for a, b in zip(_minus(hardly, seldom), _minus(seldom, often))],
                ", ".join(f"{spread[c]:.2g}"
                          for c in REPLICAS[
                              :3]) + f" mean squared distance from the mean, p = 1, 0.1, 0.01, {workers} "
                                     "workers")]


def _train(lab: Lab, columns: Sequence[str], workers: Sequence[int], seeds: range) -> Trained:
    """The runs of Table III."""
    rate, epochs = (0.02, 10) if lab.quick else (0.01, 20)
    keys = [(c, n, s) for c in columns for n in workers for s in seeds]
    trials = []
    for c, n, s in keys:
        algorithm, options = COLUMNS[c]
        scaled = rate * n if c == "AD-PSGD" else rate
        trials.append(
            Trial(algorithm,
                  {"data": "digits", "workers": n, "seed": s, "lr": scaled, "epochs": epochs, "batch": 16,
                   **options}))
    found = dict(zip(keys, lab.runs(trials)))
    cells = [(c, n) for c in columns for n in workers]
    return Trained({cell: [found[*cell, s].accuracy for s in seeds] for cell in cells},
                   {cell: [r.consensus_distance if (r := found[*cell, s].result) else math.nan for s in seeds]
                    for cell in cells},
                   sum(seen.result is None for seen in found.values()))


def _minus(found: Sequence[float], other: Sequence[float]) -> list[float]:
    """Differences on the same seeds."""
    return [a - b for a, b in zip(found, other)]


def _interval(found: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % interval: Student's t over the seeds, or binomial over the test
    images where there are few seeds."""
    p, half = interval(found)
    return p, half if len(found) > 2 else 1.96 * math.sqrt(p * (1 - p) / (TESTED * len(found)))


def _difference(found: Sequence[float], other: Sequence[float], among: int = 1) -> tuple[float, float]:
    """Mean difference on the same seeds and half width of its interval, of 95 % for `among` differences
    together."""
    mean, half = interval(_minus(found, other), among)
    if len(found) > 2:
        return mean, half
    return mean, float(scipy.special.ndtri(1 - 0.025 / among)) * math.hypot(
        *(_interval(x)[1] / 1.96 for x in (found, other)))


def _compared(says: str, where: str, accuracy: Accuracies, pairs: Sequence[Pair],
              ties: Sequence[Pair] = ()) -> Claim:
    """Whether of each pair the first column is above, and of `ties` neither: by differences on the same
    seeds.

    It holds if no difference that counts speaks against it and for every two columns one speaks for it.
    """
    every = [*pairs, *ties]
    seen = {pair: _difference(accuracy[pair[0], pair[2]], accuracy[pair[1], pair[2]], len(every))
            for pair in every}
    counts = [pair for pair, (mean, half) in seen.items() if abs(mean) > max(half, LEAST)]
    towards = [pair for pair in counts if pair in pairs and seen[pair][0] > 0]
    against = [pair for pair in counts if pair not in towards]
    why = "points of difference: " + "; ".join(
        f"{above} over {below} "
        + ", ".join(f"{n}: {100 * seen[above, below, n][0]:+.1f}±{100 * seen[above, below, n][1]:.1f}"
                                             for one, other, n in sorted(every, key=lambda pair: pair[2])
                                             if (one, other) == (above, below))
        for above, below in dict.fromkeys(pair[:2] for pair in every))
    if against:
        return judged(says, where, False, f"{_named(against, seen)} ({why})")
    open_ = [two for two in dict.fromkeys(pair[:2] for pair in pairs)
             if two not in {pair[:2] for pair in towards}]
    if open_:
        undecided = ", nor ".join(f"of {above} over {below}" for above, below in open_)
        return untestable(says, where, f"no difference {undecided} counts ({why})")
    return judged(says, where, True, f"decided by {_named(towards, seen)} ({why})", shape=True)


def _named(pairs: Sequence[Pair], seen: Mapping[Pair, tuple[float, float]]) -> str:
    """Which column is above which, and at how many workers."""
    rows: dict[str, list[str]] = {}
    for one, other, n in pairs:
        above, below = (one, other) if seen[one, other, n][0] > 0 else (other, one)
        rows.setdefault(f"{above} above {below}", []).append(str(n))
    return "; ".join(f"{what} at {', '.join(at)} workers" for what, at in rows.items())


def _ordered(says: str, accuracy: Accuracies, columns: Sequence[str], workers: Sequence[int]) -> Claim:
    """Whether each column is above the next one."""
    return _compared(says, "Table III", accuracy,
                     [(one, other, n) for one, other in pairwise(columns) for n in workers])


def sensitivity(lab: Lab) -> Part:
    """Hyper-parameters: slack, period and moving rate, probability."""
    n, seeds = 8, range(lab.seed, lab.seed + (1 if lab.quick else 3))
    what = {"data": "digits", "workers": n, "lr": 0.02, "epochs": 5 if lab.quick else 10, "batch": 16}
    grid: list[tuple[str, dict[str, Any]]] = [("ssp", {"refresh": "lazy", "staleness": s})
                                              for s in (1, 3, 10)]
    grid += [("easgd", {"period": p, "alpha": a}) for p in (1, 4, 16) for a in (0.02, 0.1)]
    grid += [("gosgd", {"p": p}) for p in (1.0, 0.1, 0.01)]
    keys = [(i, s) for i in range(len(grid)) for s in seeds]
    found = dict(zip(keys, lab.runs([Trial(grid[i][0], {**what, **grid[i][1], "seed": s}) for i, s in keys])))
    accuracy = [[found[i, s].accuracy for s in seeds] for i in range(len(grid))]
    names = [f"{a} " + ", ".join(f"{k} {v:g}" for k, v in o.items() if k != "refresh") for a, o in grid]
    easgd = {(o["period"], o["alpha"]): x for x, (a, o) in zip(accuracy, grid) if a == "easgd"}
    return Part("sensitivity", "Sensitivity to hyper-parameters", "experiments on hyper-parameters",
                [averaged(name, x) for name, x in zip(names, accuracy)], [_depends(easgd)],
                note=f"{n} workers on the digits, {len(seeds)} seeds. The slides name this experiment "
                     "without figures.")


def _depends(easgd: Mapping[tuple[int, float], Sequence[float]]) -> Claim:
    """Whether EASGD's accuracy depends on its period and its moving rate: each by the mean over the other."""
    def mean(k: int, value: float) -> list[float]:
        return [float(np.mean(one)) for one in zip(*(x for key, x in easgd.items() if key[k] == value))]

    says = "EASGD's accuracy depends on its period and moving rate"
    seen = {"period 1 over 16": _difference(mean(0, 1), mean(0, 16), 2),
            "moving rate 0.1 over 0.02": _difference(mean(1, 0.1), mean(1, 0.02), 2)}
    why = ", ".join(f"{what} {100 * d:+.1f}±{100 * half:.1f} points" for what, (d, half) in seen.items())
    open_ = [what for what, (d, half) in seen.items() if abs(d) <= max(half, LEAST)]
    if open_:
        return untestable(says, "F1", f"the seeds do not decide {' and '.join(open_)} ({why})")
    return judged(says, "F1", True, why, shape=True)


Speedups = Mapping[tuple[str, str, int, int], float]  # by algorithm, net, Gbps, workers


def scalability(lab: Lab) -> Part:
    """Speed-up of the seven algorithms at 10 and 56 Gbps."""
    workers = (8, 24) if lab.quick else (2, 4, 8, 16, 24)
    keys = [(a, net, g, n) for a in SPEEDUP for net in NETS for g in (10, 56) for n in workers]
    seen = runs(lab, keys, steps=12 if lab.quick else 20)
    one = {net: BATCH / size_of(net)[1] for net in NETS}
    speedup = {key: run.measured["images_per_second"] / one[key[1]] for key, run in seen.items()}
    formula = {key: p / one[key[1]] if (p := run.predicted("images_per_second")) else None
               for key, run in seen.items()}
    last = workers[-1]
    lines = [Line(f"{net}, {g} Gbps, {last} workers, {a}: speed-up", None, formula[a, net, g, last],
                  speedup[a, net, g, last])
             for net in NETS for g in (10, 56) for a in SPEEDUP]
    lines += _transfers(seen, speedup, last)
    network = {key: sum(run.measured["idle_by_cause"].get(cause, 0.0) for cause in ("transfer", "queueing"))
               for key, run in seen.items()}
    claims = [_saturates(speedup, last), *_scaling(speedup, network, last)]
    panels = [Panel(f"{net}, {g} Gbps", "workers", "speed-up",
                    {a: [(n, speedup[a, net, g, n]) for n in workers] for a in SPEEDUP})
              for net in NETS for g in (10, 56)]
    return Part("scalability", "Speed-up", "F3", lines, claims, panels, note=(
        "Virtual time, messages of the nets' sizes, one parameter server. Assumed, since the slides give no "
        "times: gradients of "
        + " and ".join(f"{size_of(net)[1]:.2f} s ({net})" for net in NETS) + ", a third of the GPU's peak. "
        "The document's speed-ups could not be had, so only orders are judged. "
        "VGG-16 here has 138 million parameters; the slides say 128 million, and 150 million on another "
        "slide."))


def _transfer(net: str, gbps: int) -> float:
    """Seconds in which the net's parameters cross a link once."""
    return 4 * size_of(net)[0] / (1.25e8 * gbps)


def _transfers(seen: Mapping[tuple[str, str, int, int], Seen], speedup: Speedups, n: int) -> list[Line]:
    """What the size of the messages alone says."""
    wire = {(net, g): _transfer(net, g) for net in NETS for g in (10, 56)}
    lines = [Line(f"{net}, {g} Gbps: one transfer of the model", None, w, unit="s")
             for (net, g), w in wire.items()]
    lines += [Line(f"{net}, {g} Gbps: {n} transfers one way, at least an iteration through one server", None,
                   n * w,
                   BATCH * n / seen["bsp", net, g, n].measured["images_per_second"], unit="s")
                   for (net, g), w in wire.items()]
    lines += [Line(f"{net}, {g} Gbps: a ring's transfers among {n}", None, 2 * (n - 1) / n * w, unit="s")
              for (net, g), w in wire.items()]
    return lines + [Line(f"{net}, {g} Gbps: largest speed-up through one server", None, size_of(net)[1] / w,
                         speedup["asp", net, g, n])
                    for (net, g), w in wire.items()]


def _saturates(speedup: Speedups, n: int) -> Claim:
    """Whether the server's link bounds the speed-up, where it decides."""
    cap = {(net, g): size_of(net)[1] / _transfer(net, g) for net in NETS for g in (10, 56)}
    bound = [k for k, x in cap.items() if x < n / 2]
    return judged("a server's speed-up saturates at computing / transfer workers", "first principles",
                  all(abs(speedup["asp", *k, n] / cap[k] - 1) < 0.1 for k in bound),
                  "; ".join(f"{net} {g} Gbps: cap {cap[net, g]:.2f}, ASP {speedup['asp', net, g, n]:.2f}"
                            for net, g in bound)
                  + " (links carry both directions at once; the rule bandwidth * computing / (2 * size), "
                    "half of that, counts both on one link)",
                  shape=True)


def _scaling(speedup: Speedups, network: Speedups, n: int) -> list[Claim]:
    """Claims on the order of speed-ups with `n` workers."""
    cases = [(net, g) for net in NETS for g in (10, 56)]
    worst = {k: min(SPEEDUP, key=lambda a: speedup[a, *k, n]) for k in cases}
    ps, free = {k: max(speedup[a, *k, n] for a in CENTRAL)
                for k in cases}, {k: min(speedup[a, *k, n] for a in DECENTRAL) for k in cases}
    gain = {(a, net): speedup[a, net, 56, n] / speedup[a, net, 10, n] for a in SPEEDUP for net in NETS}
    above = [k for k in cases if speedup["easgd", *k, n] > free[k]]
    return [
        untestable(
            "up to 191 % more throughput than a synchronous algorithm, 34 % more than the best decentralised one (ALADDIN)", "CIKM 2021",
                   "another system of the same group; its settings are not in the abstract"),
        judged("decentralised algorithms avoid the bottleneck: all scale better than BSP, ASP and SSP", "F3",
               all(free[k] > ps[k] for k in cases),
               "; ".join(f"{net} {g} Gbps: at least {free[net, g]:.1f} against at most {ps[net, g]:.1f}"
                         for net, g in cases)
               + ". EASGD, centralised but in every 4th iteration only, has "
               + ", ".join(f"{speedup['easgd', *k, n]:.1f}" for k in cases)
               + (": more than allreduce with " + ", ".join(f"{net} at {g} Gbps" for net, g in above) if above
                  else ""), shape=True),
        judged("ASP always has the worst speed-up", "F3", all(a == "asp" for a in worst.values()),
               "; ".join(
                   f"{net} {g} Gbps: {a} ({speedup[a, net, g, n]:.2f}; asp {speedup['asp', net, g, n]:.2f})"
                   for (net, g), a in worst.items())
               + ". With one link both ways saturate alike: BSP's answers leave together, so it is not "
                 "faster than ASP in this model"),
        _heavier(speedup, network, n),
        judged("a faster network helps the centralised algorithms most, EASGD among them", "first principles",
               all(min(gain[a, net] for a in (*CENTRAL, "easgd")) > max(gain[a, net] for a in DECENTRAL)
                   for net in NETS),
               "; ".join(f"{net} " + ", ".join(f"{a} {gain[a, net]:.1f}" for a in SPEEDUP)
                         for net in NETS) + " times from 10 to 56 Gbps",
               shape=True)]


def _heavier(speedup: Speedups, network: Speedups, n: int) -> Claim:
    """Whether the net with the larger messages scales worse; where neither waits for the `network`, in a
    fraction of the time, they tie."""
    pairs = {(a, g): (speedup[a, "VGG-16", g, n], speedup[a, "ResNet-50", g, n]) for a in SPEEDUP
             for g in (10, 56)}
    ties = [(a, g) for a, g in pairs if all(network[a, net, g, n] < 0.01 for net in NETS)]
    figures = "; ".join(f"{g} Gbps: " + ", ".join(f"{a} {pairs[a, g][0]:.1f}/{pairs[a, g][1]:.1f}"
                                                  for a in SPEEDUP) for g in (10, 56))
    return judged("VGG-16 scales worse than ResNet-50 under every algorithm that waits for the network",
                  "first principles",
                  all(vgg < 0.99 * resnet for k, (vgg, resnet) in pairs.items() if k not in ties),
                  figures
                  + (". Nothing waits, and the nets tie, under "
                     + ", ".join(f"{a} at {g} Gbps" for a, g in ties) if ties else ""),
                  shape=True)


def waiting(lab: Lab) -> Part:
    """F3: the waiting time at the server grows with the number of workers."""
    workers = (4, 24) if lab.quick else WORKERS
    keys = [("asp", net, 10, n) for net in NETS for n in workers]
    seen = runs(lab, keys, steps=15)
    idle = {(net, n): run.measured["idle_ratio"] for (_, net, _, n), run in seen.items()}
    queueing = {(net, n): run.measured["idle_by_cause"].get("queueing", 0.0)
                for (_, net, _, n), run in seen.items()}
    lines = [Line(f"{net}, {n} workers: waiting", None, seen["asp", net, 10, n].predicted("idle_ratio"),
                  idle[net, n])
             for net in NETS for n in workers]
    lines += [Line(f"{net}, {n} workers: behind others", None, None, queueing[net, n]) for net in NETS
              for n in workers]
    return Part("waiting", "Waiting at the server", "F3", lines, [
        judged("the waiting time at the server grows with the number of workers", "F3",
               all([idle[net, n] for n in workers] == sorted(idle[net, n] for n in workers) for net in NETS),
               "; ".join(f"{net} " + ", ".join(f"{idle[net, n]:.0%}" for n in workers) for net in NETS),
               shape=True)],
        [Panel("ASP, 10 Gbps", "workers", "share of time waiting",
               {net: [(n, idle[net, n]) for n in workers] for net in NETS}, "bars")],
        "ASP at 10 Gbps with one server, in virtual time. Both are shares of the run: waiting is all the "
        "time in which a worker does not compute; "
        "behind others is the part of the run in which it waits for other workers' messages. The rest of the "
        "waiting is its own transfers.")


LEARN = """With one small net, one rate and 24 workers a bound on staleness cost no accuracy: SSP fell below ASP only where its workers trained
on cached parameters between refreshes, and with fresh reads the loss was gone. At a fixed number of passes a method whose workers each see 1/n of the
images fell with n, however often it communicates: GoSGD with p = 1 did, and AD-PSGD did too unless its rate was multiplied by n. Sending more did
not help GoSGD here: p = 1 is below p = 0.1 and below p = 0.01, the reverse of the paper's order, while p = 0.1 and p = 0.01 are not decided. Where
the seeds do not decide, the page says "not testable". That ASP is always slowest is not what one link gives: there BSP is. Of the
techniques each helps where its bytes are in the way: servers of whole layers do little for VGG-16, whose first linear layer lies on one of them, chunks do
much; layer-wise overlap helps a ring, and through one server, whose link takes many times a backward pass, it mostly costs time; compressing pushes
helps a ring, and hardly a server that answers with dense parameters; at a ratio of 0.1 % it cost a small net nearly two points. The document's figures
are of ImageNet on GPUs: they are not comparable with ours in size, only in order."""

DOCUMENT = Document(__doc__.split("\n")[0], (table3, sensitivity, scalability, waiting, techniques), LEARN)
