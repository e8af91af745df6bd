"""Recommend a strategy for a model and a cluster.

Compares strategies, by kind, with synchronous allreduce: predicted time of a pass over the data, idleness,
staleness, bytes and memory. Recommends one, and says where another becomes the fastest, what studies found
about accuracy, what is unknown, and which command tries each.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import threading
from collections.abc import Sequence
from math import isinf, prod
from textwrap import wrap
from typing import TYPE_CHECKING

from refsgd.cli.options import links_and_speeds, machine_of, number, typed, with_unit
from refsgd.cli.outputs import deliver, width
from refsgd.cluster.devices import written
from refsgd.cluster.distributions import DISTRIBUTIONS
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import PRESETS
from refsgd.cluster.prices import on_devices
from refsgd.cluster.units import counted, flops, nbytes
from refsgd.experiment.options.problems import check_net
from refsgd.experiment.prepare import Usage

if TYPE_CHECKING:
    from refsgd.experiment.advice.advise import Advice
    from refsgd.experiment.advice.strategies import Strategy

MARKS = {"exact": "", "numerical": "", "approximation": "~", "bound": "?"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WIDTH = 100  #: columns of the output without a terminal
PATIENCE = 2.0  #: seconds before a line says that the comparison is still running


def options(p: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    model = p.add_argument_group("model")
    model.add_argument("--net", metavar="NAME", help="take sizes from a net, e.g. resnet50 (see refsgd list)")
    model.add_argument("--image", default="224,224,3", metavar="H,W,C",
                       help="size of the net's images (default 224,224,3)")
    model.add_argument("--parameters", type=whole, metavar="P", help="number of parameters, without --net")
    model.add_argument("--flops", type=float, metavar="F",
                       help="floating-point operations of one image's forward pass, without --net")
    model.add_argument("--batch", type=int, default=32, metavar="B",
                       help="images in a worker's gradient (default 32)")
    model.add_argument("--images", type=whole, default=50_000, metavar="N",
                       help="images in a pass (default 50000)")
    where = p.add_argument_group("cluster")
    where.add_argument("--workers", type=int, default=8, metavar="N", help="default 8")
    where.add_argument("--servers", type=int, default=1, metavar="K",
                       help="servers of strategies with dedicated servers (default 1)")
    where.add_argument("--rate", type=typed(flops), metavar="FLOP/S",
                       help="speed of one worker, e.g. 5TFLOPS: gives the time of a gradient, taken as "
                            "three forward passes")
    where.add_argument("--spread", type=float, default=0.1, metavar="CV",
                       help="coefficient of variation of that time (default 0.1)")
    where.add_argument("--machine", metavar="FILE|PRESET",
                       help=f"a machine file, or one of {', '.join(PRESETS)}")
    where.add_argument("--compute", metavar="DIST",
                       help="time of one gradient instead of --rate, e.g. 158ms, lognormal(158ms,0.1) or "
                       "device(5TFLOPS,2ms,lognormal(1,0.1)): "
                       + "; ".join(DISTRIBUTIONS))
    links_and_speeds(where, "0 unless --machine says otherwise", "unlimited unless --machine says otherwise")
    p.add_argument("--memory", type=typed(_memory), metavar="BYTES",
                   help="memory of a node, e.g. 16GB: reject strategies that need more")
    p.add_argument("--max-staleness", type=float, metavar="UPDATES",
                   help="reject strategies with a larger mean staleness")
    p.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=True,
                   help="consider exchanges that overlap with the passes, in buckets of 25 MB or as P3, if "
                        "--net gives the size of each layer (default)")
    p.add_argument("--json", metavar="PATH",
                   help="write the advice as JSON; -: to standard output, and nothing else")
    p.set_defaults(colocated=None, cores=None)


def whole(text: str) -> int:
    """A whole number, which may be written as 7e9."""
    value = number(text)
    if not isinstance(value, int):
        raise ValueError
    return value


def _memory(text: str) -> float:
    """Bytes of a node; refused if so few that the unit is probably missing."""
    if 0 < (value := nbytes(text)) < 1e6:
        raise ValueError(f"{text} is {value:g} bytes; expected at least 1MB{with_unit(text, 'GB')}")
    return value


def _model_of(args: argparse.Namespace) -> tuple[str, int, float | None, float]:
    """The model: description, parameters, FLOPs of an image's forward pass, bytes of its activations."""
    if args.net is None:
        if args.parameters is None:
            raise Usage("no model; expected --net NAME, or --parameters and --flops")
        return (f"{args.parameters:,} parameters, {4 * args.parameters:,} bytes", args.parameters, args.flops,
                0.0)
    for name in ("parameters", "flops"):
        if (value := getattr(args, name)) is not None:
            raise Usage(f"--net {args.net} and --{name} {value:g}; expected one of the two: --net implies "
                        "the sizes")
    from refsgd.problems.nn import nets

    check_net(args.net, ", or --parameters and --flops")
    try:
        shape = tuple(int(part) for part in args.image.split(","))
        classes = 1000 if prod(shape[:2]) > 4096 else 10
        net = nets.build(args.net, shape, classes=classes)
    except ValueError as error:
        raise Usage(f"{error}") from None
    rows = net.describe()
    said = (f"{args.net} for {'x'.join(map(str, shape))} images, {classes} classes: {net.parameters:,} "
            f"parameters, {4 * net.parameters:,} bytes")
    return (said, net.parameters, sum(float(row.flops) for row in rows),
            float(sum(row.activation_bytes for row in rows)))


def _time_of_gradient(args: argparse.Namespace) -> str | None:
    """The time of a gradient: --compute, a device of --rate and --spread, or None for the machine's."""
    if args.compute is not None and args.rate is not None:
        raise Usage(f"--rate {args.rate:g} and --compute {args.compute}; expected one of the two: each gives "
                    "the time of a gradient")
    if args.compute is None and args.rate is None and args.machine is None:
        raise Usage("no time of a gradient; expected --rate FLOP/S (with --net or --flops), --compute DIST "
                    "or --machine FILE")
    if args.rate is None:
        return args.compute  # type: ignore[no-any-return]
    if not 0 < args.rate < float("inf"):
        raise Usage(f"rate {args.rate:g} FLOP/s; expected a finite number > 0")
    return f"device({args.rate!r},0,lognormal(1,{args.spread!r}))"


def _machine(args: argparse.Namespace, flops: float | None) -> Machine:
    """The machine that the flags describe; refused if it has devices and the model's work is unknown."""
    machine = machine_of(args)
    if on_devices(machine) and flops is None:
        rate = f"rate {args.rate:g} FLOP/s" if args.rate else f"compute {written(machine.compute)}"
        raise Usage(f"{rate} without the model's work; expected --flops, or --net")
    return machine


def do(args: argparse.Namespace) -> None:
    """Compare strategies and print the advice."""
    from refsgd.experiment.advice.advise import advise

    model, parameters, flops, activations = _model_of(args)
    args.compute = _time_of_gradient(args)
    machine = _machine(args, flops)
    late = threading.Timer(PATIENCE, print, ("refsgd: still comparing strategies; some formulas are Monte "
                                             "Carlo",), {"file": sys.stderr})
    if args.json != "-":
        late.start()
    try:
        found = advise(machine, parameters=parameters, workers=args.workers, batch=args.batch,
                       images=args.images, servers=args.servers, activations=activations,
                       memory_limit=args.memory, staleness_limit=args.max_staleness,
                       overlap=args.overlap, described=_described(args), work=3 * (flops or 0.0),
                       net=f"{args.net}@{args.image.replace(',', 'x')}" if args.net else "")
    finally:
        late.cancel()
    asked = f"{model}; {counted(args.workers, 'worker')}, batch {args.batch}; {found.machine}"
    deliver([(args.json, found.to_json)], lambda: _show(found, args, asked))


def _show(found: Advice, args: argparse.Namespace, asked: str) -> None:
    """Print the question, the recommendation, the table and the lists."""
    from refsgd.experiment.advice.advise import PAGES

    wide, base = width() or WIDTH, found.baseline
    print("\n".join(wrap(asked, wide, break_on_hyphens=False)))
    fitting = [s for s in found.strategies if not s.rejected]
    findings = list(dict.fromkeys(e for s in fitting for e in s.evidence))
    if base is not None:
        for text in filter(None, (found.recommendation, _overlap(args))):
            print("\n" + "\n".join(wrap(text, wide, break_on_hyphens=False)))
        spared = _table(fitting, base, findings, wide)
        _list(f"How to read it (more in {PAGES['ranking']})", _legend(args.images, base.name, spared), wide)
    stable = ", ".join(f"{s.name} {s.rate:.2f}" for s in fitting if s.rate is not None and s.rate < 1
                       and not s.variant)
    tries = []
    for s in found.tries:
        tries += [f"{s.name}: {s.page}", *broken(s.command, wide - 8)]
        tries += [f"  this run: {s.note}"] if s.note else []
        tries.append(f"  in PyTorch: {s.pytorch or 'nothing built in'}")
    for title, lines in {
        "What does not fit": [f"{s.name}: {s.rejected}" for s in found.strategies if s.rejected],
        "What overlap and compression save, and what they cost": found.savings,
        "Where another strategy becomes the fastest":
            [*found.crossings, _yours(args.workers, found.machine)] if found.crossings else [],
        "Largest learning rate that still converges on a quadratic, as a fraction of the limit with fresh "
        "gradients": [stable] if stable else [],
        "What studies found about accuracy when workers are added":
            [f"{LETTERS[i]}  {e}: docs/studies/{e.split()[0]}" for i, e in enumerate(findings)],
        "What is unknown": found.unknown,
        "Try them (messages and times only; with a real --net and --data they train)": tries,
    }.items():
        _list(title, lines, wide)


def _yours(workers: int, machine: Machine) -> str:
    """The current values of the quantities along which another strategy becomes the fastest."""
    bandwidth = f"a bandwidth of {machine.bandwidth / 1e9:.3g} GB/s"
    if isinf(machine.bandwidth):
        bandwidth = "unlimited bandwidth"
    return f"yours: {counted(workers, 'worker')}, {bandwidth}, a latency of {1e3 * machine.latency:.3g} ms"


def _overlap(args: argparse.Namespace) -> str:
    """Why no strategy overlaps; empty if overlap is considered."""
    if args.net is None:
        return ("Overlap is not applied, because only --net gives the size of each layer: computing and "
                "exchange add up.")
    return "" if args.overlap else "Overlap is not applied (--no-overlap): computing and exchange add up."


def _described(args: argparse.Namespace) -> str:
    """The flags that describe the machine, without its speeds; "" without --machine."""
    if args.machine is None:
        return ""
    said = {name: getattr(args, name) for name in ("machine", "compute", "latency", "bandwidth", "update")}
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in said.items()
                    if value is not None)


TITLES = {"one model": "One model, synchronous", "stale gradients": "Stale gradients",
          "compressed": "Compressed gradients", "replicas": "Replicas, one for each worker"}


def _table(strategies: Sequence[Strategy], base: Strategy, findings: Sequence[str], wide: int) -> list[str]:
    """Print a section for each group, variants below their strategy; returns the heads of omitted columns."""
    from refsgd.display.tables import Column

    columns = [
        Column("strategy", [f"  {s.variant}" if s.variant else s.name for s in strategies], right=False),
        Column("pass, s", [f"{MARKS[s.kind]}{s.seconds:.4g}" for s in strategies]),
        Column("factor", [f"x{s.factor:.2f}" if s.factor < 10 else f"x{s.factor:.0f}" for s in strategies]),
        Column("idle", ["" if s.idle is None else f"{s.idle:.0%}" for s in strategies]),
        Column("stale", ["" if s.staleness is None else f"{s.staleness:.1f}" for s in strategies], 3),
        Column("sent", ["" if s.bytes is None else _size(s.bytes) for s in strategies], 2),
        Column("memory", [_size(s.memory) for s in strategies], 4),
        Column("waits for", [s.binding for s in strategies], 5, right=False),
        Column("see", ["".join(sorted(LETTERS[findings.index(e)] for e in s.evidence)) for s in strategies],
               1, right=False)]
    shown = [(c, max(map(len, [c.head, *c.cells]))) for c in columns]
    for rank in (5, 4, 3, 2, 1):
        if sum(w + 2 for _, w in shown) > wide:
            shown = [(c, w) for c, w in shown if c.rank != rank]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(text.rjust(w) if c.right else text.ljust(w)
                         for text, (c, w) in zip(cells, shown)).rstrip()

    print("\n" + line([c.head for c, _ in shown]))
    rows = dict(zip([s.name for s in strategies], zip(*(c.cells for c, _ in shown))))
    for group, title in TITLES.items():
        own = [s for s in strategies if s.group == group]
        if own:
            print("\n" + _bold(title))
        for s in (s for s in own if not s.variant):
            for each in (s, *(v for v in own if v.variant and v.name == f"{s.name}, {v.variant}")):
                print(_bold(line(rows[each.name])) if each is base else line(rows[each.name]))
    left = {c.head for c, _ in shown}
    return [c.head for c in columns if c.head not in left]


def _legend(images: int, base: str, spared: Sequence[str]) -> list[str]:
    """The meaning of the columns, and the columns that only a wider terminal shows."""
    from refsgd.experiment.advice.advise import PAGES

    lines = [
        f"pass: time until every worker has finished its equal share of {images:,} images "
        f"({PAGES['links']}); ~ approximation, ? bound, else exact",
        f"factor: relative to {base} with equal work, the baseline, which is recommended unless another of "
        "its kind is at least 5 % faster; compare times only within a kind: a pass of another kind may "
        "improve accuracy less",
        "without ...: the cluster without its slowest workers; work by speed: batches in proportion to speed",
        "idle: share of worker time not spent computing gradients, averaged over workers; a worker that ends "
        f"early is idle until the last one ends ({PAGES['idle']})",
        f"stale: mean number of updates between a gradient's read and its use ({PAGES['staleness']})",
        f"sent: per iteration, by all nodes together ({PAGES['bytes']}); memory: of the fullest node, "
        "without the framework's own",
        "waits for: the largest cause of idleness; K: servers, K=n: one on each worker's node"]
    if spared:
        lines.append(f"{', '.join(spared)}: left out at this width; a wider terminal shows them")
    return lines


def _bold(text: str) -> str:
    """A text, in bold on a terminal."""
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


def _list(title: str, lines: Sequence[str], wide: int) -> None:
    """Print a heading and indented lines, if there are any; commands are not wrapped."""
    if lines:
        print("\n" + _bold("\n".join(wrap(title, wide))))
    for line in lines:
        folded = [line] if line.startswith(("  refsgd ", "   ")) else wrap(
            line, wide - 4, subsequent_indent="    " if line.startswith(" ") else "  ",
            break_on_hyphens=False)
        print("\n".join("  " + part for part in folded))


def _size(nbytes: float) -> str:
    """Bytes with a unit, in three digits."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * scale:
            return f"{nbytes / scale:#.3g}".rstrip(".") + f" {unit}"
    return f"{nbytes:.0f} B"


def broken(command: str, width: int = WIDTH - 8) -> list[str]:
    """A command as indented lines, joined by backslashes."""
    lines = [" "]
    for word in re.split(r" (?=--)", command):
        if len(lines[-1]) + len(word) > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += " " + word
    return lines
