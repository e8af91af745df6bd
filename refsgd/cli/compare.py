"""Train the same net under several algorithms: predicted | simulated | measured.

Trains one net on real images under several algorithms, as OS processes paced to one machine, and shows
formula, simulation and measurement side by side.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from refsgd.algorithms import CATALOGUE, COMPARED
from refsgd.algorithms.facts import facts_of
from refsgd.cli import outputs
from refsgd.cli.options import add_flags, arguments_of, check_priced, common, monitor, number, words
from refsgd.experiment.arguments import options_of, plain
from refsgd.experiment.compare import compare
from refsgd.experiment.options.problems import DEFAULT_DATA
from refsgd.experiment.prepare import DEFAULT_MACHINE, Usage
from refsgd.experiment.run import run

PICTURE = "refsgd-compare.png"


def options(p: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    p.add_argument("--algorithms", default="seven", metavar="A,B,...",
                   help="seven (default: sequential and the seven of the IPDPS 2021 study), all, or a "
                        "list; with options of each: 'bsp; bsp overlap=both; mine.py:my_algorithm quorum=3'")
    p.add_argument("--staleness", type=number,
                   help="slack in clocks of ssp and others that have one (default 3)")
    p.add_argument("--no-hard", action="store_true",
                   help="leave out the second panel (8 workers, shards by label, simulated)")
    common(p, "processes", PICTURE)
    add_flags(p, compare, ("unpaced", "warmup_steps"), words(run.__doc__))
    monitor(p)
    p.set_defaults(runtime=None)  # processes if the system can fork


def do(args: argparse.Namespace) -> None:
    """Compare the algorithms, print the table, write plot and data."""
    from refsgd.display.tables import comparison_table, sentences

    names, slack = algorithms_of(args.algorithms, args.staleness)
    arguments, printed = arguments_of(args), args.json != "-"
    args.plot = args.plot or (PICTURE if printed else None)
    args.json = args.json or "refsgd-compare.json"
    outputs.check_outputs(args)
    outputs.compile_kernels(args.data, args.net, args.quiet)
    with outputs.progress(args.quiet or not printed, 2 * len(names) + 1) as say:
        comparison = compare(names, runtime=args.runtime, options=slack,
                             warmup_steps=args.warmup_steps or 0, unpaced=bool(args.unpaced),
                             progress=say, say=outputs.notice(args.quiet),
                             monitor=args.monitor or False,
                             hard=not args.no_hard and args.data in (None, DEFAULT_DATA), **arguments)

    check_priced(args, arguments.get("machine", DEFAULT_MACHINE),
                 any(re.search(r"\sbatch=", name) for name in names))

    def talk() -> None:
        outputs.lay_out(lambda wide: comparison_table(comparison, wide))
        for sentence in sentences(comparison):
            outputs.tell(sentence, 2)
        print(f"picture: {' and '.join(filter(None, (args.plot, beside)))}   figures: {args.json}")

    beside = ""
    if args.plot and args.monitor:
        beside = str(Path(args.plot).with_stem(f"{Path(args.plot).stem}-resources"))
    outputs.deliver([(args.json, comparison.to_json),
                     (args.plot, lambda: outputs.figure("comparison", comparison)),
                     (beside, lambda: outputs.figure("resources_figure", comparison.results))], talk)


def algorithms_of(text: str, staleness: float | None = None) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The algorithms of a list or a group, and the slack of each that has one, in clocks, by default 3."""
    groups = {"all": list(CATALOGUE), "seven": list(COMPARED)}
    listed = text.split(";" if re.search("[ ;]", text.strip()) else ",")
    names = groups.get(text) or [a.strip() for a in listed if a.strip()]
    if not names:
        raise Usage("algorithms: none named; expected e.g. bsp,asp")
    slack = {name: {"staleness": 3 if staleness is None else staleness}
             for name, function in CATALOGUE.items()
             if "staleness" in options_of(function) and facts_of(function).gate is not None}
    chosen = {plain(re.split(r"\s", name)[0]) for name in names}
    if staleness is not None and not chosen & {*map(plain, slack)}:
        raise Usage(f"--staleness {staleness} without an algorithm that has a slack; expected one of "
                    + ", ".join(slack))
    return names, slack
