"""``refsgd replay``: a recorded run, bit for bit."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

from refsgd.cli.outputs import output_of, show
from refsgd.experiment.prepare import Usage
from refsgd.experiment.run import replay


def add(commands: Any) -> None:
    """Its options."""
    p = commands.add_parser("replay", help="reproduce a recorded run bit for bit",
                            description="Reads a file that `refsgd run --record` "
                            "wrote and reproduces the run in the simulator: every receive and choice returns "
                            "what it returned then.")
    p.add_argument("file", metavar="FILE")
    p.add_argument("--json", metavar="PATH",
                   help="write the result as JSON; - for standard output and nothing else")
    p.add_argument("--plot", metavar="PATH", help="write a picture (png, pdf or svg)")
    p.add_argument("--player", metavar="FILE.html",
                   help="write the run's first events as a page to go forwards and backwards in")
    p.set_defaults(do=do)


def do(args: argparse.Namespace) -> None:
    """Reproduce the run; print what was seen."""
    if not Path(args.file).is_file():
        raise Usage(f"no file {args.file}; expected one that `refsgd run --record` wrote")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = replay(args.file)
    crashed = [str(w.message) for w in said if "crashed" in str(w.message)]
    show(result, output_of(args), *(crashed or ["the same bits as recorded"]))
