"""Machines by name, and machines read from files."""

from __future__ import annotations

import difflib
from typing import Any, NamedTuple

from refsgd.cluster import files
from refsgd.cluster.machine import Machine


class Preset(NamedTuple):
    """A named machine, the source of its numbers, and the net and batch that its gradients were timed for."""

    machine: Machine
    says: str
    timed: tuple[str, int] | None = None


def _machine(*texts: Any, **more: Any) -> Machine:
    return Machine(*texts, **more)


GRAUR = "Graur 2019: DAS-5, {}; ResNet-50, batch 32, 8.8 s a step on one node; latency assumed {}"
KO = "Ko et al. 2021: 24 Titan V, {}; latency assumed {}; no compute time is given: add --compute"
JIA = ("Jia et al. 2020: virtual machines of one host, servers beside workers whose gradients use all their "
       "processors; 10 ms is the first point of their latency sweep, the bandwidth is assumed; "
       "no compute time is given: add --compute")

#: the clusters of the studies that this library redoes, and a laptop; `--machine NAME`
PRESETS = {
    "das5-ethernet": Preset(_machine("8.8s", "0.1ms", "1Gbps"), GRAUR.format("1 Gbps Ethernet", "0.1 ms"),
                            ("resnet50", 32)),
    "das5-infiniband": Preset(_machine("8.8s", "5us", "56Gbps"),
                              GRAUR.format("FDR InfiniBand 56 Gbps", "5 us"), ("resnet50", 32)),
    "ipdps21-10g": Preset(_machine(None, "50us", "10Gbps"), KO.format("10 Gbps Ethernet", "50 us")),
    "ipdps21-56g": Preset(_machine(None, "5us", "56Gbps"), KO.format("56 Gbps InfiniBand", "5 us")),
    "ipccc20-vm": Preset(_machine(None, "10ms", "10Gbps", colocated=True, cores=1), JIA),
    "laptop": Preset(_machine("lognormal(0.02,0.3)", "50us", "1GB/s"),
                     "processes of one computer: some jitter, 50 us and 1 GB/s between them"),
}


def load_machine(name: str) -> Machine:
    """A preset, or the machine of a TOML or JSON file (a machine, or what ``refsgd calibrate`` wrote)."""
    return load_timed(name)[0]


def load_timed(name: str) -> tuple[Machine, tuple[str, int] | None]:
    """A machine, with the net and the batch whose gradient its compute times are, where that is known."""
    if name in PRESETS:
        return PRESETS[name].machine, PRESETS[name].timed
    try:
        return files.read(name)
    except FileNotFoundError:
        near = difflib.get_close_matches(name, PRESETS, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"machine {name!r} is neither a file nor a preset; expected a file or one of "
                         f"{', '.join(PRESETS)}{meant}") from None
    except OSError as error:
        raise ValueError(f"machine file {name}: {error.strerror}; expected a file in TOML or JSON") from None
