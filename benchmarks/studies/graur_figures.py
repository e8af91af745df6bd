"""What Graur's thesis quotes: seconds of a batch and images per second by strategy, pass, link, batch and
nodes.

"Seconds of a batch" are seconds of a step divided by the number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

PASSES = ("F", "F+B")  #: forward only; forward and backward, which is training
SERVER = "parameter-server-collocated"
CAFFE2 = {"F": 0.5, "F+B": 2.0}  #: quoted seconds of a batch of 32 small images on one node


class Key(NamedTuple):
    """One experiment: a name of `benchmarks.studies.architectures`, "F" or "F+B", a name of the network,
    nodes, images of a batch."""

    strategy: str
    pass_: str
    link: str
    nodes: int
    batch: int = 32

    def __str__(self) -> str:
        batch = f"batch {self.batch}, " if self.batch != 32 else ""
        return f"{self.strategy}, {self.pass_}, {self.link}, {batch}{self.nodes} nodes"


#: chapter 3: seconds of a batch of 32
CHAPTER3 = {Key(*key): seconds for key, seconds in {
    ("caffe2", "F", "Ethernet", 1): 0.5, ("caffe2", "F", "Ethernet", 2): 10.2,
    ("caffe2", "F", "Ethernet", 24): 0.09,
    ("caffe2", "F", "InfiniBand", 24): 0.13, ("caffe2", "F+B", "Ethernet", 1): 2.0,
    ("caffe2", "F+B", "Ethernet", 2): 38.0,
    ("caffe2", "F+B", "Ethernet", 24): 2.15, ("caffe2", "F+B", "InfiniBand", 24): 2.15,
    ("collective-allreduce", "F", "Ethernet", 16): 0.1, ("collective-allreduce", "F+B", "Ethernet", 16): 0.55,
    ("collective-allreduce", "F+B", "Ethernet", 24): round(32 / 61, 3),
    ("distributed-replicated", "F", "Ethernet", 16): 0.1,
    ("distributed-replicated", "F+B", "Ethernet", 1): 8.8,
    ("distributed-replicated", "F+B", "Ethernet", 16): 1.5,
    (SERVER, "F", "Ethernet", 8): 1.0, (SERVER, "F", "Ethernet", 24): 1.0,
    ("parameter-server", "F", "Ethernet", 24): 1.0,
    (SERVER, "F+B", "Ethernet", 1): 8.8, (SERVER, "F+B", "Ethernet", 16): 1.5,
    (SERVER, "F", "InfiniBand", 16): 0.1,
    ("distributed-replicated", "F", "InfiniBand", 16): 0.1,
    ("collective-allreduce", "F", "InfiniBand", 16): 0.1,
    ("distributed-allreduce-pscpu", "F", "InfiniBand", 16): 0.1,
    ("distributed-replicated", "F+B", "InfiniBand", 24): 0.5,
    ("collective-allreduce", "F+B", "InfiniBand", 24): 0.5, (SERVER, "F+B", "InfiniBand", 24): 0.52}.items()}

#: chapter 4, colocated parameter server: seconds of a batch by nodes, for pass, link and batch
_SECONDS4 = {
    ("F", "Ethernet", 8): {1: 1.87, 2: 1.34, 8: 0.9},
    ("F", "Ethernet", 128): {1: 4.2, 2: 2.1, 8: 1.2, 16: 1.06},
    ("F", "Ethernet", 256): {1: 6.46, 2: 3.6, 8: 1.6, 16: 1.2, 40: 1.0},
    ("F+B", "Ethernet", 8): {1: 4.35, 2: 2.56},
    ("F+B", "Ethernet", 128): {1: 40.5, 2: 13.0}, ("F+B", "Ethernet", 256): {8: 9.7, 16: 5.0, 32: 2.3},
    ("F", "InfiniBand", 8): {1: 1.88, 2: 0.96, 16: 0.14},
    ("F", "InfiniBand", 256): {1: 6.48, 16: 0.42, 40: 0.22},
    ("F+B", "InfiniBand", 8): {1: 4.2, 4: 1.1, 40: 0.14},
    ("F+B", "InfiniBand", 256): {1: 56.0, 4: 11.7, 40: 1.93}}
#: the same: images per second
_IMAGES4 = {
    ("F", "Ethernet", 256): {16: 207.0, 40: 247.0},
    ("F+B", "Ethernet", 256): {1: 5.3, 16: 50.7, 32: 111.5, 40: 95.1},
    ("F", "InfiniBand", 64): {4: 85.0, 16: 310.5},
    ("F", "InfiniBand", 256): {4: 158.0, 16: 610.5, 32: 963.45, 40: 1128.4},
    ("F", "InfiniBand", 128): {32: 800.1, 40: 814.7}, ("F+B", "InfiniBand", 64): {4: 17.1, 40: 116.0},
    ("F+B", "InfiniBand", 128): {4: 19.6, 40: 124.7}, ("F+B", "InfiniBand", 256): {4: 21.8, 40: 132.0}}


def _keyed(table: dict[tuple[str, str, int], dict[int, float]]) -> Iterator[tuple[Key, float]]:
    for (pass_, link, batch), row in table.items():
        for nodes, value in row.items():
            yield Key(SERVER, pass_, link, nodes, batch), value


SECONDS4, IMAGES4 = dict(_keyed(_SECONDS4)), dict(_keyed(_IMAGES4))
#: chapter 4, training on InfiniBand with batches of 256: seconds of a batch that more nodes saved
SAVED4 = {(8, 16): 2.9, (16, 24): 0.04, (24, 32): 0.68}
