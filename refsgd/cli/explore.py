"""Check every schedule of a small case.

Follows every schedule of a small case and checks the invariants of each; prints the shortest schedule that
breaks one.
"""

from __future__ import annotations

import argparse

from refsgd.cli.options import exchange_given, of_exchange, own_given, weights
from refsgd.experiment.prepare import Usage


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that do not depend on the algorithm."""
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="default 2")
    parser.add_argument("--servers", type=int, default=1, metavar="K", help="default 1")
    parser.add_argument("--steps", type=int, default=2, metavar="T", help="default 2")
    weights(parser)
    of_exchange(parser)
    parser.add_argument("--max-runs", type=int, default=20_000,
                        help="stop after this many schedules (default 20000)")
    parser.add_argument("--walks", type=int, metavar="R",
                        help="R random schedules instead of all, for larger cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random schedules")
    parser.add_argument("--page", metavar="FILE",
                        help="also write a page in which you pick what happens next")
    parser.add_argument("--deaths", type=int, default=0, metavar="N",
                        help="so many workers may die, on the page (default 0)")


def do(args: argparse.Namespace) -> None:
    """Explore, and print the number of schedules and the invariants that hold."""
    from refsgd.testing import explore_algorithm

    if args.workers < 1:
        raise Usage(f"workers {args.workers}; expected at least 1")
    if args.servers < 1:
        raise Usage(f"servers {args.servers}; expected at least 1")
    if args.deaths and not args.page:
        raise Usage(f"deaths {args.deaths} without a page; expected --page FILE")
    print(explore_algorithm(args.algorithm, workers=args.workers, servers=args.servers, steps=args.steps,
                            batch=args.batch, max_runs=args.max_runs, walks=args.walks, seed=args.seed,
                            page=args.page, deaths=args.deaths, **own_given(args), **exchange_given(args)))
