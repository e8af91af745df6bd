"""Metrics of one algorithm by formula.

Prints the values of the formulas, term by term, without running anything.
"""

from __future__ import annotations

import argparse
from typing import Any

from refsgd.cli.options import arguments_of, check_priced, common, flag, own_given
from refsgd.cli.outputs import PIPE, check_outputs, deliver, figure, lay_out, tell, width
from refsgd.experiment.prepare import DEFAULT_MACHINE, Usage, prepare
from refsgd.experiment.result import image_of
from refsgd.trace.schema import json_text

PICTURE = "refsgd-sweep.png"


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that do not depend on the algorithm."""
    common(parser, "", PICTURE)
    parser.add_argument("--kind", choices=("formulas", "simulated"), default="formulas",
                        help="source of the metrics (default formulas, and runs of the simulator where "
                        "there are none); simulated: all from runs of the simulator with a shape-only net")
    parser.add_argument("--target", metavar="loss=V",
                        help="updates until the expected loss is V, and the rate that needs the fewest, with "
                        "--data quadratic:LOW,HIGH,MODES,NOISE, whose loss is 1 at the start; --plot draws "
                        "the expected loss beside a simulated run")
    parser.add_argument("--sweep", metavar="QUANTITY=RANGE",
                        help="curves over workers, servers, batch, bandwidth, latency or staleness, "
                        "e.g. workers=1:64; writes a picture and marks crossings")
    parser.add_argument("--against", default="", metavar="A,B,...", help="other algorithms for the sweep")
    parser.add_argument("--metric", metavar="KEY",
                        help="metric of the sweep (default images_per_second; all: `refsgd list`)")


def do(args: argparse.Namespace) -> None:
    """Print the predicted metrics, or the curves of a sweep."""
    if args.sweep:
        draw_sweep(args)
        return
    for alone in ("against", "metric", *["plot"] * (not args.target)):
        if value := getattr(args, alone):
            raise Usage(f"--{alone} {value} without a sweep; expected --sweep QUANTITY=RANGE too, e.g. "
                        "--sweep workers=1:64" + " (or --target loss=0.1)" * (alone == "plot"))
    from refsgd.display.tables import prediction_lines
    from refsgd.theory.estimate import LARGEST

    if args.kind == "formulas" and (args.workers or 0) > LARGEST:  # before their programs are built
        raise Usage(f"{args.workers} workers; formulas are evaluated for at most {LARGEST}")

    experiment = prepare(args.algorithm, **arguments_of(args))
    check_priced(args, experiment.machine)
    predictions, found = experiment.predictions(args.kind), None
    if args.target:
        from refsgd.experiment.convergence import approach

        found = approach(experiment, args.target, predictions)
    elif not predictions and not experiment.machine.paced:
        raise Usage(f"no formula covers {args.algorithm} on an unpaced machine; expected --compute DIST")
    elif not predictions:
        raise Usage(f"no metrics of {args.algorithm}: {next(iter(predictions.missing.values()))}")
    text = {**{name: p.to_json() for name, p in predictions.items()}, "absent": predictions.missing}

    def talk() -> None:
        own = ", ".join(f"{name} {value}" for name, value in experiment.own.items() if value is not None)
        tell(f"{experiment.name}{own and f' ({own})'} on: {experiment.machine}", 2)
        tell(_trained(experiment.problem.describe), 2)
        print("\n".join(prediction_lines(predictions, predictions.missing, width() or PIPE)))

    deliver([(args.json, lambda: json_text(text)),
             (args.plot, lambda: figure("approach_figure", found, found and found.simulated()))], talk)


def _trained(problem: dict[str, Any]) -> str:
    """The net, and the image size on which its number of parameters depends."""
    from refsgd.problems.data import NAMES, load

    images, data = "", problem["data"]
    if data in NAMES:
        images = f" for {'x'.join(map(str, load(data).train_images.shape[1:]))} images ({data})"
    return (f"{problem['net']}{images}: {problem['parameters']:,} parameters, {problem['bytes']:,} bytes"
            + image_of(problem))


def draw_sweep(args: argparse.Namespace) -> None:
    """Plot curves of several algorithms with their crossings."""
    from refsgd.display.tables import sweep_table
    from refsgd.experiment.sweep import parse_range, sweep

    if args.target:
        raise Usage(f"--target {args.target} with --sweep; expected one of them")
    if args.kind == "simulated":
        raise Usage("--kind simulated with --sweep, whose curves are formulas; expected --kind formulas")
    quantity, values = parse_range(args.sweep)
    names = [a for a in (args.algorithm, *args.against.split(",")) if a]
    own = own_given(args)
    if own and len(names) > 1:
        raise Usage(f"{', '.join(map(flag, own))} with --against; expected no options of a single algorithm "
                    "when several are compared")
    arguments = arguments_of(args)
    if "steps" not in arguments and "epochs" not in arguments:
        arguments["steps"] = 100
    args.plot = args.plot or (PICTURE if args.json != "-" else None)
    check_outputs(args)
    found = sweep(names, quantity, values, metric=args.metric or "images_per_second", **arguments)
    check_priced(args, arguments.get("machine", DEFAULT_MACHINE), quantity == "batch")

    def talk() -> None:
        lay_out(lambda wide: sweep_table(found, wide))
        for name, why in found.absent.items():
            tell(f"- of {name}: {why}")
        for a, b, x in found.crossings:
            print(f"{a} and {b} cross at {quantity} = {x:.4g}")
        if found.toothed:
            tell("A curve has teeth where the batch does not divide a worker's images: each pass then ends "
                 "with a smaller batch.")
        print(f"picture: {args.plot}")

    deliver([(args.json, lambda: json_text(vars(found))),
             (args.plot, lambda: figure("sweep_figure", found))], talk)
