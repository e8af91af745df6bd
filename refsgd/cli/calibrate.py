"""``refsgd calibrate``: measure this machine and write a machine file."""

from __future__ import annotations

import argparse
import warnings
from typing import Any

from refsgd.cli.outputs import check_output, write
from refsgd.experiment.prepare import Usage, check_net


def add(commands: Any) -> None:
    """Add the command and its options."""
    p = commands.add_parser("calibrate", help="measure this machine and write a file for --machine",
                            description="Measures gradients of some nets and batches, update time, latency "
                            "and bandwidth of each transport, in under 30 s for the small nets; fits a "
                            "device to the gradients and prints its error for each; writes a machine file "
                            "that every command accepts. Warns if other processes were busy.")
    p.add_argument("--net", default="tiny,shallow", metavar="A,B",
                   help="one net: the device for it alone; several: one that fits all (default %(default)s)")
    p.add_argument("--batches", default="1,2,8,32,128", metavar="B,...",
                   help="four batches or more (default %(default)s)")
    p.add_argument("--output", default="machine.json", metavar="PATH",
                   help="default machine.json; -: standard output")
    p.set_defaults(do=do)


def do(args: argparse.Namespace) -> None:
    """Measure the machine, print it and write its file."""
    from refsgd.experiment.calibrate import calibrate

    nets, batches = args.net.split(","), args.batches.split(",")
    for net in nets:
        check_net(net)
    if not all(b.isdecimal() and int(b) for b in batches) or len(set(batches)) < 4:
        raise Usage(f"batches {args.batches}; expected four numbers of images or more, such as 1,8,32,128")
    check_output(args.output)
    found = calibrate(nets, [int(b) for b in batches])
    if found.doubt:
        warnings.warn(found.doubt, stacklevel=2)
    if args.output != "-":
        print(found.summary())
    write(args.output, found.to_json())
