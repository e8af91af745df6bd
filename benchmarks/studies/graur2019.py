"""Graur, "Evaluating and Improving Large-Scale Machine Learning Frameworks", MSc thesis, TU Delft, 2019.

Every update architecture of TensorFlow, Horovod and Caffe2 on up to 56 nodes, 1 Gbps Ethernet and 56 Gbps
InfiniBand, ResNet-50.  "Seconds per batch" are seconds of a step divided by the number of nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks import published
from benchmarks.studies import graur_terms
from benchmarks.studies.architectures import ARCHITECTURES, PULLS
from benchmarks.studies.graur_extra import extra
from benchmarks.studies.graur_figures import CHAPTER3, IMAGES4, PASSES, SAVED4, SECONDS4, SERVER, Key
from benchmarks.studies.graur_runs import PARAMETERS, SIMULATED, STEPS, rate, rates, runs, steps
from benchmarks.studies.graur_series import series
from benchmarks.studies.graur_survey import survey
from benchmarks.studies.lab import Lab, Trial
from benchmarks.studies.study import Claim, Document, Line, Panel, Part, judged, untestable
from refsgd.cluster.machine import Machine
from refsgd.experiment.memory import of_roles
from refsgd.experiment.prepare import prepare
from refsgd.problems.nn import nets
from refsgd.theory.phenomena import memory

STRATEGIES = ("parameter-server", SERVER, "distributed-replicated", "distributed-allreduce-pscpu",
              "distributed-allreduce-ringx1", "distributed-allreduce-ringx2", "collective-allreduce",
              "horovod", "caffe2", "independent")
#: the first two take equally long; Horovod fills buckets of 64 MiB before it sums them
RINGS = ("distributed-allreduce-ringx1", "distributed-allreduce-ringx2", "horovod")
LINKS = tuple(published.LINKS)
#: seconds of a step of 40 nodes on InfiniBand, batch 256
IN40 = 40 * SECONDS4[Key(SERVER, "F+B", "InfiniBand", 40, 256)]
ONE = SECONDS4[Key(SERVER, "F+B", "InfiniBand", 1, 256)]  #: and of one node there
#: and of its transfers, one after the other
MOVED = 2 * 39 * published.RESNET50 / published.LINKS["InfiniBand"]
CAFFE2_MOST, SESSION_MOST = 24, 16  #: nodes beyond which Caffe2 and Distributed Allreduce ran into timeouts


class Rates(NamedTuple):
    """Images per second: by messages alone, and with the terms of the implementation."""

    messages: Mapping[Key, float]
    terms: Mapping[Key, float]
    most: int  #: the most nodes of a run

    def share(self, strategy: str, pass_: str, link: str) -> float:
        """The share of perfect scaling that is left on the most nodes, by messages."""
        return self.messages[Key(strategy, pass_, link, self.most)] / (
            self.most * self.messages[Key("independent", pass_, link, 1)])

    def linear(self, strategy: str, pass_: str, link: str) -> bool:
        """Whether more than 70 % of perfect scaling is left."""
        return self.share(strategy, pass_, link) > 0.7

    def shares(self, strategy: str, pass_: str) -> str:
        """The shares on each network, as text."""
        return ", ".join(f"{link} {self.share(strategy, pass_, link):.0%}" for link in LINKS)


def _measured(lab: Lab, keys: Sequence[Key], added: Sequence[Key]) -> Rates:
    """Runs of `keys` by messages, and of `added` with the terms."""
    messages, terms = (rates(lab, wanted, terms=on) for wanted, on in ((keys, False), (added, True)))
    return Rates(messages, terms, most=max(key.nodes for key in keys))


def _unnamed(key: Key) -> str:
    """An experiment of chapter 4, which has one strategy."""
    return str(key).removeprefix(f"{key.strategy}, ")


def _per_batch(key: Key, images: float | None) -> float | None:
    """Seconds of a batch from images per second."""
    return None if images is None else key.batch / images


def _seconds(key: Key, quoted: Mapping[Key, float], found: Rates, what: str) -> Line:
    """The line of an experiment's seconds of a batch."""
    return Line(what, quoted.get(key), None, key.batch / found.messages[key], unit="s/batch",
                implementation=_per_batch(key, found.terms.get(key)))


def _off(rates: Mapping[Key, float], seconds: Mapping[Key, float],
         images: Mapping[Key, float]) -> dict[Key, float]:
    """How far each experiment of several nodes is off what is quoted, images per second where both are;
    none on which a term was fitted."""
    off = {key: key.batch / rates[key] / quoted - 1 for key, quoted in seconds.items()}
    off |= {key: rates[key] / quoted - 1 for key, quoted in images.items()}
    return {key: e for key, e in off.items() if key.nodes > 1 and key not in graur_terms.FITTED}


def _missed(rates: Mapping[Key, float], seconds: Mapping[Key, float],
            images: Mapping[Key, float]) -> list[Key]:
    """The experiments that are off by more than a quarter."""
    return [key for key, e in _off(rates, seconds, images).items() if abs(e) > 0.25]


def _listed(keys: Sequence[Key]) -> str:
    """Experiments as text, those that differ only in the number of nodes together; a colocated server's
    without its name."""
    nodes: dict[str, list[str]] = {}
    for key in sorted(keys):
        nodes.setdefault(str(key).removeprefix(f"{SERVER}, ").rsplit(", ", 1)[0], []).append(str(key.nodes))
    return "; ".join(f"{what}, {', '.join(counts)} nodes" for what, counts in nodes.items())


def _met(found: Rates, seconds: Mapping[Key, float], images: Mapping[Key, float]) -> Line:
    """How many experiments of several nodes are met, see `_off`."""
    of = len(_off(found.messages, seconds, images))
    near = [float(of - len(_missed(rates, seconds, images))) for rates in (found.messages, found.terms)]
    return Line(f"quoted figures of several nodes within 25 %, one of each experiment, of {of}", None, None,
                near[0], unit="figures",
                implementation=near[1])


def _kinds(keys: Sequence[Key]) -> str:
    """How many experiments of Caffe2, of forward passes and of training."""
    kinds = Counter("Caffe2" if key.strategy == "caffe2" else "forward passes" if key.pass_ == "F"
                    else "training" for key in keys)
    return ", ".join(f"{kind} {n}" for kind, n in kinds.items())


def _follow(says: str, where: str, found: Rates, quoted: Sequence[Mapping[Key, float]],
            told: Callable[[Sequence[Key]], str], why: str) -> Claim:
    """The claim that figures of several nodes (`quoted`: seconds, images per second) follow from those of
    one, judged by messages."""
    of, missed, late = len(_off(found.messages, *quoted)), _missed(found.messages,
                                                                   *quoted), _missed(found.terms, *quoted)
    return judged(says, where, len(missed) <= 0.25 * of,
                  f"{of - len(missed)} of {of} do by messages, links full duplex, each experiment counted "
                  "once (asked are three quarters); the others: "
                  f"{told(missed)}. With the terms {of - len(late)} do; the others: {told(late)}. {why}",
                  shape=True)


def _slow_machine() -> list[Line]:
    """Every experiment of chapter 4 on more than 16 nodes, by a server's formula without the slow machine
    and with it."""
    lines: list[Line] = []
    met = [0, 0]
    for key, quoted in (SECONDS4 | IMAGES4).items():
        if key.nodes > published.WITHOUT_SLOW:
            values = [published.implemented(key.pass_, key.link, key.batch, key.nodes, slow)
                      for slow in (1.0, published.SLOW)]
            if key in IMAGES4:
                values = [key.batch / seconds for seconds in values]
            met = [n + (abs(v / quoted - 1) <= 0.25) for n, v in zip(met, values)]
            lines.append(Line(f"a slow machine, tested on: {_unnamed(key)}", quoted, values[0],
                              unit="images/s" if key in IMAGES4 else "s/batch",
                              implementation=values[1]))
    return [*lines,
            Line(f"a slow machine: of these {len(lines)} within 25 %", None, float(met[0]), unit="figures",
                 implementation=float(met[1]))]


def terms(lab: Lab) -> Part:
    """What the implementations add to the messages: each term, the figure it was fitted on, and others
    that it was not."""
    nodes = (1, 2, 8, 16, 24, 32) if lab.quick else (1, 2, 4, 8, 16, 24, 32, 40, 48, 56)
    keys = [Key(s, "F+B", link, n) for s in (SERVER, "collective-allreduce", "caffe2") for link in LINKS
            for n in nodes
            if s != "caffe2" or n <= CAFFE2_MOST]
    found = rates(lab, keys, terms=True)
    panels = []
    for link in LINKS:
        curves = {s: [(key.nodes, found[key]) for key in keys if (key.strategy, key.link) == (s, link)]
                  for s in (SERVER, "collective-allreduce", "caffe2")}
        curves["distributed-allreduce"] = [(n, graur_terms.one_session(link, n)) for n in nodes
                                           if n <= SESSION_MOST]
        quoted = {s: [(key.nodes, 32 / v) for key, v in CHAPTER3.items() if key[:3] == (s, "F+B", link)]
                  for s in curves}
        panels.append(Panel(f"training, {link}", "nodes", "images/s",
                            curves | {f"{s} (paper)": points for s, points in quoted.items() if points},
                            log="y"))
    one, w = Key(SERVER, "F+B", "Ethernet", 1, 128), "F+B, Ethernet, batch"
    crowded = Key("caffe2", "F", "Ethernet", 2)
    at = {n: IMAGES4[Key(SERVER, "F+B", "Ethernet", n, 256)] for n in (32, 40)}
    lines = [
        Line("one direction at a time, chosen by: ceiling of a server, F+B, Ethernet, batch 32", 20,
             published.ceiling("full"), unit="images/s",
             implementation=published.ceiling("half")),
        Line(f"a slow machine, fitted on: one node, {w} 128", SECONDS4[one], published.alone("F+B", 128),
             unit="s/batch",
             implementation=published.SLOW * published.alone("F+B", 128)),
        Line("a slow machine: it takes so many times as long as the others", implementation=published.SLOW),
        *_slow_machine(),
        Line("crowded processors, fitted on: caffe2, F, Ethernet, 2 nodes", CHAPTER3[crowded], 0.5 / 2,
             unit="s/batch",
             implementation=graur_terms.CROWDED * 0.5 / 2),
        Line("crowded processors: computing takes so many times as long as on one node",
             implementation=graur_terms.CROWDED),
        *(Line(f"crowded processors, tested on: caffe2, F+B, {link}, {n} nodes",
               CHAPTER3.get(Key("caffe2", "F+B", link, n)), unit="s/batch",
               implementation=32 / found[Key("caffe2", "F+B", link, n)]) for link in LINKS
               for n in (2, CAFFE2_MOST)),
        *(Line(f"one session, chosen by 'never scales': Distributed Allreduce, F+B, {link}, {n} nodes",
               "< 7" if link == "Ethernet" else None, unit="images/s",
               implementation=graur_terms.one_session(link, n)) for link in LINKS for n in (2, 8, 16)),
        Line(f"congestion, fitted on: {w} 256, 40 nodes", at[40],
             256 / published.served("Ethernet", 256, 40, "full"), unit="images/s",
             implementation=graur_terms.congested(40, 256)),
        Line(f"congestion, tested on: {w} 256, 32 nodes", at[32],
             256 / published.served("Ethernet", 256, 32, "full"), unit="images/s",
             implementation=graur_terms.congested(32, 256)),
        Line(f"congestion, tested on: {w} 32, 16 nodes", 1.5, published.served("Ethernet", 32, 16, "full"),
             unit="s/batch",
             implementation=32 / graur_terms.congested(16, 32)),
        Line(f"congestion, tested on: {w} 32, the best number of nodes", 20, published.ceiling("full"),
             unit="images/s",
             implementation=max(graur_terms.congested(n, 32) for n in (8, 16, 24, 32, 40)))]
    return Part("terms", "What the implementations add to the messages", "our terms", lines, (), panels,
                note=TERMS)


TERMS = f"""The tables below have two columns: *simulated* is what an algorithm's messages give, *implementation* adds these terms.
A figure on which a term was fitted tests nothing.

* **One direction at a time** (strategies with a server; no number): a server's link carries pushes or answers, a step is
  max(C + (n-1) w, 2 (n-1) w), w = M/B. Chosen by the ceiling of 20 images/s.
* **A slow machine** (all; two numbers): in runs of more than {published.WITHOUT_SLOW} nodes one machine computes {published.SLOW:.2f} times as long as the
  others and is answered last. The factor is one node's figure: 40.5 s for a batch of 128, where the line through 8 and 256 has 25.6 s. The number of
  nodes was chosen by a figure of InfiniBand: a batch of 256 took 0.04 s less on 24 nodes than on 16. Answered first, the machine would be hidden
  behind the others' transfers. It gives training on 40 nodes with large batches, but makes 32 nodes too slow, and batches of 8.
* **Crowded processors** (Caffe2): as soon as two nodes exchange, computing takes f C, because the exchange keeps all processors busy (section 5.4.4).
  Fitted on the forward pass of two nodes: f = {graur_terms.CROWDED:.1f}. Time by the byte would not do: a forward pass exchanges none. On 24 nodes it
  says far too much.
* **One session** (Distributed Allreduce; no number): a controller drives one graph of all workers (section 2.5.2; Abadi et al., OSDI 2016,
  section 3.3). Assumed is the extreme, that shares and transfers go one after the other: n C + 2 (n-1) w a step. Chosen by: never scales. That it does
  not, and stays below one node's images per second, is so by construction.
* **Accumulators** (memory of a server; no number): gradients are added to one sum as they come, as TensorFlow's `ConditionalAccumulator` does.
  Chosen by: memory does not depend on the number of nodes.

**Collective Allreduce** has no term of its own: it is the preset `collective-allreduce`, a ring for each layer at the link's bandwidth while the
backward pass continues. That it overlaps was chosen by 0.55 s a batch on 16 nodes; how much then hides, the runs say.

**Congestion** is a term that no column has. Many pushes into one port overflow its buffer, and senders wait for timeouts (Phanishayee et al., FAST 2008):
goodput B / (1 + k (n-1)), fitted on 95.1 images/s of 40 nodes. It meets the ceiling and small batches as well as half duplex does, but then 32 nodes
have fewer images per second than 40. InfiniBand drops no packets, and there a step of 256 images on 40 nodes took {IN40:.0f} s, {IN40 / ONE:.1f} times
one node's {ONE:.0f} s, of which transfers are at most {MOVED:.1f} s: what took longer was hardly the link. How much of it one slow machine explains is
open: that node itself took {ONE / published.alone('F+B', 256):.2f} times the {published.alone('F+B', 256):.1f} s of Ethernet's, from which all computing
times here come; {published.SLOW:.2f} times its own would be {published.SLOW * ONE:.0f} s."""


def chapter3(lab: Lab) -> Part:
    """Chapter 3: every strategy, batch 32, one to 56 nodes, both links, with and without training."""
    nodes = (1, 8, 32) if lab.quick else (1, 2, 4, 8, 16, 24, 32, 40, 48, 56)
    keys = [Key(s, p, link, n) for s in STRATEGIES for p in PASSES for link in LINKS for n in nodes]
    compared = [Key(s, "F+B", link, n) for s in (SERVER, "caffe2") for link in LINKS for n in (1, 2, 16, 24)]
    compared += [Key(SERVER, "F+B", "Ethernet", n) for n in (8, nodes[-1])]
    reduced, two = Key("distributed-allreduce-pscpu", "F+B", "Ethernet",
                       SESSION_MOST), Key("caffe2", "F+B", "InfiniBand", 2)
    ring = Key("collective-allreduce", "F+B", "Ethernet", 16)
    after = {n: Key("distributed-allreduce-ringx1", "F+B", "Ethernet", n) for n in (16, 24)}
    found = _measured(lab, [*keys, *CHAPTER3, *after.values(), reduced, two], [*CHAPTER3, *compared])
    images, most = found.messages, nodes[-1]
    wire = published.RESNET50 / published.LINKS["Ethernet"]
    (forward,) = runs(lab, [Key(SERVER, "F", "Ethernet", most)]).values()
    pulled = (forward.measured["seconds"] / STEPS - published.alone("F", 32)) / (most - 1)
    tenth = next(n for n in nodes if 32 / images[Key(SERVER, "F", "InfiniBand", n)] < 0.1)
    furthest = [Key(s, "F+B", "Ethernet", most) for s in ("caffe2", "distributed-allreduce-pscpu")]
    lines = [_seconds(key, CHAPTER3, found, str(key))
             for key in sorted(images, key=lambda key: (STRATEGIES.index(key.strategy), key))
             if key in found.terms or _told(key, most)]
    lines += [
        _met(found, CHAPTER3, {}),
        Line("a ring for each layer during the backward pass: collective-allreduce, F+B, Ethernet, 16 nodes", 0.55,
             published.overlapped(32, 16), 32 / images[ring], unit="s/batch"),
        Line("the same ring after it: distributed-allreduce-ringx1, F+B, Ethernet, 16 nodes", None,
             published.ringed(32, 16), 32 / images[after[16]], unit="s/batch"),
        Line(f"Distributed Allreduce, F+B, Ethernet: images/s on {SESSION_MOST} nodes", "< 7", None,
             images[reduced], implementation=graur_terms.one_session("Ethernet", SESSION_MOST)),
        Line("a strategy with a server, F+B, Ethernet: images/s at the most nodes", 20,
             published.ceiling("half"), images[Key(SERVER, "F+B", "Ethernet", most)],
             implementation=32 / published.implemented("F+B", "Ethernet", 32, most)),
        Line("images/s = batch / seconds of a batch: 16 nodes, batch 256, 5 s", 50.7, 256 / 5),
        Line("images/s = batch / seconds of a batch: Caffe2, 24 nodes, 2.15 s", 15, 32 / 2.15),
        Line("seconds of a batch = step / nodes: 8 nodes, batch 128, 40 s", 5, 40 / 8)]
    claims = [
        _follow("figures of several nodes with batches of 32 follow from those of one, within 25 %",
                "chapter 3", found, (CHAPTER3, {}),
                _kinds, CHAPTER3_MISSED),
        *_servers_and_replicas(found, [images[Key(SERVER, "F+B", "Ethernet", n)] for n in nodes], nodes),
        *_distributed_allreduce(found),
        judged("forward passes with a server of its own are slower than beside a worker", "3.3",
               all(images[Key("parameter-server", "F", link, n)] < images[Key(SERVER, "F", link, n)]
                   for link in LINKS for n in nodes if n > 1),
               f"InfiniBand, {most} nodes: {images[Key('parameter-server', 'F', 'InfiniBand', most)]:.0f} "
               "and "
               f"{images[Key(SERVER, 'F', 'InfiniBand', most)]:.0f} images/s: a node without a worker, and "
               "one more transfer", shape=True),
        judged("forward passes through a server tend to the time of one transfer, M/B", "3.3, 4.3",
               abs(pulled / wire - 1) < 0.02,
               f"{pulled:.3f} s a batch besides computing, M/B = {wire:.3f} s", shape=True),
        _hides(found, ring, after),
        *_caffe2(found),
        untestable(
            "soft and hard placement of operations differ (7.8 against 8.8 s on one node; 24 against 8 nodes to 1 s)", "3.3, 3.4",
                   "where TensorFlow puts operations within a node; the messages are the same"),
        judged(
            "with soft placement forward passes of Parameter Server take 40 nodes to 0.1 s a batch on InfiniBand, others 16", "3.3",
               tenth >= 40, f"ours, which has one placement, is below 0.1 s from {tenth} nodes on"),
        judged("Caffe2 fails beyond 24 nodes, Distributed Allreduce beyond 16", "3.2",
               not min(images[key] for key in furthest),
               "timeouts of the frameworks; here " + ", ".join(f"{key}: {images[key]:.0f} images/s" for key in furthest))]
    drawn = [s for s in STRATEGIES if s not in ("caffe2", "horovod", "distributed-allreduce-ringx2")]
    panels = [Panel(f"{'forward' if p == 'F' else 'training'}, {link}", "nodes", "images/s",
                    {s: [(n, images[Key(s, p, link, n)]) for n in nodes] for s in drawn}) for p in PASSES
                    for link in LINKS]
    return Part("chapter3", "Scaling of every update architecture (RQ1)", "chapter 3", lines, claims, panels,
                note=(
        f"15 batches of 32 in virtual time (one where rings overlap, since all take equally long; of those on "
        f"more than {SIMULATED} nodes by formula, which meets the runs to four digits), {published.alone('F+B', 32):.1f} s each with training and "
        f"{published.alone('F', 32):.1f} s without: one node's "
        "figures for batches of 8 and 256, and the line between. A server of its own takes one of the nodes. "
        "Drawn is what the messages give; not drawn: "
        "Distributed Allreduce by two rings, which lies on one ring's curve, Horovod, which lies between "
        "that and Collective Allreduce's, and Caffe2, whose images are smaller. Of these rings the "
        "table has 8 nodes alone; forward passes that send nothing take C/n, as those of `independent` do. "
        "The last point of section 3.5, and section 5.4.3, "
        "say \"Distributed Replicated, using Ringx1 and PSCPU\": these are ways of Distributed Allreduce, "
        "and it is read so here."))


def _hides(found: Rates, ring: Key, after: Mapping[int, Key]) -> Claim:
    """Whether Collective Allreduce's ring hides; `after`: the ring that waits for the whole gradient, by nodes."""
    computing = published.alone("F+B", 32)
    during, later = (32 / found.messages[key] for key in (ring, after[16]))
    exposed, whole = 16 * during - computing, 16 * later - computing
    late = ring._replace(nodes=24)
    return judged(
        "Collective Allreduce's ring is hidden behind the backward pass on Ethernet", "3.4",
        exposed < 0.05 * whole and abs(during / 0.55 - 1) < 0.05 < abs(later / 0.55 - 1),
        f"a run at the link's bandwidth, with no number fitted: of the {whole:.2f} s of a ring on 16 nodes "
        f"{1e3 * exposed:.1f} ms are exposed, those of the first layer, so {during:.3f} s a batch; {later:.3f} after the "
        "backward pass; quoted 0.55. That it overlaps at all is what this figure says; 24 nodes do not decide: "
        f"{found.messages[late]:.0f} images/s, {32 / published.overlapped(32, 24):.0f} with the slow machine too, "
        f"{found.messages[after[24]]:.0f} after the backward pass, quoted 61")


CHAPTER3_MISSED = (
    "Forward passes on 16 nodes: about 0.1 s is quoted, one node's 2.3 s by 16 is 0.145 already; that figure "
    "of one node is not quoted "
                   "at batch 32, it lies on a line between others. Training: on 24 nodes; the "
                   "slow machine gives these. Caffe2: its "
                   "times have little to do with its messages")


def _told(key: Key, most: int) -> bool:
    """Whether an experiment without a quoted figure has a row: not if it only repeats another's."""
    if key.strategy in RINGS:
        return key.pass_ == "F+B" and key.nodes == 8
    silent = key.pass_ == "F" and key.strategy not in (*PULLS, "independent")
    return key.nodes in (8, most) and not silent


def _servers_and_replicas(found: Rates, server: Sequence[float], nodes: Sequence[int]) -> list[Claim]:
    """RQ1 of Collective Allreduce, Parameter Server (`server`: images/s with training on Ethernet, by
    `nodes`) and Distributed Replicated."""
    most, at8 = found.most, server[list(nodes).index(8)]
    best = {link: max(v for k, v in found.messages.items() if k[1:] == ("F+B", link, most, 32)
                      and k.strategy not in (
        "independent", "caffe2", "collective-allreduce")) for link in LINKS}
    ring = {link: found.messages[Key("collective-allreduce", "F+B", link, most)] for link in LINKS}
    single, replicated = (found.messages[Key(s, "F+B", "InfiniBand", most)]
                          for s in (SERVER, "distributed-replicated"))
    halved = [found.terms[Key(SERVER, "F+B", "Ethernet", n)] for n in (8, most)]
    return [
        judged("Collective Allreduce scales linearly for both passes on both links", "3.5, RQ1",
               all(found.linear("collective-allreduce", p, link) for p in PASSES for link in LINKS),
               "; ".join(f"{p}: {found.shares('collective-allreduce', p)}"
                         for p in PASSES) + f" of perfect scaling at {most} nodes", shape=True),
        judged("and is the best of those that train together", "3.5, RQ1",
               all(ring[link] >= 0.99 * best[link] for link in LINKS),
               ", ".join(f"{link} {ring[link]:.1f} images/s, the fastest of the others {best[link]:.1f}"
                         for link in LINKS)
               + f" at {most} nodes: rings of Distributed Allreduce send the same after the backward pass; "
                 "parameter servers stay below", shape=True),
        judged("Parameter Server grows like a logarithm on Ethernet", "3.5, RQ1",
               not found.linear(SERVER, "F+B", "Ethernet")
               and (server[-1] - at8) / (most - 8) < (at8 - server[0]) / 7 / 3,
               f"{', '.join(f'{n}: {r:.1f}' for n, r in zip(nodes, server))} images/s: a node beyond the "
               "eighth adds less than a third", shape=True),
        judged("and linearly on InfiniBand, comparable to Collective Allreduce", "3.5, RQ1",
               found.linear(SERVER, "F+B", "InfiniBand") and single > 0.8 * ring["InfiniBand"],
               f"{found.share(SERVER, 'F+B', 'InfiniBand'):.0%} of perfect scaling; {single:.0f} images/s on "
               f"{most} nodes, Collective Allreduce "
               f"{ring['InfiniBand']:.0f}: more than 80 % of it", shape=True),
        judged("Parameter Server gains nothing beyond 8 nodes on Ethernet", "3.5, RQ1",
               server[-1] < 1.1 * at8,
               f"{at8:.1f} images/s on 8 nodes, {server[-1]:.1f} on {most} by messages; one direction at a "
               "time, a term that the ceiling chose, "
               f"{halved[0]:.1f} and {halved[1]:.1f}"),
        judged("a ceiling of about 20 images/s on Ethernet", "3.4",
               abs(published.ceiling("full") / 20 - 1) < 0.25,
               f"by messages the ceiling is {published.ceiling('full'):.1f}, {max(server):.1f} on {most} "
               "nodes; half duplex has "
               f"{published.ceiling('half'):.1f}, but that links served one direction at a time was chosen "
               "by this figure"),
        judged("Distributed Replicated: forward passes scale linearly on both links", "3.5, RQ1",
               all(found.linear("distributed-replicated", "F", link) for link in LINKS),
               found.shares("distributed-replicated", "F"), shape=True),
        judged("with training like a logarithm on Ethernet, linearly on InfiniBand", "3.5, RQ1",
               not found.linear("distributed-replicated", "F+B", "Ethernet")
               and found.linear("distributed-replicated", "F+B", "InfiniBand"),
               found.shares("distributed-replicated", "F+B"), shape=True),
        judged("Distributed Replicated stays below Parameter Server on InfiniBand", "3.5, RQ1",
               replicated < 0.99 * single,
               f"training on {most} nodes: {replicated:.1f} and {single:.1f} images/s: the same messages. "
               "Quoted for 24 nodes are about 0.5 and 0.52 s a batch")]


def _distributed_allreduce(found: Rates) -> list[Claim]:
    """RQ1 of Distributed Allreduce, by messages: its term was chosen because it never scales."""
    n, pscpu, ringx1, ib = (SESSION_MOST, "distributed-allreduce-pscpu", "distributed-allreduce-ringx1",
                            "InfiniBand")
    session = {link: (graur_terms.one_session(link, 2), graur_terms.one_session(link, n)) for link in LINKS}
    one, last = (found.messages[Key(pscpu, "F+B", "Ethernet", k)] for k in (1, n))
    ring, server, gathered = (found.messages[Key(s, "F+B", ib, found.most)] for s in (ringx1, SERVER, pscpu))
    told = ", ".join(f"{link} {a:.2f} images/s on 2 nodes, {b:.2f} on {n}"
                     for link, (a, b) in session.items())
    return [
        judged("Distributed Allreduce never scales, with one ring", "3.5, RQ1",
               not any(found.linear(ringx1, "F+B", link) for link in LINKS),
               f"by messages a ring is a ring: {found.shares(ringx1, 'F+B')} of perfect scaling. One "
               f"session, chosen by this sentence: {told}"),
        judged("nor by PSCPU, on Ethernet", "3.5, RQ1",
               not found.linear(pscpu, "F+B", "Ethernet"),
               f"by messages {found.shares(pscpu, 'F+B')} of perfect scaling: on InfiniBand it does",
               shape=True),
        judged("Distributed Allreduce stays below 7 images/s on Ethernet and falls with the nodes", "3.4.2",
               last < min(7, one),
               f"by messages, PSCPU: {one:.1f} images/s on one node, {last:.1f} "
               f"on {n}. One session, chosen because it never "
               f"scales: {told}"),
        judged("Distributed Allreduce's images per second fall with the nodes on InfiniBand too", "3.4.3",
               session[ib][0] > 1.05 * session[ib][1],
               f"by messages they rise. One session: {told}: level, since transfers take next to no time: "
               "what made it dip there grows faster than the "
               "number of nodes"),
        judged("Distributed Allreduce is much worse than Parameter Server on InfiniBand too", "3.4",
               max(ring, gathered) < 0.5 * server,
               f"by messages, {found.most} nodes: a ring {ring:.0f} images/s, PSCPU "
               f"{gathered:.0f}, a server {server:.0f}. One "
               f"session {session[ib][1]:.1f}, server {found.terms[Key(SERVER, 'F+B', ib, n)]:.1f} on {n} "
               "nodes, so by its choice")]


def _caffe2(found: Rates) -> list[Claim]:
    """RQ1 of Caffe2; its term was fitted on the forward pass of two nodes on Ethernet."""
    def slower(rates: Mapping[Key, float], n: int) -> dict[str, float]:
        """Seconds of a batch on n nodes, in those of one."""
        return {link: rates[Key("caffe2", "F+B", link, 1)] / rates[Key("caffe2", "F+B", link, n)]
                for link in LINKS}

    two, far, bare = slower(found.terms, 2), slower(found.terms, CAFFE2_MOST), slower(found.messages, 2)
    times = "Ethernet {Ethernet:.1f}, InfiniBand {InfiniBand:.1f}"
    each = {n: [found.terms[Key(s, "F+B", "Ethernet", n)] for s in ("caffe2", SERVER)]
            for n in (1, 2, 16, CAFFE2_MOST)}
    late = [32 / found.terms[Key("caffe2", p, "Ethernet", CAFFE2_MOST)] for p in PASSES]
    return [
        judged("Caffe2 takes 19 times as long on two nodes as on one", "3.4",
               all(abs(x / 19 - 1) < 0.25 for x in two.values()),
               f"with training {times.format(**two)} times, f being fitted on the forward pass; by its "
               f"messages {times.format(**bare)}. On {CAFFE2_MOST} nodes "
               f"the term says too much: {late[1]:.1f} s a batch (quoted 2.15), forward {late[0]:.2f} "
               "(quoted 0.09 and 0.13)", shape=True),
        judged("the network makes no difference to Caffe2", "3.4",
               all(x["Ethernet"] < 1.1 * x["InfiniBand"] for x in (two, far)),
               f"{times.format(**two)} times one node's time on 2 nodes, {times.format(**far)} on "
               f"{CAFFE2_MOST}: transfers are a trifle of it; "
               f"by its messages {times.format(**bare)} on 2", shape=True),
        judged("Caffe2 is best on one node and poor on several", "3.5, RQ1",
               each[1][0] > each[1][1] and all(a < b for n, (a, b) in each.items() if n > 1),
               "training on Ethernet, beside a server: "
               + ", ".join(f"{n}: {a:.1f} and {b:.1f}" for n, (a, b) in each.items())
               + " images/s; its images had 32 x 32 pixels, the others' 224 x 224, which makes it best on "
                 "one", shape=True)]


def chapter4(lab: Lab) -> Part:
    """Chapter 4: the colocated parameter server by batch and nodes."""
    batches = (8, 32, 64, 128, 256) if lab.quick else (8, 16, 32, 64, 128, 256)
    nodes = (1, 8, 16, 32, 40) if lab.quick else (1, 2, 4, 8, 16, 24, 32, 40)
    keys = [Key(SERVER, p, link, n, b) for p in PASSES for link in LINKS for n in nodes for b in batches]
    saved = [Key(SERVER, "F+B", "InfiniBand", n, 256) for n in (8, 16, 24, 32)]
    training = [key for key in keys if key[1:3] == ("F+B", "Ethernet")]
    found = _measured(lab, [*keys, *SECONDS4, *IMAGES4, *saved], [*SECONDS4, *IMAGES4, *saved, *training])
    figures = [f for f in published.figures() if f.source == published.GRAUR]
    lines = [Line(f"{f.what} ({f.model})", f.quoted, f.predicted, unit=f.unit, implementation=f.implemented)
             for f in figures]
    lines += [_seconds(key, SECONDS4, found, _unnamed(key))
              for key in sorted(found.messages, key=lambda k: (k.pass_, k.link, k.nodes, k.batch))
              if key.batch in (8, 256) or key in SECONDS4]
    lines += [Line(_unnamed(key), quoted, None, found.messages[key], unit="images/s",
                   implementation=found.terms[key]) for key, quoted in IMAGES4.items()]
    step = [{key.nodes: 256 / rates[key] for key in saved} for rates in (found.messages, found.terms)]
    lines += [Line(f"F+B, InfiniBand, batch 256, {a} to {b} nodes: saved", quoted, None,
                   step[0][a] - step[0][b], unit="s/batch",
                   implementation=step[1][a] - step[1][b]) for (a, b), quoted in SAVED4.items()]
    lines.append(_met(found, SECONDS4, IMAGES4))
    claims = [_chapter4_follows(found), *_by_batch(found.messages, batches, nodes),
              *_by_nodes(found, batches, nodes)]
    panels = [Panel(f"{'forward' if p == 'F' else 'training'}, {link}", "batch", "images/s", log="x", curves={
        f"{n} nodes": [(b, found.messages[Key(SERVER, p, link, n, b)]) for b in batches] for n in nodes})
        for p in PASSES for link in LINKS]
    return Part("chapter4", "Parameter Server by batch and nodes (RQ2)", "chapter 4", lines, claims, panels,
                note=(
        "Formulas are calibrated on one node's figures alone; links full or half duplex or with a barrier, "
        "as each line says; "
        "simulated links are full duplex. Drawn is what the messages give. Why formulas miss a figure by "
        "more than a quarter:\n\n" + _reasons(figures)))


def _reasons(figures: Sequence[published.Figure]) -> str:
    """Why formulas miss figures, as a list: each reason once."""
    missed: dict[str, list[str]] = {}
    for f in figures:
        if abs(f.error) > 0.25 and f.what not in missed.setdefault(f.reason, []):
            missed[f.reason].append(f.what)
    return "\n".join(f"* {'; '.join(whats)}: {reason}" for reason, whats in missed.items())


def _chapter4_follows(found: Rates) -> Claim:
    """How many figures of chapter 4 are met; the part's note says why some are not."""
    other = {n: published.implemented("F+B", "Ethernet", 256, n, slow)
             for n, slow in ((8, published.SLOW), (16, published.SLOW), (32, 1.0))}
    return _follow("figures of several nodes follow from those of one, within 25 %", "chapter 4", found,
                   (SECONDS4, IMAGES4), _listed, (
        "Were the slow machine in the runs of 8 and 16 nodes on Ethernet and not in that of 32, these would "
        f"have {other[8]:.1f} s a batch, "
        f"{256 / other[16]:.1f} and {256 / other[32]:.0f} images/s (quoted 9.7, 50.7, 111.5): which machines "
        "a run had is not stated"))


def _by_batch(images: Mapping[Key, float], batches: Sequence[int], nodes: Sequence[int]) -> list[Claim]:
    """RQ2: the time of a batch, and images per second by the batch; by messages."""
    eight = [[images[Key(SERVER, "F+B", link, 8, b)] for b in batches] for link in LINKS]
    affine = _affine([(b, b / images[Key(SERVER, "F+B", "InfiniBand", 8, b)]) for b in (8, 128, 256)])
    gain = {link: images[Key(SERVER, "F", link, 40, 256)] / images[Key(SERVER, "F", link, 40, 32)]
            for link in LINKS}
    one, many = (images[Key(SERVER, "F+B", "InfiniBand", n, 256)] for n in (1, nodes[-1]))
    doubling = {
        n: images[Key(SERVER, "F", "InfiniBand", n, 256)] / images[Key(SERVER, "F", "InfiniBand", n, 64)]
        for n in (4, 16)}
    return [
        judged("the time of a batch is linear in the batch", "4.5, RQ2", affine < 0.01,
               f"InfiniBand, 8 nodes: {affine:.1%} off a line, one node's times being linear; the thesis' "
               "own at batch 128 is not (40.5 s, the line has "
               f"{published.alone('F+B', 128):.1f})", shape=True),
        judged("and falls with the number of nodes", "4.5, RQ2", many > 0.7 * nodes[-1] * one,
               f"InfiniBand, batch 256: {many:.0f} images/s on {nodes[-1]} nodes, {one:.1f} on one",
               shape=True),
        judged("images per second grow with the batch, less and less", "4.5, RQ2",
               all(_concave(batches, found) for found in eight),
               "; ".join(", ".join(f"{b}: {r:.1f}" for b, r in zip(batches, found))
                         for found in eight) + " on 8 nodes (Ethernet; InfiniBand)", shape=True),
        judged("they saturate at smaller batches on InfiniBand than on Ethernet", "4.5, RQ2",
               gain["InfiniBand"] < gain["Ethernet"],
               ", ".join(f"{link} {x:.2f} times"
                         for link, x in gain.items()) + " from batch 32 to 256, forward, 40 nodes",
                         shape=True),
        judged("from batch 64 to 256 forward passes on InfiniBand gain 1.85 to 1.96 times", "4.4",
               all(abs(x / q - 1) < 0.25 for x, q in zip(
            doubling.values(), (158 / 85, 610.5 / 310.5))),
            ", ".join(f"{n} nodes {x:.2f}" for n, x in doubling.items()))]


def _by_nodes(found: Rates, batches: Sequence[int], nodes: Sequence[int]) -> list[Claim]:
    """RQ2: images per second by the number of nodes, and its best."""
    images, added, largest = found.messages, found.terms, nodes[-1]
    forward = {n: images[Key(SERVER, "F", "Ethernet", n, 256)] for n in (1, 16, 32, 40)}
    trained = {n: (images[key], added[key], IMAGES4[key]) for n in (32, 40)
               for key in [Key(SERVER, "F+B", "Ethernet", n, 256)]}
    best = {(p, link, b): max(nodes, key=lambda n: images[Key(SERVER, p, link, n, b)]) for p in PASSES
            for link in LINKS for b in batches}
    trains = {b: {n: added[Key(SERVER, "F+B", "Ethernet", n, b)] for n in nodes} for b in batches}
    small = {b: (r[16] / max(r.values()), r[40] / r[32]) for b, r in trains.items() if b <= 64}
    bare = images[Key(SERVER, "F+B", "Ethernet", 16, 64)] / max(images[Key(SERVER, "F+B", "Ethernet", n, 64)]
                                                                for n in nodes)
    quick, slow = (256 / published.implemented("F+B", "Ethernet", 256, n, s)
                   for n, s in ((32, 1.0), (40, published.SLOW)))
    told = "; ".join(f"{n} nodes {a:.0f} by messages, {b:.0f} with the terms (quoted {q:g})"
                     for n, (a, b, q) in trained.items())
    return [
        judged("on Ethernet more nodes stop helping", "4.5, RQ2", forward[40] < 1.1 * forward[32],
               f"forward, batch 256: {forward[32]:.0f} images/s on 32 nodes, {forward[40]:.0f} on 40",
               shape=True),
        judged("and 40 nodes are slower than 32 with training", "4.5, RQ2", trained[40][1] < trained[32][1],
               f"{told} images/s. 40 nodes are as fast as the slow machine lets them be, a term fitted "
               "elsewhere; 32 were as fast as without it. In the one "
               f"run and not in the other it gives the order, {quick:.0f} and {slow:.0f}; but that it was so "
               "only the order says. Congestion fitted on "
               f"40 nodes gives 32 no more than {graur_terms.congested(32, 256):.0f}"),
        judged("the most nodes are best on InfiniBand", "4.5, RQ2",
               all(n == largest for (_, link, _), n in best.items() if link == "InfiniBand"),
               f"{largest} nodes have the most images/s for every batch", shape=True),
        judged("the best number of nodes on Ethernet for forward passes is 16, more yield little",
               "4.4.1, RQ2",
               forward[40] / forward[16] < 1.25 < forward[16] / forward[1],
               f"batch 256: {forward[1]:.0f}, {forward[16]:.0f}, {forward[40]:.0f} images/s on 1, 16, 40 "
               "nodes: the last 24 add "
               f"{forward[40] / forward[16] - 1:.0%} (quoted {247 / 207 - 1:.0%})", shape=True),
        judged("the best number of nodes on Ethernet with training is 32", "4.4.1, RQ2",
               max(trains[256], key=lambda n: trains[256][n]) == 32,
               f"batch 256: {best['F+B', 'Ethernet', 256]} by messages, "
               f"{max(trains[256], key=lambda n: trains[256][n])} with the terms, as above"),
        judged("up to batches of 64 training on Ethernet gains next to nothing beyond 16 nodes", "4.4.2",
               all(a > 0.9 and 0.9 < b < 1.1 for a, b in small.values()),
               "; ".join(f"batch {b}: 16 nodes have {a:.0%} of the best, 40 nodes {c:.0%} of 32"
                         for b, (a, c) in small.items())
               + f", one direction at a time; by messages 16 nodes have {bare:.0%} of the best at batch 64",
               shape=True)]


def _affine(points: Sequence[tuple[float, float]]) -> float:
    """How far the middle of three points lies off the line through the others, relative to it."""
    (a, ya), (b, yb), (c, yc) = points
    return abs(yb / (ya + (b - a) / (c - a) * (yc - ya)) - 1)


def _concave(x: Sequence[float], y: Sequence[float]) -> bool:
    """Whether y rises with x, and by less and less per unit of x."""
    gains = [(d - c) / (b - a) for a, b, c, d in zip(x, x[1:], y, y[1:])]
    return gains[-1] > 0 and gains == sorted(gains, reverse=True)


def chapter5(lab: Lab) -> Part:
    """Chapter 5: network traffic of each node, memory, batch 128."""
    nodes = (4, 8, 16)
    strategies = (SERVER, "distributed-replicated", "distributed-allreduce-pscpu", "collective-allreduce")
    exchanging = (*strategies, "distributed-allreduce-ringx1")
    seen = runs(lab,
                [Key(s, "F+B", link, n, 128) for s in exchanging for link in LINKS for n in nodes if n == 16
                 or s in strategies])

    def sent(strategy: str, n: int, link: str = "Ethernet") -> dict[str, float]:
        """Bytes out of each node in a step."""
        key = Key(strategy, "F+B", link, n, 128)
        return {node: b / steps(key) for node, b in seen[key].measured["bytes_sent_by_node"].items()}

    busiest = {s: {n: max(sent(s, n).values()) for n in nodes} for s in strategies}
    worker = {(s, link): {n: [b for node, b in sent(s, n, link).items() if not node.startswith("server")][-1]
                          for n in nodes}
              for s in strategies for link in LINKS}
    lines = [Line(f"{s}, {n} nodes: bytes out of the busiest node in a step", None, None, b / 1e6, unit="MB")
             for s in strategies for n, b in busiest[s].items()]
    lines += [Line(f"{s}, {link}, {n} nodes: bytes out of the last worker in a step", None, None, b / 1e6,
                   unit="MB")
              for s in (SERVER, "collective-allreduce") for link in LINKS for n, b in worker[s, link].items()]
    ring, server, gathers = (busiest[s] for s in ("collective-allreduce", SERVER, "distributed-allreduce-pscpu"))
    looked = {link: seen[Key(SERVER, "F+B", link, 16, 128)].looked for link in LINKS}
    at16 = {(s, link): rate(key, seen[key]) for s in exchanging for link in LINKS
            for key in [Key(s, "F+B", link, 16, 128)]}
    faster = {s: at16[s, "InfiniBand"] / at16[s, "Ethernet"] for s in exchanging}
    mean = {n: server[n] * STEPS / float(seen[Key(SERVER, "F+B", "Ethernet", n, 128)].measured["seconds"])
            for n in nodes}
    highest = {link: max(rates["server"]) for link, rates in looked.items()}
    slack = _slack(lab)
    claims = [
        judged("a ring's traffic per node does not depend on the number of nodes", "5.4, RQ3",
               max(ring.values()) / min(ring.values()) < 1.3,
               ", ".join(f"{n}: {b / 1e6:.0f} MB" for n, b in ring.items()) + " a step: 2 (n-1)/n M",
               shape=True),
        judged("a parameter server's grows linearly with it, its workers' stays", "5.4, RQ3",
               server[16] / server[4] > 0.9 * 16 / 4 and len(set(worker[SERVER, "Ethernet"].values())) == 1,
               ", ".join(f"{n}: {b / 1e6:.0f} MB" for n, b in server.items()), shape=True),
        judged("and so does that of PSCPU's controller", "5.4.2, RQ3",
               gathers[16] / gathers[4] > 0.9 * 16 / 4,
               ", ".join(f"{n}: {b / 1e6:.0f} MB" for n, b in gathers.items()) + " a step: (n-1) M",
               shape=True),
        judged("InfiniBand raises a parameter server's traffic", "5.4, RQ3",
               highest["Ethernet"] < highest["InfiniBand"],
               f"16 nodes: at most {highest['Ethernet'] / 1e6:.0f} MB/s in a tenth of the run on Ethernet, "
               f"{highest['InfiniBand'] / 1e6:.0f} on InfiniBand: as "
               "many bytes in less time", shape=True),
        judged("on Ethernet a parameter server's traffic levels off at the link's rate", "5.4, RQ3",
               highest["Ethernet"] > 0.9 * published.LINKS["Ethernet"],
               "out of the server "
               + ", ".join(f"{n} nodes: {b / 1e6:.0f}"
                           for n, b in mean.items()) + f" MB/s on average, at most "
               f"{highest['Ethernet'] / 1e6:.0f} in a tenth of the run of 16, of 125: with batches of 128 "
               "computing takes "
               f"{published.alone('F+B', 128):.0f} s of a step, in which the link is idle; while it sends, "
               "its rate is the link's by assumption"),
        judged("all but Caffe2 and Collective Allreduce benefit from InfiniBand", "5.4.1",
               all((faster[s] > 1.3) == (s != "collective-allreduce") for s in exchanging),
               ", ".join(f"{s} {x:.2f}"
                         for s, x in faster.items()) + " times the images/s on 16 nodes: by messages "
               "Distributed Allreduce by PSCPU gains as much as a server, and by one ring as little as "
               "Collective Allreduce"),
        *_memory(lines),
        *_fullest(),
        untestable("Caffe2's processors are saturated", "5.4, RQ3",
                   "by what besides computing, the thesis does not say; it is what its term assumes"),
        judged("a slack of 0 is synchronous, no bound is asynchronous", "2",
               slack[0] == slack["bsp"] and slack[10**6] == slack["asp"],
               f"seconds of SSP with slack 0 and of BSP {slack[0]:.4g} and {slack['bsp']:.4g}; "
               f"without bound and of ASP {slack[10**6]:.4g} and {slack['asp']:.4g}")]
    over_time = {f"{link}, {role}": [(i / 10, v / 1e6) for i, v in enumerate(rates[role])]
                 for link, rates in looked.items() for role in ("server", "worker")}
    panels = [Panel("out of the busiest node", "nodes", "MB a step",
                    {s: [(n, b / 1e6) for n, b in busiest[s].items()] for s in strategies}),
              Panel("parameter server, 16 nodes", "share of the run", "MB/s", over_time)]
    return Part("chapter5", "Resources (RQ3)", "chapter 5", lines, claims, panels,
                note="15 batches of 128 in virtual time, one of Collective Allreduce, since all take equally long.")


def _memory(lines: list[Line]) -> list[Claim]:
    """RQ3 of memory, by formulas; adds its lines."""
    nodes = (4, 8, 16)
    ordered, summed = ({n: float(memory.server(PARAMETERS, workers=n, collects=collects).value)
                        for n in nodes} for collects in (True, False))
    per_worker = float(memory.worker(PARAMETERS, 0.0, 128).value)
    outputs = [float(row.activation_bytes)
               for row in nets.build("resnet50", (224, 224, 3), classes=1000).leaves]
    trains = float(memory.worker(PARAMETERS, sum(outputs), 128).value)
    passes = float(memory.worker(PARAMETERS, 0.0, 128, forward_only=True,
                                 buffers=2 * 128 * max(outputs)).value)
    lines += [Line(f"{SERVER}, {n} nodes: memory of the server's parameters and gradients", None,
                   ordered[n] / 1e6, unit="MB", implementation=summed[n] / 1e6)
              for n in nodes]
    lines += [Line(f"{SERVER}: memory of a worker, F+B, batch 128", 10, trains / 1e9, unit="GB"),
              Line(f"{SERVER}: memory of a worker, F, batch 128", None, passes / 1e9, unit="GB")]
    return [
        judged("memory does not depend on the number of nodes", "5.4, RQ3", ordered[16] < 1.1 * ordered[4],
               f"a worker's does not ({per_worker / 1e6:.0f} MB of parameters and gradients). Our server's "
               "does, which adds gradients in worker order, so that "
               "the order of arrival changes no bit: "
               + ", ".join(f"{n} nodes {b / 1e6:.0f} MB" for n, b in ordered.items())
               + ". To take them one by one in that order would not help: those that come early wait in the "
                 "mailbox of the same process. One sum, as "
               f"TensorFlow's accumulators have, would take {summed[4] / 1e6:.0f} MB for any number, but "
               "that term was chosen by this sentence"),
        judged("forward passes need much less memory than training", "5.4, RQ3", passes < 0.5 * trains,
               f"{passes / 1e9:.2f} and {trains / 1e9:.2f} GB of a worker, batch 128, by the memory model: "
               "parameters with the largest layer's input "
               "and output, and parameters, gradients and every layer's output. The latter is twice the 10 "
               "GB quoted for a parameter server: the model counts "
               "each output, also of layers that a framework computes in place", shape=True)]


def _fullest() -> list[Claim]:
    """RQ3 of memory on the fullest node, a worker with its server, by the memory model."""
    def of(strategy: str, nodes: int = 16, steps: int = 4) -> float:
        how = ARCHITECTURES[strategy]
        found = of_roles(prepare(how.algorithm, net=published.NET, data="none", workers=nodes, steps=steps,
                                 batch=32 if strategy == "caffe2" else 128, **how.options))
        return sum(each.value for each in found.values()) / 1e9

    few, many = of("distributed-replicated", 8), of("distributed-replicated", 16)
    soon, late = of("collective-allreduce", steps=4), of("collective-allreduce", steps=40)
    all_ = {s: of(s) for s in ("caffe2", SERVER, "distributed-allreduce-pscpu", "collective-allreduce")}
    return [
        judged("Distributed Replicated takes about 1 GB more when nodes double", "5.4, RQ3", 0.5 < many - few < 1.5,
               f"{many - few:.2f} GB more on 16 nodes than on 8: its server keeps a gradient of each worker", shape=True),
        judged("Collective Allreduce takes 750 MB more with each batch", "5.4, RQ3", late > soon + 0.1,
               f"{soon:.1f} GB after 4 batches and {late:.1f} after 40: nothing is kept from one to the next"),
        judged("memory: Caffe2 below 1 GB, parameter server 10 GB, Distributed Allreduce 11 GB, Collective Allreduce most",
               "5.4, RQ3", list(all_.values()) == sorted(all_.values()) and all_["caffe2"] < 1,
               ", ".join(f"{s} {each:.1f} GB" for s, each in all_.items())
               + ": activations of ResNet-50 outweigh all else, and a server's node has its gradients too")]


def _slack(lab: Lab) -> dict[str | int, float]:
    """Seconds of SSP with no slack and without a bound, beside BSP and ASP on the same drawn times."""
    what = {"data": "quadratic", "workers": 4, "steps": 20, "machine": Machine(compute="lognormal(1,0.3)"),
            "seed": lab.seed}  # type: ignore[arg-type]
    trials: dict[str | int, Trial] = {0: Trial("ssp", {**what, "staleness": 0}),
                                      10**6: Trial("ssp", {**what, "staleness": 10**6}),
              "bsp": Trial("bsp", what), "asp": Trial("asp", what)}
    return {key: float(seen.measured["seconds"])
            for key, seen in zip(trials, lab.runs(list(trials.values())))}


LEARN = f"""* In chapter 4, where one strategy is measured by batch and nodes, the figures of one node predict three quarters of those of several nodes. In
  chapter 3, with batches of 32, they predict few; forward passes and Caffe2 are missed above all.
* Bytes, and who sends them, explain the order of architectures where the thesis finds servers behind a ring, and not where it finds
  Distributed Allreduce behind a server.
* The rest are properties of frameworks and machines. Terms describe some of them, and each was chosen or fitted by a figure that it then cannot
  test: with half duplex the ceiling is 20 images/s; one session does not scale; crowded processors explain Caffe2 on two nodes and not on 24; one slow
  machine explains training on 40 nodes and not on 32.
* The thesis' 40 nodes were slower than its 32. This looks like the network, and need not be: on InfiniBand, too, a step of 40 nodes took
  {IN40 / ONE:.1f} times as long as a step of one, and its transfers are a few per cent of that."""

DOCUMENT = Document(__doc__.split("\n\n")[0], (terms, chapter3, chapter4, chapter5, series, extra, survey), LEARN)
