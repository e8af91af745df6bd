"""Options of the commands: common options, those of each algorithm, and the arguments that they describe."""

from __future__ import annotations

import argparse
import inspect
import math
import re
import sys
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.exchange import Exchange
from refsgd.algorithms.facts import EXCHANGE
from refsgd.cluster import placement, units
from refsgd.cluster.devices import written
from refsgd.cluster.distributions import DISTRIBUTIONS
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import PRESETS, load_timed
from refsgd.cluster.prices import on_devices
from refsgd.cluster.units import slowed
from refsgd.experiment.arguments import checked, elsewhere, nearest, options_of, plain, suggestion
from refsgd.experiment.execution.perform import RUNTIMES
from refsgd.experiment.options.architectures import ARCHITECTURES, named
from refsgd.experiment.options.problems import default_net, only_sizes
from refsgd.experiment.options.rules import OPTIMISERS
from refsgd.experiment.prepare import DEFAULT_MACHINE, Training, Usage
from refsgd.experiment.run import run

#: fields of a machine that have a flag; the others nobody knows without a calibration, which writes a file
FIELDS = [f.name for f in fields(Machine) if f.name not in ("updating", "crowding", "source")]
MACHINE = ("machine", "slow", "slow_motion", *FIELDS)
ON_MACHINE = (f"Default: {DEFAULT_MACHINE}; with --compute, what is not given costs nothing.  The word none "
              "removes the value of a file or preset.")
TRAINING = [f.name for f in fields(Training) if f.name not in ("workers", "servers", "machine", *EXCHANGE)]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with exit code 2."""

    def error(self, message: str) -> typing.NoReturn:
        """Print the error, with the choice that was probably meant, and exit."""
        choice = re.search(r"invalid choice: '(.+?)' \(choose from (.+)\)", message)
        if choice and (name := {plain(a): a for a in CATALOGUE}.get(plain(choice[1]))):
            message = f"{name} is an algorithm; did you mean: refsgd run {name}"
        elif choice:
            near = suggestion(choice[1], re.findall(r"[\w-]+", choice[2]))
            message = message.partition(" (choose")[0] + near if near else message
        elif message.endswith("required: ALGORITHM"):
            message = "no algorithm; expected one of those that refsgd list shows, such as ssp"
        sys.stderr.write(f"refsgd: {message}\n")
        raise SystemExit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse, but an unknown flag is reported by its own command."""
        found, rest = super().parse_known_args(args, namespace)
        unknown = next((text.split("=")[0] for text in rest if text.startswith("-")), None)
        known = {plain(name) for name in CATALOGUE}
        if unknown is None and any(plain(text.split(",")[0]) in known for text in rest):
            place = "after --algorithms" if "--algorithms" in self._option_string_actions else "as one word"
            self.error(f"{' '.join(rest)}: expected algorithms separated by commas, {place}")
        if unknown is not None:
            self.error(f"{self.prog.removeprefix('refsgd ')} has no option {unknown}; {self._meant(unknown)}")
        return found, rest

    def _meant(self, name: str) -> str:
        """The flag probably meant by an unknown one, and the algorithms that have it."""
        mine = [f for f in self._option_string_actions if f.startswith("--")]
        others = {flag(o): o for f in CATALOGUE.values()
                  for o in options_of(f)} if self.prog.split()[-1] in CATALOGUE else {}
        near = nearest(name, [*others, *mine])
        said = [f"did you mean {near}?"] if near and near != name else []
        if any(flag(action.dest) == name for action in self._get_positional_actions()):
            return f"expected what follows it without {name}"
        said += [elsewhere(others[near])] if near in others and near not in mine else []
        return " ".join(said) or f"see {self.prog} --help"


def words(doc: str | None) -> dict[str, str]:
    """What the list of parameters in a docstring says of each, as plain text.

    >>> words(Machine.__doc__)["server_speeds"]
    'Speed of each server relative to update; empty: all are 1.'
    """
    section = inspect.cleandoc(doc or "").partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^(\w[\w, ]*?)(?: : .*)?$((?:\n .*)*)", section, re.MULTILINE)
    return {name: " ".join(text.replace("`", "").replace("%", "%%").split())
            for names, text in entries for name in names.split(", ")}


def add_flag(group: argparse._ActionsContainer, name: str, kind: Any, **how: Any) -> None:
    """Add the flag of a parameter of a type, or with a function that reads it; not given, it is None."""
    if type(None) in (kinds := typing.get_args(kind)):
        kind = next(each for each in kinds if each is not type(None))
    if typing.get_origin(kind) is Literal:
        how["choices"] = typing.get_args(kind)
    elif kind is bool:
        how |= {"action": argparse.BooleanOptionalAction, "default": None}
    else:
        how |= {"type": kind if inspect.isfunction(kind) or kind in (int, float) else str,
                "metavar": name.upper()}
    group.add_argument(flag(name), **how)


def add_flags(group: argparse._ActionsContainer, owner: Any, names: Iterable[str], says: Mapping[str, str],
              **kinds: Any) -> None:
    """Add flags of parameters with their owner's types, or other `kinds`, and what its documentation says."""
    hints = typing.get_type_hints(owner)
    for name in names:
        add_flag(group, name, kinds.get(name, hints[name]), help=says.get(name))


def common(parser: argparse.ArgumentParser, runtime: str, picture: str) -> None:
    """Add the options that `run`, `predict`, `compare` and `race` share; without a runtime nothing is run."""
    says = words(run.__doc__)
    add_flags(parser.add_argument_group("training"), Training, TRAINING, says, batch=batch,
              optimiser=Literal[tuple(OPTIMISERS)])
    where = parser.add_argument_group("machine", ON_MACHINE)
    add_flags(where, Training, ("workers", "servers"), says)
    of_machine(where)
    of_exchange(parser)
    out = parser.add_argument_group("output")
    if runtime:
        out.add_argument("--runtime", choices=RUNTIMES, default=runtime, help=f"default {runtime}")
    files(out, picture)
    out.add_argument("--quiet", action="store_true", help="no progress")


def of_exchange(parser: argparse.ArgumentParser) -> None:
    """Add the options of an exchange."""
    add_flags(parser.add_argument_group("exchange of gradients"), Exchange, EXCHANGE, words(run.__doc__),
              feedback=Literal["on", "off"])


def files(out: argparse._ActionsContainer, picture: str) -> None:
    """Add the options for output files of a result."""
    out.add_argument("--json", metavar="PATH",
                     help="write the result as JSON; -: to standard output, and nothing else")
    out.add_argument("--plot", metavar="PATH", nargs="?", const=picture,
                     help=f"write a picture (png, pdf or svg; without a path {picture})")


def monitor(out: argparse._ActionsContainer) -> None:
    """Add the option that watches what processes use."""
    out.add_argument("--monitor", metavar="SECONDS", nargs="?", const=True, type=typed(units.seconds),
                     help=words(run.__doc__).get("monitor"))


def player_file(out: argparse._ActionsContainer) -> None:
    """Add the option for a page of the step player."""
    out.add_argument("--player", metavar="FILE.html",
                     help="write the run's first events as a page of the step player")


def typed(read: Callable[[str], float]) -> Callable[[str], float]:
    """Turn a reader into a type for argparse that reports the reader's errors."""
    def option(text: str) -> float:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return option


def batch(text: str) -> int | str:
    """A batch as a number, or as text that `refsgd.experiment.options.batches` reads."""
    return int(text) if re.fullmatch(r"\s*-?\d+\s*", text) else text


def of_machine(where: argparse._ArgumentGroup, named: bool = True) -> None:
    """Add the options for a machine, unless the command's argument is one, and for its fields."""
    if named:
        where.add_argument("--machine", metavar="FILE|PRESET", help="a machine file (TOML, JSON), or one of "
                           f"{', '.join(PRESETS)}; the flags below change it")
    says = words(Machine.__doc__)
    says["compute"] = f"{says.get('compute', '')}  Distributions: {'; '.join(DISTRIBUTIONS)}."
    add_flags(where, Machine, (name for name in FIELDS if name != "loads"), says, latency=str, bandwidth=str)
    where.add_argument("--load", dest="loads", metavar="NODE: FACTOR@SECOND,...", action="append",
                       help=f"{says.get('loads', '')}  Repeatable.")
    where.add_argument("--slow", metavar="W=SPEED", action="append",
                       help="speed of one worker: 15=0.5 for worker 15 at half speed; repeatable, or "
                            "separated by commas")
    where.add_argument("--slow-motion", type=float, metavar="K",
                       help="make the whole machine K times slower, so that real processes can keep pace")


def with_unit(text: str, unit: str) -> str:
    """": did you mean ...?", the end of an error about a number that probably lacks its unit."""
    return f": did you mean {text.strip()}{unit}?" if re.fullmatch(r"[\d.\s]+", text) else ""


def small_case(parser: argparse.ArgumentParser, size: int, steps: str) -> None:
    """Add the options for a small case without images, of `size` workers and steps by default."""
    parser.add_argument("--workers", type=int, default=size, metavar="N", help=f"default {size}")
    parser.add_argument("--servers", type=int, default=1, metavar="K", help="default 1")
    parser.add_argument("--steps", type=int, default=size, metavar="T", help=steps)
    parser.add_argument("--batch", type=batch, default=1, metavar="B",
                        help="examples in each worker's gradient, its weight: 3,1 (default: all equal)")
    of_exchange(parser)


def flag(name: str) -> str:
    """The flag of a Python option."""
    return "--" + name.replace("_", "-")


def number(text: str) -> float:
    """A number, as an int if it is whole."""
    value = float(text)
    return int(value) if math.isfinite(value) and value == int(value) else value


def own_options(parser: argparse.ArgumentParser, algorithm: str, function: Callable[..., Any],
                known: Iterable[str] = ()) -> None:
    """Add a flag for each keyword-only parameter of an algorithm's function that is not known already."""
    group, says = parser.add_argument_group(f"options of {algorithm}"), words(function.__doc__)
    for name, parameter in options_of(function).items():
        if name in known:
            continue
        kind = type(parameter.default) if parameter.annotation is parameter.empty else parameter.annotation
        if float in (kind, *typing.get_args(kind)):
            kind = number
        try:
            default = "" if parameter.default is None else f"(default {parameter.default})"
            add_flag(group, name, kind, dest=f"own_{name}", help=f"{says.get(name, '')} {default}".strip())
        except argparse.ArgumentError:
            raise Usage(f"option {name} of {algorithm.rpartition(':')[2]} is also one of "
                        f"{' '.join(parser.prog.split()[:2])}; expected another name") from None


def as_meant(arguments: Sequence[str]) -> list[str]:
    """Normalise arguments: ``help`` or none to ``--help``, ``run SSP`` to ``run ssp``, a preset to its flags.

    >>> as_meant([]), as_meant(["help", "run"]), as_meant(["run", "AD-PSGD"])
    (['--help'], ['run', '--help'], ['run', 'adpsgd'])
    """
    given = expand_preset(arguments)
    for at in range(len(given) - 1, 0, -1):  # argparse takes -5 for a number, but -5ms for a flag
        if given[at - 1].startswith("--") and "=" not in given[at - 1] and re.fullmatch(
            r"-\.?\d.*[a-zA-Z].*", given[at]):
            given[at - 1 : at + 1] = [f"{given[at - 1]}={given[at]}"]
    if given[:1] in ([], ["help"]):
        given = [*given[1:], "--help"]
    spelt = {plain(name): name for name in CATALOGUE}
    at = 1 if given[0] in ("run", "predict", "step", "explore") else 0
    return [spelt.get(plain(text), text) if i == at else text for i, text in enumerate(given)]


def expand_preset(arguments: Sequence[str]) -> list[str]:
    """``run --preset NAME ...`` as ``run ALGORITHM ...`` with the flags of the update architecture.

    >>> expand_preset(["run", "--preset", "caffe2", "--workers", "8"])
    ['run', 'allreduce', '--collective', 'halving-doubling', '--workers', '8']
    """
    given = [part for a in arguments for part in (a.split("=", 1) if a.startswith("--preset=") else [a])]
    if "--preset" not in given or given[0] not in ("run", "predict"):
        return given
    at = given.index("--preset")
    text = given[at + 1] if at + 1 < len(given) else ""
    if not (name := named(text)):
        raise Usage(f"preset {text!r} is unknown; expected one of {', '.join(ARCHITECTURES)}")
    how, rest = ARCHITECTURES[name], given[1:at] + given[at + 2 :]
    like = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    like.add_argument("--workers", type=int, default=Training.workers)
    like.add_argument("--hosts")
    like.add_argument("--machine")
    try:
        said, _ = like.parse_known_args(rest)
    except argparse.ArgumentError:
        return [given[0], how.algorithm, *rest]  # the command says what is wrong
    hosts = said.hosts or (load_timed(said.machine)[0].hosts if said.machine else "")
    options = how.on(placement.read_hosts("" if hosts == "none" else hosts) if hosts else "", said.workers)
    flags = [text for key, value in {**options, **how.fields(said.workers)}.items()
             for text in ((flag(key),) if value is True else (flag(key), str(value)))]
    more = ["--workers", str(said.workers + how.extra)] if how.extra else []
    return [given[0], how.algorithm, *flags, *rest, *more]


def first_line(algorithm: str) -> str:
    """The first sentence of an algorithm's module."""
    doc = sys.modules[CATALOGUE[algorithm].__module__].__doc__ or ""
    return doc.strip().split("\n\n")[0].replace("\n", " ").split(":", 1)[0].rstrip(".")


@checked()
def machine_of(args: argparse.Namespace, usual: Machine = DEFAULT_MACHINE) -> Machine:
    """The machine that the flags describe, starting from the usual one."""
    said = {name: value for name in FIELDS if (value := getattr(args, name, None)) is not None}
    said |= {name: getattr(Machine, name) for name, value in said.items() if value in ("none", ["none"])}
    if said.get("groups") in ("", ()):
        said["uplink"] = None
    if args.latency is not None and args.latency.strip().startswith("-"):
        raise Usage(f"latency {args.latency}; expected a time >= 0")
    base = Machine() if args.compute is not None else usual
    if args.machine is not None:
        base, timed = load_timed(args.machine)
        if timed and base.compute and args.compute is None and hasattr(args, "batch"):
            _check_timed(args, *timed)
    machine = base.with_(**said)
    for name in ("bandwidth", "inside", "uplink"):
        link = machine.between if name == "bandwidth" else getattr(machine, name)
        if said.get(name) and link.bandwidth < 1e3:
            raise Usage(f"{name} {said[name]} is {link.bandwidth:g} bytes/s; expected at least 1kB/s"
                        + with_unit(said[name], "Gbps"))
    if getattr(args, "slow_motion", None) is not None:
        machine = machine.slow_motion(args.slow_motion)
    if not args.slow:
        return machine
    varies = getattr(args, "sweep", None) or getattr(args, "resume", None)  # the number of workers
    return machine.with_(speeds=slowed(args.slow, machine.speeds,
                                       None if varies else args.workers or Training.workers))


def _check_timed(args: argparse.Namespace, net: str, size: int) -> None:
    """Warn if a machine's compute times are for another net or batch than the run's."""
    from refsgd.problems.data import NAMES

    trains = hasattr(args, "data")  # `advise` does not
    data, given = (args.data or Training.data) if trains else "", args.batch or Training.batch
    asked = args.net or (default_net(data) if data in NAMES else None)
    fits = size == given and (asked is None or asked == net or only_sizes(asked))
    if fits or (trains and data not in (*NAMES, "none")):
        return
    rate = "" if trains else " or --rate FLOP/S"
    warnings.warn(f"machine {args.machine}: its gradient times are for {net} at batch {size}, not "
                  f"{asked or 'your model'} at batch {given}; give the time of one such gradient with "
                  f"--compute DIST{rate}", stacklevel=3)


def own_given(args: argparse.Namespace) -> dict[str, Any]:
    """The algorithm's options that were given."""
    return {k[4:]: v for k, v in vars(args).items() if k.startswith("own_") and v is not None}


def exchange_given(args: argparse.Namespace) -> dict[str, Any]:
    """The exchange's options that were given."""
    given = {name: value for name in EXCHANGE if (value := getattr(args, name)) is not None}
    return given | {"feedback": given["feedback"] == "on"} if "feedback" in given else given


def arguments_of(args: argparse.Namespace) -> dict[str, Any]:
    """The given arguments, as keywords of `refsgd.run` and similar functions."""
    given = {f.name: value for f in fields(Training) if (value := getattr(args, f.name)) is not None}
    given |= exchange_given(args)
    if any(getattr(args, name, None) is not None for name in MACHINE):
        given["machine"] = machine = machine_of(args)
        given["stated"] = [name for name in FIELDS if getattr(args, name, None) is not None
                           and getattr(machine, name) != getattr(Machine, name)]
    return given | own_given(args)


def check_priced(args: argparse.Namespace, machine: Machine, swept: bool = False) -> None:
    """Warn if the batch is given, or `swept`, and times are in seconds that were not measured for a batch."""
    measured = args.machine is not None and args.compute is None and load_timed(args.machine)[1]
    given = swept or args.batch not in (None, Training.batch)
    if given and machine.paced and not on_devices(machine) and not measured:
        warnings.warn(f"compute {written(machine.compute)}: times in seconds do not follow the batch; "
                      "--compute 'device(FLOP/S)' prices a gradient by its images", stacklevel=2)
