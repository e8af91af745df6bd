"""The update architectures that Graur's thesis measured: the library's presets, one of
them with whole models where the library's sends layers, one that it names beside them, and
which of them move the model in a pass without training.  Source: Graur, MSc thesis, TU Delft, 2019, chapter 2 and
section 3.2.
"""

from __future__ import annotations

from refsgd.experiment.options import architectures
from refsgd.experiment.options.architectures import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    **architectures.ARCHITECTURES,
    "distributed-replicated": Architecture("bsp", {"servers": 1}, "a copy on every worker beside the server's: "
                                           "forward passes need no network, training moves as much", True),
    "independent": Architecture("independent", {}, "nobody talks to anybody: a yardstick of speed")}
#: every worker pulls the model before a forward pass; in the others nothing moves
PULLS = ("parameter-server", "parameter-server-collocated", "parameter-server-extra-worker")
