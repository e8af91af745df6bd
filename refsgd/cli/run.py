"""``refsgd run``: train with one algorithm."""

from __future__ import annotations

import argparse
from typing import Any

from refsgd.cli.options import arguments_of, common, compile_kernels, each_algorithm, progress, show, writing
from refsgd.experiment import run


def add(commands: Any) -> None:
    """Its options, a parser for each algorithm."""
    each_algorithm(commands, "run", "train with one algorithm",
                   "Trains with one algorithm in virtual time or as OS processes and prints what was seen.", do, options)


def options(parser: argparse.ArgumentParser) -> None:
    """Options of a run that do not depend on the algorithm."""
    common(parser, "simulator")
    parser.add_argument("--trace", metavar="PATH", help="write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing")
    parser.add_argument("--record", metavar="PATH", help="write the schedule; `refsgd replay PATH` reproduces the run bit for bit")
    parser.add_argument("--player", metavar="FILE.html", help="write the run's first events as a page to go forwards and backwards in")


def do(args: argparse.Namespace) -> None:
    """Train; print what was seen."""
    arguments = arguments_of(args)
    compile_kernels(args)
    with progress(args.quiet or args.json == "-", 2) as say:
        if say:
            say(f"{args.algorithm}: running")
        if args.record:
            with writing(args.record) as temporary:
                result = run(args.algorithm, runtime=args.runtime, record=temporary, **arguments)
        else:
            result = run(args.algorithm, runtime=args.runtime, **arguments)
    show(result, args)
    if args.trace:
        assert result.trace is not None
        with writing(args.trace) as temporary:
            temporary.write_text(result.trace.to_chrome())
