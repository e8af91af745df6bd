"""Time to a target, each algorithm at its own learning rate, over several seeds.

Finds the learning rate of each algorithm by the same rule, simulates it with other seeds until the target is
reached, and shows medians with exact intervals; algorithms with a common letter are not told apart. With a
race as a file, predicts the times on another machine.
"""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsgd.cli import outputs
from refsgd.cli.compare import algorithms_of
from refsgd.cli.options import (
    MACHINE,
    add_flags,
    arguments_of,
    check_priced,
    common,
    flag,
    machine_of,
    number,
    words,
)
from refsgd.experiment.computer.limits import usable_cores
from refsgd.experiment.prepare import DEFAULT_MACHINE, Training, Usage

if TYPE_CHECKING:
    from refsgd.experiment.race.entries import Race

PICTURE, WORKERS, BUDGET = "refsgd-race.png", 8, 300.0
#: arguments of a race that have a flag of the same form
RULES = ("target", "seeds", "tuning", "passes", "cadence", "common_rate", "measure", "resume", "budget")


def options(p: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    from refsgd.experiment.race.race import race

    p.add_argument("algorithms", nargs="?", metavar="A,B,...|FILE.toml",
                   help="without a flag, what compare takes with --algorithms; or a file with these and "
                        "other options: algorithms = [\"bsp\", \"ssp staleness=1\"], target = \"loss=0.1\"")
    p.add_argument("--from", dest="source", metavar="FILE",
                   help="a race that --json wrote, or digits or digits-by-label, on the given machine: "
                        "nothing is trained")
    p.add_argument("--staleness", type=number, help="as of compare")
    how = p.add_argument_group("race")
    add_flags(how, race, (*RULES, "rates", "jobs"), words(race.__doc__))
    how.add_argument("--curves", metavar="FILE.csv", help="write the curves with their bands, for plotting "
                                                          "elsewhere")
    common(p, "", PICTURE)


def do(args: argparse.Namespace) -> None:
    """Hold the race, or read it; print the table, write picture and data."""
    from refsgd.experiment.race.entries import Interrupted
    from refsgd.experiment.race.race import race

    outputs.check_output(args.resume)
    if (args.algorithms or "").endswith(".toml"):
        described(args)
    if args.source:
        deliver(read(args), args)
        return
    args.workers = args.workers or WORKERS
    arguments = arguments_of(args)
    names, slack = algorithms_of(args.algorithms or "seven", args.staleness)
    chosen = {"budget": BUDGET, **{n: value for n in RULES if (value := getattr(args, n)) is not None}}
    outputs.compile_kernels(args.data, args.net, args.quiet)
    check_priced(args, arguments.get("machine", DEFAULT_MACHINE))
    try:
        with outputs.progress(args.quiet or args.json == "-", 100) as say:
            found = race(names, options=slack, rates=rates_of(args.rates), progress=say,
                         jobs=args.jobs or max(1, int(usable_cores())), say=outputs.notice(args.quiet),
                         **chosen, **arguments)
    except Interrupted as stop:
        if stop.race.rows:
            deliver(stop.race, args)
        raise
    deliver(found, args)


def read(args: argparse.Namespace) -> Race:
    """The race of --from, on the machine that the flags describe, if any."""
    from refsgd.experiment.race.entries import Race

    found = Race.load(args.source)
    others = *RULES, "rates", "jobs", "staleness", *(f.name for f in fields(Training) if f.name != "machine")
    said = [args.algorithms, *(flag(name) for name in others if getattr(args, name) is not None)]
    if one := next(filter(None, said), ""):
        raise Usage(f"{one} with --from, whose race has its own; expected only options of the machine")
    args.workers = max(row.workers for row in found.rows)
    moved = any(getattr(args, name, None) is not None for name in MACHINE)
    return found.on(machine_of(args, found.machine)) if moved else found


def rates_of(text: str | None) -> list[float] | None:
    """The rates of a list."""
    try:
        return None if text is None else [float(rate) for rate in text.split(",") if rate.strip()]
    except ValueError:
        raise Usage(f"--rates {text}; expected numbers, such as 0.1,0.2") from None


def described(args: argparse.Namespace) -> None:
    """Take the options of a TOML file, except those that were given."""
    path = args.algorithms
    try:
        said: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Usage(f"race {path}: {error.strerror}; expected a file in TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise Usage(f"race {path}: {error}") from None
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    options(parser)
    flags, known = list[str](), vars(parser.parse_known_args([])[0])
    for name, value in said.items():
        if name == "feedback" and isinstance(value, bool):
            value = "on" if value else "off"
        elif value is False:
            if name.replace("-", "_") in known and parser.parse_known_args([flag(f"no-{name}")])[1]:
                continue  # without an opposite: as if it were not there
            name, value = f"no-{name}", True
        between = ";" if name == "algorithms" else ","
        text = between.join(map(str, value)) if isinstance(value, list) else str(value)
        flags += [text] if name == "algorithms" else [flag(name), *[text] * (value is not True)]
    try:
        found, unknown = parser.parse_known_args(flags)
    except argparse.ArgumentError as error:
        raise Usage(f"race {path}: {error}") from None
    if unknown:
        raise Usage(f"race {path}: {unknown[0].removeprefix('--').removeprefix('no-')} is unknown; expected "
                    "algorithms and options of the command, such as target")
    for name, value in vars(found).items():
        if getattr(args, name) in (None, path) or (name == "quiet" and value):
            setattr(args, name, value)


def deliver(race: Race, args: argparse.Namespace) -> None:
    """Print a race; write its files."""
    from refsgd.display import races

    def talk() -> None:
        outputs.tell(races.heading(race), 2)
        outputs.lay_out(lambda wide: races.race_table(race, wide))
        for sentence in races.sentences(race):
            outputs.tell(sentence, 2)
        if written := [f"{what}: {path}" for what, path in (("picture", args.plot), ("figures", args.json),
                                                            ("curves", args.curves)) if path]:
            print(*written, sep="   ")

    outputs.deliver([(args.json, race.to_json), (args.curves, lambda: races.curves_csv(race)),
                     (args.plot, lambda: outputs.figure("race_figure", race))], talk)
