"""Measure this machine and write a file for --machine.

Measures gradients of some nets and batches, update time, latency and bandwidth of each transport, in under
30 s for the small nets; fits a device to the gradients and prints its error for each; writes a machine file
that every command accepts. Warns if other processes were busy.
"""

from __future__ import annotations

import argparse
import warnings

from refsgd.cli.outputs import deliver
from refsgd.experiment.options.problems import check_net
from refsgd.experiment.prepare import Usage


def options(p: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    p.add_argument("--net", default="tiny,shallow", metavar="A,B",
                   help="one net: the device for it alone; several: one that fits all (default %(default)s)")
    p.add_argument("--batches", default="1,2,8,32,128", metavar="B,...",
                   help="four batches or more (default %(default)s)")
    p.add_argument("--output", dest="written", default="machine.json", metavar="PATH",
                   help="default machine.json; -: standard output")


def do(args: argparse.Namespace) -> None:
    """Measure the machine, print it and write its file."""
    from refsgd.experiment.computer.calibrate import calibrate

    nets, batches = args.net.split(","), args.batches.split(",")
    for net in nets:
        check_net(net)
    if not all(b.isdecimal() and int(b) for b in batches) or len(set(batches)) < 4:
        raise Usage(f"batches {args.batches}; expected four numbers of images or more, such as 1,8,32,128")
    found = calibrate(nets, [int(b) for b in batches])
    if found.doubt:
        warnings.warn(found.doubt, stacklevel=2)
    deliver([(args.written, found.to_json)], lambda: print(found.summary()))
