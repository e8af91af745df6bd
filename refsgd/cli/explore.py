"""Check every schedule of a small case.

Follows every schedule of a small case and checks the invariants of each; prints the shortest schedule that
breaks one.
"""

from __future__ import annotations

import argparse

from refsgd.cli.options import add_flags, exchange_given, own_given, small_case, words
from refsgd.experiment.arguments import Usage

#: options of an exploration that have a flag
GIVEN = ("max_runs", "walks", "seed", "page", "deaths")


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that do not depend on the algorithm."""
    from refsgd.testing import explore_algorithm

    small_case(parser, 2, "default 2")
    add_flags(parser, explore_algorithm, GIVEN, words(explore_algorithm.__doc__))


def do(args: argparse.Namespace) -> None:
    """Explore, and print the number of schedules and the invariants that hold."""
    from refsgd.testing import explore_algorithm

    given = {name: value for name in GIVEN if (value := getattr(args, name)) is not None}
    if args.walks is None and args.seed is not None:
        raise Usage(f"--seed {args.seed} without --walks, whose schedules it draws; expected --walks R")
    if args.walks is not None and args.max_runs is not None:
        raise Usage(f"--max-runs {args.max_runs} with --walks {args.walks}, which is their number; expected "
                    "one of the two")
    if args.deaths and not args.page:
        raise Usage(f"deaths {args.deaths} without a page; expected --page FILE")
    print(explore_algorithm(args.algorithm, workers=args.workers, servers=args.servers, steps=args.steps,
                            batch=args.batch, **given, **own_given(args), **exchange_given(args)))
