"""The third aspect of Ko et al.: speed-ups, and waiting at the server, on their machines of four GPUs; and
what differs with a link for each worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.studies.ko_runs import (
    BATCH,
    CENTRAL,
    DECENTRAL,
    DEPLOYED,
    FLAT,
    GPUS,
    MACHINES,
    NETS,
    SPEEDUP,
    Key,
    arguments,
    elsewhere,
    machine,
    own_rate,
    preset,
    runs,
    size_of,
    waits,
    whole_rate,
)
from benchmarks.studies.lab import Lab, Seen
from benchmarks.studies.study import Claim, Grid, Line, Panel, Part, judged, untestable
from refsgd.experiment.prepare import predict

CASES = tuple((net, gbps) for net in NETS for gbps in (10, 56))
WORKERS = (4, 8, 16, 24)
Speedups = Mapping[Key, float]


def scalability(lab: Lab) -> Part:
    """Speed-up of the seven algorithms at 10 and 56 Gbps."""
    workers = (8, 24) if lab.quick else (2, 4, 8, 16, 24)
    steps, last = 12 if lab.quick else 20, workers[-1]
    keys = [(a, net, g, n) for a in SPEEDUP for net, g in CASES for n in workers]
    seen = runs(lab, keys, steps)
    flat = runs(lab, [key for key in keys if key[3] == last], steps, flat=True)
    speedup = _speedups(seen)
    network = {key: sum(run.measured["idle_by_cause"].get(cause, 0.0) for cause in ("transfer", "queueing"))
               for key, run in seen.items()}
    claims = [_saturates(speedup, last), *_scaling(speedup, network, last),
              _also_easgd(seen, flat, last), *_shared(seen, flat, last)]
    panels = [Panel(f"{net}, {g} Gbps", "workers", "speed-up",
                    {a: [(n, speedup[a, net, g, n]) for n in workers] for a in SPEEDUP})
              for net, g in CASES]
    return Part("scalability", "Speed-up", "F3", _transfers(seen, flat, speedup, last), claims, panels, note=(
        f"Virtual time, messages of the nets' sizes, {MACHINES} machines with {GPUS} workers and a link each "
        f"(`{preset(10)}`, `{preset(56)}`), filled one after the other: up to {GPUS} workers exchange over "
        "the bus of one machine. The document names the GPUs and both networks; that four share a machine is "
        "assumed, and so is the parameter server on the first machine. Assumed too, since the slides give no "
        "times: gradients of "
        + " and ".join(f"{size_of(net)[1]:.2f} s ({net})" for net in NETS) + ", a third of the GPU's peak. "
        f"A speed-up is of the whole run, in which each worker has {steps} iterations; the second column of "
        "the second table counts each worker until it is done itself. "
        "The document's speed-ups could not be had, so only orders are judged. "
        "VGG-16 here has 138 million parameters; the slides say 128 million, and 150 million on another "
        "slide."), grids=[_beside(seen, flat, last)])


def _speedups(seen: Mapping[Key, Seen]) -> Speedups:
    """Images per second of the whole run over those of one worker."""
    return {key: whole_rate(run) / _one(key[1]) for key, run in seen.items()}


def _one(net: str) -> float:
    """Images per second of a worker that waits for nothing."""
    return BATCH / size_of(net)[1]


def _beside(seen: Mapping[Key, Seen], flat: Mapping[Key, Seen], n: int) -> Grid:
    """Speed-ups on the document's machines and with a link for each worker, by both ways to count."""
    return Grid(f"Speed-up of {n} workers", [
        DEPLOYED, "until each worker's own end", FLAT, f"{FLAT}, until its own end", f"{FLAT}, formula"],
        {f"{net}, {g} Gbps, {a}": [
            *(value for run in (seen[a, net, g, n], flat[a, net, g, n])
              for value in (whole_rate(run) / _one(net), own_rate(run) / _one(net))),
            "–" if (formula := flat[a, net, g, n].predicted("images_per_second")) is None
            else formula / _one(net)]
         for net, g in CASES for a in SPEEDUP})


def _transfer(net: str, gbps: int) -> float:
    """Seconds in which the net's parameters cross a link once."""
    return 4 * size_of(net)[0] / (1.25e8 * gbps)


def _cap(net: str, gbps: int, n: int) -> float:
    """The speed-up of `n` workers at one server, whose link carries a push of each worker on other machines
    in an iteration."""
    return n * size_of(net)[1] / (elsewhere(n) * _transfer(net, gbps))


def _transfers(seen: Mapping[Key, Seen], flat: Mapping[Key, Seen], speedup: Speedups, n: int) -> list[Line]:
    """What the size of the messages alone says."""
    wire = {(net, g): _transfer(net, g) for net, g in CASES}

    def iteration(run: Seen) -> float:
        return BATCH * n / whole_rate(run)

    lines = [Line(f"{net}, {g} Gbps: one transfer of the model", None, w, unit="s")
             for (net, g), w in wire.items()]
    for runs_of, many, why in ((seen, elsewhere(n), "of the workers on other machines"), (flat, n, FLAT)):
        lines += [Line(f"{net}, {g} Gbps: {many} transfers one way, at least an iteration through one server "
                       f"({why})", None, many * w, iteration(runs_of["bsp", net, g, n]), unit="s")
                  for (net, g), w in wire.items()]
    lines += [Line(f"{net}, {g} Gbps: a ring's transfers among {n}", None, 2 * (n - 1) / n * w, unit="s")
              for (net, g), w in wire.items()]
    return lines + [Line(f"{net}, {g} Gbps: largest speed-up through one server, asp", None, _cap(net, g, n),
                         speedup["asp", net, g, n])
                    for net, g in CASES]


def _saturates(speedup: Speedups, n: int) -> Claim:
    """Whether the server's link bounds the speed-up, where it decides."""
    cap = {(net, g): _cap(net, g, n) for net, g in CASES}
    bound = [k for k, x in cap.items() if x < n / 2]
    return judged("a server's speed-up saturates at computing / transfer workers", "first principles",
                  all(abs(speedup["asp", *k, n] / cap[k] - 1) < 0.1 for k in bound),
                  f"times {n}/{elsewhere(n)}, since the messages of {n - elsewhere(n)} workers stay on the "
                  "server's machine: "
                  + "; ".join(f"{net} {g} Gbps: cap {cap[net, g]:.2f}, ASP {speedup['asp', net, g, n]:.2f}"
                              for net, g in bound)
                  + " (links carry both directions at once; the rule bandwidth * computing / (2 * size), "
                    "half of that, counts both on one link)",
                  shape=True)


def _shared(seen: Mapping[Key, Seen], flat: Mapping[Key, Seen], n: int) -> list[Claim]:
    """What it changes that workers share a machine and its link."""
    speedup, one_link = _speedups(seen), _speedups(flat)
    ahead, behind = ({k: waits(seen["asp", *k, n], ranks) for k in CASES}
                     for ranks in (range(GPUS), range(GPUS, n)))
    own = {k: own_rate(seen["asp", *k, n]) / _one(k[0]) for k in CASES}

    def kept(a: str, gbps: int) -> list[float]:
        return [speedup[a, net, gbps, n] / one_link[a, net, gbps, n] for net in NETS]

    def told(a: str) -> str:
        return "; ".join(f"{net} {g} Gbps: {speedup[a, net, g, n]:.1f} against {one_link[a, net, g, n]:.1f}"
                         for net, g in CASES)

    return [
        judged("workers on the server's machine run ahead under ASP", "ours",
               all(ahead[k] < 0.5 * behind[k] for k in CASES),
               "; ".join(f"{net} {g} Gbps: they wait {ahead[net, g]:.0%} of their time, the others "
                         f"{behind[net, g]:.0%}; counted until each worker's own end the speed-up is "
                         f"{own[net, g]:.1f} in place of {speedup['asp', net, g, n]:.1f}" for net, g in CASES)),
        judged("a ring crosses each machine's link once, and is as fast as with a link for each worker", "ours",
               min(*kept("allreduce", 10), *kept("allreduce", 56)) > 0.99, told("allreduce")),
        judged("pairs on different machines share links, and AD-PSGD is slower at 10 Gbps than with a link for "
               "each worker", "ours", max(kept("adpsgd", 10)) < 0.95, told("adpsgd"))]


def _scaling(speedup: Speedups, network: Mapping[Key, float], n: int) -> list[Claim]:
    """Claims on the order of speed-ups with `n` workers."""
    worst = {k: min(SPEEDUP, key=lambda a: speedup[a, *k, n]) for k in CASES}
    ps = {k: max(speedup[a, *k, n] for a in CENTRAL) for k in CASES}
    free = {k: min(speedup[a, *k, n] for a in DECENTRAL) for k in CASES}
    gain = {(a, net): speedup[a, net, 56, n] / speedup[a, net, 10, n] for a in SPEEDUP for net in NETS}
    above = [k for k in CASES if speedup["easgd", *k, n] > free[k]]
    return [
        untestable(
            "up to 191 % more throughput than a synchronous algorithm, 34 % more than the best decentralised one (ALADDIN)", "CIKM 2021",
                   "another system of the same group; its settings are not in the abstract"),
        judged("decentralised algorithms avoid the bottleneck: all scale better than BSP, ASP and SSP", "F3",
               all(free[k] > ps[k] for k in CASES),
               "; ".join(f"{net} {g} Gbps: at least {free[net, g]:.1f} against at most {ps[net, g]:.1f}"
                         for net, g in CASES)
               + ". EASGD, centralised but in every 4th iteration only, has "
               + ", ".join(f"{speedup['easgd', *k, n]:.1f}" for k in CASES)
               + (": more than allreduce with " + ", ".join(f"{net} at {g} Gbps" for net, g in above) if above
                  else ""), shape=True),
        judged("ASP always has the worst speed-up", "F3", all(a == "asp" for a in worst.values()),
               "; ".join(
                   f"{net} {g} Gbps: {a} ({speedup[a, net, g, n]:.2f}; asp {speedup['asp', net, g, n]:.2f})"
                   for (net, g), a in worst.items())
               + ". With one link both ways saturate alike: BSP's answers leave together, so it is not "
                 "faster than ASP in this model"),
        _heavier(speedup, network, n),
        judged("a faster network helps most the algorithms that ask the server in every iteration",
               "first principles",
               all(min(gain[a, net] for a in CENTRAL) > max(gain[a, net] for a in DECENTRAL) for net in NETS),
               "; ".join(f"{net} " + ", ".join(f"{a} {gain[a, net]:.1f}" for a in SPEEDUP)
                         for net in NETS) + " times from 10 to 56 Gbps",
               shape=True)]


def _also_easgd(seen: Mapping[Key, Seen], flat: Mapping[Key, Seen], n: int) -> Claim:
    """Whether EASGD gains more from the faster network than every decentralised algorithm, by both ways to
    count."""
    def gain(a: str, net: str, found: Mapping[Key, Seen], rate: Callable[[Seen], float]) -> float:
        return rate(found[a, net, 56, n]) / rate(found[a, net, 10, n])

    ways: dict[str, Callable[[Seen], float]] = {"of the whole run": whole_rate, "until each worker's own end": own_rate}
    others = {(net, way): max(DECENTRAL, key=lambda a: gain(a, net, seen, rate))
              for net in NETS for way, rate in ways.items()}
    return judged("a faster network helps EASGD, too, more than the decentralised algorithms", "first principles",
                  all(gain("easgd", net, seen, ways[way]) > gain(a, net, seen, ways[way])
                      for (net, way), a in others.items()),
                  "; ".join(f"{net}, {way}: easgd {gain('easgd', net, seen, ways[way]):.1f}, {a} "
                            f"{gain(a, net, seen, ways[way]):.1f} times; with {FLAT} "
                            f"{gain('easgd', net, flat, ways[way]):.1f} and {gain(a, net, flat, ways[way]):.1f}"
                            for (net, way), a in others.items()), shape=True)


def _heavier(speedup: Speedups, network: Mapping[Key, float], n: int) -> Claim:
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
    seen, flat = runs(lab, keys, steps=15), runs(lab, keys, steps=15, flat=True)
    lines = []
    for net in NETS:
        for n in workers:
            lines += _of_workers(net, n, seen["asp", net, 10, n], lab.seed)
    idle, alone = ({(net, n): waits(found["asp", net, 10, n]) for net in NETS for n in workers}
                   for found in (seen, flat))
    grid = Grid("Share of time waiting, mean of all workers", [DEPLOYED, FLAT, f"{FLAT}, formula"], {
        f"{net}, {n} workers": [idle[net, n], alone[net, n],
                                flat["asp", net, 10, n].predicted("idle_ratio")] for net, n in idle})
    return Part("waiting", "Waiting at the server", "F3", lines, [
        judged("the waiting time at the server grows with the number of workers", "F3",
               all([idle[net, n] for n in workers] == sorted(idle[net, n] for n in workers) for net in NETS),
               "; ".join(f"{net} " + ", ".join(f"{idle[net, n]:.0%}" for n in workers) for net in NETS)
               + f"; with {FLAT} "
               + "; ".join(f"{net} " + ", ".join(f"{alone[net, n]:.0%}" for n in workers) for net in NETS),
               shape=True)],
        [Panel(f"ASP, 10 Gbps, {where}", "workers", "share of time waiting",
               {net: [(n, found[net, n]) for n in workers] for net in NETS}, "bars")
         for where, found in ((DEPLOYED, idle), (FLAT, alone))],
        f"ASP at 10 Gbps with one server on the first of {MACHINES} machines (`{preset(10)}`), in virtual time. "
        "Waiting is the share of a worker's time, until it is done, in which it does not compute; behind others "
        "is the part of that time in which all workers wait for other workers' messages. The rest of the waiting "
        "is their own transfers. The formula of the workers on other machines is that of a server with a link "
        f"for each worker and {GPUS} workers fewer; of those on the server's machine it is two transfers over "
        "the bus and no queue.", grids=[grid])


def _of_workers(net: str, n: int, run: Seen, seed: int) -> list[Line]:
    """How long workers on the server's machine and on others wait, and all of them behind others."""
    (size, computing), bus = size_of(net), machine(10).inside
    assert bus is not None
    inside = 2 * (bus.latency + 4 * size / bus.bandwidth)
    near, far = n - elsewhere(n), elsewhere(n)
    lines = [Line(f"{net}, {n} workers, on the server's machine: waiting", None, inside / (inside + computing),
                  waits(run, range(near)))]
    if far:
        formula = predict("asp", **arguments("asp", net, 10, far, seed, flat=True))["idle_ratio"].value
        lines.append(Line(f"{net}, {n} workers, on other machines: waiting", None, formula,
                          waits(run, range(near, n))))
    behind = run.measured["idle_by_cause"].get("queueing", 0.0) * n * run.measured["seconds"]
    return [*lines, Line(f"{net}, {n} workers: behind others", None, None,
                         behind / sum(end for _, end, _ in run.looked.values()))]
