"""``refsgd calibrate``: measure this machine and write a machine file."""

from __future__ import annotations

import argparse
import warnings
from typing import Any

from refsgd.cli.outputs import check_output, write
from refsgd.experiment.prepare import DEFAULT_BATCH, Usage, check_net


def add(commands: Any) -> None:
    """Its options."""
    p = commands.add_parser("calibrate", help="measure this machine; writes a machine file for --machine",
                            description="Measures gradient times by batch, update time, latency and "
                            "bandwidth of each transport, in under 30 s for the small nets, and writes a "
                            "machine file that every command accepts. Warns if other processes were at "
                            "work meanwhile.")
    p.add_argument("--net", default="tiny", metavar="NAME", help="net (default tiny)")
    p.add_argument("--batch", type=int, default=DEFAULT_BATCH, metavar="B",
                   help=f"whose gradient time is used (default {DEFAULT_BATCH})")
    p.add_argument("--output", default="machine.json", metavar="PATH",
                   help="default machine.json; - for standard output alone")
    p.set_defaults(do=do)


def do(args: argparse.Namespace) -> None:
    """Measure; print and write the machine."""
    from refsgd.experiment.calibrate import calibrate

    check_net(args.net)
    if args.batch < 1:
        raise Usage(f"batch {args.batch}; expected at least 1 image")
    check_output(args.output)
    found = calibrate(args.net, args.batch)
    if found.doubt:
        warnings.warn(found.doubt, stacklevel=2)
    if args.output != "-":
        print(found.summary())
    write(args.output, found.to_json())
