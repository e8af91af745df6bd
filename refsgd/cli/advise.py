"""Recommend a strategy for a model and a cluster.

Compares strategies, by kind, with synchronous allreduce: predicted time of a pass over the data, throughput,
idleness, staleness, bytes and memory. Recommends one, and says what studies found about accuracy, what is
unknown, and which command tries each. Memory is what a framework would keep on the fullest node: parameters,
gradient, optimiser state and activations, as docs/howto/advise explains.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf, isfinite, isinf, isnan, prod
from textwrap import wrap
from typing import TYPE_CHECKING

from refsgd.cli.options import machine_of, number, of_machine, typed, with_unit
from refsgd.cli.outputs import ADVICE, deliver, lay_out, width
from refsgd.cli.settings import offer, settings
from refsgd.cluster.devices import written
from refsgd.cluster.machine import Machine
from refsgd.cluster.prices import on_devices
from refsgd.cluster.units import as_bytes, bytes_per_second, counted, flops, nbytes, spoken
from refsgd.experiment.arguments import checked
from refsgd.experiment.options.problems import check_net, of_sizes, only_sizes
from refsgd.experiment.options.rules import OPTIMISERS
from refsgd.experiment.prepare import Usage
from refsgd.experiment.result import image_of

if TYPE_CHECKING:
    from refsgd.experiment.advice.advise import Advice
    from refsgd.experiment.advice.strategies import Strategy
    from refsgd.theory.prediction import Prediction

MARKS = {"approximation": "~", "bound": "?", "simulated": "*"}
RACED = "passes", "to target"  #: columns that only a race fills
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def options(p: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    model = p.add_argument_group("model")
    model.add_argument("--net", metavar="NAME", help="take sizes from a net, e.g. resnet50, "
                       "shapes:transformer:12,768,12,1024,50257 or FILE.json (see refsgd list)")
    model.add_argument("--image", metavar="H,W,C", help="size of the net's images (default 224,224,3)")
    model.add_argument("--parameters", type=whole, metavar="P", help="number of parameters, without --net")
    model.add_argument("--flops", type=float, metavar="F",
                       help="floating-point operations of one image's forward pass, without --net; a "
                            "multiplication and an addition count as two")
    model.add_argument("--batch", type=int, default=32, metavar="B",
                       help="images in a worker's gradient (default 32)")
    model.add_argument("--images", type=whole, default=50_000, metavar="N", help="in a pass (default 50000)")
    model.add_argument("--precision", choices=("single", "mixed"), default="single", help="of memory; mixed: "
                       "2 bytes a number, and 4 for a copy of the parameters (default single)")
    model.add_argument("--optimiser", choices=tuple(OPTIMISERS), default="sgd",
                       help="update rule, whose state takes memory (default sgd)")
    model.add_argument("--momentum", type=float, default=0.0, help="of sgd, a vector of state (default 0)")
    where = p.add_argument_group("cluster")
    where.add_argument("--workers", type=int, metavar="N", help="default: those that fill the machine, or 8")
    where.add_argument("--servers", type=int, metavar="K",
                       help="servers of strategies with few servers (default: those that the machine "
                            "lists, or 1)")
    where.add_argument("--rate", type=typed(flops), metavar="FLOP/S",
                       help="speed of one worker, e.g. 5TFLOPS: gives the time of a gradient, taken as "
                            "three forward passes")
    where.add_argument("--spread", type=float, default=0.1, metavar="CV",
                       help="coefficient of variation of that time (default 0.1)")
    of_machine(where)
    _limits(p)
    p.add_argument("--trace", dest="traces", nargs="+", metavar="FILE",
                   help="in place of a model and a cluster: profiles of a job, one file for each rank or "
                        "one with all; prints what would change the time of its step")
    p.add_argument("--json", metavar="PATH",
                   help="write the advice as JSON; -: to standard output, and nothing else")


def _limits(p: argparse.ArgumentParser) -> None:
    """Add the options for limits, for other settings, and for what is compared."""
    p.add_argument("--memory", type=typed(_memory), metavar="BYTES",
                   help="memory of a node, e.g. 16GB: reject strategies that need more for parameters, "
                        "gradient, optimiser state and activations")
    p.add_argument("--swap", type=typed(bytes_per_second), metavar="BYTES/S",
                   help="in place of rejecting what exceeds --memory: the rate at which it comes from the "
                        "host's memory and goes back in each iteration, e.g. 12GB/s")
    p.add_argument("--max-staleness", type=float, metavar="UPDATES",
                   help="reject strategies with a larger mean staleness")
    p.add_argument("--mtbf", type=float, metavar="HOURS",
                   help="mean hours between failures of a node, which end the run: says how often to save a "
                        "checkpoint, and what share of the time remains")
    p.add_argument("--disk", type=typed(bytes_per_second), metavar="BYTES/S",
                   help="rate at which checkpoints are written and read (1GB/s)")
    p.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=True,
                   help="consider exchanges that overlap with the passes, in buckets of 25 MB or as P3, if "
                        "--net gives the size of each layer (default)")
    p.add_argument("--budget", type=whole, default=100_000, metavar="EVENTS",
                   help="events of simulated runs, for strategies without a formula (default 100000, "
                        "some seconds)")
    p.add_argument("--race", metavar="FILE",
                   help="a race that race --json wrote, or digits or digits-by-label: with its passes, "
                        "strategies of different kinds are compared by seconds to its target")
    p.add_argument("--search", nargs="+", default=[], metavar="QUANTITY=RANGE",
                   help="other numbers of workers and servers, and other batches, such as workers=2,4,8 "
                        "servers=1:2 batch=16,32: prints the best settings")
    p.add_argument("--device", action="append", default=[], type=offer,
                   metavar="NAME=FLOP/S@PRICE",
                   help="in place of --rate, once for each device that can be had, with the price of its "
                        "hour: prints the settings that no other beats in both time and price")


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
        if args.image is not None:
            raise Usage(f"--image {args.image} without --net; expected --net NAME, of images of this size")
        if args.parameters is None:
            raise Usage("no model; expected --net NAME, or --parameters and --flops")
        return _sized(args.parameters), args.parameters, args.flops, 0.0
    for name in ("parameters", "flops"):
        if (value := getattr(args, name)) is not None:
            raise Usage(f"--net {args.net} and --{name} {value:g}; expected one of the two: --net implies "
                        "the sizes")
    if only_sizes(args.net):
        return _of_sizes(args)
    from refsgd.problems.nn import nets

    check_net(args.net, ", or --parameters and --flops")
    args.image = image = "224,224,3" if args.image is None else args.image
    if not re.fullmatch(r"[1-9]\d{0,4}(,[1-9]\d{0,4}){2}", image, re.ASCII):
        raise Usage(f"--image {image}; expected height, width and channels, such as 224,224,3")
    shape = tuple(map(int, image.split(",")))
    classes = 1000 if prod(shape[:2]) > 4096 else 10
    with checked():
        net = nets.build(args.net, shape, classes=classes)
    return (f"{args.net} for {'x'.join(map(str, shape))} images, {classes} classes: {_sized(net.parameters)}",
            net.parameters, sum(float(row.flops) for row in net.leaves), net.saved)


def _sized(parameters: int) -> str:
    """A number of parameters with their bytes."""
    return f"{parameters:,} parameters, {4 * parameters:,} bytes"


def _of_sizes(args: argparse.Namespace) -> tuple[str, int, float | None, float]:
    """The model of a net that has sizes only."""
    if args.image is not None:
        raise Usage(f"--image {args.image} with --net {args.net}, which has its own sizes; expected none")
    found = of_sizes(args.net, 1)
    if found.chain and "image" not in found.describe:
        raise Usage(f"net {args.net}; expected --net NAME --image H,W,C for a net of images")
    args.tokens = found.describe.get("tokens", 0)
    size, work = int(found.x0.size), found.work(0, 0) / 3 if found.work else None
    return (f"{args.net}: {_sized(size)}{image_of(found.describe)}", size, work,
            found.chain.held(1) if found.chain else 0.0)


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
    noise = f"lognormal(1,{args.spread!r})" if args.spread else "fixed(1)"
    return f"device({args.rate!r},0,{noise})"


def _machine(args: argparse.Namespace, flops: float | None) -> Machine:
    """The machine that the flags describe; refused if it has devices and the model's work is unknown."""
    from refsgd.experiment.advice.advise import filling

    slow, args.slow = args.slow, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the whole machine, below, gives them again
        room = filling(machine_of(args))
    for name, usual in zip(("workers", "servers"), room):
        if getattr(args, name) is None:
            setattr(args, name, usual)
    args.slow = slow
    machine = machine_of(args)
    if on_devices(machine) and flops is None:
        rate = f"rate {args.rate:g} FLOP/s" if args.rate else f"compute {written(machine.compute)}"
        raise Usage(f"{rate} without the model's work; expected --flops, or --net")
    return machine


def do(args: argparse.Namespace) -> None:
    """Compare strategies and print the advice."""
    if args.traces:
        return _of_traces(args)
    if args.disk is not None and args.mtbf is None:
        raise Usage(f"--disk {args.disk:g} without --mtbf; expected --mtbf HOURS, which asks for checkpoints")
    if args.search or args.device:
        return settings(args, lambda asked: _advice(asked)[0])
    found, asked = _advice(args)
    deliver([(args.json, found.to_json)], lambda: _show(found, args, asked))


def _advice(args: argparse.Namespace) -> tuple[Advice, str]:
    """The advice, and what was asked in words."""
    from refsgd.experiment.advice.advise import advise
    from refsgd.experiment.race.entries import Race

    if args.swap is not None and (args.memory is None or not 0 < args.swap < inf):
        raise Usage(f"--swap {args.swap:g} bytes/s; expected a finite number > 0, with --memory")
    race, args.tokens = Race.load(args.race) if args.race else None, 0
    model, parameters, flops, activations = _model_of(args)
    args.compute = _time_of_gradient(args)
    machine = _machine(args, flops)
    found = advise(machine, parameters=parameters, workers=args.workers, batch=args.batch,
                   images=args.images, servers=args.servers, activations=activations,
                   memory_limit=args.memory, staleness_limit=args.max_staleness, overlap=args.overlap,
                   name=args.machine or "", work=3 * (flops or 0.0), budget=args.budget,
                   net=f"shapes:{args.net}@{args.image.replace(',', 'x')}" if args.image else args.net or "",
                   optimiser=args.optimiser, momentum=args.momentum, mixed=args.precision == "mixed",
                   race=race, swap=args.swap)
    if args.mtbf is not None:
        found = replace(found, checkpoints=_checkpoints(args, parameters))
    return found, f"{model}; {counted(args.workers, 'worker')}, batch {args.batch}; {found.machine}"


def _checkpoints(args: argparse.Namespace, parameters: int) -> Prediction:
    """What failures leave of the time, with parameters and the optimiser's state in each checkpoint."""
    from refsgd.theory.phenomena.checkpoints import checkpoints
    from refsgd.theory.phenomena.memory import STATE

    rate = 1e9 if args.disk is None else args.disk
    if not (0 < args.mtbf < inf and 0 < rate < inf):
        raise Usage(f"--mtbf {args.mtbf:g} hours, --disk {rate:g} bytes/s; expected finite numbers > 0")
    vectors = STATE.get(args.optimiser, 1) or bool(args.momentum)
    return checkpoints(4 * parameters * (1 + vectors) / rate, 3600 * args.mtbf, args.workers)


def _of_traces(args: argparse.Namespace) -> None:
    """Print what would change the step of a job."""
    from rich import box
    from rich.table import Table

    from refsgd.experiment.profiles.job import read
    from refsgd.experiment.profiles.whatif import what_if

    others = ("net", "parameters", "flops", "machine", "rate", "compute", "workers", "memory", "race", "mtbf",
              "swap", "search", "device")
    if given := [name for name in others if getattr(args, name) not in (None, [])]:
        raise Usage(f"--trace and --{given[0]}; expected --trace alone: the trace has the times")
    found = what_if(read(args.traces))
    base = found.rows[1].seconds

    def show() -> None:
        table = Table("", "a step", "to equal", "assumption", box=box.HORIZONTALS)
        for row in found.rows:
            said = row.assumption + f"; in PyTorch: {row.pytorch}" * bool(row.pytorch)
            table.add_row(row.name, spoken(row.seconds), f"x{row.seconds / base:.2f}", said)
        print(found.job.summary(), *wrap(found.verdict, width() or ADVICE), sep="\n")
        lay_out(lambda _: table, ADVICE)

    deliver([(args.json, found.to_json)], show)


def _show(found: Advice, args: argparse.Namespace, asked: str) -> None:
    """Print the question, the recommendation, the table and the lists."""
    wide = width() or ADVICE
    why = "" if args.net and args.overlap else "--no-overlap" if args.net else "only --net gives layers"
    overlap = f"Overlap is not applied ({why}): computing and exchange add up." * bool(why)
    saved = "" if found.checkpoints is None else (
        f"With a failure of each node every {args.mtbf:g} h, one of the {args.workers} ends the run every "
        f"{spoken(3600 * args.mtbf / args.workers)}: a checkpoint after every "
        f"{spoken(found.checkpoints.terms['period'])} leaves most, {found.checkpoints.value:.2%} of it.")
    for text in (asked, found.recommendation, saved, overlap * (found.baseline is not None)):
        if text:
            print("\n".join(wrap(text, wide, break_on_hyphens=False)) + "\n")
    fitting = [s for s in found.strategies if not s.rejected]
    findings = list(dict.fromkeys(e for s in fitting for e in s.candidate.evidence))
    if found.baseline is not None:
        spared = _table(fitting, found.baseline, [e.says for e in findings], args.tokens)
        _list("How to read it", _legend(fitting, args, found.baseline.name, spared), wide)
    for title, lines in {
        "What does not fit": [f"{s.name}: {s.rejected}" for s in found.strategies if s.rejected],
        "Largest learning rate that still converges on a quadratic, as a fraction of the limit with fresh "
        "gradients": _rates(fitting),
        "What studies found about accuracy when workers are added":
            [f"{LETTERS[i]}  {e.study} {e.part}: {e.says} ({e.when}): docs/studies/{e.study}"
             for i, e in enumerate(findings)],
        "What is unknown": found.unknown,
        "Try them (messages and times only; with a real --net and --data they train)":
            [line for s in found.tries for line in _try(s, wide)],
    }.items():
        _list(title, lines, wide)


def _table(strategies: Sequence[Strategy], base: Strategy, findings: Sequence[str], tokens: int) -> list[str]:
    """Print a section for each kind, with tokens in place of images if there are `tokens`; returns the heads
    of omitted columns."""
    from refsgd.display.tables import Column, fitted
    from refsgd.experiment.advice.candidates import KINDS

    shown: list[Strategy | str] = []
    for kind in KINDS:
        own = [s for s in strategies if s.kind is kind]
        shown += [f"{kind.title[0].upper()}{kind.title[1:]}"] * bool(own)
        for s in (s for s in own if not s.variant):
            shown += [s, *(v for v in own if v.variant and v.name.startswith(f"{s.name}, "))]

    def said(s: Strategy, name: str, write: Callable[[float], str]) -> str:
        return "" if (value := s.figure(name)) is None else write(value)

    def cells(s: Strategy) -> tuple[str, ...]:
        mark = "+ " if s.candidate.pytorch and not s.variant else "  "
        rate = s.images_per_second * (tokens or 1)
        return (mark + ("  " + s.variant if s.variant else s.name),
                MARKS.get(s.metrics["seconds"].kind, "") + spoken(s.seconds),
                f"x{s.seconds / base.seconds:.2f}",
                "" if isnan(s.passes) else "never" if isinf(s.passes) else f"{s.passes:.2g}",
                f"~{spoken(s.to_target)}" if isfinite(s.to_target) else "",
                said(s, "seconds_per_iteration", spoken),
                f"{rate:,.{0 if rate >= 100 else 2}f}", f"{s.efficiency:.0%}",
                said(s, "idle_ratio", "{:.0%}".format), said(s, "staleness_mean", "{:.1f}".format),
                said(s, "bytes_per_iteration", as_bytes), as_bytes(s.needs), s.binding,
                "".join(LETTERS[findings.index(e.says)] for e in s.candidate.evidence))

    heads = (("strategy", 0), ("pass", 0), ("factor", 0), ("passes", 0), ("to target", 0),
             ("iteration", 3), ("tokens/s" if tokens else "images/s", 2), ("eff", 1),
             ("idle", 5), ("stale", 5), ("sent", 6), ("memory", 4), ("waits for", 7), ("see", 3))
    rows = [(s, *[""] * (len(heads) - 1)) if isinstance(s, str) else cells(s) for s in shown]
    raced = any(not isnan(s.passes) for s in strategies)
    columns = [Column(head, list(own), rank, head not in ("strategy", "waits for", "see"))
               for (head, rank), own in zip(heads, zip(*rows)) if raced or head not in RACED]
    table = lay_out(lambda wide: fitted(columns, wide), ADVICE)
    return [c.head for c in columns if c.head not in {shown.header for shown in table.columns}]


def _legend(fitting: Sequence[Strategy], args: argparse.Namespace, base: str,
            spared: Sequence[str]) -> Iterator[str]:
    """The meaning of the columns, the placement of servers, and the columns that a wider terminal shows."""
    yield (f"pass: until every worker has finished its equal share of {args.images:,} images; ~ approximation"
           f", * simulated (within {args.budget:,} events for all, --budget), ? bound, else exact")
    yield (f"factor: relative to {base}, the baseline, which is recommended unless another of its kind is at "
           "least 5 % faster; a pass of another kind may improve accuracy less")
    if any(not isnan(s.passes) for s in fitting):
        yield "passes: to the target of the race; to target: passes times the seconds of a pass here"
    yield (f"eff: efficiency, {'tokens' if args.tokens else 'images'}/s relative to workers that always "
           "compute; idle: time without computing")
    if any(s.variant for s in fitting):
        yield "without ...: the cluster without its slowest; work by speed: batches in that proportion"
    yield "stale: mean updates between a gradient's read and its use; sent: by all nodes, an iteration"
    terms = dict.fromkeys(term.removeprefix("server's ") for s in fitting for term in s.memory)
    yield f"memory: of the fullest node: {', '.join(terms)} (docs/howto/advise)" + (
        "" if "activations" in terms else "; without activations, which only --net gives")
    yield "+ PyTorch has it, under the name that its command has below; all else needs code of your own"
    for where in dict.fromkeys(s.where for s in fitting if s.where and not s.variant):
        yield f"servers {where}: {', '.join(s.name for s in fitting if s.where == where and not s.variant)}"
    yield "waits for: the largest cause of idleness; K: number of servers, n: of workers"
    if spared:
        yield f"{', '.join(spared)}: left out at this width; a wider terminal shows them"


def _rates(fitting: Sequence[Strategy]) -> list[str]:
    """The largest stable learning rates of strategies with stale gradients."""
    from refsgd.theory.phenomena.staleness import constant_delay

    stale = {s.name: round(s.figure("staleness_mean") or 0.0) for s in fitting
             if not s.variant and s.kind.cost == "it applies stale gradients"}
    found = [f"{name} {constant_delay(tau).value / 2:.2f}" for name, tau in stale.items() if tau]
    return [", ".join(found)] if found else []


def _try(s: Strategy, wide: int) -> Iterator[str]:
    """The command of a strategy, what its run reports, and PyTorch's name."""
    idle, step = s.figure("idle_ratio"), s.metrics["seconds_per_iteration"]
    own = 1 - step.terms.get("swapping", 0.0) / step.value  # the share of the time that the run has, too
    yield f"{s.name}: docs/algorithms/{s.candidate.algorithm}"
    yield from broken(s.command, wide - 8)
    others = s.candidate.accumulate - 1
    yield (f"  this run{f', with {others} more gradients before each exchange' * (others > 0)}"
           f"{', without swapping' * (own < 1)}: {own * (s.figure('seconds') or 0):.4g} s"
           + (f", idle {max(0.0, 1 - (1 - idle) / own):.0%}" if idle is not None else ""))
    yield f"  in PyTorch: {s.candidate.pytorch or 'nothing built in'}"


def _list(title: str, lines: Sequence[str] | Iterator[str], wide: int) -> None:
    """Print a heading and indented lines, if there are any; commands are not wrapped."""
    for at, line in enumerate(lines):
        if not at:
            print("\n" + "\n".join(wrap(title, wide)))
        folded = [line] if line.startswith(("  refsgd ", "   ")) else wrap(
            line, wide - 4, subsequent_indent="    " if line.startswith(" ") else "  ",
            break_on_hyphens=False)
        print("\n".join("  " + part for part in folded))


def broken(command: str, width: int = ADVICE - 8) -> list[str]:
    """A command as indented lines, joined by backslashes."""
    lines = [" "]
    for word in re.split(r" (?=--)", command):
        if len(lines[-1]) + len(word) > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += " " + word
    return lines
