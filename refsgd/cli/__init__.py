"""The command line: one file per command.

A command's docstring is its help; `options` adds its options, and `do` does its work.
"""

from __future__ import annotations

import argparse
import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType

from refsgd import __version__
from refsgd.cli import (
    advise,
    calibrate,
    check,
    compare,
    data,
    doctor,
    explore,
    listing,
    machine,
    predict,
    replay,
    run,
    step,
)
from refsgd.cli.options import Parser, as_meant, each_algorithm, of_algorithm
from refsgd.cli.outputs import check_outputs
from refsgd.experiment.functions import is_place
from refsgd.experiment.prepare import Usage

#: each command, and whether it has a parser for every algorithm
COMMANDS: dict[str, tuple[ModuleType, bool]] = {
    "compare": (compare, False), "run": (run, True), "predict": (predict, True), "step": (step, True),
    "explore": (explore, True), "check": (check, False), "replay": (replay, False),
    "calibrate": (calibrate, False), "machine": (machine, False), "advise": (advise, False),
    "data": (data, False), "doctor": (doctor, False), "list": (listing, False)}


@functools.cache
def build_parser() -> Parser:
    """The parser of all commands, built once even if `main` is called many times."""
    parser = Parser(prog="refsgd",
                    description="Distributed SGD: every consistency algorithm as one readable program, "
                    "predicted, simulated and run as real processes.")
    parser.add_argument("--version", action="version", version=f"refsgd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (command, each) in COMMANDS.items():
        says, _, description = (command.__doc__ or "").partition("\n\n")
        own = commands.add_parser(name, help=says[0].lower() + says[1:].rstrip("."), description=description)
        if each:
            each_algorithm(own, command.options, command.do)
        else:
            own.set_defaults(do=command.do)
            command.options(own)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 0 success, 1 failure, 2 usage error, 130 interrupted."""
    return carry_out(lambda: parsed(as_meant(sys.argv[1:] if arguments is None else arguments)))


def parsed(given: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command; a function in a file gets a parser as those of the catalogue have."""
    command, each = COMMANDS.get(given[0], (compare, False))
    if not each or not is_place("".join(given[1:2])):
        return build_parser().parse_args(given)
    parser = Parser(prog=f"refsgd {given[0]} {given[1]}")
    of_algorithm(parser, given[1], command.options, command.do)
    return parser.parse_args(given[2:])


def carry_out(parse: Callable[[], argparse.Namespace]) -> int:
    """Parse and execute a command, print errors as one line, and return the exit code."""
    from refsgd.problems.data import DataError

    try:
        args = parse()
        warnings.showwarning = lambda message, *rest, **more: sys.stderr.write(
            f"refsgd: warning: {message}\n")  # type: ignore[assignment]
        check_outputs(args)
        args.do(args)
        return 0
    except SystemExit as stop:
        return int(stop.code or 0)
    except KeyboardInterrupt:
        sys.stderr.write("refsgd: interrupted; all processes ended\n")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except (DataError, RuntimeError, ArithmeticError, ValueError, OSError, AssertionError) as error:
        sys.stderr.write(", ".join([f"refsgd: {error}", *getattr(error, "__notes__", ())]) + "\n")
        return 2 if isinstance(error, Usage) else 1
