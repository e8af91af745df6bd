"""``python -m benchmarks.studies NAME``: a document's experiments, redone."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.studies import NAMES, Lab, Study, parts_of, perform
from benchmarks.studies.lab import cache_folder
from benchmarks.studies.report import markdown, picture, tables
from refsgd.cli import carry_out
from refsgd.cli.options import Parser
from refsgd.cli.outputs import PIPE, deliver, progress, width
from refsgd.experiment.prepare import Usage


def main(arguments: Sequence[str] | None = None) -> int:
    """Redo a study; 0 done, 1 it failed, 2 usage error, 130 interrupted."""
    p = Parser(prog="python -m benchmarks.studies",
               description="Redoes the tables and figures of one of the documents that the library grew "
               "from, with the document's numbers beside ours and a verdict on each claim. Results are "
               "cached by input, so an interrupted "
               "study continues where it stopped.")
    p.add_argument("name", metavar="NAME", choices=NAMES, help="one of " + ", ".join(NAMES))
    p.add_argument("--quick", action="store_true", help="small sizes, a minute or two")
    p.add_argument("--parts", default="", metavar="A,B,...", help="only these tables and figures")
    p.add_argument("--seed", type=int, default=0, help="of all runs (default 0)")
    p.add_argument("--output", metavar="DIR",
                   help="write NAME.json, NAME.md and a picture for each figure there; with --parts, what is "
                   "there of the other parts stays")
    p.add_argument("--json", metavar="PATH",
                   help="write the study as JSON; - for standard output and nothing else")
    p.add_argument("--no-cache", action="store_true", help="neither use nor keep results")
    p.add_argument("--quiet", action="store_true", help="no progress")
    p.set_defaults(do=do)
    return carry_out(lambda: p.parse_args(arguments))


def do(args: argparse.Namespace) -> None:
    """Redo the experiments; print tables and verdicts, write files."""
    if args.seed < 0:
        raise Usage(f"seed {args.seed}; expected a number >= 0")
    parts = [p for p in args.parts.split(",") if p]
    try:
        parts_of(args.name, parts)
    except ValueError as error:
        raise Usage(str(error)) from None
    with progress(args.quiet or args.json == "-", 100) as say:
        study = perform(args.name, Lab(args.quick, args.seed, None if args.no_cache else cache_folder(), say),
                        parts)

    def talk() -> None:
        console = Console(width=width() or PIPE)
        for table in tables(study):
            console.print(table)

    files: list[tuple[str, Callable[[], Any]]] = [(args.json, study.to_json)]
    if args.output:
        place = Path(args.output) / study.name
        place.parent.mkdir(parents=True, exist_ok=True)
        whole = merged(study, place.with_suffix(".json")) if parts else study
        files += [(f"{place}.json", whole.to_json), (f"{place}.md", lambda: markdown(whole))]
        files += [(f"{place}-{part.key}.png", lambda part=part: picture(part))
                  for part in study.parts if part.panels]
    deliver(files, talk)


def merged(study: Study, kept: Path) -> Study:
    """The parts beside those that a file keeps from an earlier time, of the same size and seed."""
    if not kept.exists():
        return study
    older = Study.from_json(kept.read_text(encoding="utf-8"))
    if (older.quick, older.seed) != (study.quick, study.seed):
        raise Usage(f"{kept} was made with{'' if older.quick else 'out'} --quick and with seed {older.seed}; expected "
                    "the same for some of its parts: repeat all, or write elsewhere")
    return study.beside(older)


if __name__ == "__main__":
    raise SystemExit(main())
