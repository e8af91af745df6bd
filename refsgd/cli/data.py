"""List the available data sets; fetch others.

Lists the data sets in REFSGD_DATA and in the cache, or fetches one into the cache and verifies its checksums.
"""

from __future__ import annotations

import argparse

from refsgd.cli.outputs import tell
from refsgd.experiment.prepare import Usage


def options(p: argparse.ArgumentParser) -> None:
    """Add the command's argument."""
    p.add_argument("fetch", nargs="?", metavar="NAME", help="a set to fetch: mnist, fashion-mnist, cifar10")


def do(args: argparse.Namespace) -> None:
    """List the data sets, or fetch one."""
    from refsgd.problems.data import fetch, status
    from refsgd.problems.data.published import ADDRESSES

    if args.fetch:
        if args.fetch not in ADDRESSES:
            raise Usage(f"data {args.fetch!r} cannot be fetched; expected one of {', '.join(ADDRESSES)}")
        print(f"{args.fetch}: {fetch(args.fetch)}")
        return
    for row in status():
        if not row.expected:
            where = "needs no files"
        elif row.folder is None:
            where = f"not here; refsgd data {row.name} fetches it"
        else:
            where = f"{row.found} of {row.expected} files in {row.folder}"
            if row.found < row.expected:
                where = f"partial: {where}; {row.note}" if row.note else f"incomplete: {where}"
        tell(f"{row.name:14} {where}", 15)
