"""Machines by name, and machines read from files."""

from __future__ import annotations

import difflib
from typing import Any, NamedTuple

from refsgd.cluster import files
from refsgd.cluster.machine import Machine


class Preset(NamedTuple):
    """A named machine, the source of its figures, and the net and batch of its compute times."""

    machine: Machine
    says: str
    timed: tuple[str, int] | None = None


_machine: Any = Machine  # which also reads text
UNTIMED = "no compute time is given: add --compute"
GRAUR = "Graur 2019: DAS-5, {}; ResNet-50, batch 32, 8.8 s a step on one node; latency assumed {}"
KO = f"Ko et al. 2021: 24 Titan V, {{}}; latency assumed {{}}; {UNTIMED}"
KO_HOSTS = ("Ko et al. 2021: {} machines, assumed four of the 24 Titan V in each, on PCIe 3.0 "
            f"x16 (16 GB/s, latency assumed 10 us); {{}}, latency assumed {{}}; {UNTIMED}")
JIA = ("Jia et al. 2020: virtual machines on one host, each with a server and workers whose gradients use "
       "all its processors; 10 ms is the first point of their latency sweep, bandwidth assumed; " + UNTIMED)
PCIE, NVLINK3, NVLINK4 = "10us,16GB/s", "5us,300GB/s", "5us,450GB/s"

#: the clusters of the studies that this library reproduces, and typical current ones; `--machine NAME`
PRESETS = {
    "das5-ethernet": Preset(_machine("8.8s", "0.1ms", "1Gbps"), GRAUR.format("1 Gbps Ethernet", "0.1 ms"),
                            ("resnet50", 32)),
    "das5-infiniband": Preset(_machine("8.8s", "5us", "56Gbps"),
                              GRAUR.format("FDR InfiniBand 56 Gbps", "5 us"), ("resnet50", 32)),
    "das5-32": Preset(_machine("8.8s", "0.1ms", "1Gbps", hosts="cyclic:32"),
                      GRAUR.format("32 hosts, servers on the workers' hosts, 1 Gbps Ethernet", "0.1 ms"),
                      ("resnet50", 32)),
    "das5-32-infiniband": Preset(
        _machine("8.8s", "5us", "56Gbps", hosts="cyclic:32"),
        GRAUR.format("32 hosts, servers on the workers' hosts, FDR InfiniBand 56 Gbps", "5 us"),
        ("resnet50", 32)),
    "das5-sites": Preset(
        _machine("8.8s", "0.1ms", "1Gbps", hosts="cyclic:198", groups="6x33", uplink="1ms,100Gbps"),
        GRAUR.format("198 hosts in six sites, assumed equal, on 1 Gbps Ethernet, a wide area network of "
                     "100 Gbps between sites", "0.1 ms, between sites 1 ms"), ("resnet50", 32)),
    "ipdps21-10g": Preset(_machine(None, "50us", "10Gbps"), KO.format("10 Gbps Ethernet", "50 us")),
    "ipdps21-56g": Preset(_machine(None, "5us", "56Gbps"), KO.format("56 Gbps InfiniBand", "5 us")),
    **{f"ipdps21-{n}x4-{rate}g": Preset(
        _machine(None, latency, f"{rate}Gbps", hosts=f"{n}x4", inside=PCIE, colocated=True),
        KO_HOSTS.format(n, f"{rate} Gbps {network}", latency))
        for n in (4, 6) for rate, latency, network in ((10, "50us", "Ethernet"), (56, "5us", "InfiniBand"))},
    "ipccc20-vm": Preset(_machine(None, "10ms", "10Gbps", colocated=True, cores=1), JIA),
    "ipccc20-4vm": Preset(
        _machine(None, "10ms", "10Gbps", hosts="cyclic:4", cores=1),
        f"{JIA}; workers and servers assigned in turn to four machines (Fig. 6), two workers and a server on "
        "each with --workers 8 --servers 4"),
    "wan-6x4": Preset(
        _machine(None, "0.1ms", "1Gbps", hosts="cyclic:24", groups="6x4", uplink="50ms,67Mbps"),
        "six sites of four hosts: between sites a fifteenth of the bandwidth within, the mean that Hsieh et "
        f"al. 2017 (Gaia) measured between data centres; 1 Gbps within and all latencies assumed; {UNTIMED}"),
    "racks-2x8": Preset(
        _machine(None, "10us", "10Gbps", hosts="cyclic:16", groups="2x8", uplink="5us,20Gbps"),
        "two racks of eight hosts on 10 Gbps, uplinks oversubscribed four to one (80 Gbps of hosts on 20); "
        f"all figures assumed; {UNTIMED}"),
    "dgx-8": Preset(
        _machine(None, "10us", "400Gbps", hosts="1x8", inside=NVLINK4, colocated=True),
        "one host with eight devices on fourth-generation NVLink through a switch, 450 GB/s each way "
        f"(NVIDIA: 900 GB/s both ways); latencies and a 400 Gbps link to other hosts assumed; {UNTIMED}"),
    "hosts-4x8": Preset(
        _machine(None, "10us", "100Gbps", hosts="4x8", inside=NVLINK3, colocated=True),
        "four hosts with eight devices each on third-generation NVLink, 300 GB/s each way (NVIDIA: 600 GB/s "
        f"both ways), one 100 Gbps link a host; latencies assumed; {UNTIMED}"),
    "ethernet-16": Preset(
        _machine(None, "50us", "10Gbps", hosts="cyclic:16"),
        f"16 nodes on 10 Gbps Ethernet, servers on the workers' hosts; latency assumed; {UNTIMED}"),
    "sites-2x8": Preset(
        _machine(None, "20us", "25Gbps", hosts="cyclic:16", groups="2x8", uplink="10ms,1Gbps"),
        "two sites of eight hosts on 25 Gbps, 1 Gbps and 10 ms (about 2,000 km of fibre) between them; all "
        f"figures assumed; {UNTIMED}"),
    "laptop": Preset(_machine("lognormal(0.02,0.3)", "50us", "1GB/s"),
                     "processes of one computer: some jitter, 50 us and 1 GB/s between them"),
}


def load_machine(name: str) -> Machine:
    """A preset, or the machine of a TOML or JSON file (a machine, or what ``refsgd calibrate`` wrote)."""
    return load_timed(name)[0]


def load_timed(name: str) -> tuple[Machine, tuple[str, int] | None]:
    """A machine, with the net and batch of its compute times if known."""
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
