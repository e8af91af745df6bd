"""``refsgd run``: train with one algorithm."""

from __future__ import annotations

import argparse
from typing import Any

from refsgd.cli.options import DEFAULT_WORKERS, arguments_of, common, each_algorithm, explicit
from refsgd.cli.outputs import compile_kernels, notice, progress, show, writing
from refsgd.cli.ranks import run_over_mpi
from refsgd.result import Result
from refsgd.running import run
from refsgd.runtimes.faults import POLICIES


def add(commands: Any) -> None:
    """Its options, a parser for each algorithm."""
    each_algorithm(commands, "run", "train with one algorithm",
                   "Trains with one algorithm in virtual time or as OS processes and prints what was seen.", do, options)


def options(parser: argparse.ArgumentParser) -> None:
    """Options of a run that do not depend on the algorithm."""
    common(parser, "simulator")
    parser.set_defaults(workers=None)  # over MPI: as many as there are ranks
    parser.add_argument("--trace", metavar="PATH", help="write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing")
    parser.add_argument("--record", metavar="PATH", help="write the schedule; `refsgd replay PATH` reproduces the run bit for bit")
    parser.add_argument("--checkpoint", metavar="DIR", help="write checkpoints there, also at the signal SIGUSR1")
    parser.add_argument("--checkpoint-every", type=float, default=1.0, metavar="EPOCHS", help="between two checkpoints (default 1; 0: on request only)")
    parser.add_argument("--resume", metavar="DIR", help="go on from the newest checkpoint; what is trained, and where, is as it was")
    parser.add_argument("--fault", metavar="WHAT", action="append", default=[],
                        help="plan a fault, e.g. 'kill worker 2 at step 10', 'pause worker 1 at step 5 for 0.5', 'slow worker 0 at "
                             "step 3 by 4', 'delay worker 1 at step 2 by 0.2', 'drop worker 1 at step 4' or 'random 3 seed 7'; repeatable")
    parser.add_argument("--on-death", choices=POLICIES, default="stop",
                        help="what follows a death: end with an error, go on, start again without the dead or with all (default stop)")
    parser.add_argument("--monitor", action="store_true", help="also sample processor, memory and files of each process (processes, tcp)")
    parser.add_argument("--player", metavar="FILE.html", help="write the run's first events as a page to go forwards and backwards in")


def do(args: argparse.Namespace) -> None:
    """Train; print what was seen."""
    if args.runtime == "mpi":
        found = run_over_mpi(args)
        if found is not None:
            finish(found, args)
        return
    if args.resume is None:
        args.workers = DEFAULT_WORKERS if args.workers is None else args.workers
    arguments = arguments_of(args) if args.resume is None else explicit(args)
    compile_kernels(args)
    with progress(args.quiet or args.json == "-", 2) as say:
        if say:
            say(f"{args.algorithm}: running")
        result = run(args.algorithm, runtime=args.runtime, record=args.record, faults=args.fault, on_death=args.on_death,
                     checkpoint=args.checkpoint, checkpoint_every=args.checkpoint_every, resume=args.resume,
                     monitor=args.monitor, say=notice(args), **arguments)
    finish(result, args)


def finish(result: Result, args: argparse.Namespace) -> None:
    """Print and write what was seen."""
    show(result, args)
    if args.trace:
        assert result.trace is not None
        with writing(args.trace) as temporary:
            temporary.write_text(result.trace.to_chrome())
