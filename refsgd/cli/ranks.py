"""``refsgd run --runtime mpi`` under mpiexec: every rank takes part, rank 0 speaks, writes the files and names the error."""

from __future__ import annotations

import argparse
import contextlib
import warnings
from collections.abc import Iterator

from refsgd.cli.options import DEFAULT_WORKERS, arguments_of, explicit
from refsgd.cli.outputs import compile_kernels
from refsgd.experiment import Usage, deployment_function, has_servers
from refsgd.result import Result
from refsgd.running import run
from refsgd.runtimes import mpi


@contextlib.contextmanager
def one_voice(rank: int) -> Iterator[None]:
    """Errors and warnings, which all ranks meet alike, are said by rank 0 only; the others just end."""
    if not rank:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as error:
            raise SystemExit(2 if isinstance(error, Usage) else 1) from None


def run_over_mpi(args: argparse.Namespace) -> Result | None:
    """Train; every rank calls this."""
    comm = mpi.world()
    with one_voice(comm.rank):
        _, function = deployment_function(args.algorithm)
        servers = args.servers if has_servers(function) else 0
        if args.workers is None and args.resume is None:  # as many as mpiexec has started
            args.workers = DEFAULT_WORKERS if comm.size == 1 else max(1, comm.size - (0 if args.collocated else servers))
        args.quiet = args.quiet or comm.rank != 0
        for turn in (True, False):  # one compiles, the others read what it cached
            if turn == (comm.rank == 0):
                compile_kernels(args)
            comm.Barrier()
        result = run(args.algorithm, runtime="mpi", record=args.record, faults=args.fault, on_death=args.on_death, checkpoint=args.checkpoint,
                     checkpoint_every=args.checkpoint_every, resume=args.resume,
                     **(arguments_of(args) if args.resume is None else explicit(args)))
    return result if comm.rank == 0 else None
