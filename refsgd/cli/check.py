"""``refsgd check``: run the conformance kit on your own algorithm."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.codecs import Rule
from refsgd.algorithms.compression import Codec
from refsgd.cli.options import Parser, exchange_given, of_exchange, own_given, own_options
from refsgd.cli.outputs import tell
from refsgd.cluster.units import counted
from refsgd.experiment.prepare import Usage


def add(commands: Any) -> None:
    """Add the command and its options."""
    p = commands.add_parser("check", help="check your own algorithm or codec",
                            description="Checks lint, sizes, determinism, the ledger of gradients, the fixed "
                            "point, descent, every schedule of a small case, and real processes; of a codec, "
                            "that what it leaves out arrives later; of priorities, that they starve no part. "
                            "Reports a failure with its shortest schedule.")
    p.add_argument("target", metavar="MODULE:FUNCTION",
                   help="your deployment function f(problem, workers, steps, sgd, *, options), your codec, "
                        "or the name of an algorithm of the catalogue")
    p.add_argument("--no-processes", action="store_true", help="leave real processes out")
    p.add_argument("own", nargs=argparse.REMAINDER, metavar="--OPTION VALUE",
                   help="the algorithm's own options, e.g. --staleness 1")
    p.set_defaults(do=do)


def do(args: argparse.Namespace) -> None:
    """Check the target and print one finding per line."""
    from refsgd.testing import check, check_codec

    target = CATALOGUE.get(args.target) or imported(args.target)
    own = Parser(prog=f"refsgd check {args.target}")
    own.add_argument("--no-processes", action="store_true", default=args.no_processes)
    if isinstance(target, Codec | Rule):
        own.parse_args(args.own)
        found, failed = check_codec(target), 0
    else:
        of_exchange(own)
        own_options(own, args.target, target)
        given, failed = own.parse_args(args.own), 0
        found = check(args.target if args.target in CATALOGUE else target,
                      processes=not given.no_processes, **own_given(given), **exchange_given(given))
    for finding in found:
        tell(str(finding), 5)
        sys.stdout.flush()
        failed += finding.held is False
    if failed:
        raise RuntimeError(f"{counted(failed, 'check')} failed; expected none")


def imported(target: str) -> Any:
    """The function or codec that MODULE:NAME names; imports the module."""
    import importlib
    import importlib.util

    module_name, _, name = target.partition(":")
    if not name:
        raise Usage(f"target {target!r}; expected MODULE:FUNCTION, e.g. mine.py:my_algorithm, or one of "
                    + ", ".join(CATALOGUE))
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(module_name).stem, module_name)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(module_name)
    except (ImportError, FileNotFoundError) as error:
        raise Usage(f"cannot import {module_name}: {error}; expected a module or a file that ends in .py"
                    ) from None
    except Exception as error:  # a user's module may raise anything
        raise Usage(f"cannot import {module_name}: {type(error).__name__}: {error}; expected a module that "
                    "can be imported") from None
    found = getattr(module, name, None)
    if not callable(found) and not isinstance(found, Codec | Rule):
        raise Usage(f"{module_name} has no function {name!r}; expected a deployment function, or a codec")
    return found
