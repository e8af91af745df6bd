"""Jia, Saha, Bhimani and Mi, "Performance and Consistency Analysis for Distributed Deep Learning Applications", IPCCC 2020.

Synchronous against asynchronous SGD over parameter servers, on one host with four executing virtual machines.
MXNet's names: a *push* hands gradients in and, when synchronous, returns when all have; a *pull* fetches weights.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from refsgd.experiment import Result, predict
from refsgd.machine import Machine
from refsgd.nn import nets
from refsgd.running import run
from refsgd.studies.lab import Lab, Seen, Trial
from refsgd.studies.study import Document, Line, Panel, Part, decided, interval, judged, untestable
from refsgd.theory.overlap import first_come

NETS = {"Inception-v1": "inception", "ResNet-18": "resnet18"}
#: Table II: weight updates, milliseconds of one, of a pull and of a push
TABLE2 = {("sync", "Inception-v1"): (931, 6.327, 42, 1114), ("sync", "ResNet-18"): (4067, 5.659, 53, 2534),
          ("async", "Inception-v1"): (7448, 10.117, 52, 86), ("async", "ResNet-18"): (32536, 9.279, 63, 104)}
ALGORITHM = {"sync": "bsp", "async": "asp"}


def machine(compute: str, update: float = 0.0057, latency: float = 0.01) -> Machine:
    """The virtual machines: servers beside workers.

    The document states no time of a gradient and no bandwidth; `compute` is assumed in each part.  Its pulls take as
    long alone as together, so its links do not queue: 20 GB/s, memory of one host.  The update is Table II's
    synchronous one, which waits for nobody.

    Parameters
    ----------
    compute : str
        Law of a gradient's time [s].
    update : float
        Seconds.
    latency : float
        Seconds of a message.

    Returns
    -------
    Machine
    """
    return Machine(compute=compute, update=f"fixed({update})", latency=latency, bandwidth=20e9, collocated=True)  # type: ignore[arg-type]


def exchanges(result: Result) -> dict[str, Any]:
    """Mean seconds of a push (from its sending until the server answers) and of a pull (the answer's way).

    Parameters
    ----------
    result : Result
        With its trace.

    Returns
    -------
    dict
        Means [s] of what its keys name.
    """
    trace = result.trace
    assert trace is not None
    sent: dict[tuple[str, str], float] = {}
    push, pull, update = [], [], []
    for t in trace.transits:
        if t.to.startswith("server"):
            sent[t.src, t.to] = t.sent
        elif (t.to, t.src) in sent:
            push.append(t.sent - sent.pop((t.to, t.src)))
            pull.append(t.received - t.sent)
    for e in trace.of("compute"):
        if e.data["work"] == "update":
            update.append(e.time - e.data["start"])
    return {"push": float(np.mean(push)), "pull": float(np.mean(pull)), "update": float(np.mean(update))}


def table2(lab: Lab) -> Part:
    """Table II: weight updates, pulls and pushes with four servers and eight workers, batch 128.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    sizes = {name: nets.build(net, (32, 32, 3)).parameters for name, net in NETS.items()}
    steps, seeds = (60, range(lab.seed, lab.seed + 3)) if lab.quick else (931, range(lab.seed, lab.seed + 5))
    vm = machine("lognormal(3,0.5)", latency=0.05)
    keys = [(mode, net, seed) for mode in ALGORITHM for net in sizes for seed in seeds]
    runs = dict(zip(keys, lab.runs([
        Trial(ALGORITHM[mode], {"net": f"phantom:{sizes[net]}", "data": "none", "workers": 8, "servers": 4, "steps": steps, "batch": 128,
                                "machine": vm, "seed": seed}, look=exchanges) for mode, net, seed in keys])))
    seen = {(mode, net): [runs[mode, net, seed] for seed in seeds] for mode in ALGORITHM for net in sizes}
    lines = []
    for (mode, net), found in seen.items():
        paper = TABLE2[mode, net]
        formula = predict(ALGORITHM[mode], net=f"phantom:{sizes[net]}", data="none", workers=8, servers=4, steps=steps, batch=128, machine=vm)
        w = 4 * sizes[net] / 4 / vm.bandwidth  # one server's slice on one link
        wait = formula["seconds_per_iteration"].value - 3 - (vm.latency + w)
        lines.append(Line(f"{mode} {net}: weight updates", paper[0], steps * (8 if mode == "async" else 1), found[0].measured["updates"]))
        for what, quoted, ours in (("update", paper[1], 5.7), ("pull", paper[2], 1e3 * (vm.latency + w)), ("push", paper[3], 1e3 * wait)):
            mean, half = interval([1e3 * run.looked[what] for run in found])
            lines.append(Line(f"{mode} {net}: {'one update' if what == 'update' else what}", quoted, ours, mean, unit="ms", half=half))
    claims = []
    for net in sizes:
        sync, asyn = seen["sync", net], seen["async", net]
        ratio = {a.measured["updates"] / b.measured["updates"] for a, b in zip(asyn, sync)}
        push, _ = interval([b.looked["push"] / a.looked["push"] for a, b in zip(asyn, sync)])
        pulls = [a.looked["pull"] / b.looked["pull"] for a, b in zip(asyn, sync)]
        pull, half = interval(pulls)
        quoted = TABLE2["async", net][2] / TABLE2["sync", net][2]
        claims += [judged(f"{net}: asynchronous training makes n = 8 times the weight updates", "Table II", ratio == {8.0}, f"ratio {max(ratio):g}"),
                   judged(f"{net}: a synchronous push takes ten times an asynchronous one, since it carries the wait for all", "Table II",
                          push >= 10, f"{push:.1f} times (paper {TABLE2['sync', net][3] / TABLE2['async', net][3]:.1f})", shape=True),
                   judged(f"{net}: pulls are similar, at most 1.5 times apart", "Table II", pull - half >= 1 / 1.5 and pull + half <= 1.5,
                          f"asynchronous over synchronous {pull:.3f} ± {half:.3f}"),
                   decided(f"{net}: an asynchronous pull is the longer one ({quoted:.2f} times)", "Table II", [ratio - 1 for ratio in pulls],
                           f"{pull:.3f} ± {half:.3f} times; after a barrier all answers leave at once and queue on their links, and updates "
                           "delay no answer here")]
    longer = seen["async", "ResNet-18"][0].looked["update"] / seen["sync", "ResNet-18"][0].looked["update"]
    claims += [judged("an update takes longer when asynchronous (1.6 times)", "Table II", longer > 1.3,
                      f"{longer:.2f} times: servers are busy {8 * 5.7e-3 / 3:.1%} of the time, so updates do not queue; "
                      "the document's machines shared processors"),
               untestable("the learning rate adapts to the number of updates", "III", "the document does not say how"),
              untestable("the server issues a pull", "III", "a word: in the framework, and here, workers ask and servers answer"),
              untestable("95 to 98 % CPU, 65 to 98 % memory", "Table II", "shares of virtual machines with 8 processors and 8 GB each")]
    return Part("table2", "Profile of synchronous and asynchronous SGD", "Table II", lines, claims, note=(
        f"{steps} iterations a worker in virtual time, {len(seeds)} seeds, messages of the nets' sizes. Assumed, since the document does not state it: "
        "gradients of 3 s on average with coefficient of variation 0.5, which a synchronous push waits out. A pull's 50 ms are taken from the table."))


def resources(lab: Lab) -> Part:
    """Table II, upper part: processors, memory and files of real processes that write a checkpoint after each pass.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    what: dict[str, Any] = {"data": "digits", "workers": 4, "epochs": 3, "seed": lab.seed,
                            "machine": Machine(compute="fixed(0.01)")}  # type: ignore[arg-type]
    used = {}
    for mode, algorithm in ALGORITHM.items():
        lab.say(f"{algorithm} as processes, watched")
        with tempfile.TemporaryDirectory() as folder:
            used[mode] = run(algorithm, runtime="processes", checkpoint=folder, monitor=True, **what).measured["resources"]
    lines = []
    for mode, nodes in used.items():
        lines += [Line(f"{mode}: {node}, processor", processes=f["cpu"], unit="cores") for node, f in nodes.items()]
        lines += [Line(f"{mode}: resident memory of all", processes=sum(f["rss_max"] for f in nodes.values()) / 1e6, unit="MB"),
                  Line(f"{mode}: written by all", processes=sum(f["written"] for f in nodes.values()) / 1e6, unit="MB"),
                  Line(f"{mode}: read by all", processes=sum(f["read"] for f in nodes.values()) / 1e6, unit="MB")]
    memory = {mode: sum(f["rss_max"] for f in nodes.values()) for mode, nodes in used.items()}
    files = {mode: (sum(f["read"] for f in nodes.values()), sum(f["written"] for f in nodes.values())) for mode, nodes in used.items()}
    claims = [judged("synchronous and asynchronous training need similar resources", "IV-A", max(memory.values()) < 1.2 * min(memory.values()),
                     "memory " + ", ".join(f"{mode} {v / 1e6:.0f} MB" for mode, v in memory.items()), shape=True),
              judged("more is written than read: checkpoints after each pass, data in memory", "IV-A", all(w >= r for r, w in files.values()),
                     ", ".join(f"{mode} {w / 1e6:.2f} MB written, {r / 1e6:.2f} read" for mode, (r, w) in files.items()), shape=True)]
    panels = [panel for mode, nodes in used.items() for panel in (
        Panel(f"{mode}: processor time since the start", "seconds", "processor seconds", {node: _since_start(f["samples"]) for node, f in nodes.items()}),
        Panel(f"{mode}: resident memory", "seconds", "MB", {node: [(s[0], 1e-6 * s[2]) for s in f["samples"] if s[2]] for node, f in nodes.items()}))]
    return Part("resources", "Processors, memory, files", "Table II", lines, claims, panels, note=(
        "Real processes of this machine, paced to 10 ms a gradient, watched by `--monitor`; the first process of each run also holds the data."))


def _since_start(samples: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Processor seconds until each sample, from cores in use since the sample before."""
    times, cores = [s[0] for s in samples], [s[1] for s in samples]
    return list(zip(times, np.cumsum(np.diff(times, prepend=0.0) * cores).tolist()))


def figure4(lab: Lab) -> Part:
    """Fig. 4: three layers; every exchange but the first layer's can hide behind the backward pass.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    forward, backward, exchange = (1.0, 1.0, 1.0), (2.0, 2.0, 2.0), (1.5, 1.5, 1.5)
    found = first_come(forward, backward, exchange)
    computing = sum(forward) + sum(backward)
    idle = found.value - computing
    return Part("figure4", "The idle period of layer 1", "Fig. 4", [
        Line("iteration", None, found.value, unit="layer times"), Line("computing", None, computing, unit="layer times"),
        Line("idle, at least the exchange of layer 1", None, idle, unit="layer times")], [
        judged("push, update and pull of all layers but the first can hide behind the backward pass; an idle period remains", "Fig. 4",
               idle >= exchange[0], f"idle {idle:g}, exchange of layer 1 {exchange[0]:g}")],
        note="Forward, backward and exchange of each of three layers take 1, 2 and 1.5; the recurrence of wait-free backpropagation.")


def real(lab: Lab) -> dict[str, Any]:
    """What is really trained in virtual time: the digits when quick, else ResNet-18 of width 4 on CIFAR-10.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    dict
        Arguments of a run.
    """
    if lab.quick:
        return {"data": "digits", "net": "tiny", "batch": 16, "lr": 0.01, "momentum": 0.9}
    return {"data": "cifar10", "net": "resnet18:4", "batch": 16, "lr": 0.05, "momentum": 0.9}


def ages(result: Result) -> dict[str, Any]:
    """Staleness by three definitions until each quarter of the run: updates, whole rounds of updates, clocks apart.

    Parameters
    ----------
    result : Result
        With its trace.

    Returns
    -------
    dict
    """
    trace = result.trace
    assert trace is not None
    n, marks = len(trace.workers), trace.marks("update")
    done, gaps = dict.fromkeys(trace.workers, 0), []
    for e in trace.of("compute"):
        if e.data["work"] == "gradient":
            done[e.node] += 1
            gaps.append((e.time, max(done.values()) - min(done.values())))
    out = []
    for quarter in range(1, 5):
        until = trace.seconds * quarter / 4
        taus = [e.data["version"] - read for e in marks if e.time <= until for _, read in e.data["reads"]]
        out.append([quarter / 4, float(np.mean(taus)), max(tau // n for tau in taus), max(gap for at, gap in gaps if at <= until)])
    return {"ages": out}


def figure7(lab: Lab) -> Part:
    """Fig. 7: four, eight and twelve workers, the same number of updates for each worker.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    workers, steps = (4, 8, 12), 60 if lab.quick else 300
    seeds = range(lab.seed, lab.seed + (1 if lab.quick else 5))
    vm = machine("lognormal(3,0.5)")
    what = {**real(lab), **({} if lab.quick else {"lr": 0.08}), "servers": 4, "steps": steps, "machine": vm}
    curves = _curves(lab, workers, seeds, what)
    final = {key: [curve[-1][1] for curve in found] for key, found in curves.items()}
    mean = {key: [_over(curve, 0, 1) for curve in found] for key, found in curves.items()}

    def lost(mode: str, accuracies: dict[tuple[str, int], list[float]], few: int = 4, many: int = 12) -> list[float]:
        """For each seed what more workers lose."""
        return [a - b for a, b in zip(accuracies[mode, few], accuracies[mode, many])]

    def said(found: list[float]) -> str:
        value, half = interval(found)
        return f"{100 * value:.1f}" + ("" if lab.quick else f" ± {100 * half:.1f}") + " points"

    loss = {mode: lost(mode, mean) for mode in ALGORITHM}
    early, late = ({key: [_over(curve, *half) for curve in found] for key, found in curves.items()} for half in ((0, 0.5), (0.5, 1)))
    wider = [b - a for a, b in zip(lost("async", early), lost("async", late))]
    pass_ = {(mode, n): _pass(lab, mode, n, vm) for mode in ALGORITHM for n in workers}
    seconds = {key: run.measured["seconds"] for key, run in pass_.items()}
    waiting = {n: pass_["sync", n].measured["idle_ratio"] * seconds["sync", n] for n in workers}
    gentle = _curves(lab, (4, 12), seeds[:3], {**what, "lr": 0.375 * what["lr"]}, ("async",))
    lines = []
    for mode, (at_end, over) in {"sync": (0.08, None), "async": (0.35, 0.2)}.items():
        for suffix, found, paper in (("", final, at_end), (", mean over the run", mean, over)):
            each = [(f"{mode}, {n} workers: accuracy{suffix or ' at the end'}", None, found[mode, n]) for n in workers]
            for said_of, quoted, values in (*each, (f"{mode}: accuracy lost from 4 to 12 workers{suffix}", paper, lost(mode, found))):
                value, half = interval(values)
                lines.append(Line(said_of, quoted, None, value, half=half))
    slower = {key: [curve[-1][1] for curve in found] for key, found in gentle.items()}
    for said_of, values in (("4 workers: accuracy at the end", slower["async", 4]), ("12 workers: accuracy at the end", slower["async", 12]),
                            ("accuracy lost from 4 to 12 workers", lost("async", slower))):
        value, half = interval(values)
        lines.append(Line(f"async at a rate of {0.375 * what['lr']:.3g}, {said_of}", None, None, value, half=half))
    lines += [Line(f"{mode}, {n} workers: a pass over the images", None, run.the_result.predicted["seconds_per_iteration"]["value"]
                   * run.the_result.steps, seconds[mode, n], unit="s")
              for (mode, n), run in pass_.items()]
    claims = [
        decided("asynchronous accuracy falls from 4 to 12 workers", "Fig. 7(a)", loss["async"], f"mean over the run lower by {said(loss['async'])}"),
        decided("asynchronous accuracy falls with each step from 4 over 8 to 12 workers", "Fig. 7(a)",
                min(lost("async", mean, 4, 8), lost("async", mean, 8, 12), key=lambda found: sum(found)),
                f"mean over the run lower by {said(lost('async', mean, 4, 8))} from 4 to 8, {said(lost('async', mean, 8, 12))} from 8 to 12"),
        decided("the gap widens with epochs", "Fig. 7(a)", wider,
                f"{said(lost('async', early))} in the first half of the run, {said(lost('async', late))} in the second"),
        decided("asynchronous training loses more accuracy than synchronous training at equal updates of each worker", "Fig. 7(a, b)",
                [a - b for a, b in zip(loss["async"], loss["sync"])], f"{said(loss['async'])} against {said(loss['sync'])}, mean over the run"),
        decided("synchronous accuracy loses at most a quarter of that", "Fig. 7(b)", [a / 4 - max(b, 0) for a, b in zip(loss["async"], loss["sync"])],
                f"{said(loss['sync'])} against {said(loss['async'])}, mean over the run"),
        judged("the time of a pass falls when workers are added", "Fig. 7(c)",
               all(seconds[m, 4] > seconds[m, 8] > seconds[m, 12] for m in ALGORITHM),
               "; ".join(f"{m} " + ", ".join(f"{seconds[m, n]:.0f}" for n in workers) + " s" for m in ALGORITHM), shape=True),
        judged("asynchronous training is faster", "Fig. 7(c)", all(seconds["async", n] < seconds["sync", n] for n in workers),
               ", ".join(f"{n} workers: {seconds['async', n] / seconds['sync', n]:.2f} of the time" for n in workers), shape=True),
        judged("computing falls with more workers, waiting does not fall as fast", "Fig. 7(d)",
               waiting[12] / waiting[4] > (seconds["sync", 12] - waiting[12]) / (seconds["sync", 4] - waiting[4]),
               ", ".join(f"{n}: {seconds['sync', n] - waiting[n]:.0f} s computing, {waiting[n]:.0f} s waiting" for n in workers), shape=True)]
    panels = [*(Panel(f"{mode}, mean of seeds", "share of the run", "test accuracy", {f"{n} workers": _mean_curve(curves[mode, n]) for n in workers})
                for mode in ("async", "sync")),
              Panel("a pass over the images", "workers", "seconds", {m: [(n, seconds[m, n]) for n in workers] for m in ALGORITHM}, "bars"),
              Panel("synchronous", "workers", "seconds", {"computing": [(n, seconds["sync", n] - waiting[n]) for n in workers],
                                                        "waiting": [(n, waiting[n]) for n in workers]}, "bars")]
    return Part("figure7", "More workers", "Fig. 7", lines, claims, panels, note=(
        f"Accuracy: {what['net']} on {what['data']}, {steps} updates of each worker, learning rate {what['lr']:g} and momentum 0.9 for any number of "
        f"workers, {len(seeds)} seeds. A mean gradient of more workers is better; the same step at a staleness of n - 1 is "
        f"too long. Whether it is depends on the rate, which is near the largest at which four asynchronous workers learn; the table has both also at "
        f"three eighths of it, for {len(gentle['async', 4])} seed{'s' if len(gentle['async', 4]) > 1 else ''}. Times: 50,000 images, messages of ResNet-18."))


Curve = list[tuple[float, float]]


def _curves(lab: Lab, workers: tuple[int, ...], seeds: range, arguments: dict[str, Any],
            modes: tuple[str, ...] = tuple(ALGORITHM)) -> dict[tuple[str, int], list[Curve]]:
    """Curves of both modes by number of workers, one for each seed."""
    keys = [(mode, n, seed) for mode in modes for n in workers for seed in seeds]
    seen = lab.runs([Trial(ALGORITHM[mode], {**arguments, "workers": n, "seed": seed}) for mode, n, seed in keys])
    curves: dict[tuple[str, int], list[Curve]] = {}
    for (mode, n, _), found in zip(keys, seen):
        curves.setdefault((mode, n), []).append(_curve(found))
    return curves


def _curve(found: Seen) -> Curve:
    """Test accuracy over the share of a run's updates; at chance all along if it diverged."""
    rows = found.result.history if found.result else []
    return [(row[1] / rows[-1][1], row[4]) for row in rows] or [(0.0, found.accuracy), (1.0, found.accuracy)]


def _over(curve: Curve, since: float, until: float) -> float:
    """Mean accuracy of a part of a run."""
    return float(np.mean([y for x, y in curve if since <= x <= until]))


def _mean_curve(curves: list[Curve]) -> Curve:
    """Mean over seeds at the points of the longest curve."""
    xs = [x for x, _ in max(curves, key=len)]
    return [(x, float(np.mean([np.interp(x, [a for a, _ in curve], [y for _, y in curve]) for curve in curves]))) for x in xs]


def _pass(lab: Lab, mode: str, workers: int, vm: Machine, servers: int = 4, steps: int | None = None) -> Seen:
    """A pass over 50,000 images in batches of 128 (or so many steps) in virtual time, with messages of ResNet-18's size."""
    size = nets.build("resnet18", (32, 32, 3)).parameters
    return lab.runs([Trial(ALGORITHM[mode], {
        "net": f"phantom:{size}", "data": "none", "workers": workers, "servers": servers, "batch": 128,
        "steps": steps or round(50_000 / (workers * 128)), "machine": vm, "seed": lab.seed}, look=ages)])[0]


def figure8(lab: Lab) -> Part:
    """Fig. 8: staleness of asynchronous training by three definitions, over the run.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    vm, workers = machine("lognormal(3,0.5)"), (4, 8, 12)
    runs = {n: _pass(lab, "async", n, vm, steps=400 if lab.quick else 4067) for n in workers}
    seen = {n: run.looked["ages"] for n, run in runs.items()}
    paper = {4: 1, 8: 2, 12: 4}
    lines = []
    for n in workers:
        _, mean, rounds, gap = seen[n][-1]
        lines += [Line(f"{n} workers: largest staleness, as clocks apart", paper[n], None, gap),
                  Line(f"{n} workers: largest staleness, as whole rounds of n updates", None, None, rounds),
                  Line(f"{n} workers: mean staleness in updates", None, runs[n].the_result.predicted["staleness_mean"]["value"], mean)]
    final = {n: seen[n][-1] for n in workers}
    claims = [
        judged("staleness grows with the number of workers", "Fig. 8", all(final[4][i] <= final[8][i] <= final[12][i] for i in (1, 3)),
               "mean in updates " + ", ".join(f"{final[n][1]:.2f}" for n in workers) + "; clocks apart " + ", ".join(f"{final[n][3]}" for n in workers),
               shape=True),
        judged("its mean in updates is n - 1", "conservation of gradients in flight",
               all(abs(final[n][1] - (n - 1)) <= (0.03 if lab.quick else 0.01) * (n - 1) for n in workers),
               ", ".join(f"{final[n][1]:.2f} for {n}" for n in workers) + "; a finite run starts with fresh gradients"),
        judged("staleness increases with more epochs", "IV-B", all(seen[n][-1][3] > seen[n][0][3] for n in workers),
               "clocks apart drift: " + "; ".join(" ".join(str(row[3]) for row in seen[n]) for n in workers)
               + ". The mean in updates stays, whole rounds hardly grow", shape=True)]
    panels = [Panel(title, "share of the run", y, {f"{n} workers": [(row[0], row[i]) for row in seen[n]] for n in workers})
              for title, y, i in (("in updates", "mean, updates", 1), ("in rounds", "largest, rounds of n updates", 2),
                                  ("clocks apart", "largest, iterations", 3))]
    return Part("figure8", "Staleness over the run", "Fig. 8", lines, claims, panels, note=(
        "The document's 1, 2 and 4 cannot count updates, whose mean is n - 1 by conservation. That staleness increases with epochs points to "
        "clocks apart, which drift without bound; how fast depends on how unequal the machines are."))


def figure9(lab: Lab) -> Part:
    """Fig. 9: more servers on the same machines.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    servers, steps = (4, 8), 40 if lab.quick else 300
    base = {**real(lab), "workers": 4, "steps": steps, "seed": lab.seed}
    vm = machine("fixed(3)")
    keys = [(mode, k) for mode in ALGORITHM for k in servers]
    seen = dict(zip(keys, lab.runs([Trial(ALGORITHM[m], {**base, "servers": k, "machine": vm}) for m, k in keys])))
    time = {k: {share: _pass(lab, "sync", 4, machine(f"fixed({3 * (1 + share * k / 4):g})"), k).measured["seconds"] for share in (0.0, 0.1)}
            for k in servers}
    same = seen["sync", 4].the_result.parameters_sha256 == seen["sync", 8].the_result.parameters_sha256
    size = nets.build("inception", (32, 32, 3)).parameters
    gain = {}
    for batch in (16, 512):
        thin = Machine(compute=f"fixed({_gradient(batch):g})", latency=0.01, bandwidth=125e6)  # type: ignore[arg-type]
        four, eight = (predict("bsp", net=f"phantom:{size}", data="none", workers=4, servers=k, steps=100, batch=batch, machine=thin)
                       ["seconds_per_iteration"].value for k in servers)
        gain[batch] = four / eight
    apart = abs(seen["async", 4].accuracy - seen["async", 8].accuracy)
    claims = [
        judged("the number of servers does not change accuracy", "Fig. 9(a, b)", same and apart < 0.05,
               f"synchronous: {'the same bits' if same else 'other bits'}; asynchronous: {100 * apart:.1f} points apart"),
        judged("small batches need more servers", "IV-D", gain[16] > 1.05 * gain[512],
               ", ".join(f"batch {b}: {g:.2f} times as fast with 8 servers as with 4" for b, g in gain.items()) + ", on a machine each and links of 125 MB/s; "
               "the document's own Fig. 9 has more servers slower, on the same machines", shape=True),
        judged("time rises with the number of servers on the same machines", "Fig. 9(c, d)", time[8][0.0] > time[4][0.0],
               f"{time[4][0.0]:.0f} s and {time[8][0.0]:.0f} s where servers cost no processor; {time[4][0.1]:.0f} s and {time[8][0.1]:.0f} s if "
               "four server processes take 10 % of the workers' processors (assumed): then it rises")]
    lines = [Line(f"sync, {k} servers: a pass", None, None, time[k][0.0], unit="s") for k in servers]
    lines += [Line(f"sync, {k} servers that take processors: a pass", None, None, time[k][0.1], unit="s") for k in servers]
    panels = [Panel("a pass over the images, synchronous", "servers", "seconds",
                    {"servers cost nothing": [(k, time[k][0.0]) for k in servers],
                     "10 % of processors per four": [(k, time[k][0.1]) for k in servers]}, "bars")]
    return Part("figure9", "More servers", "Fig. 9", lines, claims, panels,
                note="Slices of the model over more servers change no sum; only times.")


def figure10(lab: Lab) -> Part:
    """Fig. 10: batch 16 to 512 at a fixed number of passes.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    batches = (4, 8, 16, 32, 64) if lab.quick else (16, 32, 64, 128, 256, 512)
    what = {**real(lab), "workers": 4, "servers": 4, "epochs": 3, "momentum": 0.0, "lr": 0.1}
    seeds = range(lab.seed, lab.seed + (2 if lab.quick else 1))
    keys = [(m, b, s) for m in ALGORITHM for b in batches for s in seeds]
    seen = dict(zip(keys, lab.runs([Trial(ALGORITHM[m], {**what, "batch": b, "seed": s, "machine": machine(f"lognormal({_gradient(b):g},0.3)")})
                                    for m, b, s in keys])))
    accuracy = {(m, b): float(np.mean([_over(_curve(seen[m, b, s]), 0.9, 1) for s in seeds])) for m in ALGORITHM for b in batches}
    seconds = {(m, b): float(np.mean([seen[m, b, s].measured["seconds"] for s in seeds if seen[m, b, s].result])) for m in ALGORITHM for b in batches}
    gains = {m: [1 - seconds[m, b] / seconds[m, a] for a, b in zip(batches, batches[1:])] for m in ALGORITHM}
    paper = {("sync", 16): 0.79, ("async", 16): 0.74, ("sync", 512): 0.52, ("async", 512): 0.44}
    lines = [Line(f"{m}, batch {b}: accuracy after three passes", None if lab.quick else paper.get((m, b)), None, accuracy[m, b])
             for m in ALGORITHM for b in batches]
    lines += [Line(f"{m}: time saved by the first doubling", {"sync": 0.51, "async": 0.54}[m], None, gains[m][0]) for m in ALGORITHM]
    low, high = batches[0], batches[-1]
    claims = [
        judged("time falls with the batch, each doubling saving less", "Fig. 10", all(g == sorted(g, reverse=True) and g[-1] > -0.02 for g in gains.values()),
               "; ".join(f"{m} " + ", ".join(f"{g:.0%}" for g in found) for m, found in gains.items()), shape=True),
        judged("the first doubling saves 51 % and 54 %", "IV-D", all(g[0] > 0.5 for g in gains.values()),
               f"{gains['sync'][0]:.0%} and {gains['async'][0]:.0%}: halving the number of iterations saves at most half unless an iteration itself "
               "becomes cheaper with a larger batch"),
        judged("a larger batch gives a lower accuracy after three passes", "Fig. 10", all(accuracy[m, low] > accuracy[m, high] for m in ALGORITHM),
               "; ".join(f"{m} {accuracy[m, low]:.2f} to {accuracy[m, high]:.2f}" for m in ALGORITHM), shape=True),
        judged("asynchronous training has the higher accuracy after three passes", "IV-D", all(accuracy["async", b] > accuracy["sync", b] for b in batches),
               "the sentence contradicts the document's own figures (.74 < .79, .44 < .52); ours: "
               + ", ".join(f"{accuracy['async', b]:.2f}/{accuracy['sync', b]:.2f}" for b in batches) + " (async/sync)")]
    panels = [Panel("three passes", "batch", "seconds", {m: [(b, seconds[m, b]) for b in batches] for m in ALGORITHM}, log="xy"),
              Panel("after three passes", "batch", "test accuracy", {
                  **{m: [(b, accuracy[m, b]) for b in batches] for m in ALGORITHM},
                  **({} if lab.quick else {f"{m} (paper)": [(b, a) for (mode, b), a in paper.items() if mode == m] for m in ALGORITHM})}, log="x")]
    return Part("figure10", "Batch sizes", "Fig. 10", lines, claims, panels, note=(
        f"{what['net']} on {what['data']} without momentum, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}. Accuracy is the mean over the last tenth of "
        "a run, since the last step of a pass has only the images that are left over. Time of a gradient assumed: 0.5 s and 20 ms an image."))


def _gradient(batch: int) -> float:
    """Seconds of a gradient, assumed: a fixed part and one for each image."""
    return 0.5 + 0.02 * batch


def figure11(lab: Lab) -> Part:
    """Fig. 11: idleness by servers to workers, batch, and latency; the latter also as paced processes.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    each = Machine(update="fixed(0.001)", latency=0.01, bandwidth=1.25e9)  # type: ignore[arg-type]
    size = nets.build("inception", (32, 32, 3)).parameters

    def idle(workers: int, servers: int, seconds: float) -> tuple[float, float]:
        run = lab.runs([Trial("bsp", {"net": f"phantom:{size}", "data": "none", "workers": workers, "servers": servers, "steps": 100,
                                      "machine": each.with_(compute=f"fixed({seconds:g})"), "seed": lab.seed})])[0]
        return run.the_result.predicted["idle_ratio"]["value"], run.measured["idle_ratio"]

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
        judged("idleness falls from 1:3 over 2:2 to 3:1 servers to workers", "Fig. 11(a)", falls[0] == sorted(falls[0], reverse=True),
               ", ".join(f"{v:.0%}" for v in falls[0]), shape=True),
        judged("idleness falls with the batch", "Fig. 11(b)", falls[1] == sorted(falls[1], reverse=True), ", ".join(f"{v:.0%}" for v in falls[1]), shape=True),
        judged("idleness rises with latency from 10 % to 72 %", "Fig. 11(c)", all(abs(latencies[ms][0] - q) <= 0.03 for ms, q in quoted.items() if q),
               "one fitted figure, computing of 160 ms: " + ", ".join(f"{latencies[ms][0]:.0%}" for ms in quoted)),
        judged("the rise is concave", "Fig. 11(c)", (curve[1] - curve[0]) / 90 > (curve[2] - curve[1]) / 100, ", ".join(f"{v:.1%}" for v in curve)),
        judged("paced processes are as idle as the formula says, within 5 points", "ours",
               all(abs(p - f) <= 0.05 for f, _, p in latencies.values()), ", ".join(f"{p:.1%} for {f:.1%}" for f, _, p in latencies.values()))]
    panels = [Panel("servers to workers", "workers; the others of four are servers", "share of time idle",
                    {"bsp": [(n, ratios[key][1]) for key, n in (("1:3", 3), ("2:2", 2), ("3:1", 1))]}, "bars"),
              Panel("batch", "batch", "share of time idle", {"bsp": [(b, s) for b, (_, s) in batches.items()]}, "bars"),
              Panel("latency", "latency, ms", "share of time idle", {
                  "formula": [(ms, f) for ms, (f, _, _) in latencies.items()], "simulated": [(ms, s) for ms, (_, s, _) in latencies.items()],
                  "processes": [(ms, p) for ms, (_, _, p) in latencies.items()], "(paper)": [(ms, q) for ms, q in quoted.items() if q]})]
    return Part("figure11", "Idleness", "Fig. 11", lines, claims, panels, note=(
        "A batch is split over the workers, so fewer workers have more work each (a). Idle = 2 latency / (2 latency + computing) fixes computing "
        f"at 160 ms by least squares on the two quoted points (c).{' Times are divided by four.' if lab.quick else ''}"))


def _latency(lab: Lab, ms: float, scale: float) -> tuple[float, float, float]:
    """Idle share at a latency: formula, simulation, and paced processes of a small problem."""
    link = Machine(compute=f"fixed({0.16 * scale:g})", latency=1e-3 * ms * scale)  # type: ignore[arg-type]
    common: dict[str, Any] = {"workers": 4, "servers": 4, "steps": 20 if lab.quick else 30, "machine": link, "seed": lab.seed}
    formula = predict("bsp", **common)["idle_ratio"].value
    simulated, processes = lab.runs([Trial("bsp", common), Trial("bsp", common, "processes")])
    return formula, simulated.measured["idle_ratio"], processes.measured["idle_ratio"]


def pace(result: Result) -> dict[str, Any]:
    """Gradients a second while every worker still has work, and staleness as `ages`.

    Parameters
    ----------
    result : Result
        With a trace.

    Returns
    -------
    dict of str to object
        Its ``pace``, in gradients a second of all workers together, beside what `ages` gives.
    """
    assert result.trace is not None
    done: dict[str, list[float]] = {}
    for e in result.trace.of("compute"):
        if e.data["work"] == "gradient":
            done.setdefault(e.node, []).append(e.time)
    until = min(max(times) for times in done.values())
    return {"pace": sum(at <= until for times in done.values() for at in times) / until, **ages(result)}


def summary(lab: Lab) -> Part:
    """The summary of the study (2020), which has no figures: slowest worker, stale updates, it depends.

    Parameters
    ----------
    lab : Lab

    Returns
    -------
    Part
    """
    speeds = {"equal machines": (1.0,) * 4, "one machine at a quarter": (1.0, 1.0, 1.0, 0.25)}
    keys = [(mode, name) for mode in ALGORITHM for name in speeds]
    what = {"data": "quadratic", "workers": 4, "steps": 40, "seed": lab.seed}
    seen = dict(zip(keys, lab.runs([Trial(ALGORITHM[mode], {**what, "machine": Machine(compute="fixed(1)", speeds=speeds[name])}, look=pace)  # type: ignore[arg-type]
                                    for mode, name in keys])))
    rate = {key: run.looked["pace"] for key, run in seen.items()}
    stale = {mode: max(row[1] for row in seen[mode, "one machine at a quarter"].looked["ages"]) for mode in ALGORITHM}
    faster = {name: rate["async", name] / rate["sync", name] for name in speeds}
    step = seen["sync", "one machine at a quarter"].measured["seconds_per_iteration"]
    return Part("summary", "The summary of the study", "summary, 2020", [
        Line(f"{mode}, {name}: gradients a second", None, None, rate[mode, name]) for mode, name in keys], [
        judged("synchronous training is consistent", "summary", stale["sync"] == 0, f"staleness {stale['sync']:g}: every gradient is of the newest model"),
        judged("and as slow as the slowest worker", "summary", abs(step / 4 - 1) < 0.02, f"an iteration takes {step:.2f} s, the slow machine's gradient 4 s"),
        judged("asynchronous training is faster, with stale updates", "summary", faster["one machine at a quarter"] > 1 and stale["async"] > 0,
               f"{faster['one machine at a quarter']:.2f} times the gradients a second, mean staleness {stale['async']:.2f}", shape=True),
        judged("which is best depends on the workload", "summary", faster["equal machines"] < 1.05 < faster["one machine at a quarter"],
               "gradients a second gained: " + ", ".join(f"{name} {x:.2f} times" for name, x in faster.items())
               + "; what staleness costs is Fig. 7's", shape=True)],
        note="Four workers on the quadratic problem in virtual time, without a network: only speeds differ.")


LEARN = """Staleness means three things: updates between read and use, whose mean is n - 1 whatever happens, whole rounds of them, and clocks apart, which
alone drift with epochs as the document reports. At equal updates for each worker asynchronous training loses accuracy from 4 to 12 workers and
synchronous training gains. How much is lost depends on the learning rate: near the largest at which four asynchronous workers learn twelve learn
nothing, at three eighths of it they learn too, and a sentence on staleness and accuracy without its rate says little.
More servers on the same machines hurt only where they take processors, and doubling a batch cannot save
more than half of the time: both figures of the document are of its virtual machines, not of the algorithms."""

DOCUMENT = Document(__doc__.split("\n")[0], (table2, resources, figure4, figure7, figure8, figure9, figure10, figure11, summary), LEARN)
