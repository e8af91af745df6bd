"""``refsgd advise``: which strategy fits a cluster."""

from __future__ import annotations

import argparse
import sys
from math import prod
from typing import Any

from refsgd.cli.options import machine_of, write
from refsgd.experiment import Usage
from refsgd.machine import FAMILIES, PRESETS


def add(commands: Any) -> None:
    """Its options."""
    p = commands.add_parser("advise", help="which strategy fits a model and a cluster", description="Ranks strategies by the predicted time "
                            "of a pass over the data, with idleness, staleness, bytes and memory; says where the ranking changes, what "
                            "studies found of accuracy, what is not known, and the command that tries each. Everything is a formula or a "
                            "study's verdict.")
    model = p.add_argument_group("model")
    model.add_argument("--net", metavar="NAME", help="take sizes from a net, e.g. resnet50 (see refsgd list)")
    model.add_argument("--image", default="224,224,3", metavar="H,W,C", help="size of the net's images (default 224,224,3)")
    model.add_argument("--parameters", type=int, metavar="P", help="of the model, if no net is named")
    model.add_argument("--flops", type=float, metavar="F", help="of one image's forward pass, if no net is named")
    model.add_argument("--batch", type=int, default=32, metavar="B", help="images of a worker's gradient (default 32)")
    model.add_argument("--images", type=int, default=50_000, metavar="N", help="images of a pass (default 50000)")
    where = p.add_argument_group("cluster")
    where.add_argument("--workers", type=int, default=8, metavar="N", help="default 8")
    where.add_argument("--servers", type=int, default=1, metavar="K", help="of strategies with servers of their own (default 1)")
    where.add_argument("--rate", type=float, metavar="FLOP/S", help="of one worker: with FLOPs it gives the time of a gradient (three forward passes)")
    where.add_argument("--spread", type=float, default=0.1, metavar="CV", help="coefficient of variation of that time (default 0.1)")
    where.add_argument("--machine", metavar="FILE|PRESET", help=f"a machine file, or one of {', '.join(PRESETS)}")
    where.add_argument("--compute", metavar="LAW", help="seconds of one gradient instead of --rate: " + "; ".join(f.help for f in FAMILIES.values()))
    where.add_argument("--latency", type=float, metavar="SECONDS", help="of a message (0 unless --machine says otherwise)")
    where.add_argument("--bandwidth", type=float, metavar="BYTES_PER_S", help="of each link and direction (unlimited unless --machine says otherwise)")
    where.add_argument("--update", metavar="LAW", help="seconds of one update (default 0)")
    where.add_argument("--speeds", metavar="1,1,4", help="speed of each worker relative to the law")
    p.add_argument("--memory", type=float, metavar="BYTES", help="of a node: strategies that need more are out")
    p.add_argument("--max-staleness", type=float, metavar="UPDATES", help="strategies with a larger mean are out")
    p.add_argument("--json", metavar="PATH", help="write the advice as JSON; - for standard output and nothing else")
    p.set_defaults(do=do, collocated=False)


def model_of(args: argparse.Namespace) -> tuple[int, float | None, float]:
    """Parameters, FLOPs of an image's forward pass, bytes of its activations."""
    if args.net is None:
        if args.parameters is None:
            raise Usage("no model; expected --net NAME, or --parameters and --flops")
        return args.parameters, args.flops, 0.0
    from refsgd.nn import nets

    try:
        shape = tuple(int(part) for part in args.image.split(","))
        net = nets.build(args.net, shape, classes=1000 if prod(shape[:2]) > 4096 else 10)
    except ValueError as error:
        raise Usage(f"{error}") from None
    rows = net.describe()
    return net.parameters, float(sum(row.flops for row in rows)), float(sum(row.activation_bytes for row in rows))


def do(args: argparse.Namespace) -> None:
    """Advise; print the ranking."""
    from rich.console import Console
    from rich.table import Table

    from refsgd.advice import advise

    parameters, flops, activations = model_of(args)
    if args.compute is None and args.rate is not None:
        if flops is None:
            raise Usage(f"rate {args.rate:g} FLOP/s without the model's work; expected --flops, or --net")
        if not 0 < args.rate < float("inf"):
            raise Usage(f"rate {args.rate:g} FLOP/s; expected a finite number > 0")
        args.compute = f"lognormal({3 * flops * args.batch / args.rate:g},{args.spread:g})"
    elif args.compute is None and args.machine is None:
        raise Usage("no time of a gradient; expected --rate FLOP/S (with --net or --flops), --compute LAW or --machine FILE")
    found = advise(machine_of(args), parameters=parameters, workers=args.workers, batch=args.batch, images=args.images, servers=args.servers,
                   activations=activations, memory_limit=args.memory, staleness_limit=args.max_staleness)
    write(args.json, found.to_json())
    if args.json == "-":
        return
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(f"{parameters:,} parameters, {args.workers} workers, batch {args.batch}, on: {found.machine}", highlight=False)
    table = Table()
    for name in ("strategy", "computes on", "pass [s]", "images/s", "idle", "staleness", "stable rate", "MB an iteration", "GB of a node", "binding", "kind"):
        table.add_column(name, justify="left" if name in ("strategy", "computes on", "binding", "kind") else "right")
    for s in found.strategies:
        if not s.rejected:
            table.add_row(s.name, s.group, f"{s.seconds:.4g}", f"{s.images_per_second:.4g}", *("" if v is None else f"{v:{how}}" for v, how in (
                (s.idle, ".0%"), (s.staleness, ".2f"), (s.rate, ".2f"), (None if s.bytes is None else s.bytes / 1e6, ".4g"))),
                f"{s.memory / 1e9:.2f}", s.binding, s.kind)
    console.print(table)
    for title, lines in (
            ("Out of the question here", [f"{s.name}: {s.rejected}" for s in found.strategies if s.rejected]),
            ("Where the fastest changes", found.crossings),
            ("What studies found of accuracy (refsgd study NAME)", sorted({e for s in found.strategies if not s.rejected for e in s.evidence})),
            ("What is not known", found.unknown),
            ("Try them", [s.command for s in found.strategies if not s.rejected][:5])):
        if lines:
            console.print(f"\n{title}", style="bold")
            for line in lines:
                console.print(f"  {line}", highlight=False, soft_wrap=True)
