"""Train with one algorithm.

Trains with one algorithm in virtual time or as OS processes and prints the result.
"""

from __future__ import annotations

import argparse
import contextlib
import warnings
from collections.abc import Iterator

from refsgd.algorithms.facts import declared, facts_of
from refsgd.cli.options import arguments_of, check_priced, common, player_file
from refsgd.cli.outputs import compile_kernels, notice, progress, show
from refsgd.experiment.functions import deployment_function
from refsgd.experiment.prepare import Usage, prepare
from refsgd.experiment.result import Result
from refsgd.experiment.run import RunOptions, carry_out
from refsgd.runtimes.faults import POLICIES


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that do not depend on the algorithm."""
    common(parser, "simulator", "refsgd-run.png")
    parser.add_argument("--trace", metavar="PATH",
                        help="write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing")
    parser.add_argument("--record", metavar="PATH",
                        help="write the schedule; `refsgd replay PATH` reproduces the run bit for bit")
    parser.add_argument("--checkpoint", metavar="DIR",
                        help="write the run's record to DIR while it runs; --resume DIR continues from it")
    parser.add_argument("--checkpoint-every", type=float, default=1.0, metavar="EPOCHS",
                        help="epochs between flushes of the record to disk (default 1; 0: only at SIGUSR1)")
    parser.add_argument("--resume", metavar="DIR",
                        help="replay the record in DIR and continue from its end, with the arguments in it")
    parser.add_argument("--fault", metavar="WHAT", action="append", default=[],
                        help="plan a fault, e.g. 'kill worker 2 at step 10', 'pause worker 1 at step 5 for "
                             "0.5', 'slow worker 0 at step 3 by 4', 'delay worker 1 at step 2 by 0.2', 'drop "
                             "worker 1 at step 4' or 'random 3 seed 7'; repeatable")
    parser.add_argument("--on-death", choices=POLICIES, default="stop",
                        help="after a worker dies: end with an error, continue, restart without it or "
                             "with all workers (default stop)")
    parser.add_argument("--monitor", action="store_true",
                        help="also sample processor, memory and files of each process (processes, tcp)")
    player_file(parser)


def do(args: argparse.Namespace) -> None:
    """Train and print the result."""
    if args.runtime == "mpi":
        if (result := run_over_mpi(args)) is not None:
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
    return RunOptions(args.algorithm, runtime=args.runtime, record=args.record, faults=args.fault,
                      on_death=args.on_death, checkpoint=args.checkpoint,
                      checkpoint_every=args.checkpoint_every, resume=args.resume, monitor=args.monitor,
                      say=notice(args.quiet), arguments=arguments_of(args))


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


def run_over_mpi(args: argparse.Namespace) -> Result | None:
    """Train under mpiexec; every rank calls this, and rank 0 gets the result."""
    from refsgd.runtimes.processes import mpi

    comm = mpi.world()
    with one_voice(comm.rank):
        if args.workers is None and args.resume is None and comm.size > 1 and not args.hosts:
            # one per process that mpiexec started; with --hosts, a rank is a host with any number of workers
            args.workers = max(1, comm.size - _hosts_of_servers(args, comm.size))
        args.quiet = args.quiet or comm.rank != 0
        options = described(args)
        for turn in (True, False):  # rank 0 compiles, the others read the cache
            if turn == (comm.rank == 0):
                compile_kernels(args.data, args.net, args.quiet)
            comm.Barrier()
        result = carry_out(options)
    return result if comm.rank == 0 else None
