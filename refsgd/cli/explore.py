"""Check every schedule of a small case.

Follows every schedule of a small case and checks the invariants of each; prints the shortest schedule that
breaks one.
"""

from __future__ import annotations

import argparse

from refsgd.cli.options import exchange_given, own_given, small_case
from refsgd.experiment.arguments import Usage


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that do not depend on the algorithm."""
    small_case(parser, 2, "default 2")
    parser.add_argument("--max-runs", type=int,
                        help="stop after this many schedules (default 20000)")
    parser.add_argument("--walks", type=int, metavar="R",
                        help="R random schedules instead of all, for larger cases")
    parser.add_argument("--seed", type=int, help="seed of the random schedules (default 0)")
    parser.add_argument("--page", metavar="FILE",
                        help="also write a page in which you pick what happens next")
    parser.add_argument("--deaths", type=int, default=0, metavar="N",
                        help="how many workers may die, on the page (default 0)")


def do(args: argparse.Namespace) -> None:
    """Explore, and print the number of schedules and the invariants that hold."""
    from refsgd.testing import explore_algorithm

    given = {name: value for name in ("max_runs", "seed") if (value := getattr(args, name)) is not None}
    if args.walks is None and args.seed is not None:
        raise Usage(f"--seed {args.seed} without --walks, whose schedules it draws; expected --walks R")
    if args.walks is not None and args.max_runs is not None:
        raise Usage(f"--max-runs {args.max_runs} with --walks {args.walks}, which is their number; expected "
                    "one of the two")
    if args.deaths and not args.page:
        raise Usage(f"deaths {args.deaths} without a page; expected --page FILE")
    print(explore_algorithm(args.algorithm, workers=args.workers, servers=args.servers, steps=args.steps,
                            batch=args.batch, walks=args.walks, page=args.page, deaths=args.deaths, **given,
                            **own_given(args), **exchange_given(args)))
