"""Reproduce a recorded run bit for bit.

Reads a file that `refsgd run --record` wrote and reproduces the run in the simulator: every receive and
choice returns the same answer as then.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from refsgd.cli.options import files, player_file
from refsgd.cli.outputs import show
from refsgd.experiment.prepare import Usage
from refsgd.experiment.run import replay


def options(p: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    p.add_argument("file", metavar="FILE")
    files(p, "refsgd-replay.png")
    player_file(p)


def do(args: argparse.Namespace) -> None:
    """Reproduce the run and print its result."""
    if not Path(args.file).is_file():
        raise Usage(f"no file {args.file}; expected one that `refsgd run --record` wrote")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = replay(args.file)
    crashed = [str(w.message) for w in said if "crashed" in str(w.message)]
    show(result, args, *(crashed or ["the same bits as recorded"]))
