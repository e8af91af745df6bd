"""The command line: one file per command.

A command's docstring is its help; `options` adds its options, if any, and `do` does its work.
"""

from __future__ import annotations

import argparse
import errno
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

from refsgd._version import __version__
from refsgd.algorithms import CATALOGUE
from refsgd.cli.options import Parser, as_meant, first_line, own_options
from refsgd.cli.outputs import check_outputs, failure, standard_streams
from refsgd.experiment.computer.limits import check_address_space
from refsgd.experiment.functions import deployment_function, is_place
from refsgd.experiment.prepare import Usage
from refsgd.runtimes.programs import no_exit

CLOSED_PIPE = 141  #: the exit code after SIGPIPE in a shell, 128 + 13
#: the commands, each a module of this folder, and whether it has a parser for every algorithm
COMMANDS = {"compare": False, "race": False, "run": True, "predict": True, "step": True, "explore": True,
            "check": False, "replay": False, "calibrate": False, "machine": False, "advise": False,
            "data": False, "doctor": False, "list": False}


def module_of(command: str) -> tuple[ModuleType, str, str]:
    """The module of a command, what it does in one line, and the rest of its help."""
    module = import_module(f"refsgd.cli.{command}")
    says, _, more = (module.__doc__ or "").partition("\n\n")
    return module, says, more


def every_command() -> Parser:
    """The parser of a line that begins with none of the commands: of help, version, and mistakes."""
    parser = Parser(prog="refsgd",
                    description="Distributed SGD: every consistency algorithm as one readable program, "
                    "predicted, simulated and run as real processes.")
    parser.add_argument("--version", action="version", version=f"refsgd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        _, says, _ = module_of(name)
        commands.add_parser(name, help=says[:1].lower() + says[1:].rstrip("."))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    0 done, 1 failed, 2 usage error, 130 interrupted, 141 done, but the pipe of standard output closed early.
    """
    return carry_out(lambda: parsed(as_meant(sys.argv[1:] if arguments is None else arguments)))


def parsed(given: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command; only its parser is built: those of all take longer than many a command."""
    if given[0] not in COMMANDS:
        return every_command().parse_args(given)
    command, _, more = module_of(given[0])
    parser, used = Parser(prog=f"refsgd {given[0]}", description=more), 1
    if not COMMANDS[given[0]]:
        if hasattr(command, "options"):
            command.options(parser)
    elif (name := "".join(given[1:2])) in CATALOGUE or is_place(name):
        parser, used = Parser(prog=f"{parser.prog} {name}"), 2
        parser.description = first_line(name) if name in CATALOGUE else None
        command.options(parser)
        own_options(parser, name, deployment_function(name)[1])
        parser.set_defaults(algorithm=name)
    else:  # for its help, and for mistakes
        algorithms = parser.add_subparsers(dest="algorithm", metavar="ALGORITHM", required=True,
                                           description="One of the catalogue, or your own: FILE.py:FUNCTION.")
        for name in CATALOGUE:
            algorithms.add_parser(name, help=first_line(name))
    parser.set_defaults(do=command.do)
    return parser.parse_args(given[used:], argparse.Namespace(command=given[0]))


def carry_out(parse: Callable[[], argparse.Namespace]) -> int:
    """Parse and execute a command, print errors as one line, and return the exit code."""
    with standard_streams(), warnings.catch_warnings():
        if any(action == "error" for action, *_ in warnings.filters):
            warnings.simplefilter("default")  # a warning ends no run before its files are written
        code, error = _carried_out(parse), failure()
        if code or error is None:  # else the code tells that standard output could not be written
            return code
        if error.errno == errno.EPIPE:
            return CLOSED_PIPE
        sys.stderr.write(f"refsgd: standard output could not be written ({error.strerror}); files that were "
                         "asked for are complete\n")
        return 1


def _carried_out(parse: Callable[[], argparse.Namespace]) -> int:
    from refsgd.problems.data import DataError

    tcp = logging.getLogger("refsgd.tcp")
    level = tcp.level
    args: argparse.Namespace | None = None
    try:
        args = parse()
        warnings.showwarning = lambda message, *rest, **more: sys.stderr.write(
            f"refsgd: warning: {message}\n")  # type: ignore[assignment]
        if getattr(args, "quiet", False):
            tcp.setLevel(logging.ERROR)
        check_outputs(args)
        check_address_space()
        args.do(args)
        return 0
    except SystemExit as stop:  # of argparse, which alone succeeds so, of a command, or of a user's code
        if isinstance(stop.code, int) and (stop.code or args is None):
            return stop.code
        sys.stderr.write(f"refsgd: {no_exit(stop)}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("refsgd: interrupted; all processes ended\n")
        return 130
    except Exception as error:
        known = (DataError, RuntimeError, ArithmeticError, ValueError, OSError, AssertionError, Warning)
        said = str(error) if isinstance(error, known) else _unexpected(error)
        notes = (" ".join(note.split()) for note in getattr(error, "__notes__", ()))
        sys.stderr.write(", ".join([f"refsgd: {said}", *notes]) + "\n")
        return 2 if isinstance(error, Usage) else 1
    finally:
        tcp.setLevel(level)  # the caller's process continues


def _unexpected(error: Exception) -> str:
    """An error that no part of the library expects: its kind, its text in one line, and its place."""
    if sys.flags.dev_mode:
        raise error
    *_, frame = traceback.extract_tb(error.__traceback__)
    return (f"{type(error).__name__}: {' '.join(str(error).split())} ({frame.filename}:{frame.lineno}; "
            "`python -X dev -m refsgd ...` shows the calls that led there)")
