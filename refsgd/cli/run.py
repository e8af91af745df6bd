"""Train with one algorithm.

Trains with one algorithm in virtual time or as OS processes and prints the result.
"""

from __future__ import annotations

import argparse
import contextlib
import warnings
from collections.abc import Iterator
from typing import Literal

from refsgd.algorithms.facts import declared, facts_of
from refsgd.cli.options import add_flags, arguments_of, check_priced, common, monitor, player_file, words
from refsgd.cli.outputs import compile_kernels, notice, progress, show
from refsgd.experiment.evaluation import EVALUATIONS
from refsgd.experiment.functions import deployment_function
from refsgd.experiment.prepare import Usage, prepare
from refsgd.experiment.result import Result
from refsgd.experiment.run import RunOptions, carry_out, run
from refsgd.runtimes.faults import POLICIES
from refsgd.runtimes.fork import LAUNCHERS

#: options of a run that have a flag
FLAGS = ("record", "checkpoint", "checkpoint_every", "resume", "on_death", "unpaced", "warmup_steps")
GIVEN = (*FLAGS, "monitor")


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that do not depend on the algorithm."""
    common(parser, "simulator", "refsgd-run.png")
    parser.add_argument("--trace", metavar="PATH",
                        help="write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing")
    parser.add_argument("--save", metavar="PATH.npy",
                        help="write the evaluated parameters, with which --start begins another run")
    says = words(run.__doc__)
    add_flags(parser, RunOptions, FLAGS, says, on_death=Literal[POLICIES])
    monitor(parser)
    parser.add_argument("--fault", dest="faults", metavar="WHAT", action="append",
                        help=f"{says.get('faults', '')}  Repeatable.")
    player_file(parser)


def do(args: argparse.Namespace) -> None:
    """Train and print the result."""
    if args.runtime in LAUNCHERS:
        if (result := run_over_ranks(args)) is not None:
            check_priced(args, result.machine)
            show(result, args)
        return
    options = described(args)
    compile_kernels(args.data, args.net, args.quiet)
    with progress(args.quiet or args.json == "-", 2) as say:
        if say:
            say(f"{args.algorithm}: running")
        result = carry_out(options)
    check_priced(args, result.machine)
    show(result, args)


def described(args: argparse.Namespace) -> RunOptions:
    """The run that the command line describes; a resumed run takes the rest from its record."""
    # only JSON and pictures show the history, whose evaluation takes longer than a short run
    given = {name: value for name in (*GIVEN, "faults") if (value := getattr(args, name)) is not None}
    return RunOptions(args.algorithm, runtime=args.runtime, say=notice(args.quiet),
                      evaluations=EVALUATIONS if args.json or args.plot else 0,
                      arguments=arguments_of(args), **given)


@contextlib.contextmanager
def one_voice(rank: int) -> Iterator[None]:
    """Let only rank 0 print errors and warnings, which are the same on all ranks."""
    if not rank:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as error:
            raise SystemExit(2 if isinstance(error, Usage) else 1) from None


def _hosts_of_servers(args: argparse.Namespace, workers: int) -> int:
    """How many hosts a deployment has besides those of its workers."""
    _, function = deployment_function(args.algorithm)
    served = facts_of(function).served
    if args.colocated or served or declared(function):
        return (args.servers or 1) * (served and not args.colocated)
    given = {**arguments_of(args), "workers": workers, "machine": None, "stated": ()}
    experiment = prepare(args.algorithm, **given)  # only the function knows which servers it has
    return len(set(experiment.network.host.values())) - workers


def run_over_ranks(args: argparse.Namespace) -> Result | None:
    """Train under mpiexec or torchrun; every rank calls this, and rank 0 gets the result."""
    from refsgd.runtimes.processes import mpi

    comm = mpi.world(args.runtime)
    with one_voice(comm.rank):
        if args.workers is None and args.resume is None and comm.size > 1 and not args.hosts:
            # one per process that was started; with --hosts, a rank is a host with any number of workers
            args.workers = max(1, comm.size - _hosts_of_servers(args, comm.size))
        args.quiet = args.quiet or comm.rank != 0
        options = described(args)
        for turn in (True, False):  # rank 0 compiles, the others read the cache
            if turn == (comm.rank == 0):
                compile_kernels(args.data, args.net, args.quiet)
            comm.Barrier()
        result = carry_out(options)
    return result if comm.rank == 0 else None
