"""The fourth aspect of Ko et al.: sharding, layer-wise overlap and deep gradient compression under every
algorithm that takes them, in time, bytes and accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.studies.ko_runs import BATCH, CENTRAL, NETS, SPEEDUP, size_of
from benchmarks.studies.lab import Lab, Seen, Trial
from benchmarks.studies.study import (
    Claim,
    Grid,
    Line,
    Panel,
    Part,
    averaged,
    decided,
    interval,
    judged,
    untestable,
)
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import EXCHANGE, facts_of
from refsgd.cluster.presets import load_machine
from refsgd.problems.nn import nets

SERVERS = 8
SHORT, LONG = 4, 24  #: iterations of a run; the first finds idle links
DGC = "dgc:0.001"
#: a technique as options of a run; CHUNK stands for bytes
TECHNIQUES: dict[str, dict[str, Any]] = {
    "none": {},
    "sharding, layers": {"servers": SERVERS, "layout": "layers", "balance": "size"},
    "sharding, chunks": {"servers": SERVERS, "layout": "chunks:CHUNK", "balance": "size"},
    "overlap": {"layout": "layers", "overlap": "backward"},
    "DGC": {"compress": DGC},
    "all": {"servers": SERVERS, "layout": "chunks:CHUNK", "balance": "size", "overlap": "both", "priority": True,
            "compress": DGC}}
#: the same for peers, which sum buckets of consecutive layers
PEERS: dict[str, dict[str, Any]] = {"overlap": {"overlap": "backward", "bucket": "BUCKET"},
                                    "all": {"overlap": "backward", "bucket": "BUCKET", "compress": DGC}}
LARGE = {"CHUNK": 4_000_000, "BUCKET": 25_000_000}  #: bytes, for the nets of the document
SMALL = {"CHUNK": 20_000, "BUCKET": 20_000}  #: for the one that is trained
PLAIN = ("none", "sharding, chunks", "overlap")  #: change no number of a synchronous run
LEARNING = ("bsp", "asp", "allreduce")  #: whose accuracy is measured
Case = tuple[str, int, str, str]  #: net, Gbps, algorithm, technique
Accuracies = Mapping[tuple[str, str], Sequence[float]]  # by algorithm and technique, one for each seed


def options(algorithm: str, technique: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The technique as options of the algorithm's run."""
    peers = PEERS if algorithm == "allreduce" else {}
    found = dict(peers.get(technique, TECHNIQUES[technique]))
    if "layout" in found:
        found["layout"] = found["layout"].replace("CHUNK", str(sizes["CHUNK"]))
    if "bucket" in found:
        found["bucket"] = sizes["BUCKET"]
    return found


def why_not(algorithm: str, technique: str) -> str:
    """Why the library refuses the technique under this algorithm; empty if it does not."""
    asked = options(algorithm, technique, LARGE)
    return next((reason for option in asked if option in EXCHANGE and (reason := facts_of(CATALOGUE[algorithm]).refusal(option))), "")


def taken(algorithms: Sequence[str], techniques: Sequence[str] = tuple(TECHNIQUES)) -> list[tuple[str, str]]:
    """Algorithms with those of the techniques that they take."""
    return [(a, technique) for a in algorithms for technique in techniques if not why_not(a, technique)]


def timed(lab: Lab, algorithms: Sequence[str], links: Sequence[int], workers: int, steps: int,
          techniques: Sequence[str] = tuple(TECHNIQUES)) -> dict[Case, Seen]:
    """Runs of shape-only nets on the document's machine."""
    trials = {}
    for net, base in NETS.items():
        for gbps in links:
            machine = load_machine(f"ipdps21-{gbps}g").with_(compute=f"fixed({size_of(net)[1]:g})")
            common = {"net": f"shapes:{base}@224", "data": "none", "workers": workers, "batch": BATCH,
                      "steps": steps, "machine": machine, "seed": lab.seed}
            for a, technique in taken(algorithms, techniques):
                trials[net, gbps, a, technique] = Trial(a, {**common, **SPEEDUP[a],
                                                            **options(a, technique, LARGE)})
    return lab.each(trials)


def trained(lab: Lab, algorithms: Sequence[str], workers: int, seeds: range,
            epochs: int) -> dict[tuple[str, str, int], Seen]:
    """Runs of the net tiny on the digits, on links on which its messages take as long as ResNet-50's at 10
    Gbps."""
    parameters, compute = size_of("ResNet-50")
    machine = load_machine("ipdps21-10g")
    machine = machine.with_(compute=f"fixed({compute:g})",
                            bandwidth=machine.bandwidth * nets.build("tiny").parameters / parameters)
    common = {"data": "digits", "workers": workers, "epochs": epochs, "batch": 16, "machine": machine}
    own: dict[str, dict[str, Any]] = {"bsp": {"aggregation": "sum"}, "allreduce": {"lr": 0.01 * workers}}
    return lab.each({(a, technique, s): Trial(a, {**common, "lr": 0.01, "seed": s, **SPEEDUP[a], **own.get(a, {}),
                                                  **options(a, technique, SMALL)})
                     for a, technique in taken(algorithms) if technique != "sharding, layers"
                     for s in seeds})


def techniques(lab: Lab) -> Part:
    """Effects of optimisation techniques: sharding, layer-wise overlap, gradient compression."""
    algorithms = ("bsp", "easgd", "allreduce", "gosgd") if lab.quick else tuple(SPEEDUP)
    links, workers = ((10,), 8) if lab.quick else ((10, 56), 24)
    seen = timed(lab, algorithms, links, workers, SHORT)
    seeds = range(lab.seed, lab.seed + (1 if lab.quick else 4))
    learned = trained(lab, LEARNING, 8, seeds, 5 if lab.quick else 20)
    seconds = {case: run.measured["seconds_per_iteration"] for case, run in seen.items()}
    accuracy = {(a, t): [learned[a, t, s].accuracy for s in seeds] for a, t, s in learned if s == lab.seed}
    formulas = {case: f / seconds[case] - 1 for case, run in seen.items()
                if (f := run.predicted("seconds_per_iteration"))}
    worst = max(formulas, key=lambda case: abs(formulas[case]))
    near = sum(abs(error) < 0.01 for error in formulas.values())
    lines = [Line(f"formulas within 1 % of the run, of {len(seen)}", None, float(near), unit="runs"),
             Line(f"the largest error of a formula, of {', '.join(map(str, worst))}", None, 100 * formulas[worst],
                  unit="%")]
    lines += [averaged(f"{a}: accuracy with {t} minus that with none", _differences(accuracy, a, t))
              for a, t in accuracy if t != "none"]
    same = all(len({learned["bsp", t, s].the_result.parameters_sha256 for t in PLAIN}) == 1 for s in seeds)
    fullest = seen["VGG-16", 10, "bsp", "sharding, layers"].measured["largest_server"]
    central = [a for a in CENTRAL if a in algorithms]
    lasting = timed(lab, central, (10,), workers, LONG, ("none", "DGC"))
    long = {case: run.measured["seconds_per_iteration"] for case, run in lasting.items()}
    lines += [Line(f"{net}, {gbps} Gbps, {a}, {t}: {LONG} iterations", None, lasting[net, gbps, a, t].predicted(
        "seconds_per_iteration"), found, unit="s/iteration") for (net, gbps, a, t), found in long.items()]
    claims = [*_sharding(seconds, fullest), *_overlap(seconds), *_compression(seconds, long), _together(seconds),
              *_learning(accuracy, same, len(seeds))]
    return Part("techniques", "Sharding, overlap, compression", "optimisation techniques", lines, claims,
                _panels(seconds), NOTE.format(workers=workers, seeds=len(seeds)),
                _grids(seen, accuracy, algorithms))


NOTE = f"""{{workers}} workers on the machines `ipdps21-10g` and `ipdps21-56g`, shape-only nets with their layers.
*Sharding*: {SERVERS} servers, of whole layers (`--layout layers --balance size`) or of chunks of
{LARGE["CHUNK"] // 10**6} MB; otherwise there is one. *Overlap*: each layer leaves when its backward pass has ended
(wait-free backpropagation: `--layout layers --overlap backward`); peers sum buckets of
{LARGE["BUCKET"] // 10**6} MB. *DGC*: `--compress {DGC}`, 0.1 % of the entries of each matrix; answers of servers are
dense. *All*: chunks on {SERVERS} servers, overlap with the next forward pass too, priorities (P3), DGC. Gradients take
fixed times; runs have {SHORT} iterations, which favours all that wait for a link, since the first finds it idle:
{LONG} decide on compression. Accuracy: eight workers train the net tiny on the digits, {{seeds}} seeds, on links on
which its messages take as long as ResNet-50's at 10 Gbps. A dash: the library refuses it, with the reason in the last
table, or its accuracy was not measured. The document's own figures of this aspect could not be had."""


def _differences(accuracy: Accuracies, algorithm: str, technique: str) -> list[float]:
    """On the same seeds, to no technique."""
    return [x - y for x, y in zip(accuracy[algorithm, technique], accuracy[algorithm, "none"])]


def _grids(seen: Mapping[Case, Seen], accuracy: Accuracies, algorithms: Sequence[str]) -> list[Grid]:
    """Seconds and bytes of an iteration, accuracy, and what is refused."""
    rows = list(dict.fromkeys((net, gbps, a) for net, gbps, a, _ in seen))

    def row(case: tuple[str, int, str], of: Any) -> list[Any]:
        return [of(seen[*case, t]) if (*case, t) in seen else "–" for t in TECHNIQUES]

    def megabytes(run: Seen) -> float:
        return float(run.measured["bytes_sent"]) / 1e6 / run.the_result.steps

    refused: dict[str, list[Any]] = {}
    for a in algorithms:
        for reason in dict.fromkeys(filter(None, (why_not(a, t) for t in TECHNIQUES))):
            refused[f"{a}: {'; '.join(t for t in TECHNIQUES if why_not(a, t) == reason)}"] = [reason]
    return [
        Grid("Seconds of an iteration", list(TECHNIQUES), {
            f"{net}, {gbps} Gbps, {a}": row((net, gbps, a), lambda run: run.measured["seconds_per_iteration"])
            for net, gbps, a in rows}),
        Grid("Megabytes that all nodes send in an iteration", list(TECHNIQUES), {
            f"{net}, {a}": row((net, gbps, a), megabytes) for net, gbps, a in rows if gbps == 10}),
        Grid("Accuracy after training the digits", list(TECHNIQUES), {
            a: [float(np.mean(accuracy[a, t])) if (a, t) in accuracy else "–" for t in TECHNIQUES]
            for a in LEARNING}),
        Grid("What is refused", ["why"], refused)]


def _panels(seconds: Mapping[Case, float]) -> list[Panel]:
    """Seconds of an iteration at 10 Gbps, by algorithm."""
    names = [a for a in SPEEDUP if any(case[2] == a and case[3] != "none" for case in seconds)]
    return [Panel(f"{net}, 10 Gbps", "algorithm", "seconds of an iteration",
                  {t: [(float(i), seconds[net, 10, a, t]) for i, a in enumerate(names)
                       if (net, 10, a, t) in seconds] for t in TECHNIQUES}, "bars", names=names) for net in NETS]


def _faster(seconds: Mapping[Case, float], technique: str, gbps: int) -> dict[tuple[str, str], float]:
    """How many times as fast each net and algorithm is with a technique."""
    return {(net, a): seconds[net, g, a, "none"] / s for (net, g, a, t), s in seconds.items()
            if t == technique and g == gbps}


def _told(faster: Mapping[tuple[str, str], float]) -> str:
    """Speed-ups as text, by net."""
    return "; ".join(f"{net} " + ", ".join(f"{a} {x:.2f}" for (other, a), x in faster.items() if other == net)
                     for net in NETS)


def _sharding(seconds: Mapping[Case, float], fullest: float) -> list[Claim]:
    """Whether more servers help, by what they hold: of whole layers of VGG-16 one has `fullest` times the mean."""
    found = {kind: {key: x for key, x in _faster(seconds, f"sharding, {kind}", 10).items() if key[1] in CENTRAL}
             for kind in ("layers", "chunks")}
    return [
        judged("sharding the server raises its ceiling", "techniques",
               all(x > 2 for x in found["chunks"].values()),
               f"{SERVERS} servers with chunks, 10 Gbps: {_told(found['chunks'])} times as fast", shape=True),
        judged("sharding by whole layers does as well", "techniques",
               all(x > 0.9 * found["chunks"][key] for key, x in found["layers"].items()),
               f"{_told(found['layers'])} times as fast: the fullest server holds {fullest:.1f} times the mean of VGG-16's "
               f"bytes, its first linear layer, so {SERVERS} servers give at most {SERVERS / fullest:.2f} times",
               shape=True)]


def _overlap(seconds: Mapping[Case, float]) -> list[Claim]:
    """What layer-wise overlap hides, of a ring and through one server."""
    took = {net: [seconds[net, 10, "allreduce", t] for t in ("none", "overlap")] for net in NETS}
    most = {net: min(2 / 3 * size_of(net)[1], took[net][0] - size_of(net)[1]) for net in NETS}
    server = {key: x for key, x in _faster(seconds, "overlap", 10).items() if key[1] in CENTRAL}
    return [
        judged("layer-wise overlap hides communication behind the backward pass, and no more than that", "techniques",
               all(0 < before - after <= most[net] + 1e-9 for net, (before, after) in took.items()),
               "allreduce, 10 Gbps: " + ", ".join(
                   f"{net} {before:.2f} to {after:.2f} s, at most {most[net]:.2f} s can be hidden"
                   for net, (before, after) in took.items()), shape=True),
        judged("it helps the algorithms of one server too", "techniques", all(x > 1.01 for x in server.values()),
               f"{_told(server)} times as fast, 10 Gbps. The exchange of all workers through one link takes many times "
               "a backward pass, so little of it can hide"
               + (", and the messages of one worker's layers queue among all others'" if min(server.values()) < 0.99
                  else ""), shape=True)]


def _compression(seconds: Mapping[Case, float], long: Mapping[Case, float]) -> list[Claim]:
    """Whether fewer bytes of gradients are less time: of peers, and through a server by longer runs."""
    ring = {key: x for key, x in _faster(seconds, "DGC", 10).items() if key[1] == "allreduce"}
    server = _faster(long, "DGC", 10)
    return [
        judged("compressed gradients (0.1 %) help where communication binds: of peers", "techniques",
               all(x > 1.2 for x in ring.values()), f"{_told(ring)} times as fast at 10 Gbps", shape=True),
        judged("and through a server", "techniques", all(x > 1.2 for x in server.values()),
               f"{_told(server)} times as fast at 10 Gbps over {LONG} iterations: pushes shrink, but answers are dense "
               "parameters, and the server's outgoing link is as busy as before. Pushes were hardly in the way: links "
               "carry both directions at once, and BSP's first workers push again while the last are still answered",
               shape=True),
        untestable("compression does not help algorithms that exchange parameters", "first principles",
                   "it is defined on gradients, whose rest is kept for later; under easgd it is refused: "
                   + facts_of(CATALOGUE["easgd"]).refusal("compress"))]


def _together(seconds: Mapping[Case, float]) -> Claim:
    """Whether all of them are better than each."""
    cases = [case for case in seconds if case[3] == "all"]
    least = {case: min(seconds[*case[:3], t] for t in TECHNIQUES if t != "all" and (*case[:3], t) in seconds)
             for case in cases}
    late = [case for case in cases if seconds[case] > 1.01 * least[case]]
    slow = {case: seconds[case] / size_of(case[0])[1] for case in cases}
    return judged("all together are the fastest", "techniques", not late,
                  f"an iteration takes {min(slow.values()):.2f} to {max(slow.values()):.2f} times its gradient's mean "
                  "time; " + ("; ".join(f"{net}, {g} Gbps, {a}: {seconds[net, g, a, t]:.3f} s, best of one "
                                        f"{least[net, g, a, t]:.3f}" for net, g, a, t in late)
                              or "none is slower than its best single technique"), shape=True)


def _learning(accuracy: Accuracies, same: bool, seeds: int) -> list[Claim]:
    """What the techniques do to accuracy."""
    off = {(a, t): interval([100 * x for x in _differences(accuracy, a, t)]) for a, t in accuracy
           if t in PLAIN[1:] and a != "bsp"}
    lost = {a: [-x for x in _differences(accuracy, a, "DGC")] for a in LEARNING}
    over = [float(np.mean(each)) for each in zip(*lost.values())]
    return [
        judged("sharding and overlap change no bit of BSP", "techniques", same,
               f"the same parameters on each of {seeds} seeds. Others add in another order, or apply gradients in the "
               "order in which they come: " + ", ".join(f"{a}, {t} {x:+.1f}" + f" ± {half:.1f}" * (seeds > 2)
                                                         for (a, t), (x, half) in off.items()) + " points"),
        decided("compressed gradients (0.1 %) cost accuracy", "techniques", over,
                ", ".join(f"{a} {100 * float(np.mean(x)):.1f}" for a, x in lost.items())
                + f" points lost on average of {seeds} seeds: an entry can wait for as many iterations as the whole run "
                "has")]
