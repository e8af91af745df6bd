"""``refsgd step``: the reader decides what happens next."""

from __future__ import annotations

import argparse
from typing import Any

from refsgd.cli import terminal
from refsgd.cli.options import each_algorithm
from refsgd.cli.outputs import write


def add(commands: Any) -> None:
    """Its options, a parser for each algorithm."""
    each_algorithm(commands, "step", "step through an algorithm: you decide what happens next",
                   "Runs a small case "
                   "action by action: type the number of what shall happen next, go back, look where each "
                   "program stands.",
                   do, terminal.add_options)


def do(args: argparse.Namespace) -> None:
    """Converse, or step by the lines of a pipe."""
    terminal.step(args, write)
