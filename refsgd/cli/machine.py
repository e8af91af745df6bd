"""Show a machine: hosts, groups, links.

Prints a machine's hosts, groups and links with their speeds, and the placement of a run's nodes.
"""

from __future__ import annotations

import argparse

from refsgd.cli.options import files as file_options
from refsgd.cli.options import machine_of, of_machine
from refsgd.cli.outputs import deliver, figure, tell
from refsgd.cluster import files
from refsgd.cluster.nearness import read_latencies, with_groups
from refsgd.cluster.placement import usual
from refsgd.cluster.presets import PRESETS
from refsgd.experiment.arguments import check_whole, checked
from refsgd.experiment.prepare import Training


def options(p: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    p.add_argument("machine", nargs="?", metavar="FILE|PRESET",
                   help=f"a machine file (TOML, JSON), or one of {', '.join(PRESETS)}")
    where = p.add_argument_group("machine")
    where.add_argument("--workers", type=int, metavar="N", help="default: enough to fill its hosts, or 4")
    where.add_argument("--servers", type=int, metavar="K", help="default: those that the machine lists, or 1")
    of_machine(where, named=False)
    where.add_argument("--latencies", metavar="FILE",
                       help="a table of the latencies between hosts, as CSV with a line for each host: hosts "
                            "that are close become groups, with the table's medians as latencies")
    out = p.add_argument_group("output")
    out.add_argument("--output", dest="written", metavar="FILE",
                     help="write a machine file: TOML if its name ends in .toml, else JSON")
    file_options(out, "refsgd-machine.png")


def do(args: argparse.Namespace) -> None:
    """Print the machine, and write the requested files."""
    from refsgd.cluster.links import nodes_of
    from refsgd.display.machines import machine_lines

    machine = machine_of(args)
    if args.latencies:
        with checked():
            machine = with_groups(machine, read_latencies(args.latencies))
    workers, servers = usual(machine.hosts, machine.groups) or (Training.workers, Training.servers)
    workers = workers if args.workers is None else args.workers
    servers = servers if args.servers is None else args.servers
    check_whole(1, workers=workers)
    check_whole(0, servers=servers)
    deployment = nodes_of(workers, servers)
    with checked():
        lines = list(machine_lines(machine, deployment))

    def talk() -> None:
        if args.machine in PRESETS:
            tell(f"{args.machine}: {PRESETS[args.machine].says}", 2)
        tell("\n".join(lines), 11)

    deliver([(args.json, lambda: files.written(machine, toml=False)),
             (args.written, lambda: files.written(machine, toml=args.written.endswith(".toml"))),
             (args.plot, lambda: figure("machine_figure", machine, deployment))], talk)
