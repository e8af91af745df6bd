"""Check your own algorithm or codec.

Checks lint, sizes, determinism, the ledger of gradients, the fixed point, descent, every schedule of a small
case, and real processes; for a codec, that entries left out arrive later; for priorities, that no part
starves. Reports a failure with its shortest schedule.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.codecs import Rule
from refsgd.algorithms.compression import Codec
from refsgd.algorithms.facts import EXCHANGE
from refsgd.cli.options import Parser, exchange_given, of_exchange, own_given, own_options
from refsgd.cli.outputs import check_outputs, deliver, tell
from refsgd.cluster.units import counted
from refsgd.display.files import save
from refsgd.experiment.arguments import Usage, catalogued, check_options, options_of, suggestion
from refsgd.experiment.functions import imported


def options(p: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    p.add_argument("target", metavar="FILE.py:FUNCTION",
                   help="your deployment function f(problem, workers, steps, sgd, *, options), your codec, "
                        "or the name of an algorithm of the catalogue; FOLDER:FUNCTION with --reports")
    flags(p)
    p.add_argument("own", nargs=argparse.REMAINDER, metavar="--OPTION VALUE",
                   help="the algorithm's own options, e.g. --staleness 1")


def flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags, which may stand before and after the target."""
    parser.add_argument("--no-processes", action="store_true", help="omit real processes")
    group = parser.add_argument_group("grading", "points per property, in a process with limits")
    group.add_argument("--as", dest="algorithm", metavar="ALGORITHM",
                       help="also check what must hold for this algorithm of the catalogue, with its options "
                            "if any are given, as in 'diloco form=heavy-ball period=2'")
    group.add_argument("--forbid", action="append", metavar="MODULE",
                       help="refuse a file that imports or calls this module or one inside it; repeatable")
    group.add_argument("--json", metavar="PATH", help="write the points as JSON; -: to standard output")
    group.add_argument("--html", metavar="PATH", help="write a report with the shortest schedules")
    group.add_argument("--gradescope", metavar="PATH", help="write Gradescope's results.json")
    group.add_argument("--reports", metavar="DIR",
                       help="grade each file .py, archive .zip or folder in a folder; for each a report as "
                            "JSON and as HTML, and a table, grades.csv")
    group.add_argument("--seconds", type=float, default=10.0, metavar="S",
                       help="processor time of a submission (default 10); on the clock as much if it does "
                            "nothing, 20 times as much in all; its memory limit is 1 GiB")


def do(args: argparse.Namespace) -> None:
    """Check the target and print one finding per line."""
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags(known)
    args.own = known.parse_known_args(args.own, args)[1]
    if any(getattr(args, name) for name in ("algorithm", "forbid", "json", "html", "gradescope", "reports")):
        grade(args)
    else:
        ungraded(args)


def _own(args: argparse.Namespace, name: str, function: Any, more: Any = None
         ) -> tuple[dict[str, Any], dict[str, Any]]:
    """The given options of an algorithm, with those that only `more` has, and those of an exchange."""
    own = Parser(prog=f"refsgd check {name}")
    flags(own)
    of_exchange(own)
    own_options(own, name.removeprefix("--as "), function)
    if more is not None:
        own_options(own, args.target, more, options_of(function))
    found = own.parse_args(args.own)
    return own_given(found), exchange_given(found)


def _is_module(name: str) -> bool:
    """Whether a module of this name can be found."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # of a package that does not exist
        return False


def grade(args: argparse.Namespace) -> None:
    """Grade the target in a child process and write the points."""
    from refsgd.experiment.compare import with_options
    from refsgd.grader import grades, grading
    from refsgd.testing.comparison import options_for

    if not 0 < args.seconds < math.inf:
        raise Usage(f"--seconds {args.seconds:g}; expected a finite number above 0, such as 10")
    for module in args.forbid or ():
        if not _is_module(module):
            raise Usage(f"--forbid {module}: there is no such module; expected one that can be imported"
                        + suggestion(module, sys.modules))
    said = dict[str, Any]()
    if args.algorithm:
        name, said = with_options(args.algorithm)
        args.algorithm = catalogued(name)
        check_options(args.algorithm, CATALOGUE[args.algorithm],
                      {option: value for option, value in said.items() if option not in EXCHANGE})
        options_for(args.algorithm, {})  # whether it can be compared
    check_outputs(args)
    path, _, function = args.target.rpartition(":")

    def files(found: dict[str, Any]) -> list[tuple[str | None, Callable[[], str]]]:
        return [(args.json, lambda: grades.as_json(found)), (args.html, lambda: grades.as_html(found)),
                (args.gradescope, lambda: grades.as_gradescope(found))]

    def options(submission: Any) -> dict[str, Any]:
        if args.algorithm is None:
            own, exchange = _own(args, args.target, submission)
        else:
            own, exchange = _own(args, f"--as {args.algorithm}", CATALOGUE[args.algorithm], submission)
            submission.without({name: value for name, value in said.items() if name not in EXCHANGE})
        return said | own | exchange

    def graded(target: str) -> dict[str, Any]:
        return grading.grade(target, args.algorithm, args.forbid or (), args.seconds, options,
                             bool(args.html or args.reports))

    if args.reports:
        reports(args, Path(path), function, graded)
        return
    if not path.endswith(".py") or not Path(path).is_file():
        why = f"target {args.target!r}; expected FILE.py:FUNCTION, of a file that exists"
        deliver(files(grading.refused(args.target, args.algorithm, why)))  # not the grade of another time
        raise Usage(why)
    found = graded(args.target)
    deliver(files(found), lambda: tell(grades.as_text(found), 5))
    if found["score"] < found["max_score"]:
        raise RuntimeError(f"{found['score']} of {found['max_score']} points; expected all")


def reports(args: argparse.Namespace, folder: Path, function: str, graded: Callable[[str], Any]) -> None:
    """Grade all submissions of a folder, and write the reports and the table, which grows with each."""
    from refsgd.grader import grades
    from refsgd.grader.folder import as_csv, of_folder

    if not folder.is_dir() or not function or args.json or args.html or args.gradescope:
        raise Usage(f"--reports with {args.target}; expected FOLDER:FUNCTION, and no other output")
    into, done = Path(args.reports), []
    if folder.resolve() in (into.resolve(), *into.resolve().parents[1:]):  # they would be graded next time
        raise Usage(f"--reports {into} is among the submissions; expected another folder, such as "
                    f"{folder / 'reports'}")
    into.mkdir(parents=True, exist_ok=True)
    for name, found, answers in of_folder(folder, into, function, args.algorithm, graded):
        done.append((name, found))
        pages = {"json": grades.as_json(found), "html": grades.as_html(found), "txt": answers}
        for kind, text in pages.items():
            (into / f"{name}.{kind}").unlink(missing_ok=True)  # of an earlier grading
            if text:
                save(into / f"{name}.{kind}", f"{text}\n")
        save(into / "grades.csv", as_csv(done))
        tell(f"{name}: {found['score']} of {found['max_score']} points")


def ungraded(args: argparse.Namespace) -> None:
    """Check the target in this process."""
    from refsgd.testing import check, check_codec
    from refsgd.testing.findings import once

    target = CATALOGUE.get(args.target) or imported(args.target)
    failed = 0
    if isinstance(target, Codec | Rule):
        Parser(prog=f"refsgd check {args.target}").parse_args(args.own)
        found = check_codec(target)
    else:
        own, exchange = _own(args, args.target, target)
        found = check(args.target if args.target in CATALOGUE else target, processes=not args.no_processes,
                      **own, **exchange)
    for finding in once(found):
        tell(str(finding), 5)
        sys.stdout.flush()
        failed += finding.held is False
    if failed:
        raise RuntimeError(f"{counted(failed, 'check')} failed; expected none")
