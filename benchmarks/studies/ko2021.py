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

from benchmarks.studies.ko_scalability import scalability, waiting
from benchmarks.studies.ko_techniques import techniques
from benchmarks.studies.lab import Lab, Trial
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
#: columns whose accuracies are near each other, and therefore have more seeds
NEAR = ("BSP", "ASP", "SSP s=3", "AD-PSGD")


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
    workers = (4, 24) if lab.quick else WORKERS
    seeds = {c: range(lab.seed, lab.seed + (1 if lab.quick else 64 if c in NEAR else 8)) for c in COLUMNS}
    trained = _train(lab, workers, seeds)
    columns = list(COLUMNS)[:10]
    panels = [Panel("ours", "workers", "test accuracy",
                    {c: [(n, trained.mean(c, n)) for n in workers] for c in columns}),
              Panel("Table III (ResNet-50, ImageNet)", "workers", "test accuracy",
                    {c: [(n, TABLE3[n][i]) for n in WORKERS] for i, c in enumerate(columns)})]
    claims = _orders(trained.accuracy, workers) + _trends(trained, workers)
    accuracies = [x for found in trained.accuracy.values() for x in found]
    return Part("table3", "Accuracy of seven algorithms", "Table III", _accuracies(trained.accuracy, workers),
                claims, panels, note=(
        f"The net tiny on the digits, {len(seeds['EASGD 4'])} seeds ({len(seeds['ASP'])} of {', '.join(NEAR)}, "
        f"which are near each other), {10 if lab.quick else 20} passes over all images "
        "in total, whatever the number of workers: each of 24 sees 1/24 of them. Accuracies of this net are not comparable in size with those of ResNet-50 on "
        "ImageNet: only orders and trends are "
        "judged. The slides state neither rates nor batches. Here every gradient counts with the same rate "
        "at the server (BSP sums); AD-PSGD's rate "
        "is multiplied by the number of workers, as its authors do, the others' is not; the column without "
        "that scaling falls like GoSGD. SSP trains "
        "on cached parameters (lazy): of the two readings tried here, the one under which SSP falls below "
        "ASP. An order is judged by the differences on "
        "the same seeds: one counts if it is beyond its interval, of 95 % for all differences of a claim "
        "together, and more than two of the 360 test "
        "images. An order does not hold either where the intervals leave no room for a lead of two images."
        f" A run that diverges counts as chance, 0.1: of {len(accuracies)} runs "
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

    def order(says: str, *columns: str, or_equal: bool = False) -> Claim:
        return _ordered(says, accuracy, columns, workers, or_equal)

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
    return [order("BSP is at least as accurate as ASP, and ASP as AD-PSGD", *FLAT, or_equal=True),
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


def _train(lab: Lab, workers: Sequence[int], seeds: Mapping[str, range]) -> Trained:
    """The runs of Table III, each column with its seeds."""
    rate, epochs = (0.02, 10) if lab.quick else (0.01, 20)
    keys = [(c, n, s) for c in seeds for n in workers for s in seeds[c]]
    trials = []
    for c, n, s in keys:
        algorithm, options = COLUMNS[c]
        scaled = rate * n if c == "AD-PSGD" else rate
        trials.append(
            Trial(algorithm,
                  {"data": "digits", "workers": n, "seed": s, "lr": scaled, "epochs": epochs, "batch": 16,
                   **options}))
    found = dict(zip(keys, lab.runs(trials)))
    cells = [(c, n) for c in seeds for n in workers]
    return Trained({(c, n): [found[c, n, s].accuracy for s in seeds[c]] for c, n in cells},
                   {(c, n): [r.consensus_distance if (r := found[c, n, s].result) else math.nan
                             for s in seeds[c]] for c, n in cells},
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
              ties: Sequence[Pair] = (), or_equal: bool = False) -> Claim:
    """Whether of each pair the first column is above, and of `ties` neither: by differences on the same
    seeds.

    It holds if no difference that counts speaks against it and for every two columns one speaks for it, or,
    with `or_equal`, none that counts can speak against it.  It does not hold if for two columns no lead that
    counts is possible.
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
    if or_equal and all(mean - half > -LEAST for mean, half in seen.values()):
        return judged(says, where, True, f"nowhere below by a difference that counts ({why})", shape=True)
    open_ = [two for two in dict.fromkeys(pair[:2] for pair in pairs)
             if or_equal or two not in {pair[:2] for pair in towards}]
    shut = [two for two in open_ if all(sum(seen[pair]) < LEAST for pair in pairs if pair[:2] == two)]
    if shut and not or_equal:
        return judged(says, where, False, f"no lead that counts is left to {', nor to '.join(map(_lead, shut))} ({why})")
    if open_:
        return untestable(says, where, f"no difference of {', nor of '.join(map(_lead, open_))} counts ({why})")
    return judged(says, where, True, f"decided by {_named(towards, seen)} ({why})", shape=True)


def _lead(two: tuple[str, str]) -> str:
    """Two columns in words."""
    return f"{two[0]} over {two[1]}"


def _named(pairs: Sequence[Pair], seen: Mapping[Pair, tuple[float, float]]) -> str:
    """Which column is above which, and at how many workers."""
    rows: dict[str, list[str]] = {}
    for one, other, n in pairs:
        above, below = (one, other) if seen[one, other, n][0] > 0 else (other, one)
        rows.setdefault(f"{above} above {below}", []).append(str(n))
    return "; ".join(f"{what} at {', '.join(at)} workers" for what, at in rows.items())


def _ordered(says: str, accuracy: Accuracies, columns: Sequence[str], workers: Sequence[int],
             or_equal: bool = False) -> Claim:
    """Whether each column is above the next one."""
    return _compared(says, "Table III", accuracy,
                     [(one, other, n) for one, other in pairwise(columns) for n in workers], (), or_equal)


def sensitivity(lab: Lab) -> Part:
    """Hyper-parameters: slack, period and moving rate, probability."""
    n, many = 8, range(lab.seed, lab.seed + (1 if lab.quick else 64))
    what = {"data": "digits", "workers": n, "lr": 0.02, "epochs": 5 if lab.quick else 10, "batch": 16}
    grid: list[tuple[str, dict[str, Any]]] = [("ssp", {"refresh": "lazy", "staleness": s})
                                              for s in (1, 3, 10)]
    grid += [("easgd", {"period": p, "alpha": a}) for p in (1, 4, 16) for a in (0.02, 0.1)]
    grid += [("gosgd", {"p": p}) for p in (1.0, 0.1, 0.01)]
    seeds = [many if a == "easgd" else many[:3] for a, _ in grid]
    keys = [(i, s) for i in range(len(grid)) for s in seeds[i]]
    found = dict(zip(keys, lab.runs([Trial(grid[i][0], {**what, **grid[i][1], "seed": s}) for i, s in keys])))
    accuracy = [[found[i, s].accuracy for s in seeds[i]] for i in range(len(grid))]
    names = [f"{a} " + ", ".join(f"{k} {v:g}" for k, v in o.items() if k != "refresh") for a, o in grid]
    easgd = {(o["period"], o["alpha"]): x for x, (a, o) in zip(accuracy, grid) if a == "easgd"}
    return Part("sensitivity", "Sensitivity to hyper-parameters", "experiments on hyper-parameters",
                [averaged(name, x) for name, x in zip(names, accuracy)], [_depends(easgd)],
                note=f"{n} workers on the digits, {len(many[:3])} seeds, {len(many)} of EASGD. The slides name this experiment "
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
    if flat := [what for what in open_ if abs(seen[what][0]) + seen[what][1] < LEAST]:
        return judged(says, "F1", False, f"no difference that counts by {' or '.join(flat)} ({why})")
    if open_:
        return untestable(says, "F1", f"the seeds do not decide {' and '.join(open_)} ({why})")
    return judged(says, "F1", True, why, shape=True)


LEARN = """* Bounds on staleness cost no accuracy here, with one small net, one learning rate and 24 workers. SSP fell below ASP only where its workers trained on
  cached parameters between refreshes; with fresh reads they are equal.
* At a fixed number of passes, a method whose workers see 1/n of the images each falls with n, however often it communicates: GoSGD with p = 1
  did, and so did AD-PSGD unless its rate was multiplied by n.
* Sending more did not help GoSGD: p = 1 is below p = 0.1 and p = 0.01, the reverse of the paper's order. Between p = 0.1 and p = 0.01 the seeds do not
  decide.
* Differences of a point need many seeds: eight could not order BSP, ASP, SSP with s = 3 and AD-PSGD, 64 do. ASP is above SSP, as in the paper, but AD-PSGD
  is not below ASP, nor ASP below BSP: at 4 and 8 workers the sum of gradients at one model (BSP) is below gradients one after the other (ASP).
* ASP is not always slowest. With one link for the server, BSP is.
* On machines of four GPUs it matters who shares a link. Under ASP, workers on the server's machine run ahead, so the speed-up depends on
  whose end is counted. A ring crosses each machine's link once and loses nothing. Pairs of AD-PSGD share the links: at 10 Gbps it falls behind the ring.
* Through one server, four workers on one machine are faster than 24 on six.
* Each technique helps if it shortens what is in the way. Servers of whole layers do little for VGG-16, whose first linear layer lies on one of
  them; chunks do much. Overlap helps a ring; with one server, whose link is busy many times longer than a backward pass, it mostly costs time.
  Compressed pushes help a ring, and hardly a server that answers with dense parameters. At a ratio of 0.1 % compression cost a small net nearly two points.
* The document trains ImageNet on GPUs: its figures can be compared with ours in order, not in size."""

DOCUMENT = Document(__doc__.split("\n\n")[0], (table3, sensitivity, scalability, waiting, techniques), LEARN)
