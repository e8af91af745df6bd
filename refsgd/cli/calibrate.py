"""Measure this machine and write a file for --machine.

Makes short runs of the real runtime, about half a minute for the small nets: gradients of some nets and
batches as runs compute them, their variation and crowding, updates, and the latency and overhead of messages
of each transport. Fits a device to the gradients, simulates the same runs and two others on the machine, and
prints each error; writes a machine file that every command accepts. Warns if other processes were busy.
With --trace it reads profiles of a job elsewhere instead, and says what they tell and what not.
"""

from __future__ import annotations

import argparse
import warnings

from refsgd.cli.outputs import deliver
from refsgd.experiment.computer.calibrate import BATCHES, NETS
from refsgd.experiment.options.problems import check_net
from refsgd.experiment.prepare import Usage


def options(p: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    p.add_argument("--net", metavar="A,B", help="one net: the device for it alone; several: one that fits "
                   f"all (default {','.join(NETS)})")
    p.add_argument("--batches", metavar="B,...",
                   help=f"four batches or more (default {','.join(map(str, BATCHES))})")
    p.add_argument("--runtime", choices=("processes", "tcp"),
                   help="the transport whose messages the machine has (default processes)")
    p.add_argument("--trace", dest="traces", nargs="+", metavar="FILE",
                   help="read a job's Chrome traces, one file for each rank or one with all: the machine's "
                        "workers replay the times of its ranks")
    p.add_argument("--net-output", metavar="PATH", help="with --trace: write the buckets as layers of a net")
    p.add_argument("--output", dest="written", default="machine.json", metavar="PATH",
                   help="default machine.json; -: standard output")


def do(args: argparse.Namespace) -> None:
    """Measure the machine, print it and write its file."""
    if args.traces:
        return _of_traces(args)
    if args.net_output:
        raise Usage(f"--net-output {args.net_output} without --trace; expected the profiles of a job")
    from refsgd.experiment.computer.calibrate import calibrate

    nets = args.net.split(",") if args.net else NETS
    batches = args.batches.split(",") if args.batches else list(map(str, BATCHES))
    for net in nets:
        check_net(net)
    if not all(b.isdecimal() and int(b) for b in batches) or len(set(batches)) < 4:
        raise Usage(f"batches {args.batches}; expected four numbers of images or more, such as 1,8,32,128")
    found = calibrate(nets, [int(b) for b in batches], args.runtime or "processes")
    if found.doubt:
        warnings.warn(found.doubt, stacklevel=2)
    deliver([(args.written, found.to_json)], lambda: print(found.summary()))


def _of_traces(args: argparse.Namespace) -> None:
    """Print what profiles tell, and write the machine and the net."""
    from pathlib import Path

    from refsgd.cluster.files import written
    from refsgd.experiment.profiles.job import read
    from refsgd.trace.schema import json_text

    if given := [name for name in ("net", "batches", "runtime") if getattr(args, name)]:
        raise Usage(f"--trace and --{given[0]}; expected --trace alone: the trace has the times")
    job = read(args.traces)
    net = job.net(Path(args.traces[0]).name.split(".")[0])
    if args.net_output and net is None:
        raise Usage(f"trace {args.traces[0]}: no all-reduce with its bytes; expected buckets, or no "
                    "--net-output")
    deliver([(args.written, lambda: written(job.machine(), args.written.endswith(".toml"))),
             (args.net_output, lambda: json_text(net))], lambda: print(job.summary()))
