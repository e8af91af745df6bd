"""What the thesis' frameworks and cluster added to the messages of an algorithm, in as few terms as its
figures ask for.

Each term has at most one number that is fitted, on one quoted figure, and is tested on others; the slow
machine has a second, the number of nodes beyond which a run has it, which was chosen by another figure.  A
term without a number was chosen by a figure too.  What a term was fitted on or chosen by tests nothing.

* *One direction at a time* (strategies with a server; no number): half duplex, a server's link carries pushes
  or answers. Chosen by the ceiling of 20 images/s.
* *A slow machine* (all): it computes 1.58 times as long as the others and is answered last, in runs of more
  than 16 nodes, see `benchmarks.published.SLOW`; fitted on one node's 40.5 s for a batch of 128.  The 16
  nodes (`benchmarks.published.WITHOUT_SLOW`) were chosen by the 0.04 s that 24 nodes saved on InfiniBand.
* *Crowded processors* (Caffe2): from two nodes on computing takes f times as long, since the exchange keeps
  all processors busy (section 5.4.4).  Fitted on the forward pass of two nodes, 10.2 s a batch: f = 2 * 10.2
  / 0.5.
* *One session* (Distributed Allreduce; no number): a controller drives one graph of all workers; assumed is
  the extreme, that their shares and their transfers go one after the other: n C + 2 (n - 1) M/B a step.
  Chosen by: never scales.
* *Congestion* of n pushes into one port, which drops packets whose senders then wait: goodput B / (1 + k (n -
  1)).  Fitted on 95.1 images/s of 40 nodes; it does not give their fall below 32, so no run has it.

References
----------
Graur 2019, sections 2.5.2, 3.4, 4.4 and 5.4.
Abadi et al., "TensorFlow: a system for large-scale machine learning", OSDI 2016, section 3.3: a client's
session and a graph that is spread over many tasks. Phanishayee et al., "Measurement and analysis of TCP
throughput collapse in cluster-based storage systems", FAST 2008.
"""

from __future__ import annotations

from benchmarks import published
from benchmarks.studies.architectures import ARCHITECTURES
from benchmarks.studies.graur_figures import CAFFE2, CHAPTER3, IMAGES4, SERVER, Key
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.theory.phenomena import iteration

CROWDED = 2 * CHAPTER3[Key("caffe2", "F", "Ethernet", 2)] / CAFFE2["F"]
#: figures on which a term was fitted, or by which it was chosen: they test nothing; by the last that Collective
#: Allreduce overlaps
FITTED = {Key("caffe2", "F", "Ethernet", 2), Key(SERVER, "F+B", "Ethernet", 1, 128),
          Key("collective-allreduce", "F+B", "Ethernet", 16)}


def _one(key: Key) -> float:
    """Seconds of a batch on one node."""
    return CAFFE2[key.pass_] if key.strategy == "caffe2" else published.alone(key.pass_, key.batch)


def by_messages(key: Key) -> Machine:
    """The cluster as algorithms see it: computing takes what it takes on one node, links are full duplex."""
    return Machine(compute=Distribution("fixed", (_one(key),)), latency=1e-4 if key.link == "Ethernet" else 5e-6,
                   bandwidth=published.LINKS[key.link],
                   colocated=ARCHITECTURES[key.strategy].colocated)


def implemented(key: Key) -> Machine:
    """The same with the terms of the strategy; a run of Distributed Allreduce is `one_session`'s instead."""
    machine, slow = by_messages(key), published.slowest(key.nodes)
    if slow > 1:  # the last worker; a server of its own takes one of the nodes
        workers = key.nodes - (key.strategy == "parameter-server")
        machine = machine.with_(speeds=(1.0,) * (workers - 1) + (1 / slow,))
    if key.strategy == "caffe2" and key.nodes > 1:
        return machine.with_(compute=Distribution("fixed", (CROWDED * _one(key),)))
    return machine.with_(duplex="half") if ARCHITECTURES[key.strategy].algorithm == "bsp" else machine


def one_session(link: str, nodes: int, batch: int = 32) -> float:
    """Images per second of training by Distributed Allreduce when one session runs the workers' shares one
    after the other.

    A ring sends 2 (n-1)/n M from each of n nodes; one reducer is sent M by n - 1 and answers them: 2 (n-1) M
    either way.
    """
    step = nodes * published.alone("F+B",
                                   batch) + 2 * (nodes - 1) * published.RESNET50 / published.LINKS[link]
    return nodes * batch / step


def congested(nodes: int, batch: int, k: float | None = None) -> float:
    """Images per second of training through one server on Ethernet whose incoming link delivers B / (1 +
    k (n - 1))."""
    w = published.RESNET50 / published.LINKS["Ethernet"]

    def step(n: int, b: int) -> float:
        return iteration.bsp([Distribution("fixed", (published.alone("F+B", b),))] * n, transfer=w,
                             colocated=True).value

    if k is None:
        k = (40 * 256 / IMAGES4[Key(SERVER, "F+B", "Ethernet", 40, 256)] - step(40, 256)) / (39**2 * w)
    return nodes * batch / (step(nodes, batch) + k * (nodes - 1) ** 2 * w)
