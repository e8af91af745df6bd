"""``refsgd advise``: which strategy fits a cluster."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from math import prod
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from refsgd.cli.options import links_and_speeds, machine_of, typed
from refsgd.cli.outputs import write
from refsgd.experiment import Usage
from refsgd.laws import LAWS
from refsgd.machine import PRESETS
from refsgd.units import nbytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from refsgd.advice import Strategy

MARKS = {"exact": "", "approximation": "~", "bound": "?"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WIDTH = 100  #: of what is printed where there is no terminal


def add(commands: Any) -> None:
    """Its options."""
    p = commands.add_parser("advise", help="which strategy fits a model and a cluster", description="Ranks strategies by the predicted time "
                            "of a pass over the data, with idleness, staleness, bytes and memory; says where the ranking changes, what "
                            "studies found of accuracy, what is not known, and the command that tries each. Everything is a formula or a "
                            "study's verdict.")
    model = p.add_argument_group("model")
    model.add_argument("--net", metavar="NAME", help="take sizes from a net, e.g. resnet50 (see refsgd list)")
    model.add_argument("--image", default="224,224,3", metavar="H,W,C", help="size of the net's images (default 224,224,3)")
    model.add_argument("--parameters", type=whole, metavar="P", help="of the model, if no net is named")
    model.add_argument("--flops", type=float, metavar="F", help="of one image's forward pass, if no net is named")
    model.add_argument("--batch", type=int, default=32, metavar="B", help="images of a worker's gradient (default 32)")
    model.add_argument("--images", type=whole, default=50_000, metavar="N", help="images of a pass (default 50000)")
    where = p.add_argument_group("cluster")
    where.add_argument("--workers", type=int, default=8, metavar="N", help="default 8")
    where.add_argument("--servers", type=int, default=1, metavar="K", help="of strategies with servers of their own (default 1)")
    where.add_argument("--rate", type=float, metavar="FLOP/S", help="of one worker: with FLOPs it gives the time of a gradient (three forward passes)")
    where.add_argument("--spread", type=float, default=0.1, metavar="CV", help="coefficient of variation of that time (default 0.1)")
    where.add_argument("--machine", metavar="FILE|PRESET", help=f"a machine file, or one of {', '.join(PRESETS)}")
    where.add_argument("--compute", metavar="LAW", help="time of one gradient instead of --rate, e.g. 158ms or lognormal(158ms,0.1): " + "; ".join(LAWS))
    links_and_speeds(where, "0 unless --machine says otherwise", "unlimited unless --machine says otherwise")
    p.add_argument("--memory", type=typed(nbytes), metavar="BYTES", help="of a node, e.g. 16GB: strategies that need more are out")
    p.add_argument("--max-staleness", type=float, metavar="UPDATES", help="strategies with a larger mean are out")
    p.add_argument("--json", metavar="PATH", help="write the advice as JSON; - for standard output and nothing else")
    p.set_defaults(do=do, collocated=False, cores=None)


def whole(text: str) -> int:
    """A whole number, also written as 7e9.

    Parameters
    ----------
    text : str

    Returns
    -------
    int
    """
    try:
        return int(text)
    except ValueError:
        if float(text).is_integer():
            return int(float(text))
        raise


def _model_of(args: argparse.Namespace) -> tuple[int, float | None, float]:
    """Parameters, FLOPs of an image's forward pass, bytes of its activations."""
    if args.net is None:
        if args.parameters is None:
            raise Usage("no model; expected --net NAME, or --parameters and --flops")
        return args.parameters, args.flops, 0.0
    for name in ("parameters", "flops"):
        if (value := getattr(args, name)) is not None:
            raise Usage(f"--net {args.net} and --{name} {value:g}; expected one of the two: a net's sizes are known")
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

    from refsgd.advice import PAGES, advise

    parameters, flops, activations = _model_of(args)
    if args.compute is not None and args.rate is not None:
        raise Usage(f"--rate {args.rate:g} and --compute {args.compute}; expected one of the two: each gives the time of a gradient")
    if args.compute is None and args.rate is not None:
        if flops is None:
            raise Usage(f"rate {args.rate:g} FLOP/s without the model's work; expected --flops, or --net")
        if not 0 < args.rate < float("inf"):
            raise Usage(f"rate {args.rate:g} FLOP/s; expected a finite number > 0")
        args.compute = f"lognormal({3 * flops * args.batch / args.rate:g},{args.spread:g})"
    elif args.compute is None and args.machine is None:
        raise Usage("no time of a gradient; expected --rate FLOP/S (with --net or --flops), --compute LAW or --machine FILE")
    found = advise(machine_of(args), parameters=parameters, workers=args.workers, batch=args.batch, images=args.images, servers=args.servers,
                   activations=activations, memory_limit=args.memory, staleness_limit=args.max_staleness, described=_described(args))
    write(args.json, found.to_json())
    if args.json == "-":
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(f"{parameters:,} parameters, {args.workers} workers, batch {args.batch}; {found.machine}", highlight=False)
    fitting = [s for s in found.strategies if not s.rejected]
    findings = list(dict.fromkeys(e for s in fitting for e in s.evidence))
    if fitting:
        console.print(_ranking(fitting, findings))
        _listed(console, f"How to read it (more in {PAGES['ranking']})", _legend(args.images))
    stable = ", ".join(f"{s.name} {s.rate:.2f}" for s in fitting if s.rate is not None and s.rate < 1)
    _listed(console, "Out of the question here", [f"{s.name}: {s.rejected}" for s in found.strategies if s.rejected])
    _listed(console, "The fastest, or within 2 % of it, all else as it is", found.crossings)
    _listed(console, "Largest stable learning rate on a quadratic, relative to fresh gradients", [stable] if stable else [])
    _listed(console, "What studies found of accuracy when workers are added",
           [f"{LETTERS[i]}  {e}: docs/studies/{e.split()[0]}" for i, e in enumerate(findings)])
    _listed(console, "What is not known", found.unknown)
    _listed(console, "Try them (messages and times only; with a real --net and --data they train)",
           [text for s in found.tries for text in (f"{s.name}: {s.page}", *broken(s.command))])


def _described(args: argparse.Namespace) -> str:
    """The flags that describe the machine; "" where its numbers say all that was given."""
    if args.machine is None:
        return ""
    said = {name: getattr(args, name) for name in ("machine", "compute", "latency", "bandwidth", "update", "speeds")}
    said["slow"] = ",".join(args.slow) if args.slow else None
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in said.items() if value is not None)


def _ranking(strategies: Sequence[Strategy], findings: Sequence[str]) -> Table:
    """The table of those that fit; `findings` are referred to by letters."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in ("strategy", "pass, s", "idle", "stale", "sent", "memory", "model", "waits for", "see"):
        table.add_column(name + " ", justify="left" if name in ("strategy", "model", "waits for", "see") else "right", no_wrap=True)
    for s in strategies:
        table.add_row(s.name, f"{MARKS[s.kind]}{s.seconds:.4g} ", f"{s.idle:.0%} ", "" if s.staleness is None else f"{s.staleness:.1f} ",
                      "" if s.bytes is None else _size(s.bytes) + " ", _size(s.memory) + " ", s.group.split()[0], s.binding,
                      "".join(sorted(LETTERS[findings.index(e)] for e in s.evidence)))
    return table


def _legend(images: int) -> list[str]:
    """What the columns are."""
    from refsgd.advice import PAGES

    return [f"pass: of {images:,} images, at the images a second of all workers together ({PAGES['seconds']}); "
            "~ approximation, ? bound, else exact",
            "model: one (all gradients are of the newest), compressed, stale, replicas (each worker trains its own); a pass teaches "
            "equally much only within one kind",
            "idle: share of what the workers could compute but wait, or compute for nothing; a run of equal steps reports more where "
            f"speeds differ, since the fast end early ({PAGES['idle']})",
            f"stale: updates between a gradient's reading and its use, on average ({PAGES['staleness']})",
            f"sent: in an iteration, by all nodes together ({PAGES['bytes']}); memory: of the fullest node, without a framework's own",
            "waits for: the largest part of an iteration besides computing; K: servers, K=n: one on each worker's node"]


def _listed(console: Console, title: str, lines: Sequence[str]) -> None:
    """A heading and indented lines; nothing without lines.  Lines of a command stay as they are."""
    if lines:
        console.print(f"\n{title}", style="bold", highlight=False, soft_wrap=True)
        for line in lines:
            folded = [line] if line.startswith(" ") else wrap(line, console.width - 4, subsequent_indent="  ", break_on_hyphens=False)
            console.print(*("  " + part for part in folded), sep="\n", markup=False, highlight=False, soft_wrap=True)


def _size(nbytes: float) -> str:
    """Bytes with a unit, three digits."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * scale:
            return f"{nbytes / scale:#.3g}".rstrip(".") + f" {unit}"
    return f"{nbytes:.0f} B"


def broken(command: str, width: int = WIDTH - 8) -> list[str]:
    """A command as indented lines that a shell joins again.

    Parameters
    ----------
    command : str
    width : int
        Characters of a line, unless a flag and its value need more.

    Returns
    -------
    list of str
        All but the last end with a backslash.
    """
    lines = [" "]
    for word in re.split(r" (?=--)", command):
        if len(lines[-1]) + len(word) > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += " " + word
    return lines
