"""``refsgd advise``: which strategy fits a cluster."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from math import isinf, prod
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from refsgd.cli.options import links_and_speeds, machine_of, typed, with_unit
from refsgd.cli.outputs import write
from refsgd.cluster.distributions import DISTRIBUTIONS
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import PRESETS
from refsgd.cluster.units import counted, flops, nbytes
from refsgd.experiment.prepare import Usage, check_net

if TYPE_CHECKING:
    from rich.console import Console

    from refsgd.experiment.strategies import Strategy

MARKS = {"exact": "", "numerical": "", "approximation": "~", "bound": "?"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WIDTH = 100  #: of what is printed where there is no terminal
PATIENCE = 2.0  #: seconds after which a line says that it takes longer


def add(commands: Any) -> None:
    """Its options."""
    p = commands.add_parser("advise", help="which strategy fits a model and a cluster",
                            description="Compares strategies, by kind, with synchronous "
                            "allreduce: predicted time of a pass over the data, idleness, staleness, bytes "
                            "and memory. Recommends one; says where "
                            "another becomes the fastest, what studies found of accuracy, what is not known, "
                            "and which command tries each.")
    model = p.add_argument_group("model")
    model.add_argument("--net", metavar="NAME", help="take sizes from a net, e.g. resnet50 (see refsgd list)")
    model.add_argument("--image", default="224,224,3", metavar="H,W,C",
                       help="size of the net's images (default 224,224,3)")
    model.add_argument("--parameters", type=whole, metavar="P", help="of the model, if no net is named")
    model.add_argument("--flops", type=float, metavar="F",
                       help="of one image's forward pass, if no net is named")
    model.add_argument("--batch", type=int, default=32, metavar="B",
                       help="images of a worker's gradient (default 32)")
    model.add_argument("--images", type=whole, default=50_000, metavar="N",
                       help="images of a pass (default 50000)")
    where = p.add_argument_group("cluster")
    where.add_argument("--workers", type=int, default=8, metavar="N", help="default 8")
    where.add_argument("--servers", type=int, default=1, metavar="K",
                       help="of strategies with servers of their own (default 1)")
    where.add_argument("--rate", type=typed(flops), metavar="FLOP/S",
                       help="of one worker, e.g. 5TFLOPS: with FLOPs it gives the time of a gradient (three "
                            "forward passes)")
    where.add_argument("--spread", type=float, default=0.1, metavar="CV",
                       help="coefficient of variation of that time (default 0.1)")
    where.add_argument("--machine", metavar="FILE|PRESET",
                       help=f"a machine file, or one of {', '.join(PRESETS)}")
    where.add_argument("--compute", metavar="DIST",
                       help="time of one gradient instead of --rate, e.g. 158ms or lognormal(158ms,0.1): "
                       + "; ".join(DISTRIBUTIONS))
    links_and_speeds(where, "0 unless --machine says otherwise", "unlimited unless --machine says otherwise")
    p.add_argument("--memory", type=typed(_memory), metavar="BYTES",
                   help="of a node, e.g. 16GB: strategies that need more are rejected")
    p.add_argument("--max-staleness", type=float, metavar="UPDATES",
                   help="strategies with a larger mean are rejected")
    p.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=True,
                   help="exchange gradients during the backward pass, in buckets of 25 MB, where --net says "
                        "how large each layer is (default)")
    p.add_argument("--json", metavar="PATH",
                   help="write the advice as JSON; - for standard output and nothing else")
    p.set_defaults(do=do, colocated=False, cores=None)


def whole(text: str) -> int:
    """A whole number, also written as 7e9."""
    try:
        return int(text)
    except ValueError:
        if float(text).is_integer():
            return int(float(text))
        raise


def _memory(text: str) -> float:
    """Bytes of a node; so few that a unit is probably missing are refused."""
    if 0 < (value := nbytes(text)) < 1e6:
        raise ValueError(f"{text} is {value:g} bytes; expected at least 1MB{with_unit(text, 'GB')}")
    return value


def _model_of(args: argparse.Namespace) -> tuple[str, int, float | None, float, list[tuple[int, float]]]:
    """The model in words; parameters; FLOPs of an image's forward pass, bytes of its activations;
    parameters and FLOPs of each layer."""
    if args.net is None:
        if args.parameters is None:
            raise Usage("no model; expected --net NAME, or --parameters and --flops")
        return (f"{args.parameters:,} parameters, {4 * args.parameters:,} bytes", args.parameters, args.flops,
                0.0, [])
    for name in ("parameters", "flops"):
        if (value := getattr(args, name)) is not None:
            raise Usage(
                f"--net {args.net} and --{name} {value:g}; expected one of the two: a net's sizes are known")
    from refsgd.problems.nn import nets

    check_net(args.net, ", or --parameters and --flops")
    try:
        shape = tuple(int(part) for part in args.image.split(","))
        classes = 1000 if prod(shape[:2]) > 4096 else 10
        net = nets.build(args.net, shape, classes=classes)
    except ValueError as error:
        raise Usage(f"{error}") from None
    rows = net.describe()
    return (
        f"{args.net} for {'x'.join(map(str, shape))} images, {classes} classes: {net.parameters:,} "
        f"parameters, {4 * net.parameters:,} bytes",
            net.parameters, float(sum(row.flops for row in rows)),
            float(sum(row.activation_bytes for row in rows)),
            [(row.parameters, float(row.flops)) for row in rows])


def _time_of_gradient(args: argparse.Namespace, flops: float | None) -> str | None:
    """The distribution of a gradient's time: --compute, or --rate and the model's work, or the machine's."""
    if args.compute is not None and args.rate is not None:
        raise Usage(
            f"--rate {args.rate:g} and --compute {args.compute}; expected one of the two: each gives the "
            "time of a gradient")
    if args.compute is None and args.rate is None and args.machine is None:
        raise Usage(
            "no time of a gradient; expected --rate FLOP/S (with --net or --flops), --compute DIST or "
            "--machine FILE")
    if args.rate is None:
        return args.compute  # type: ignore[no-any-return]
    if flops is None:
        raise Usage(f"rate {args.rate:g} FLOP/s without the model's work; expected --flops, or --net")
    if not 0 < args.rate < float("inf"):
        raise Usage(f"rate {args.rate:g} FLOP/s; expected a finite number > 0")
    return f"lognormal({3 * flops * args.batch / args.rate:g},{args.spread:g})"


def do(args: argparse.Namespace) -> None:
    """Advise; print the ranking."""
    from rich.console import Console

    from refsgd.experiment.advise import PAGES, advise

    model, parameters, flops, activations, layers = _model_of(args)
    args.compute = _time_of_gradient(args, flops)
    late = threading.Timer(PATIENCE,
                           lambda: print("refsgd: still comparing strategies; some formulas are Monte Carlo",
                                         file=sys.stderr))
    if args.json != "-":
        late.start()
    try:
        found = advise(machine_of(args), parameters=parameters, workers=args.workers, batch=args.batch,
                       images=args.images, servers=args.servers,
                       activations=activations, memory_limit=args.memory, staleness_limit=args.max_staleness,
                       layers=layers if args.overlap else (), described=_described(args))
    finally:
        late.cancel()
    write(args.json, found.to_json())
    if args.json == "-":
        return
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH)
    _paragraph(console, f"{model}; {counted(args.workers, 'worker')}, batch {args.batch}; {found.machine}")
    if found.baseline is not None:
        _paragraph(console, "\n" + found.recommendation)
        _paragraph(console, "\n" + _overlap(args, [s for s in found.strategies if s.overlapped]))
    fitting = [s for s in found.strategies if not s.rejected]
    findings = list(dict.fromkeys(e for s in fitting for e in s.evidence))
    if found.baseline is not None:
        spared = _tables(console, fitting, found.baseline, findings)
        _listed(console, f"How to read it (more in {PAGES['ranking']})",
                _legend(args.images, found.baseline.name, spared))
    stable = ", ".join(f"{s.name} {s.rate:.2f}" for s in fitting if s.rate is not None and s.rate < 1
                       and not s.variant)
    _listed(console, "What does not fit", [f"{s.name}: {s.rejected}" for s in found.strategies if s.rejected])
    _listed(console, "Where another strategy becomes the fastest",
            [*found.crossings, _yours(args.workers, found.machine)] if found.crossings else [])
    _listed(console,
            "Largest learning rate that still converges on a quadratic, as a fraction of the limit with "
            "fresh gradients", [stable] if stable else [])
    _listed(console, "What studies found of accuracy when workers are added",
           [f"{LETTERS[i]}  {e}: docs/studies/{e.split()[0]}" for i, e in enumerate(findings)])
    _listed(console, "What is not known", found.unknown)
    _listed(console, "Try them (messages and times only; with a real --net and --data they train)", [
        text for s in found.tries for text in (
            f"{s.name}: {s.page}", *broken(s.command, console.width - 8),
            *([f"  this run: {s.note}"] if s.note else []),
            f"  in PyTorch: {s.pytorch or 'nothing built in'}")])


def _yours(workers: int, machine: Machine) -> str:
    """The quantities along which another strategy becomes the fastest, as they are."""
    bandwidth = "unlimited bandwidth" if isinf(
        machine.bandwidth) else f"a bandwidth of {machine.bandwidth / 1e9:.3g} GB/s"
    return f"yours: {counted(workers, 'worker')}, {bandwidth}, a latency of {1e3 * machine.latency:.3g} ms"


def _overlap(args: argparse.Namespace, overlapped: Sequence[Strategy]) -> str:
    """Whose exchange overlaps with the backward pass, or why none does."""
    if args.net is None:
        return (
            "Overlap is not applied, since only --net says how large each layer is: computing and exchange "
            "add up.")
    if not args.overlap:
        return "Overlap is not applied (--no-overlap): computing and exchange add up."
    if not overlapped:
        return "Overlapping exchange and backward pass would make nothing faster here."
    return (
        f"Overlap: {', '.join(dict.fromkeys(s.algorithm for s in overlapped))} exchange gradients in buckets "
        "of 25 MB during the backward "
            "pass. asp and ssp have no overlap formula; their rows add computing and exchange. --no-overlap "
            "turns it off.")


def _described(args: argparse.Namespace) -> str:
    """The flags that describe the machine but for its speeds; "" where its numbers say all that was given."""
    if args.machine is None:
        return ""
    said = {name: getattr(args, name) for name in ("machine", "compute", "latency", "bandwidth", "update")}
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in said.items()
                    if value is not None)


TITLES = {"one model": "One model, synchronous", "stale gradients": "Stale gradients",
          "compressed": "Compressed gradients",
          "replicas": "Replicas, one for each worker"}

#: columns that are left out where they do not all fit, the first to go first
SPARE = ("waits for", "memory", "stale", "sent", "see")


def _tables(console: Console, strategies: Sequence[Strategy], base: Strategy,
            findings: Sequence[str]) -> list[str]:
    """Print a table with a section for each group; variants under the strategy they vary; `findings` are
    referred to by letters.  Columns left out."""
    columns: dict[str, Callable[[Strategy], str]] = {
        "strategy": lambda s: f"  {s.variant}" if s.variant else s.name,
        "pass, s": lambda s: f"{MARKS[s.kind]}{s.seconds:.4g}",
        "factor": lambda s: f"x{s.factor:.2f}" if s.factor < 10 else f"x{s.factor:.0f}",
        "idle": lambda s: "" if s.idle is None else f"{s.idle:.0%}",
        "stale": lambda s: "" if s.staleness is None else f"{s.staleness:.1f}",
        "sent": lambda s: "" if s.bytes is None else _size(s.bytes),
        "memory": lambda s: _size(s.memory), "waits for": lambda s: s.binding,
        "see": lambda s: "".join(sorted(LETTERS[findings.index(e)] for e in s.evidence))}
    rows = [{name: cell(s) for name, cell in columns.items()} for s in strategies]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
    for name in SPARE:
        if sum(widths.values()) + 2 * len(widths) > console.width:
            del widths[name]

    def line(cells: Mapping[str, str]) -> str:
        left = ("strategy", "waits for", "see")
        return "  ".join(cells[name].ljust(w) if name in left else cells[name].rjust(w)
                         for name, w in widths.items()).rstrip()

    console.print("\n" + line({name: name for name in columns}), highlight=False, soft_wrap=True)
    for group, title in TITLES.items():
        own = [s for s in strategies if s.group == group]
        if own:
            console.print(f"\n{title}", style="bold", highlight=False, soft_wrap=True)
        for s in (s for s in own if not s.variant):
            for each in (s, *(v for v in own if v.variant and v.name == f"{s.name}, {v.variant}")):
                console.print(line(rows[strategies.index(each)]), style="bold" if each is base else "",
                              markup=False, highlight=False, soft_wrap=True)
    return [name for name in columns if name not in widths]


def _legend(images: int, base: str, spared: Sequence[str]) -> list[str]:
    """What the columns are, and which there would be on a wider terminal."""
    from refsgd.experiment.advise import PAGES

    return [
        f"pass: time until every worker has finished its equal share of {images:,} images "
        f"({PAGES['links']}); ~ approximation, ? bound, else exact",
            f"factor: of {base} with equal work; compare times only within a kind: a pass of another kind "
            "may teach less",
            "without ...: the cluster without its slowest workers; work by speed: batches in proportion to "
            "speed",
            "idle: share of worker time not spent computing gradients, averaged over workers; a worker that "
            "ends early is idle until the "
            f"last one ends ({PAGES['idle']})",
            f"stale: updates between a gradient's reading and its use, on average ({PAGES['staleness']})",
            f"sent: per iteration, by all nodes together ({PAGES['bytes']}); memory: of the fullest node, "
            "without the framework's own",
            "waits for: the largest cause of idleness; K: servers, K=n: one on each worker's node",
            *([f"{', '.join(spared)}: left out at this width; a wider terminal shows them"] if spared
              else [])]


def _paragraph(console: Console, text: str) -> None:
    """Text folded at the width of the console; a newline before it stays."""
    console.print(
        "\n" * text.startswith("\n") + "\n".join(wrap(text.strip(), console.width, break_on_hyphens=False)),
                  markup=False, highlight=False, soft_wrap=True)


def _listed(console: Console, title: str, lines: Sequence[str]) -> None:
    """A heading and indented lines; nothing without lines.  Lines of a command stay as they are."""
    if lines:
        console.print("\n" + "\n".join(wrap(title, console.width)), style="bold", highlight=False,
                      soft_wrap=True)
        for line in lines:
            folded = [line] if line.startswith(("  refsgd ", "   ")) else wrap(
                line, console.width - 4, subsequent_indent="    " if line.startswith(" ") else "  ",
                break_on_hyphens=False)
            console.print(*("  " + part for part in folded), sep="\n", markup=False, highlight=False,
                          soft_wrap=True)


def _size(nbytes: float) -> str:
    """Bytes with a unit, three digits."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * scale:
            return f"{nbytes / scale:#.3g}".rstrip(".") + f" {unit}"
    return f"{nbytes:.0f} B"


def broken(command: str, width: int = WIDTH - 8) -> list[str]:
    """A command as indented lines that a shell joins again."""
    lines = [" "]
    for word in re.split(r" (?=--)", command):
        if len(lines[-1]) + len(word) > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += " " + word
    return lines
