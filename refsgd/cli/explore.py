"""Check every schedule of a small case.

Follows every schedule of a small case and checks the invariants of each; prints the shortest schedule that
breaks one.
"""

from __future__ import annotations

import argparse

from refsgd.cli.options import exchange_given, own_given, small_case
from refsgd.experiment.arguments import Usage, check_whole


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that do not depend on the algorithm."""
    small_case(parser, 2, "default 2")
    parser.add_argument("--max-runs", type=int, default=20_000,
                        help="stop after this many schedules (default 20000)")
    parser.add_argument("--walks", type=int, metavar="R",
                        help="R random schedules instead of all, for larger cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random schedules")
    parser.add_argument("--page", metavar="FILE",
                        help="also write a page in which you pick what happens next")
    parser.add_argument("--deaths", type=int, default=0, metavar="N",
                        help="how many workers may die, on the page (default 0)")


def do(args: argparse.Namespace) -> None:
    """Explore, and print the number of schedules and the invariants that hold."""
    from refsgd.testing import explore_algorithm

    check_whole(1, workers=args.workers, servers=args.servers)
    if args.deaths and not args.page:
        raise Usage(f"deaths {args.deaths} without a page; expected --page FILE")
    print(explore_algorithm(args.algorithm, workers=args.workers, servers=args.servers, steps=args.steps,
                            batch=args.batch, max_runs=args.max_runs, walks=args.walks, seed=args.seed,
                            page=args.page, deaths=args.deaths, **own_given(args), **exchange_given(args)))
